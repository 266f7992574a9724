# ruff: noqa: E501
"""Hostile texts of ``model_new.py`` with the code that each earns. Plain data, never run."""

from __future__ import annotations

from honest_python import HEAD, forward, module

FORBIDDEN = "forbidden-operator"
STATIC = "static-check"

HOSTILE: dict[str, tuple[str, str]] = {
    "torch.relu": (FORBIDDEN, forward("return torch.relu(x)")),
    "method": (FORBIDDEN, forward("return x.sum(dim=-1)")),
    "matrix product": (FORBIDDEN, forward("return x @ self.weight")),
    "arithmetic": (FORBIDDEN, forward("y = x.view(-1)\nreturn y * 2")),
    "augmented": (FORBIDDEN, forward("out = torch.empty_like(x)\nout += x\nreturn out")),
    "negation": (FORBIDDEN, forward("return -x")),
    "comparison": (FORBIDDEN, forward("return x > 0")),
    "functional": (FORBIDDEN, forward("return F.linear(x, self.linear.weight)")),
    "functional by another name": (
        FORBIDDEN,
        module("from torch.nn.functional import relu as harmless", "return harmless(x)"),
    ),
    "layer called": (FORBIDDEN, forward("return self.linear(x)")),
    "layer's forward": (FORBIDDEN, forward("return self.linear.forward(x)")),
    "layer in a list": (FORBIDDEN, forward("return [self.linear][0](x)")),
    "layer in a dictionary": (FORBIDDEN, forward('return {"a": self.linear}["a"](x)')),
    "layer by map": (FORBIDDEN, forward("return list(map(self.linear, [x]))[0]")),
    "aten": (FORBIDDEN, forward("return torch.ops.aten.relu(x)")),
    "private functions": (FORBIDDEN, forward("return torch._C._nn.gelu(x)")),
    "module alias": (FORBIDDEN, forward("t = torch\nreturn t.exp(x)")),
    "module in a list": (FORBIDDEN, forward("return [torch, F][0].exp(x)")),
    "unbound method": (FORBIDDEN, forward("return torch.Tensor.add(x, x)")),
    "operator by reduce": (
        FORBIDDEN,
        module("import functools", "return functools.reduce(lambda a, b: a + b, x.unbind(0))"),
    ),
    "sum builtin": (FORBIDDEN, forward("return sum(x.unbind(0))")),
    "max builtin": (FORBIDDEN, forward("return max(x, self.weight)")),
    "helper function": (
        FORBIDDEN,
        module("def combine(a, b):\n    return a * b", "return combine(x, self.weight)"),
    ),
    "lying annotation of a helper": (
        FORBIDDEN,
        module("def combine(a: int, b: int) -> int:\n    return a * b", "return combine(x, x)"),
    ),
    "helper class": (
        FORBIDDEN,
        module(
            "class Op:\n    def __call__(self, a):\n        return a + 1", "op = Op()\nreturn op(x)"
        ),
    ),
    "fallback in except": (
        FORBIDDEN,
        forward("try:\n    cuda_extension.run(x)\nexcept Exception:\n    x = x.relu()\nreturn x"),
    ),
    "conditional alias": (FORBIDDEN, forward("y = x if self.n else 1\nreturn y + 1")),
    "through an attribute": (FORBIDDEN, forward("self.kept = x\nreturn self.kept * self.kept")),
    "arithmetic on the extension's result": (
        FORBIDDEN,
        forward("y = cuda_extension.copy(x)\nreturn y + self.weight"),
    ),
    "copy": (FORBIDDEN, forward("out = torch.empty_like(x)\nout.copy_(x)\nreturn out")),
    "assignment to a slice": (
        FORBIDDEN,
        forward("out = torch.empty_like(x)\nout[:] = x\nreturn out"),
    ),
    "gather by index": (FORBIDDEN, forward("return x[self.weight]")),
    "cast": (FORBIDDEN, forward("return x.half()")),
    "to": (FORBIDDEN, forward("return x.to(torch.float16)")),
    "random in forward": (FORBIDDEN, forward("return torch.randn(3)")),
    "out argument": (FORBIDDEN, forward("return torch.full((2,), 3.0, out=x)")),
    "inherited layer": (
        FORBIDDEN,
        "import torch.nn as nn\nclass ModelNew(nn.Linear):\n    pass\n",
    ),
    "math on a tensor": (FORBIDDEN, module("import math", "return math.exp(x)")),
    "torch.compile": (STATIC, forward("return torch.compile(self.linear)")),
    "item": (STATIC, forward("return x.item()")),
    "numpy": (STATIC, forward("return x.numpy()")),
    "eval": (STATIC, forward('return eval("x")')),
    "exec in a default": (STATIC, module('def f(a=exec("1")):\n    pass')),
    "exec in an annotation": (STATIC, module('def f(a: exec("1")):\n    pass')),
    "compile builtin": (STATIC, forward('compile("1", "", "eval")\nreturn x')),
    "getattr": (STATIC, forward('return getattr(torch, "re" + "lu")(x)')),
    "setattr": (STATIC, forward('setattr(torch, "allclose", print)\nreturn x')),
    "globals": (STATIC, forward('return globals()["torch"]')),
    "import builtin": (STATIC, forward('return __import__("os")')),
    "os": (STATIC, module("import os")),
    "sys through logging": (STATIC, module("import logging\nlogging.sys.exit(0)")),
    "subprocess": (STATIC, module("from subprocess import run")),
    "ctypes": (STATIC, module("import ctypes")),
    "inspect": (STATIC, module("import inspect")),
    "extension builder": (STATIC, module("from torch.utils.cpp_extension import load_inline")),
    "star import": (STATIC, module("from torch import *")),
    "relative import": (STATIC, module("from . import model")),
    "open": (STATIC, forward('open("/etc/passwd")\nreturn x')),
    "open under another name": (STATIC, module("if False:\n    open = print\nhandle = open('a')")),
    "dunder walk": (STATIC, forward("return ().__class__.__bases__[0].__subclasses__()")),
    "globals of a function": (STATIC, forward("return self.forward.__globals__")),
    "traceback frames": (
        STATIC,
        forward(
            "try:\n    raise ValueError\nexcept ValueError as e:\n    return e.__traceback__.tb_frame"
        ),
    ),
    "generator frame": (STATIC, forward("g = (i for i in x.shape)\nreturn g.gi_frame")),
    "frame by pattern": (
        STATIC,
        forward("match x:\n    case object(__class__=c):\n        return c\nreturn x"),
    ),
    "load_state_dict": (
        STATIC,
        HEAD + "        return x\n\n    def load_state_dict(self, *a, **k):\n        return None\n",
    ),
    "call overridden": (
        STATIC,
        HEAD + "        return x\n\n    def __call__(self, x):\n        return x\n",
    ),
    "torch function": (
        STATIC,
        HEAD + "        return x\n\n    def __torch_function__(self, *a):\n        return None\n",
    ),
    "tensor subclass": (
        STATIC,
        module("class Lazy(torch.Tensor):\n    pass".replace("class", "import torch\nclass")),
    ),
    "patched torch": (STATIC, forward("torch.allclose = print\nreturn x")),
    "patched class": (STATIC, forward("nn.Module.forward = print\nreturn x")),
    "tensor data": (STATIC, forward("x.data = self.weight\nreturn x")),
    "pointer": (STATIC, forward("return x.data_ptr()")),
    "threads": (STATIC, forward("torch.set_num_threads(64)\nreturn x")),
    "flags": (STATIC, forward('torch.set_float32_matmul_precision("medium")\nreturn x')),
    "environment": (STATIC, module("from os import environ")),
    "exit": (STATIC, module("raise SystemExit(0)")),
    "exit builtin": (STATIC, module("exit(0)")),
    "no class": (STATIC, "import torch\n"),
    "reference inherited": (STATIC, "from model import Model\nclass ModelNew(Model):\n    pass\n"),
    "coding line": (STATIC, "# -*- coding: rot13 -*-\n" + forward("return x")),
    "syntax error": (STATIC, "class ModelNew(:\n"),
    "null byte": (STATIC, "\0"),
    "deep nesting": (STATIC, forward("return " + "-" * 20000 + "1")),
    "async": (STATIC, module("async def f():\n    pass")),
    "layer outside the constructor": (STATIC, forward("layer = nn.Linear(2, 2)\nreturn x")),
    "metaclass": (STATIC, module("class A(metaclass=type):\n    pass")),
    "hash in a string": (STATIC, forward('s = "# not a comment"; eval("x")\nreturn x')),
    "class from type": (STATIC, forward('return type("A", (), {})')),
    "module hooks": (STATIC, forward("self.register_forward_hook(print)\nreturn x")),
    "truth of a tensor": (STATIC, forward("if x:\n    return x\nreturn x")),
    "partial layer": (
        FORBIDDEN,
        module("import functools", "return functools.partial(self.linear)(x)"),
    ),
    "no_grad wrap": (FORBIDDEN, forward("return torch.no_grad()(self.linear)(x)")),
    "type layer": (STATIC, forward("return type(self.linear)(4, 4)(x)")),
    "parameters op": (FORBIDDEN, forward("for p in self.parameters():\n    y = p * 2\nreturn x")),
    "init closure": (
        FORBIDDEN,
        HEAD.replace("self.n = n", "self.n = n; self.f = lambda a: a * 2")
        + "        return self.f(x)\n",
    ),
    "reduce layer": (
        FORBIDDEN,
        module("import functools", "return functools.reduce(self.linear, [x])"),
    ),
    "nn.init": (FORBIDDEN, forward("nn.init.uniform_(x)\nreturn x")),
    "children": (STATIC, forward("for m in self.children():\n    x = m(x)\nreturn x")),
    "property": (
        FORBIDDEN,
        HEAD
        + "        return self.w * 2\n\n    @property\n    def w(self):\n        return self.weight\n",
    ),
    "star": (FORBIDDEN, forward("def f(*a):\n    return a[0] + a[1]\nreturn f(x, x)")),
    "kw": (FORBIDDEN, forward("def f(a, *, b):\n    return b + a\nreturn f(1, b=x)")),
    "dict lookup": (FORBIDDEN, forward("d = {'a': x, 'b': x}\nreturn d['a'] + 1")),
    "zip": (FORBIDDEN, forward("return [a + b for a, b in zip([x], [x])]")),
    "walrus": (FORBIDDEN, forward("if (y := x.view(-1)) is not None:\n    return y + 1\nreturn x")),
    "lambda key": (FORBIDDEN, forward("return (lambda a: a.exp())(x)")),
    "nested": (FORBIDDEN, forward("def g():\n    return x + 1\nreturn g()")),
    "try tensor": (
        FORBIDDEN,
        forward("try:\n    y = x\nexcept ValueError:\n    y = None\nreturn y * 3"),
    ),
    "list append": (FORBIDDEN, forward("l = []\nl.append(x)\nreturn l[0] + 1")),
    "static method": (
        FORBIDDEN,
        HEAD
        + "        return self.f(x)\n\n    @staticmethod\n    def f(a):\n        return a + 1\n",
    ),
    "class method": (
        FORBIDDEN,
        HEAD
        + "        return self.f(x)\n\n    @classmethod\n    def f(cls, a):\n        return a.exp()\n",
    ),
    "generator": (FORBIDDEN, forward("def g():\n    yield x\nfor y in g():\n    return y + 1")),
    "global f": (FORBIDDEN, module("FN = F\nT = torch", "return T.sigmoid(x)")),
    "match": (FORBIDDEN, forward("match x:\n    case y:\n        return y + 1")),
    "for target": (FORBIDDEN, forward("for y in (x, x):\n    z = y + 1\nreturn z")),
    "unpack": (FORBIDDEN, forward("a, b = x, 3\nreturn a * b")),
    "dc": (
        FORBIDDEN,
        module(
            "import torch\nfrom dataclasses import dataclass\n@dataclass\nclass D:\n    t: torch.Tensor",
            "return D(x).t + 1",
        ),
    ),
    "import nn fn": (STATIC, "from torch.nn.functional import *\n" + forward("return x")),
    "torch sub": (
        FORBIDDEN,
        module("import torch.nn.functional", "return torch.nn.functional.relu(x)"),
    ),
    "sorted": (FORBIDDEN, forward("return sorted([x])")),
}
