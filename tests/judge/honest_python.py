# ruff: noqa: E501
"""Honest texts of ``model_new.py`` in many styles; all must pass. Plain data, never run."""

from __future__ import annotations

HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
import cuda_extension


class ModelNew(nn.Module):
    def __init__(self, n: int = 8):
        super().__init__()
        self.n = n
        self.linear = nn.Linear(n, n)
        self.weight = nn.Parameter(torch.empty(n))

    def forward(self, x):
"""


def forward(body: str) -> str:
    return HEAD + "".join(f"        {line}\n" for line in body.strip("\n").split("\n"))


def module(before: str, body: str = "return x") -> str:
    return before.strip("\n") + "\n" + forward(body)


HONEST: dict[str, str] = {
    "plain": forward("""
out = torch.empty_like(x)
cuda_extension.scale(x, self.weight, out)
return out
"""),
    "docstring, pass and a defensive try": '''
"""A fused layer.

try:
    with open("this is text") as handle: eval(handle)
except Exception: pass
"""
import logging

import torch
from torch import nn

import cuda_extension

log = logging.getLogger(__name__)


class Marker:
    def __init__(self) -> None:
        pass


class ModelNew(nn.Module):
    """Says try: and pass and torch.relu(x) in prose."""

    def __init__(self) -> None:
        super().__init__()
        self.marker = Marker()
        try:
            log.info("constructed %s", "ModelNew")
        except Exception:
            pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        cuda_extension.relu(x, out)
        return out
''',
    "shape arithmetic": forward("""
batch, channels, height, width = x.shape
rows = batch * channels
pixels = height * width // 2 + 1
last = x.shape[-1] % 4 == 0 and x.size(0) > 1 or x.numel() ** 2 > 7
if last and not rows % 2:
    rows += 1
strides = [stride * 4 for stride in x.stride()]
total = 1
for size in x.shape:
    total *= size
out = torch.empty((batch, channels, pixels), dtype=x.dtype, device=x.device)
cuda_extension.pool(x, out, rows, -pixels, max(height, width), min(strides), abs(total - 3))
return out.view(batch, channels, -1)
"""),
    "integer annotated helper": module(
        """
import math
from functools import lru_cache


@lru_cache(maxsize=None)
def ceil_div(a: int, b: int) -> int:
    return (a + b - 1) // b


def tiles(count, width=16):
    return math.ceil(count / width) * width
""",
        """
blocks = ceil_div(x.numel(), 256) + tiles(x.shape[0]) + tiles(count=x.size(-1), width=8)
out = x.new_empty(x.shape[:-1] + (blocks,))
cuda_extension.run(x, out, int(blocks / 2))
return out
""",
    ),
    "convolution": """
import torch
import torch.nn as nn

import cuda_extension as ext


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=padding)
        self.bn = nn.BatchNorm2d(out_channels)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1) * 0.02)
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding

    def forward(self, x):
        n, _, h, w = x.size()
        oh = (h + 2 * self.padding - self.kernel_size) // self.stride + 1
        ow = (w + 2 * self.conv.padding[0] - self.conv.kernel_size[0]) // self.conv.stride[0] + 1
        y = torch.empty(n, self.conv.out_channels, oh, ow, dtype=x.dtype, device=x.device)
        ext.conv_bn(x.contiguous(), self.conv.weight, self.conv.bias, self.bn.weight, self.bn.bias,
                    self.bn.running_mean, self.bn.running_var, float(self.bn.eps), self.bias, y)
        return y
""",
    "sequential and module list": """
import torch
import torch.nn as nn
import cuda_extension


