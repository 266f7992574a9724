"""What calling an abstract value gives, or why it is refused.

Used by ``python_check``, which walks the file's own functions through the callback it passes in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from cudaagent.judge import python_rules as rules
from cudaagent.judge.python_access import INTO_KERNEL, OPERATOR, STATIC, Refusal, method_result
from cudaagent.judge.python_values import (
    NONE,
    NUMBER,
    OTHER,
    SHAPE,
    TENSOR,
    TENSORS,
    UNKNOWN,
    FunctionInfo,
    Kind,
    Scope,
    Value,
    common,
    container,
    holds,
    sequence,
)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call."""

    positional: tuple[Value, ...]
    keywords: Mapping[str, Value]

    def all(self) -> tuple[Value, ...]:
        return (*self.positional, *self.keywords.values())

    def have(self, kind: Kind) -> bool:
        """Whether an argument is of this kind or a container with such an element."""
        return any(holds(value, kind) for value in self.all())


class Caller:
    """The rules of calls."""

    def __init__(
        self, walk: Callable[[FunctionInfo, Arguments], Value], defined: Collection[str]
    ) -> None:
        self._walk = walk
        self._defined = defined

    def call(self, target: Value, arguments: Arguments, scope: Scope) -> Value:
        """The result of ``target(*arguments)``.

        Raises:
            Refusal: the rules do not allow the call.
        """
        match target.kind:
            case Kind.FUNCTION:
                return (
                    UNKNOWN if target.function is None else self._walk(target.function, arguments)
                )
            case Kind.METHOD:
                return self._method(target, arguments, scope)
            case Kind.TORCH:
                return _torch(target.name, arguments, scope)
            case Kind.BUILTIN:
                return self._builtin(target.name, arguments)
            case Kind.LIBRARY:
                return self._library(target.name, arguments, scope)
            case Kind.EXTENSION:
                return Value(Kind.RESULT) if arguments.have(Kind.TENSOR) else UNKNOWN
            case Kind.LAYER:
                raise Refusal(
                    OPERATOR,
                    "calling an nn layer computes with torch; layers may only hold "
                    f"parameters (pass .weight and .bias to the extension): {INTO_KERNEL}",
                )
            case Kind.LAYER_CLASS:
                if not scope.constructor:
                    raise Refusal(
                        STATIC,
                        f"nn.{target.name} is constructed outside __init__; construct "
                        "layers in __init__ to hold parameters, and never call them",
                    )
                if target.name in ("ParameterList", "ParameterDict"):
                    return TENSORS
                return Value(Kind.LAYER, target.name)
            case Kind.CLASS:
                return self._construct(target, arguments)
            case Kind.INSTANCE:
                return self._call_instance(target, arguments)
            case Kind.MODULE | Kind.NUMBER | Kind.TENSOR | Kind.CONTAINER | Kind.SUPER:
                raise Refusal(STATIC, "this is not a function")
            case _:
                _refuse_layers("this", arguments)
                self._callbacks(arguments)
                return UNKNOWN

    def _method(self, target: Value, arguments: Arguments, scope: Scope) -> Value:
        base, name = target.base or UNKNOWN, target.name
        if target.function is not None:
            return self._walk(target.function, _bind(base, arguments))
        if name in ("register_buffer", "register_parameter") and base.kind is Kind.LAYER:
            return self._register(arguments, scope)
        if base.kind is Kind.LAYER and name in ("eval", "train", "requires_grad_"):
            return base
        self._callbacks(arguments)
        if name == "sort" and base.kind is Kind.CONTAINER and holds(base, Kind.TENSOR):
            raise Refusal(OPERATOR, f"sorting tensors compares them with torch; {INTO_KERNEL}")
        if base.kind in (Kind.TENSOR, Kind.RESULT) and name == "view" and _retypes(arguments):
            raise Refusal(STATIC, ".view(dtype) reinterprets bits; do that in the kernel")
        return method_result(base, name, len(arguments.all()))

    def _register(self, arguments: Arguments, scope: Scope) -> Value:
        if not scope.constructor:
            raise Refusal(STATIC, "register parameters and buffers in __init__")
        return NONE

    def _construct(self, target: Value, arguments: Arguments) -> Value:
        instance = Value(Kind.INSTANCE, target.name, owner=target.owner)
        if target.owner is not None:
            for name in ("__init__", "__post_init__"):
                if (function := target.owner.find_method(name)) is not None:
                    bound = _bind(instance, arguments)
                    self._walk(
                        function, bound if name == "__init__" else Arguments((instance,), {})
                    )
            if target.owner.find_method("__init__") is None:
                _fill_fields(target, arguments)
        return instance

    def _call_instance(self, target: Value, arguments: Arguments) -> Value:
        owner = target.owner
        if owner is None:
            return UNKNOWN
        function = owner.find_method("forward" if owner.is_module else "__call__")
        if function is None:
            code = OPERATOR if owner.is_module else STATIC
            raise Refusal(code, f"class {owner.name} defines no method that a call would run")
        return self._walk(function, _bind(target, arguments))

    def _builtin(self, name: str, arguments: Arguments) -> Value:
        first = arguments.positional[0] if arguments.positional else UNKNOWN
        if name == "type":
            return _type(first, arguments)
        if name in ("map", "filter", "sorted", "max", "min"):
            _refuse_layers(f"{name}()", arguments)
        if arguments.have(Kind.TENSOR):
            if name in rules.COMPUTING_BUILTINS:
                raise Refusal(OPERATOR, f"{name}() on a tensor computes with torch; {INTO_KERNEL}")
            if name in rules.READING_BUILTINS and first.kind is Kind.TENSOR:
                raise Refusal(
                    STATIC,
                    f"{name}() of a tensor reads its values; pass the tensor to the "
                    "extension and read it in the kernel",
                )
        self._callbacks(arguments)
        if name in rules.NUMBER_BUILTINS:
            return NUMBER
        if name in ("abs", "round", "pow", "sum", "max", "min", "divmod"):
            parts = [
                v.element or UNKNOWN if v.kind is Kind.CONTAINER else v for v in arguments.all()
            ]
            return NUMBER if all(part.kind is Kind.NUMBER for part in parts) else UNKNOWN
        if name in ("str", "repr", "format", "chr", "print", "bytes", "type", "slice"):
            return OTHER
        return _builtin_container(name, first, arguments)

    def _library(self, name: str, arguments: Arguments, scope: Scope) -> Value:
        if not name.startswith("torch.nn.init."):
            _refuse_layers(name, arguments)
        elif not scope.constructor:
            raise Refusal(OPERATOR, f"{name} computes with torch; {INTO_KERNEL}")
        module = name.partition(".")[0]
        self._callbacks(arguments)
        if arguments.have(Kind.TENSOR) and module == "math":
            raise Refusal(
                OPERATOR, f"{name} of a tensor reads and computes its values; {INTO_KERNEL}"
            )
        if arguments.have(Kind.TENSOR) and name == "itertools.accumulate":
            raise Refusal(OPERATOR, f"{name} of tensors computes with torch; {INTO_KERNEL}")
        if module == "math":
            return NUMBER
        if name == "torch.broadcast_shapes":
            return SHAPE
        if name == "torch.Tensor":
            raise Refusal(STATIC, "torch.Tensor(...) is not allowed; allocate with torch.empty")
        if name in (
            "functools.lru_cache",
            "functools.cache",
            "functools.wraps",
            "dataclasses.dataclass",
        ):
            return arguments.positional[0] if arguments.positional else Value(Kind.LIBRARY, name)
        if name == "functools.partial" and arguments.positional:
            return _partial(arguments)
        if name == "typing.cast" and len(arguments.positional) == 2:
            return arguments.positional[1]
        return OTHER if module in ("logging", "warnings", "nn", "super()") else UNKNOWN

    def _callbacks(self, arguments: Arguments) -> None:
        """Functions that are handed over with tensors may be called on them."""
        if not arguments.have(Kind.TENSOR) and not arguments.have(Kind.LAYER):
            return
        passed = TENSOR if arguments.have(Kind.TENSOR) else Value(Kind.LAYER, "child")
        for value in arguments.all():
            if value.kind is Kind.LAYER:
                continue
            function = value.function
            if function is not None and value.kind in (Kind.FUNCTION, Kind.METHOD):
                count = len(function.node.args.posonlyargs) + len(function.node.args.args)
                values = [passed] * count
                if value.kind is Kind.METHOD and value.base is not None and values:
                    values[0] = value.base
                self._walk(function, Arguments(tuple(values), {}))


