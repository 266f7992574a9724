"""Walks ``model_new.py`` and applies the rules, following values through the program.

Nothing of the file is run. Statements are followed in order, branches are joined, loops are walked
twice, and a function of the file is walked again for every combination of argument kinds that it
is called with. A walk that grows beyond a limit is refused. What stays unknown is allowed: an
operator is refused only where an operand is a tensor on some path that was followed.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence

from cudaagent.judge import python_rules as rules
from cudaagent.judge.python_access import (
    INTO_KERNEL,
    OPERATOR,
    STATIC,
    Located,
    Refusal,
    attribute,
    check_definition,
    check_import,
    module_name,
)
from cudaagent.judge.python_calls import Arguments
from cudaagent.judge.python_expressions import Expressions
from cudaagent.judge.python_names import bound_names, is_generator, line_of, parameter_names
from cudaagent.judge.python_values import (
    NONE,
    OTHER,
    PARAMETER,
    TENSOR,
    TENSORS,
    UNKNOWN,
    ClassInfo,
    FunctionInfo,
    Kind,
    Scope,
    Value,
    common,
    container,
    merge,
    sequence,
)

_MAX_DEPTH = 24


class Checker(Expressions):
    """One file under check."""

    def __init__(self, tree: ast.Module) -> None:
        super().__init__(tree)
        self._depth = 0
        self._constructs = False
        self._memo: dict[tuple[int, bool, tuple[Value, ...]], Value] = {}
        self._functions: list[FunctionInfo] = []
        self._classes: list[ClassInfo] = []
        self._walked: set[int] = set()

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
        module = Scope("module", None, {}, bound_names(self._tree.body))
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
            self._walked.clear()
            for name in ("__init__", "forward"):
                for info in self._classes:
                    if (method := info.methods.get(name)) is not None:
                        self._enter(method)
            for function in self._functions:
                # What calls have been through already was seen with better arguments.
                if id(function.node) not in self._walked:
                    self._enter(function)

    def _refuse_shadowing(self, names: frozenset[str]) -> None:
        for name in sorted(names):
            if hasattr(builtins, name) and name not in rules.BUILTINS:
                self._line = line_of(self._tree, name)
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
        self._walked.add(id(node))
        constructor = self._constructs
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
        scope = Scope(
            "function",
            function.scope,
            {},
            bound_names(body) | parameter_names(node.args),
            function.owner,
            constructor,
        )
        self._bind_parameters(node.args, values, scope, described=described, arguments=arguments)
        line, before, self._constructs = self._line, self._constructs, constructor
        self._depth += 1
        if isinstance(node, ast.Lambda):
            result = self.value(node.body, scope)
        else:
            self._block(node.body, scope)
            result = scope.returned or NONE
            if is_generator(node):
                result = sequence(result if result != NONE else UNKNOWN)
        self._depth -= 1
        self._line, self._constructs = line, before
        self._memo[key] = result
        return result

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
            is_forward = scope.owner is not None and scope.owner.is_module and described
            unknown = TENSORS if is_forward else sequence(PARAMETER)
            scope.names[signature.vararg.arg] = container(rest) if rest else unknown
        if signature.kwarg is not None:
            scope.names[signature.kwarg.arg] = sequence(common(given.values()))

    def _block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for statement in body:
            self._statement(statement, scope)

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
                    "an augmented assignment", [self.value(target, scope), self.value(value, scope)]
                )
                self._assign(target, self.value(target, scope), scope)
            case ast.Return(value=value):
                result = NONE if value is None else self.value(value, scope)
                scope.returned = result if scope.returned is None else merge(scope.returned, result)
            case ast.Expr(value=value):
                self.value(value, scope)
            case ast.Delete(targets=targets):
                for target in targets:
                    if not isinstance(target, ast.Name):
                        self.value(target, scope)
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
        self._steps += len(before) * len(ends) // 4
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
                check_import(alias.name)
                whole = alias.asname is not None
                name = alias.asname or alias.name.partition(".")[0]
                scope.names[name] = Value(Kind.MODULE, alias.name if whole else name)
            return
        if node.level or node.module is None:
            self._refuse("relative imports are not allowed; model_new.py stands alone")
        check_import(node.module)
        for alias in node.names:
            if alias.name == "*":
                self._refuse(f"from {node.module} import * is not allowed; import names")
            value = module_name(node.module, alias.name)
            if node.module == "__future__":
                continue
            scope.names[alias.asname or alias.name] = value

    def _define_function(self, node: ast.FunctionDef, scope: Scope) -> None:
        owner = scope.owner if scope.kind == "class" else None
        check_definition(node.name, owner)
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
                property_value = Value(Kind.FUNCTION, "property", function=function)
                owner.attributes[node.name] = property_value
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
                self._refuse(
                    f"class {node.name} inherits from a torch class; inherit from nn.Module "
                    "and hold parameters",
                    OPERATOR if value.kind is Kind.LAYER_CLASS else STATIC,
                )
        for keyword in node.keywords:
            value = self.value(keyword.value, scope)
            if keyword.arg == "metaclass" and value.name not in ("abc.ABCMeta", "enum.EnumMeta"):
                self._refuse("metaclasses are not allowed")
        for decorator in node.decorator_list:
            self._decorator(decorator, scope)
        info = ClassInfo(node.name, is_module, tuple(bases))
        self._classes.append(info)
        inner = Scope("class", scope, {}, bound_names(node.body), info)
        scope.names[node.name] = Value(Kind.CLASS, node.name, owner=info)
        self._block(node.body, inner)
        for name, value in inner.names.items():
            if name not in info.methods and name not in info.attributes:
                info.attributes[name] = value

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