class ModelNew(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        layers = []
        for a, b in zip(sizes[:-1], sizes[1:]):
            layers.append(nn.Linear(a, b))
            layers.append(nn.ReLU())
        self.net = nn.Sequential(*layers)
        self.extra = nn.ModuleList([nn.Linear(s, s) for s in sizes])

    def forward(self, x):
        for index in range(0, len(self.net), 2):
            layer = self.net[index]
            out = torch.empty(x.size(0), layer.weight.size(0), dtype=x.dtype)
            cuda_extension.linear_relu(x, layer.weight, layer.bias, out)
            x = out
        for position, layer in enumerate(self.extra):
            out = torch.empty_like(x)
            cuda_extension.linear(x, layer.weight, layer.bias, out, position)
            x = out
        return x
""",
    "dataclass configuration": """
from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional, Tuple

import torch
from torch import nn
from torch import Tensor

import cuda_extension


@dataclass(frozen=True)
class Tile:
    rows: int
    columns: int = 64
    tags: List[str] = field(default_factory=list)

    @property
    def area(self) -> int:
        return self.rows * self.columns


class ModelNew(nn.Module):
    def __init__(self, rows: int, bias: Optional[float] = None) -> None:
        super().__init__()
        self.tile = Tile(rows=rows)
        self.register_buffer("table", torch.zeros(rows, dtype=torch.float32))
        self.shift = 0.0 if bias is None else bias * 2

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        count = self.tile.area // 2 + self.tile.rows
        first = x.new_empty(count)
        second = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
        cuda_extension.run(x, self.table, first, second, self.shift + 1.0)
        if mask is not None:
            cuda_extension.mask(second, mask)
        return first, second
""",
    "checks and errors": forward("""
if x.dim() != 2 or x.dtype != torch.float32:
    raise ValueError(f"expected a float32 matrix, got {x.dtype} with {x.ndim} dimensions")
assert x.is_contiguous(), "the input must be contiguous"
if not isinstance(x, torch.Tensor):
    raise TypeError("got {}".format(type(x).__name__))
out = torch.empty(x.shape[0], dtype=x.dtype)
while False:
    break
cuda_extension.rows(x, out)
return out
"""),
    "views": forward("""
left, right = x.chunk(2, dim=-1)
rows = x.flatten(1).transpose(0, 1).unsqueeze(-1).expand(-1, -1, 4)[..., 0].permute(1, 0)
part = x[:, 1:, None].squeeze(-1).narrow(0, 0, 1).detach().reshape(-1)
out = torch.empty_like(left).contiguous()
cuda_extension.glu(left, right, rows, part, out)
return torch.transpose(out, 0, 1).T.mT.view_as(out)
"""),
    "helper methods of own names": """
import torch
import torch.nn as nn
import cuda_extension


class Kernels:
    def __init__(self, width):
        self.width = width

    def relu(self, x, out):
        cuda_extension.relu(x, out, self.width + 1)

    def sum(self, rows):
        return rows * self.width


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(n))

    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.scale(x, self.scale, out)
        return out


class ModelNew(nn.Module):
    def __init__(self, n):
        super(ModelNew, self).__init__()
        self.kernels = Kernels(n)
        self.blocks = nn.ModuleList([nn.Linear(n, n)])
        self.block = Block(n)
        self.softmax = nn.Softmax(dim=-1)

    def _run(self, x, out):
        self.kernels.relu(x, out)
        return self.kernels.sum(x.size(0)) + 1

    def forward(self, x):
        out = torch.empty_like(x)
        size = self._run(x, out)
        result = self.block(out)
        cuda_extension.finish(result, size)
        return result
""",
    "enumeration, table of functions and comprehension": module(
        """
import enum
import itertools
from collections import namedtuple, defaultdict


class Mode(enum.Enum):
    RELU = 1
    GELU = 2


Plan = namedtuple("Plan", ["rows", "columns"])
TABLE = {Mode.RELU: cuda_extension.relu, Mode.GELU: cuda_extension.gelu} if False else {}
SIZES = {64: 8, 128: 16}
NAMES = ", ".join(f"{a}x{b}" for a, b in itertools.product(SIZES, SIZES.values()))
""".replace("import enum", "import enum\nimport cuda_extension"),
        """
plan = Plan(x.size(0), x.size(1))
seen = defaultdict(int)
seen[plan.rows] += 1
outs = [torch.empty_like(x) for _ in range(2)]
for mode, out in zip(Mode, outs):
    cuda_extension.apply(x, out, mode.value)