def _refuse_layers(name: str, arguments: Arguments) -> None:
    """A layer that is handed to a function may be called by it."""
    if any(value.kind is Kind.LAYER for value in arguments.all()):
        raise Refusal(
            OPERATOR,
            f"{name} is given an nn layer, which it may call; layers only hold "
            f"parameters: {INTO_KERNEL}",
        )


def _type(value: Value, arguments: Arguments) -> Value:
    if len(arguments.all()) != 1:
        raise Refusal(STATIC, "type with three arguments builds classes; write a class statement")
    if value.kind is Kind.LAYER:
        return Value(Kind.LAYER_CLASS, value.name)
    if value.kind is Kind.INSTANCE:
        return Value(Kind.CLASS, value.name, owner=value.owner)
    return Value(Kind.LIBRARY, "torch.Tensor") if value.kind is Kind.TENSOR else OTHER


def _bind(base: Value, arguments: Arguments) -> Arguments:
    return Arguments((base, *arguments.positional), arguments.keywords)


def _retypes(arguments: Arguments) -> bool:
    return any(
        value.kind is Kind.OTHER and value.name.startswith("torch.") for value in arguments.all()
    )


def _partial(arguments: Arguments) -> Value:
    target = arguments.positional[0]
    if target.kind in (Kind.LAYER, Kind.EXTENSION, Kind.TORCH):
        return target
    return UNKNOWN


