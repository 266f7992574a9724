"""Follows the expressions of ``model_new.py`` and applies the rules to them.

Nothing of the file is run. ``python_check`` adds statements, definitions and calls of the file's
own functions.
"""

from __future__ import annotations

import ast
import builtins
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NoReturn

from cudaagent.judge import python_rules as rules
from cudaagent.judge.python_access import INTO_KERNEL, OPERATOR, STATIC, Refusal, attribute
from cudaagent.judge.python_calls import Arguments, Caller
from cudaagent.judge.python_names import (
    constant_index,
    defined_attributes,
    enclosing_class,
    is_ellipsis,
    target_names,
)
from cudaagent.judge.python_values import (
    NONE,
    NUMBER,
    OTHER,
    PARAMETER,
    TENSOR,
    UNKNOWN,
    FunctionInfo,
    Kind,
    Scope,
    Value,
    common,
    container,
    holds,
    merge,
    sequence,
)

_MAX_STEPS = 200_000

_SYMBOLS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
    ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip


class Expressions(ABC):
    """Abstract values of expressions; one file under check."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._line = 1
        self._steps = 0
        self._defined = defined_attributes(tree)
        self._caller = Caller(self._call_function, self._defined)

    @abstractmethod
    def _call_function(self, function: FunctionInfo, arguments: Arguments) -> Value:
        """What a call of the file's own function gives, walking it with these arguments."""

    @abstractmethod
    def _assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Bind a target."""

    def _refuse(self, text: str, code: str = STATIC) -> NoReturn:
        raise Refusal(code, text)

    def _tick(self, node: ast.AST) -> None:
        self._line = getattr(node, "lineno", self._line)
        self._steps += 1
        if self._steps > _MAX_STEPS:
            self._refuse("the file is too entangled to be checked; write it plainly")

    def annotated(self, node: ast.expr) -> Value:
        """The value that an annotation promises; unknown where it says nothing useful."""
        if isinstance(node, ast.Constant):
            if node.value is None:
                return NONE
            if isinstance(node.value, str):
                try:
                    return self.annotated(ast.parse(node.value, mode="eval").body)
                except (SyntaxError, ValueError):
                    return UNKNOWN
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in ("int", "float", "bool", "Number"):
                return NUMBER
            if name == "Size":
                return sequence(NUMBER)
            return {"Tensor": TENSOR, "Parameter": TENSOR, "str": OTHER}.get(name, UNKNOWN)
        if isinstance(node, ast.BinOp):
            return merge(self.annotated(node.left), self.annotated(node.right))
        if isinstance(node, ast.Subscript):
            name = node.value.attr if isinstance(node.value, ast.Attribute) else ""
            name = node.value.id if isinstance(node.value, ast.Name) else name
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            values = [self.annotated(part) for part in inner if not is_ellipsis(part)]
            if name in ("Optional", "Union", "Final", "ClassVar", "Annotated") and values:
                result = values[0]
                for value in values[1:] if name == "Union" else ():
                    result = merge(result, value)
                return result
            if name in ("tuple", "Tuple", "list", "List", "Sequence", "Iterable"):
                return sequence(common(values))
        return UNKNOWN

    def _truth(self, node: ast.expr, scope: Scope) -> None:
        if self.value(node, scope).kind is Kind.TENSOR:
            self._refuse("the truth of a tensor reads its values; test shapes or `is None`")

    def _operate(self, what: str, operands: Sequence[Value]) -> None:
        if any(operand.kind is Kind.TENSOR for operand in operands):
            text = f"{what} on a tensor computes with torch; {INTO_KERNEL}"
            self._refuse(f"{text} (an argument that is a number: annotate it, n: int)", OPERATOR)
        if any(operand.kind is Kind.RESULT for operand in operands):
            text = (
                f"{what} on what cuda_extension returned computes with torch; do it in the kernel"
            )
            self._refuse(f"{text} (a number: write int(...) around the call)", OPERATOR)

    def _iterate(self, value: Value) -> Value:
        if value.kind is Kind.TENSOR:
            return TENSOR
        if value.kind is Kind.LAYER:
            return Value(Kind.LAYER, "child")
        if value.kind is Kind.CONTAINER:
            return value.element or UNKNOWN
        return PARAMETER if value == PARAMETER else UNKNOWN

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """The abstract value of an expression.

        Raises:
            Refusal: the rules do not allow it.
        """
        self._tick(node)
        line = self._line
        result = self._expression(node, scope)
        self._line = line
        return result

    def _expression(self, node: ast.expr, scope: Scope) -> Value:
        match node:
            case ast.Constant(value=value):
                if value is None:
                    return NONE
                return NUMBER if isinstance(value, int | float | complex) else OTHER
            case ast.Name(id=name):
                return self._name(name, scope)
            case ast.Attribute(value=base, attr=name):
                return self._attribute(self.value(base, scope), name)
            case ast.Call():
                return self._call(node, scope)
            case ast.BinOp(left=left, right=right):
                return self._binary(node, self.value(left, scope), self.value(right, scope), scope)
            case ast.UnaryOp(op=op, operand=operand):
                return self._unary(op, self.value(operand, scope), scope)
            case ast.Compare():
                return self._compare(node, scope)
            case ast.BoolOp(values=values):
                found = [self.value(value, scope) for value in values]
                if any(value.kind is Kind.TENSOR for value in found[:-1]):
                    self._refuse("`and`/`or` on a tensor reads its values; write `is None` tests")
                result = found[0]
                for value in found[1:]:
                    result = merge(result, value)
                return result
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._truth(test, scope)
                return merge(self.value(body, scope), self.value(orelse, scope))
            case ast.NamedExpr(target=target, value=value):
                result = self.value(value, scope)
                self._assign(target, result, scope)
                return result
            case ast.Subscript():
                return self._subscript(node, scope)
            case _:
                return self._composite(node, scope)

    def _composite(self, node: ast.expr, scope: Scope) -> Value:
        match node:
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                return self._display(elements, scope)
            case ast.Dict(keys=keys, values=values):
                for key in keys:
                    if key is not None:
                        self.value(key, scope)
                return sequence(common([self.value(value, scope) for value in values]))
            case ast.JoinedStr(values=values):
                for value in values:
                    self.value(value, scope)
                return OTHER
            case ast.FormattedValue(value=value, format_spec=spec):
                self.value(value, scope)
                if spec is not None:
                    self.value(spec, scope)
                return OTHER
            case ast.Lambda(args=signature):
                for default in (*signature.defaults, *signature.kw_defaults):
                    if default is not None:
                        self.value(default, scope)
                function = FunctionInfo("lambda", node, scope)
                self._call_function(function, Arguments((PARAMETER,) * len(signature.args), {}))
                return Value(Kind.FUNCTION, "lambda", function=function)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, scope)
            case ast.Slice(lower=lower, upper=upper, step=step):
                for part in (lower, upper, step):
                    if part is not None:
                        self.value(part, scope)
                return OTHER
            case ast.Starred(value=value):
                return sequence(self._iterate(self.value(value, scope)))
            case ast.Yield(value=value) | ast.YieldFrom(value=value):
                result = NONE if value is None else self.value(value, scope)
                if isinstance(node, ast.YieldFrom):
                    result = self._iterate(result)
                scope.returned = result if scope.returned is None else merge(scope.returned, result)
                return UNKNOWN
            case _:
                self._refuse(f"{type(node).__name__} is not allowed in model_new.py")

    def _display(self, elements: Sequence[ast.expr], scope: Scope) -> Value:
        values: list[Value] = []
        exact = True
        for element in elements:
            value = self.value(element, scope)
            if not isinstance(element, ast.Starred):
                values.append(value)
            elif value.items is not None:
                values.extend(value.items)
            else:
                exact = False
                values.append(value.element or UNKNOWN)
        return container(values) if exact else sequence(common(values))

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope
    ) -> Value:
        inner = Scope("function", scope, {}, target_names(node.generators), None, scope.constructor)
        for generator in node.generators:
            if generator.is_async:
                self._refuse("async code is not allowed")
            self._assign(generator.target, self._iterate(self.value(generator.iter, inner)), inner)
            for condition in generator.ifs:
                self._truth(condition, inner)
        if isinstance(node, ast.DictComp):
            self.value(node.key, inner)
            return sequence(self.value(node.value, inner))
        return sequence(self.value(node.elt, inner))

    def _name(self, name: str, scope: Scope) -> Value:
        current: Scope | None = scope
        first = True
        while current is not None:
            if name in current.names and (first or current.kind != "class"):
                return current.names[name]
            if name in current.bound and (current.kind == "function" or current.kind == "module"):
                return UNKNOWN
            first = False
            current = current.parent
        if name in rules.BUILTINS:
            return Value(Kind.BUILTIN, name)
        if name in ("__name__", "__debug__", "__doc__"):
            return OTHER
        if hasattr(builtins, name) or name.startswith("__"):
            self._refuse(f"{name} is not allowed: no dynamic code, introspection, files or process "
                         "control in model_new.py")  # fmt: skip
        self._refuse(f"{name} is defined nowhere in model_new.py")

    def _attribute(self, base: Value, name: str) -> Value:
        found = attribute(base, name, self._defined)
        if found.name == "property" and found.function is not None:
            return self._call_function(found.function, Arguments((base,), {}))
        return found

    def _call(self, node: ast.Call, scope: Scope) -> Value:
        target = self.value(node.func, scope)
        positional: list[Value] = []
        for argument in node.args:
            value = self.value(argument, scope)
            if isinstance(argument, ast.Starred):
                positional.extend(value.items or (value.element or UNKNOWN,))
            else:
                positional.append(value)
        keywords = {
            keyword.arg or f"**{position}": self.value(keyword.value, scope)
            for position, keyword in enumerate(node.keywords)
        }
        self._line = node.lineno
        if target.kind is Kind.METHOD and isinstance(node.func, ast.Attribute) and positional:
            if target.name in ("append", "add", "insert", "appendleft") and target.base is not None:
                self._absorb(node.func.value, target.base, positional[-1], scope)
            if target.name in ("register_buffer", "register_parameter"):
                self._register(node, positional, scope)
        if target.kind is Kind.BUILTIN and target.name == "super":
            return Value(Kind.SUPER, owner=enclosing_class(scope))
        return self._caller.call(target, Arguments(tuple(positional), keywords), scope)

    def _absorb(self, base: ast.expr, owner: Value, value: Value, scope: Scope) -> None:
        """A container that gets a new entry no longer has the elements that were known."""
        if owner.kind is Kind.CONTAINER and isinstance(base, ast.Name) and base.id in scope.names:
            empty = owner.items == () or owner.element in (None, UNKNOWN)
            element = value if empty else common([owner.element or UNKNOWN, value])
            scope.names[base.id] = sequence(element)

    def _register(self, node: ast.Call, positional: Sequence[Value], scope: Scope) -> None:
        """A buffer or parameter becomes an attribute of its class."""
        owner = enclosing_class(scope)
        first = node.args[0]
        if owner is None or not isinstance(first, ast.Constant) or not isinstance(first.value, str):
            self._refuse('name the buffer by a plain string: self.register_buffer("scale", ...)')
        value = positional[1] if len(positional) > 1 else TENSOR
        known = owner.attributes.get(first.value)
        owner.attributes[first.value] = value if known is None else merge(known, value)

    def _binary(self, node: ast.BinOp, left: Value, right: Value, scope: Scope) -> Value:
        kinds = {left.kind, right.kind}
        linear = isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div)
        if scope.constructor and linear and kinds == {Kind.TENSOR, Kind.NUMBER}:
            # An initial value, such as torch.randn(n) * 0.02; the judge overwrites it.
            return TENSOR
        symbol = _SYMBOLS.get(type(node.op), "this operator")
        self._operate(f"`{symbol}`", [left, right])
        if left.kind is Kind.NUMBER and right.kind is Kind.NUMBER:
            return NUMBER
        if left.kind is Kind.CONTAINER or right.kind is Kind.CONTAINER:
            return self._combine(left, right)
        if left.kind is Kind.OTHER and isinstance(node.op, ast.Mod | ast.Add):
            return OTHER
        return UNKNOWN

    def _combine(self, left: Value, right: Value) -> Value:
        if left.items is not None and right.items is not None:
            return container((*left.items, *right.items))
        parts = [v.element or UNKNOWN for v in (left, right) if v.kind is Kind.CONTAINER]
        return sequence(common(parts))

    def _unary(self, op: ast.unaryop, operand: Value, scope: Scope) -> Value:
        if isinstance(op, ast.Not):
            if operand.kind is Kind.TENSOR:
                self._refuse("`not` on a tensor reads its values; write an `is None` test")
            return NUMBER
        if operand.kind is Kind.TENSOR and scope.constructor and isinstance(op, ast.USub):
            return TENSOR
        self._operate("a unary operator", [operand])
        return operand if operand.kind is Kind.NUMBER else UNKNOWN

    def _compare(self, node: ast.Compare, scope: Scope) -> Value:
        left = self.value(node.left, scope)
        for operator, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.value(comparator, scope)
            if isinstance(operator, ast.In | ast.NotIn):
                if right.kind is Kind.TENSOR or holds(left, Kind.TENSOR):
                    self._operate("`in`", [TENSOR])
            elif not isinstance(operator, ast.Is | ast.IsNot):
                self._operate("a comparison", [left, right])
            left = right
        return NUMBER

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        base = self.value(node.value, scope)
        index = self.value(node.slice, scope)
        if base.kind in (Kind.TENSOR, Kind.RESULT):
            parts = index.items if index.items is not None else (index,)
            if any(holds(part, Kind.TENSOR) or part.kind is Kind.CONTAINER for part in parts):
                self._refuse(
                    f"indexing with a tensor or list gathers with torch; {INTO_KERNEL}", OPERATOR
                )
            return TENSOR
        if base.kind is Kind.LAYER:
            return Value(Kind.LAYER, "child")
        if base.kind is not Kind.CONTAINER:
            return base if base.kind in (Kind.LIBRARY, Kind.BUILTIN) else UNKNOWN
        if isinstance(node.slice, ast.Slice):
            return sequence(base.element or UNKNOWN)
        items, position = base.items or (), constant_index(node.slice)
        if position is not None and -len(items) <= position < len(items):
            return items[position]
        return base.element or UNKNOWN