block = SIZES.get(x.size(-1), 32) * 2
shapes = {name: tuple(out.shape) for name, out in zip("ab", outs)}
return {"a": outs[0], "b": outs[1]}
""",
    ),
    "optional bias and cached scratch": """
import torch, warnings
import torch.nn as nn
import cuda_extension


class ModelNew(nn.Module):
    def __init__(self, n, use_bias=True, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        if use_bias:
            self.bias = nn.Parameter(torch.zeros(n))
        else:
            self.register_parameter("bias", None)
        self.eps = eps
        self._scratch = None

    def forward(self, x):
        bias = self.bias
        rows = x.numel() // x.shape[-1]
        if self._scratch is None or self._scratch.shape[0] != rows:
            self._scratch = torch.empty(rows, dtype=torch.float32, device=x.device)
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        if bias is None:
            cuda_extension.rms(x, self.weight, self._scratch, out, self.eps)
        else:
            cuda_extension.rms_bias(x, self.weight, bias, self._scratch, out, self.eps)
        if rows > 1 << 30:
            warnings.warn("many rows")
        return out
""",
    "base class and abstract method": """
from abc import ABC, abstractmethod
import torch
from torch import nn
import cuda_extension as cx


class Launcher(ABC):
    @abstractmethod
    def launch(self, x, out): ...


class Rows(Launcher):
    def launch(self, x, out):
        cx.rows(x, out)

    def __repr__(self):
        return "Rows()"


class Base(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim
        self.launcher = Rows()

    def extra_repr(self):
        return f"dim={self.dim}"


class ModelNew(Base):
    def __init__(self, dim: int = 1):
        super().__init__(dim)

    @torch.no_grad()
    def forward(self, x):
        shape = list(x.shape)
        shape[self.dim] = 1
        out = torch.full(shape, float("-inf"), dtype=x.dtype)
        self.launcher.launch(x, out)
        match shape:
            case [a, b]:
                return out.reshape(a, b)
            case _:
                return out
""",
    "generators, lambdas and star arguments": forward("""
half = lambda n: n // 2
def pieces(total, *, step=4):
    for start in range(0, total, step):
        yield start, min(step, total - start)
outs = []
for start, count in pieces(x.size(0)):
    piece = x[start:start + count]
    out = torch.empty((count, *x.shape[1:]), dtype=x.dtype)
    cuda_extension.piece(*(piece, out), half(count))
    outs += [out]
sizes = sorted(map(lambda out: out.size(0), outs), key=lambda n: -n)
biggest = sum(out.numel() for out in outs) + sizes[0]
return tuple(outs)
"""),
    "extension result": module(
        "",
        """
out = cuda_extension.forward(x, self.weight)
work = int(cuda_extension.workspace(x, 3)) * 2
size = cuda_extension.limit(4) + 1
scratch = torch.empty(work + size, dtype=torch.uint8)
cuda_extension.second(out, scratch)
return out
""",
    ),
    "make layer helper": """import torch
import torch.nn as nn
import cuda_extension
class ModelNew(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.layer = self._make(a, b)
        def inner(k):
            return nn.Conv2d(k, k, 3)
        self.conv = inner(a)
    def _make(self, a, b):
        layers = []
        for i in range(2):
            layers += [nn.Linear(a, b)]
        return nn.Sequential(*layers, nn.ReLU())
    def forward(self, x):
        y = torch.empty(x.shape[0], self.layer[0].weight.shape[0])
        cuda_extension.f(x, self.layer[0].weight, y)
        return y
""",
    "int forward arg": HEAD.replace("self, x)", "self, x, k: int = 3)")
    + "        out = x.new_empty(x.size(0) * k)\n        cuda_extension.f(x, out)\n        return out\n",
    "transposed conv": forward(
        "p = self.linear\nrows, cols = p.weight.shape\nout = torch.empty(rows + cols, x.shape[0] // 2)\ncuda_extension.f(x, p.weight.t().contiguous(), out)\nreturn out"
    ),
    "global const": module(
        "import torch\nBLOCK = 256\nEMPTY = torch.empty(0)\nDTYPES = (torch.float32, torch.float16)",
        "assert x.dtype in DTYPES\ngrid = (x.numel() + BLOCK - 1) // BLOCK\ncuda_extension.f(x, EMPTY, grid)\nreturn x",
    ),
    "helper alloc": module(
        "import torch\ndef alloc(x, *shape):\n    n = 1\n    for s in shape:\n        n *= s\n    return torch.empty(shape, dtype=x.dtype), n * 4",
        "out, n = alloc(x, x.size(0), 3)\ncuda_extension.f(x, out, n + 1)\nreturn out",
    ),
    "args": HEAD.replace("self, x)", "self, *inputs)")
    + "        x, y = inputs\n        n = x.size(0) + len(inputs)\n        out = torch.empty(n)\n        cuda_extension.f(x, y, out)\n        return out\n",
    "list of params": """import torch, math
import torch.nn as nn
import cuda_extension
class ModelNew(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.ws = nn.ParameterList([nn.Parameter(torch.empty(s)) for s in sizes])
        bound = 1 / math.sqrt(len(sizes))
        nn.init.uniform_(self.ws[0], -bound, bound)
        self.scale = sum(sizes) / len(sizes)
        self.act = nn.ModuleDict({"a": nn.ReLU()})
        self.out_features = max(sizes)
        self.eps: float = 1e-5
    def forward(self, x):
        for i, w in enumerate(self.ws):
            out = torch.empty_like(x)
            cuda_extension.f(x, w, out, self.scale * i)
            x = out
        return x
""",
    "lstm": """import torch
from torch import nn
import cuda_extension
class ModelNew(nn.Module):
    def __init__(self, i, h):
        super().__init__()
        self.rnn = nn.LSTM(i, h, batch_first=True)
        self.hidden = h
    def forward(self, x, h0=None):
        b, t, _ = x.shape
        if h0 is None:
            h0 = x.new_zeros(1, b, self.hidden)
        out = x.new_empty(b, t, self.hidden)
        cuda_extension.lstm(x, h0, self.rnn.weight_ih_l0, self.rnn.weight_hh_l0, self.rnn.bias_ih_l0, out)
        return out, h0
""",
    "if bias": forward(
        "bias = self.linear.bias if self.linear.bias is not None else torch.empty(0)\nout = torch.empty_like(x)\ncuda_extension.f(x, bias, out)\nok = x.shape == out.shape and x.device == out.device\nif not ok:\n    raise RuntimeError('bad')\nreturn out"
    ),
    "size tuple": forward(
        "shape = tuple(x.shape[:-1]) + (1,)\nout = torch.empty(*shape)\nk = shape[0] * shape[-1]\nk -= x.stride(0) % 2\ncuda_extension.f(x, out, k)\nreturn out.squeeze(-1)"
    ),
    "name in scope": forward(
        "for name, p in self.named_parameters():\n    if p.dim() > 1 and name.endswith('weight'):\n        n = p.shape[0] * 2\ncuda_extension.f(x)\nreturn x"
    ),
    "logging": module(
        "import logging\nlogger = logging.getLogger(__name__)\nlogger.setLevel(logging.INFO)",
        "logger.debug('shape %s', tuple(x.shape))\nprint('x', x.shape)\nreturn x",
    ),
    "strict": HEAD.replace("self, x)", "self, x: 'torch.Tensor') -> 'torch.Tensor'")
    + "        n: int = x.numel()\n        m = n if n > 3 else 3\n        return x.view(m // m, -1)\n",
    "main guard": forward("return x") + "\n\nif __name__ == '__main__':\n    print(ModelNew())\n",
    "comment": forward("# torch.relu(x) and eval('x')\ns = 'import os; os.system'\nreturn x"),
    "init copies": "import torch\nimport torch.nn as nn\nimport cuda_extension\nclass ModelNew(nn.Module):\n    def __init__(self, *args, **kwargs):\n        super().__init__()\n        self.w = nn.Parameter(torch.randn(args[0], kwargs.get('m', 3)) / 4 + 1)\n        self.register_buffer('m', torch.tril(torch.ones(3, 3)))\n    def forward(self, x):\n        return x\n",
}
