"""Walks ``model_new.py`` and applies the rules, following values through the program.

Nothing of the file is run. Statements are followed in order, branches are joined, loops are walked
twice, and a function of the file is walked again for every combination of argument kinds that it is
called with. A walk that grows beyond a limit is refused. What stays unknown is allowed: an operator
is refused only where an operand is a tensor on some path that was followed.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from typing import NoReturn

from cudaagent.judge import python_rules as rules
from cudaagent.judge.python_access import (
    INTO_KERNEL,
    OPERATOR,
    STATIC,
    Refusal,
    attribute,
    module_name,
)
from cudaagent.judge.python_calls import Arguments, Caller
from cudaagent.judge.python_values import (
    NONE,
    NUMBER,
    OTHER,
    PARAMETER,
    TENSOR,
    UNKNOWN,
    ClassInfo,
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
_MAX_DEPTH = 24


class Located(Exception):
    """A refusal with its line."""

    def __init__(self, refusal: Refusal, line: int) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal
        self.line = line


class Checker:
    """One file under check."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._line = 1
        self._steps = 0
        self._depth = 0
        self._memo: dict[tuple[int, bool, tuple[Value, ...]], Value] = {}
        self._functions: list[FunctionInfo] = []
        self._classes: list[ClassInfo] = []
        self._defined = _defined_attributes(tree)
        self._caller = Caller(self._call_function, self._defined)

    def check(self) -> None:
        """Walk the file.

        Raises:
            Located: the first thing that the rules refuse.
        """
        try:
            self._check()
        except Refusal as refusal:
            raise Located(refusal, self._line) from None

    def _check(self) -> None:
        module = Scope("module", None, {}, _bound(self._tree.body))
        self._refuse_shadowing(module.bound)
        self._block(self._tree.body, module)
        model = module.names.get("ModelNew")
        if (
            model is None
            or model.kind is not Kind.CLASS
            or not model.owner
            or not model.owner.is_module
        ):
            self._line = 1
            self._refuse("model_new.py defines no class ModelNew(nn.Module)")
        # Attributes that one method sets are read by another: two rounds see both orders.
        for _ in range(2):
            self._memo.clear()
            for info in self._classes:
                if (init := info.methods.get("__init__")) is not None:
                    self._enter(init)
            for function in self._functions:
                self._enter(function)

    # Scopes and functions

    def _refuse(self, text: str, code: str = STATIC) -> NoReturn:
        raise Refusal(code, text)

    def _refuse_shadowing(self, names: frozenset[str]) -> None:
        for name in sorted(names):
            if hasattr(builtins, name) and name not in rules.BUILTINS:
                self._line = _line_of(self._tree, name)
                self._refuse(
                    f"{name} is a refused builtin; give the module's name another spelling"
                )

    def _enter(self, function: FunctionInfo) -> None:
        """Walk a function with the arguments that its signature describes."""
        node = function.node
        if isinstance(node, ast.Lambda):
            return
        is_forward = (
            function.owner is not None and function.owner.is_module and node.name == "forward"
        )
        values: list[Value] = []
        parameters = [*node.args.posonlyargs, *node.args.args]
        for position, parameter in enumerate(parameters):
            if position == 0 and function.bound:
                values.append(Value(Kind.INSTANCE, owner=function.owner))
            elif parameter.annotation is not None:
                values.append(self.annotated(parameter.annotation))
            else:
                values.append(TENSOR if is_forward else PARAMETER)
        self._walk_function(function, values, described=True)

    def _call_function(self, function: FunctionInfo, arguments: Arguments) -> Value:
        """What a call of the file's own function gives, walking it with these arguments."""
        node = function.node
        names = [p.arg for p in (*node.args.posonlyargs, *node.args.args)]
        values: list[Value] = []
        for position, name in enumerate(names):
            if position < len(arguments.positional):
                values.append(arguments.positional[position])
            else:
                values.append(arguments.keywords.get(name, UNKNOWN))
        return self._walk_function(function, values, arguments=arguments)

    def _walk_function(
        self,
        function: FunctionInfo,
        values: Sequence[Value],
        *,
        described: bool = False,
        arguments: Arguments | None = None,
    ) -> Value:
        node = function.node
        constructor = function.scope.constructor or self._constructs
        if function.owner is not None and function.owner.is_module and function.name == "__init__":
            constructor = True
        extra = () if arguments is None else tuple(arguments.keywords.values())
        key = (id(node), constructor, (*values, OTHER, *extra))
        if key in self._memo:
            return self._memo[key]
        if self._depth >= _MAX_DEPTH:
            return UNKNOWN
        self._memo[key] = UNKNOWN
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        scope = Scope("function", function.scope, {}, _bound(body) | _parameters(node.args),
                      function.owner, constructor)  # fmt: skip
        self._bind_parameters(node.args, values, scope, described=described, arguments=arguments)
        line, before, self._constructs = self._line, self._constructs, constructor
        self._depth += 1
        if isinstance(node, ast.Lambda):
            result = self.value(node.body, scope)
        else:
            self._block(node.body, scope)
            result = scope.returned or NONE
            if _is_generator(node):
                result = sequence(result if result != NONE else UNKNOWN)
        self._depth -= 1
        self._line, self._constructs = line, before
        self._memo[key] = result
        return result

    _constructs = False

    def _bind_parameters(
        self,
        signature: ast.arguments,
        values: Sequence[Value],
        scope: Scope,
        *,
        described: bool,
        arguments: Arguments | None,
    ) -> None:
        positional = [*signature.posonlyargs, *signature.args]
        defaults = [None] * (len(positional) - len(signature.defaults)) + list(signature.defaults)
        for parameter, value, default in zip(positional, values, defaults, strict=True):
            if value in (UNKNOWN, PARAMETER) and default is not None:
                known = self.value(default, scope.parent or scope)
                value = known if known.kind is Kind.NUMBER or not described else value
            if value == UNKNOWN and parameter.annotation is not None:
                value = self.annotated(parameter.annotation)
            scope.names[parameter.arg] = value
        given = {} if arguments is None else arguments.keywords
        for parameter in signature.kwonlyargs:
            known = self.annotated(parameter.annotation) if parameter.annotation else PARAMETER
            scope.names[parameter.arg] = given.get(parameter.arg, known)
        if signature.vararg is not None:
            rest = () if arguments is None else arguments.positional[len(positional) :]
            scope.names[signature.vararg.arg] = container(rest) if rest else sequence(PARAMETER)
        if signature.kwarg is not None:
            scope.names[signature.kwarg.arg] = sequence(common(given.values()))

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
            values = [self.annotated(part) for part in inner if not _is_ellipsis(part)]
            if name in ("Optional", "Union", "Final", "ClassVar", "Annotated") and values:
                result = values[0]
                for value in values[1:] if name == "Union" else ():
                    result = merge(result, value)
                return result
            if name in ("tuple", "Tuple", "list", "List", "Sequence", "Iterable"):
                return sequence(common(values))
        return UNKNOWN

    # Statements

    def _block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for statement in body:
            self._statement(statement, scope)

    def _tick(self, node: ast.AST) -> None:
        self._line = getattr(node, "lineno", self._line)
        self._steps += 1
        if self._steps > _MAX_STEPS:
            self._refuse("the file is too entangled to be checked; write it plainly")

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        self._tick(node)
        match node:
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope)
            case ast.FunctionDef():
                self._define_function(node, scope)
            case ast.ClassDef():
                self._define_class(node, scope)
            case ast.Assign(targets=targets, value=value):
                result = self.value(value, scope)
                for target in targets:
                    self._assign(target, result, scope)
            case ast.AnnAssign():
                self._annotated_assign(node, scope)
            case ast.AugAssign(target=target, value=value):
                self._operate(
                    "an augmented assignment", [self._load(target, scope), self.value(value, scope)]
                )
                self._assign(target, self._load(target, scope), scope)
            case ast.Return(value=value):
                result = NONE if value is None else self.value(value, scope)
                scope.returned = result if scope.returned is None else merge(scope.returned, result)
            case ast.Expr(value=value):
                self.value(value, scope)
            case ast.Delete(targets=targets):
                for target in targets:
                    if not isinstance(target, ast.Name):
                        self._load(target, scope)
            case ast.Raise() | ast.Assert() | ast.Global() | ast.Nonlocal() | ast.Pass():
                self._simple(node, scope)
            case ast.Break() | ast.Continue():
                pass
            case ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith():
                self._refuse("async code is not allowed; forward is a plain function")
            case _:
                self._compound(node, scope)

    def _simple(self, node: ast.stmt, scope: Scope) -> None:
        if isinstance(node, ast.Raise):
            for part in (node.exc, node.cause):
                if part is not None:
                    self.value(part, scope)
        elif isinstance(node, ast.Assert):
            self._truth(node.test, scope)
            if node.msg is not None:
                self.value(node.msg, scope)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            self._refuse_shadowing(frozenset(node.names))

    def _compound(self, node: ast.stmt, scope: Scope) -> None:
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                self._truth(test, scope)
                self._branches([body, orelse], scope)
            case ast.While(test=test, body=body, orelse=orelse):
                for _ in range(2):
                    self._truth(test, scope)
                    self._branches([body, []], scope)
                self._block(orelse, scope)
            case ast.For(target=target, iter=iterable, body=body, orelse=orelse):
                element = self._iterate(self.value(iterable, scope))
                for _ in range(2):
                    self._assign(target, element, scope)
                    self._branches([body, []], scope)
                self._block(orelse, scope)
            case ast.With(items=items, body=body):
                for item in items:
                    context = self.value(item.context_expr, scope)
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, context, scope)
                self._block(body, scope)
            case ast.Try() | ast.TryStar():
                self._try(node, scope)
            case ast.Match(subject=subject, cases=cases):
                value = self.value(subject, scope)
                for case in cases:
                    self._pattern(case.pattern, value, scope)
                    if case.guard is not None:
                        self._truth(case.guard, scope)
                self._branches([*(case.body for case in cases), []], scope)
            case _:
                self._refuse(f"{type(node).__name__} is not allowed in model_new.py")

    def _branches(self, bodies: Sequence[Sequence[ast.stmt]], scope: Scope) -> None:
        before = scope.names
        ends: list[dict[str, Value]] = []
        for body in bodies:
            scope.names = dict(before)
            self._block(body, scope)
            if not (
                body and isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)
            ):
                ends.append(scope.names)
        if not ends:
            scope.names = before
            return
        joined = dict(ends[0])
        for other in ends[1:]:
            for name, value in other.items():
                joined[name] = merge(joined[name], value) if name in joined else value
        scope.names = joined

    def _try(self, node: ast.Try | ast.TryStar, scope: Scope) -> None:
        before = dict(scope.names)
        self._block(node.body, scope)
        self._block(node.orelse, scope)
        for name, value in before.items():
            scope.names[name] = merge(value, scope.names.get(name, value))
        for handler in node.handlers:
            if handler.type is not None:
                self.value(handler.type, scope)
            if handler.name is not None:
                scope.names[handler.name] = OTHER
        self._branches([*(handler.body for handler in node.handlers), []], scope)
        self._block(node.finalbody, scope)

    def _pattern(self, pattern: ast.pattern, value: Value, scope: Scope) -> None:
        for part in ast.walk(pattern):
            if isinstance(part, ast.MatchAs | ast.MatchStar) and part.name is not None:
                whole = isinstance(pattern, ast.MatchAs) and part is pattern
                scope.names[part.name] = value if whole else self._iterate(value)
            elif isinstance(part, ast.MatchMapping) and part.rest is not None:
                scope.names[part.rest] = UNKNOWN
            elif isinstance(part, ast.MatchClass):
                self.value(part.cls, scope)
                for name in part.kwd_attrs:
                    attribute(value, name, self._defined)
            elif isinstance(part, ast.MatchValue):
                self.value(part.value, scope)

    def _annotated_assign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if scope.kind != "function":
            self.value(node.annotation, scope)
        promised = self.annotated(node.annotation)
        if node.value is not None:
            value = self.value(node.value, scope)
            self._assign(node.target, value if value != UNKNOWN else promised, scope)
        elif isinstance(node.target, ast.Name):
            self._assign(node.target, promised, scope)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._importable(alias.name)
                whole = alias.asname is not None
                name = alias.asname or alias.name.partition(".")[0]
                scope.names[name] = Value(Kind.MODULE, alias.name if whole else name)
            return
        if node.level or node.module is None:
            self._refuse("relative imports are not allowed; model_new.py stands alone")
        self._importable(node.module)
        for alias in node.names:
            if alias.name == "*":
                self._refuse(f"from {node.module} import * is not allowed; import names")
            value = module_name(node.module, alias.name)
            if node.module == "__future__":
                continue
            scope.names[alias.asname or alias.name] = value

    def _importable(self, module: str) -> None:
        if module == rules.EXTENSION or module in rules.MODULES:
            return
        if module.startswith("torch."):
            self._refuse(f"import {module} is not allowed; of torch only torch, torch.nn and "
                         "torch.nn.functional may be imported")  # fmt: skip
        names = ", ".join(sorted(name for name in rules.MODULES if "." not in name))
        self._refuse(f"import {module} is not allowed; allowed are {names} and {rules.EXTENSION}")

    def _define_function(self, node: ast.FunctionDef, scope: Scope) -> None:
        owner = scope.owner if scope.kind == "class" else None
        self._refuse_definition(node.name, owner)
        decorators = [self._decorator(decorator, scope) for decorator in node.decorator_list]
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.value(default, scope)
        for parameter in ast.walk(node.args):
            if isinstance(parameter, ast.arg) and parameter.annotation is not None:
                self.value(parameter.annotation, scope)
        if node.returns is not None:
            self.value(node.returns, scope)
        outer = scope
        while outer.kind == "class" and outer.parent is not None:
            outer = outer.parent
        bound = (
            owner is not None
            and "staticmethod" not in decorators
            and "classmethod" not in decorators
        )
        function = FunctionInfo(node.name, node, outer, owner, bound)
        self._functions.append(function)
        value = Value(Kind.FUNCTION, node.name, function=function)
        if owner is not None and scope.kind == "class":
            if "property" in decorators or "functools.cached_property" in decorators:
                owner.attributes[node.name] = (
                    self.annotated(node.returns) if node.returns else UNKNOWN
                )
            elif bound:
                owner.methods[node.name] = function
            else:
                # Of a class method's own first parameter nothing is known.
                owner.attributes[node.name] = value if "staticmethod" in decorators else UNKNOWN
        scope.names[node.name] = value

    def _decorator(self, node: ast.expr, scope: Scope) -> str:
        value = self.value(node, scope)
        if value.kind in (Kind.LAYER, Kind.LAYER_CLASS, Kind.TORCH, Kind.EXTENSION):
            self._refuse("this decorator is not allowed")
        return value.name

    def _refuse_definition(self, name: str, owner: ClassInfo | None) -> None:
        if name.startswith("__") and (owner is None or name not in rules.DUNDER_METHODS):
            self._refuse(f"defining {name} is not allowed")
        if owner is not None and owner.is_module:
            if name in rules.MODULE_RESERVED or name == "__call__":
                self._refuse(f"{name} belongs to nn.Module; the judge relies on it, rename yours")

    def _define_class(self, node: ast.ClassDef, scope: Scope) -> None:
        bases: list[ClassInfo] = []
        is_module = False
        for base in node.bases:
            value = self.value(base, scope)
            if value.kind is Kind.CLASS and value.owner is not None:
                bases.append(value.owner)
                is_module = is_module or value.owner.is_module
            elif value.kind is Kind.LAYER_CLASS and value.name == "Module":
                is_module = True
            elif value.kind is Kind.LAYER_CLASS or value.name == "torch.Tensor":
                self._refuse(f"class {node.name} inherits from a torch class; inherit from nn.Module "
                             "and hold parameters", OPERATOR if value.kind is Kind.LAYER_CLASS else STATIC)  # fmt: skip
        for keyword in node.keywords:
            value = self.value(keyword.value, scope)
            if keyword.arg == "metaclass" and value.name not in ("abc.ABCMeta", "enum.EnumMeta"):
                self._refuse("metaclasses are not allowed")
        for decorator in node.decorator_list:
            self._decorator(decorator, scope)
        info = ClassInfo(node.name, is_module, tuple(bases))
        self._classes.append(info)
        inner = Scope("class", scope, {}, _bound(node.body), info)
        scope.names[node.name] = Value(Kind.CLASS, node.name, owner=info)
        self._block(node.body, inner)
        for name, value in inner.names.items():
            if name not in info.methods and name not in info.attributes:
                info.attributes[name] = value

    # Targets

    def _assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        self._line = getattr(target, "lineno", self._line)
        match target:
            case ast.Name(id=name):
                if name.startswith("__") and name not in rules.DUNDER_ASSIGNED:
                    self._refuse(f"assigning {name} is not allowed")
                scope.names[name] = value
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                self._unpack(elements, value, scope)
            case ast.Starred(value=inner):
                self._assign(inner, sequence(self._iterate(value)), scope)
            case ast.Attribute(value=base, attr=name):
                self._assign_attribute(self.value(base, scope), name, value)
            case ast.Subscript(value=base, slice=index):
                owner = self.value(base, scope)
                self.value(index, scope)
                if owner.kind in (Kind.TENSOR, Kind.RESULT):
                    self._refuse(f"x[...] = y copies with torch; {INTO_KERNEL}", OPERATOR)
                if owner.kind not in (Kind.CONTAINER, Kind.UNKNOWN, Kind.INSTANCE, Kind.OTHER):
                    self._refuse("only entries of own lists and dictionaries may be assigned")
                self._absorb(base, owner, value, scope)
            case _:
                self._refuse("this assignment is not allowed")

    def _absorb(self, base: ast.expr, owner: Value, value: Value, scope: Scope) -> None:
        """A container that gets a new entry no longer has the elements that were known."""
        if owner.kind is Kind.CONTAINER and isinstance(base, ast.Name) and base.id in scope.names:
            empty = owner.items == () or owner.element in (None, UNKNOWN)
            element = value if empty else common([owner.element or UNKNOWN, value])
            scope.names[base.id] = sequence(element)

    def _unpack(self, elements: Sequence[ast.expr], value: Value, scope: Scope) -> None:
        starred = any(isinstance(element, ast.Starred) for element in elements)
        items = value.items
        if items is None or starred or len(items) != len(elements):
            items = tuple(self._iterate(value) for _ in elements)
        for element, item in zip(elements, items, strict=True):
            if isinstance(element, ast.Starred):
                self._assign(element.value, sequence(self._iterate(value)), scope)
            else:
                self._assign(element, item, scope)

    def _assign_attribute(self, base: Value, name: str, value: Value) -> None:
        if base.kind in (Kind.TENSOR, Kind.RESULT):
            if name == "requires_grad":
                return
            self._refuse(f"assigning .{name} of a tensor is not allowed")
        if base.kind not in (Kind.INSTANCE, Kind.UNKNOWN, Kind.CLASS):
            self._refuse(f"assigning .{name} here is not allowed; set attributes of self only")
        if name.startswith("__") or name in rules.MODULE_RESERVED or name == "forward":
            self._refuse(f"assigning .{name} is not allowed; the judge relies on it")
        if base.owner is not None:
            known = base.owner.attributes.get(name)
            base.owner.attributes[name] = value if known is None else merge(known, value)

    # Expressions

    def _load(self, target: ast.expr, scope: Scope) -> Value:
        return self.value(target, scope)

    def _truth(self, node: ast.expr, scope: Scope) -> None:
        if self.value(node, scope).kind is Kind.TENSOR:
            self._refuse("the truth of a tensor reads its values; test shapes or `is None`")

    def _operate(self, what: str, operands: Sequence[Value]) -> None:
        if any(operand.kind is Kind.TENSOR for operand in operands):
            self._refuse(f"{what} on a tensor computes with torch; {INTO_KERNEL}. (If the operand is "
                         "a number, annotate the argument, such as n: int.)", OPERATOR)  # fmt: skip
        if any(operand.kind is Kind.RESULT for operand in operands):
            self._refuse(f"{what} on what cuda_extension returned computes with torch; do it in the "
                         "kernel (if it is a number, write int(...) around the call)", OPERATOR)  # fmt: skip

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
        inner = Scope(
            "function", scope, {}, _bound_by_targets(node.generators), None, scope.constructor
        )
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
        return attribute(base, name, self._defined)

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
        if target.kind is Kind.BUILTIN and target.name == "super":
            return Value(Kind.SUPER, owner=_enclosing_class(scope))
        return self._caller.call(target, Arguments(tuple(positional), keywords), scope)

    def _binary(self, node: ast.BinOp, left: Value, right: Value, scope: Scope) -> Value:
        kinds = {left.kind, right.kind}
        if Kind.TENSOR in kinds and scope.constructor and kinds <= {Kind.TENSOR, Kind.NUMBER}:
            if isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div) and Kind.NUMBER in kinds:
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
        if base.items is not None and (position := _constant_index(node.slice)) is not None:
            if -len(base.items) <= position < len(base.items):
                return base.items[position]
        return base.element or UNKNOWN