def _fill_fields(target: Value, arguments: Arguments) -> None:
    """A dataclass keeps the kinds of what it is constructed with."""
    if target.owner is None:
        return
    names = [name for name in target.owner.attributes if not name.startswith("__")]
    for name, value in (
        *zip(names, arguments.positional, strict=False),
        *arguments.keywords.items(),
    ):
        if name in target.owner.attributes and value.kind is not Kind.UNKNOWN:
            target.owner.attributes[name] = value


def _torch(name: str, arguments: Arguments, scope: Scope) -> Value:
    if name in ("Parameter", "Buffer"):
        if not scope.constructor:
            raise Refusal(STATIC, f"nn.{name} is constructed outside __init__")
        return TENSOR
    if name in rules.TORCH_INITIAL and not scope.constructor:
        raise Refusal(
            OPERATOR,
            f"torch.{name} computes with torch; allocate with torch.empty and let "
            "the kernel write the values",
        )
    if "out" in arguments.keywords:
        raise Refusal(OPERATOR, f"torch.{name}(out=...) writes with torch; {INTO_KERNEL}")
    return TENSORS if name in rules.VIEW_LISTS else TENSOR


def _builtin_container(name: str, first: Value, arguments: Arguments) -> Value:
    element = first.element or UNKNOWN if first.kind is Kind.CONTAINER else UNKNOWN
    if first.kind is Kind.TENSOR:
        element = TENSOR
    if first.kind is Kind.LAYER:
        element = Value(Kind.LAYER, "child")
    match name:
        case "range":
            return sequence(NUMBER)
        case "enumerate":
            return sequence(container((NUMBER, element)))
        case "zip":
            return sequence(container(_elements(arguments.positional)))
        case "map" | "filter":
            elements = _elements(arguments.positional[1:])
            return sequence(UNKNOWN if name == "map" else common(elements))
        case "list" | "tuple" | "reversed" | "sorted" | "set" | "frozenset" | "iter":
            if not arguments.positional:
                return container(())
            return first if first.kind is Kind.CONTAINER else sequence(element)
        case "next":
            return element
        case "dict":
            return sequence(common(arguments.keywords.values()) if arguments.keywords else UNKNOWN)
        case _:
            return Value(Kind.OTHER, name)


def _elements(values: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(_element(value) for value in values)


def _element(value: Value) -> Value:
    if value.kind is Kind.TENSOR:
        return TENSOR
    if value.kind is Kind.LAYER:
        return Value(Kind.LAYER, "child")
    return (value.element or UNKNOWN) if value.kind is Kind.CONTAINER else UNKNOWN