_SYMBOLS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
    ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _constant_index(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _constant_index(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def _enclosing_class(scope: Scope) -> ClassInfo | None:
    current: Scope | None = scope
    while current is not None:
        if current.owner is not None:
            return current.owner
        current = current.parent
    return None


def _is_generator(node: ast.FunctionDef) -> bool:
    return any(isinstance(part, ast.Yield | ast.YieldFrom) for part in _own_nodes(node.body))


def _own_nodes(body: Sequence[ast.AST]) -> list[ast.AST]:
    """All nodes below ``body`` that belong to this scope and not to an inner function or class."""
    found: list[ast.AST] = []
    queue = list(body)
    while queue:
        node = queue.pop()
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            queue.extend(ast.iter_child_nodes(node))
    return found


def _bound(body: Sequence[ast.AST]) -> frozenset[str]:
    """Names that a body binds, but not those it declares global or nonlocal."""
    names: set[str] = set()
    outer: set[str] = set()
    for node in _own_nodes(body):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                names.add(name)
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                names.add(name)
            case ast.alias(name=name, asname=alias):
                names.add(alias or name.partition(".")[0])
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                if name is not None:
                    names.add(name)
            case ast.MatchMapping(rest=name):
                if name is not None:
                    names.add(name)
            case ast.Global(names=declared) | ast.Nonlocal(names=declared):
                outer.update(declared)
            case _:
                pass
    return frozenset(names - outer)


def _bound_by_targets(generators: Sequence[ast.comprehension]) -> frozenset[str]:
    return _bound([generator.target for generator in generators])


def _parameters(signature: ast.arguments) -> frozenset[str]:
    return frozenset(node.arg for node in ast.walk(signature) if isinstance(node, ast.arg))


def _defined_attributes(tree: ast.Module) -> frozenset[str]:
    """Every attribute that the file itself defines: methods, fields and assigned attributes."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.ClassDef(body=body):
                names.update(_bound(body))
            case ast.Call(
                func=ast.Attribute(attr="register_buffer" | "register_parameter"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                names.add(name)
            case _:
                pass
    return frozenset(names)


def _line_of(tree: ast.Module, name: str) -> int:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node.lineno
        if isinstance(node, ast.Name) and node.id == name:
            return node.lineno
    return 1
