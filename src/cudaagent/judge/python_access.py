"""What reading an attribute of an abstract value gives, or why it is refused.

Pure functions over ``python_values``; used by ``python_check``.
"""

from __future__ import annotations

from collections.abc import Collection

from cudaagent.judge import python_rules as rules
from cudaagent.judge.python_values import (
    NONE,
    NUMBER,
    OTHER,
    SHAPE,
    TENSOR,
    TENSORS,
    UNKNOWN,
    ClassInfo,
    Kind,
    Value,
    container,
    sequence,
)

OPERATOR = "forbidden-operator"
STATIC = "static-check"
INTO_KERNEL = (
    "compute it in kernels/*.cpp and call cuda_extension.<name>(..., out) with "
    "out = torch.empty(...)"
)


class Refusal(Exception):
    """Something the rules do not allow; the checker adds the line."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Located(Exception):
    """A refusal with its line."""

    def __init__(self, refusal: Refusal, line: int) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal
        self.line = line


def attribute(value: Value, name: str, defined: Collection[str]) -> Value:
    """The value of ``value.name``; ``defined``: names of attributes that the file itself defines.

    Raises:
        Refusal: the attribute is not on the list for this kind of value.
    """
    if value == NONE:
        # What begins as None is something else by the time it is used.
        value = UNKNOWN
    if name.startswith("__") and value.kind not in (Kind.INSTANCE, Kind.CLASS, Kind.SUPER):
        if name == "__init__" and value.kind is Kind.LAYER_CLASS and value.name == "Module":
            return Value(Kind.LIBRARY, "nn.Module.__init__")
        if name not in ("__name__", "__doc__"):
            raise Refusal(STATIC, f"{name} reaches into Python's internals; leave it out")
        return OTHER
    match value.kind:
        case Kind.MODULE:
            return module_name(value.name, name)
        case Kind.TENSOR | Kind.RESULT:
            return _of_tensor(value, name)
        case Kind.LAYER:
            return _of_layer(value, name)
        case Kind.INSTANCE | Kind.CLASS | Kind.SUPER:
            return _of_own(value, name)
        case Kind.LAYER_CLASS:
            raise Refusal(STATIC, f"nn.{value.name}.{name}: construct nn layers, nothing else")
        case Kind.UNKNOWN:
            return _of_unknown(value, name, defined)
        case Kind.CONTAINER:
            if name in rules.CONTAINER_METHODS or name in defined or name in ("numel", "count"):
                return Value(Kind.METHOD, name, base=value)
            raise Refusal(STATIC, f".{name} is no method of a Python container that is allowed")
        case Kind.LIBRARY if value.name.startswith("torch."):
            raise Refusal(
                OPERATOR if name in rules.COMPUTING | {"add"} else STATIC,
                f"{value.name}.{name} is not allowed; {INTO_KERNEL}",
            )
        case Kind.EXTENSION:
            raise Refusal(STATIC, "functions of cuda_extension are called, nothing else")
        case _:
            allowed = (
                (rules.CONTAINER_METHODS - {"add", "sort"})
                | rules.TEXT_METHODS
                | rules.OTHER_FIELDS
            )
            if name in allowed or name in defined:
                return Value(Kind.METHOD, name, base=value)
            raise Refusal(STATIC, f".{name} is not on the list of allowed attributes")


def check_import(module: str) -> None:
    """Refuse a module that may not be imported.

    Raises:
        Refusal: with the names of those that may be.
    """
    if module == rules.EXTENSION or module in rules.MODULES:
        return
    if module.startswith("torch."):
        raise Refusal(
            STATIC,
            f"import {module} is not allowed; of torch only torch, torch.nn, torch.nn.functional "
            "may be",
        )
    names = ", ".join(sorted(name for name in rules.MODULES if "." not in name))
    text = f"import {module} is not allowed; allowed are {names} and {rules.EXTENSION}"
    raise Refusal(STATIC, text)


def check_definition(name: str, owner: ClassInfo | None) -> None:
    """Refuse a function's name that Python or the judge relies on.

    Raises:
        Refusal: with what to do.
    """
    if name.startswith("__") and (owner is None or name not in rules.DUNDER_METHODS):
        raise Refusal(STATIC, f"defining {name} is not allowed")
    reserved = name in rules.MODULE_RESERVED or name == "__call__"
    if owner is not None and owner.is_module and reserved:
        raise Refusal(STATIC, f"{name} belongs to nn.Module; the judge relies on it, rename yours")


def module_name(module: str, name: str) -> Value:
    """The value of ``name`` in an importable module."""
    if module == rules.EXTENSION:
        if name.startswith("_"):
            raise Refusal(STATIC, f"cuda_extension.{name}: name an exported function")
        return Value(Kind.EXTENSION, name)
    if module == "torch":
        return _of_torch(name)
    if module == "torch.nn":
        return _of_nn(name)
    if module == "torch.nn.functional":
        raise Refusal(OPERATOR, f"F.{name} computes with torch; {INTO_KERNEL}")
    allowed = rules.MODULES[module]
    if name.startswith("_"):
        raise Refusal(STATIC, f"{module}.{name} is not allowed in model_new.py")
    if module == "collections" and name == "abc":
        return Value(Kind.MODULE, "collections.abc")
    if allowed is not None and name not in allowed:
        raise Refusal(
            STATIC,
            f"{module}.{name} is not allowed; of {module} you may use {', '.join(sorted(allowed))}",
        )
    return (
        NUMBER
        if module == "math" and name in ("pi", "e", "inf", "nan", "tau")
        else Value(Kind.LIBRARY, f"{module}.{name}")
    )


def _of_torch(name: str) -> Value:
    if name == "nn":
        return Value(Kind.MODULE, "torch.nn")
    if name in ("Tensor", "no_grad", "broadcast_shapes"):
        return Value(Kind.LIBRARY, f"torch.{name}")
    if name in ("inf", "nan", "pi", "e"):
        return NUMBER
    if name in rules.TORCH_OTHER:
        return Value(Kind.OTHER, f"torch.{name}")
    if name in rules.TORCH_ALLOCATION | rules.TORCH_INITIAL | rules.TORCH_VIEWS:
        return Value(Kind.TORCH, name)
    if name in rules.TORCH_NOT_OPERATORS:
        raise Refusal(
            STATIC,
            f"torch.{name} is not allowed: model_new.py allocates outputs, makes "
            "views and calls cuda_extension",
        )
    raise Refusal(OPERATOR, f"torch.{name} computes with torch; {INTO_KERNEL}")


def _of_nn(name: str) -> Value:
    if name == "functional" or name == "init":
        return Value(Kind.MODULE, f"torch.nn.{name}")
    if name in ("Parameter", "Buffer"):
        return Value(Kind.TORCH, name)
    if name[:1].isupper():
        return Value(Kind.LAYER_CLASS, name)
    raise Refusal(STATIC, f"nn.{name} is not allowed; nn layers may hold parameters, nothing else")


def _of_tensor(value: Value, name: str) -> Value:
    if name == "shape":
        return SHAPE
    if name in rules.TENSOR_VIEW_FIELDS:
        return TENSOR
    if name in ("ndim", "nbytes", "itemsize", "requires_grad", "is_cuda", "is_cpu"):
        return NUMBER
    if name in rules.TENSOR_FIELDS:
        return OTHER
    if name in rules.VIEWS | rules.TENSOR_NUMBERS | rules.TENSOR_ALLOCATION:
        return Value(Kind.METHOD, name, base=value)
    if name in rules.TENSOR_READS or name.startswith("_"):
        raise Refusal(
            STATIC,
            f".{name} of a tensor is not allowed: pass the tensor itself to "
            "cuda_extension and read its values in the kernel",
        )
    raise Refusal(OPERATOR, f".{name} of a tensor computes with torch; {INTO_KERNEL}")


def _of_layer(value: Value, name: str) -> Value:
    if name.startswith(rules.LAYER_TENSORS) and name not in rules.LAYER_FIELDS:
        return TENSOR
    if name in rules.LAYER_FIELDS:
        return Value(Kind.LAYER, "child") if name == "out_proj" else UNKNOWN
    if name in rules.LAYER_METHODS:
        return Value(Kind.METHOD, name, base=value)
    if name in ("forward", "_call_impl", "_conv_forward", "forward_features"):
        raise Refusal(
            OPERATOR, f".{name} runs a torch layer, which may only hold parameters; {INTO_KERNEL}"
        )
    raise Refusal(
        STATIC,
        f".{name} of an nn layer is not allowed; read its parameters, such as "
        ".weight and .bias, and its sizes",
    )


def _of_own(value: Value, name: str) -> Value:
    owner = value.owner
    if value.kind is Kind.SUPER and name in ("__init__", "extra_repr", "__post_init__"):
        method = _super_method(value, name)
        return method or Value(Kind.LIBRARY, "super().__init__")
    if owner is None:
        raise Refusal(STATIC, f"super().{name} is not allowed")
    if name == "__class__":
        return Value(Kind.CLASS, owner.name, owner=owner)
    if value.kind is Kind.SUPER:
        method = _super_method(value, name)
        if method is None:
            raise Refusal(STATIC, f"super().{name} is not defined in this file")
        return method
    if (function := owner.find_method(name)) is not None:
        is_instance = value.kind is Kind.INSTANCE
        return Value(
            Kind.METHOD if is_instance else Kind.FUNCTION,
            name,
            base=value if is_instance else None,
            function=function,
        )
    if (found := owner.find(name)) is not None:
        return found
    if owner.is_module and (name in rules.LAYER_METHODS or name == "training"):
        return Value(Kind.METHOD, name, base=Value(Kind.LAYER, owner.name))
    if name in ("__name__", "__doc__"):
        return OTHER
    if (
        not owner.is_module
        and name in rules.CONTAINER_METHODS | rules.TEXT_METHODS | rules.OTHER_FIELDS
    ):
        return Value(Kind.METHOD, name, base=OTHER)
    raise Refusal(STATIC, f".{name} is set nowhere in class {owner.name}; set it in __init__")


def _super_method(value: Value, name: str) -> Value | None:
    if value.owner is None:
        return None
    for base in value.owner.bases:
        if (function := base.find_method(name)) is not None:
            instance = Value(Kind.INSTANCE, value.owner.name, owner=value.owner)
            return Value(Kind.METHOD, name, base=instance, function=function)
    return None


def _of_unknown(value: Value, name: str, defined: Collection[str]) -> Value:
    if name == "shape":
        return SHAPE
    if name in rules.VIEWS - rules.VIEW_LISTS - {"select"}:
        return Value(Kind.METHOD, name, base=TENSOR)
    if name in rules.TENSOR_VIEW_FIELDS:
        return TENSOR
    if name in defined and (value.name == "parameter" or name not in rules.COMPUTING):
        return UNKNOWN
    if name in rules.UNKNOWN_FIELDS or name in rules.LAYER_FIELDS:
        return Value(Kind.METHOD, name, base=value)
    if name.startswith(rules.LAYER_TENSORS):
        return UNKNOWN
    if name in rules.COMPUTING or name in ("forward", "linalg", "fft", "special", "ops"):
        raise Refusal(
            OPERATOR,
            f".{name} computes with torch; {INTO_KERNEL}. (A method of your own "
            "of this name needs another one.)",
        )
    raise Refusal(STATIC, f".{name} is not on the list of allowed attributes")


def method_result(base: Value, name: str, arguments: int) -> Value:
    """What calling an allowed method of a tensor, container or other value gives."""
    if base.kind in (Kind.TENSOR, Kind.RESULT):
        if name in ("size", "stride"):
            return SHAPE if arguments == 0 else NUMBER
        if name in rules.TENSOR_NUMBERS:
            return NUMBER
        return TENSORS if name in rules.VIEW_LISTS else TENSOR
    if base.kind is Kind.CONTAINER:
        return _container_result(base, name)
    if base.kind is Kind.LAYER:
        if name in ("parameters", "buffers"):
            return TENSORS
        if name in ("named_parameters", "named_buffers"):
            return sequence(container((OTHER, TENSOR)))
        return sequence(Value(Kind.LAYER, "child"))
    if base.kind is Kind.UNKNOWN:
        if name in ("numel", "dim", "ndimension", "nelement", "element_size", "storage_offset"):
            return NUMBER
        if name in rules.TENSOR_ALLOCATION:
            return TENSOR
        return UNKNOWN
    return UNKNOWN if name in ("get", "pop", "values", "items") else OTHER


def _container_result(base: Value, name: str) -> Value:
    element = base.element or UNKNOWN
    if name in ("get", "pop", "popleft", "setdefault"):
        return element
    if name == "values":
        return sequence(element)
    if name == "items":
        pair = container((UNKNOWN, element))
        return sequence(pair)
    if name == "keys":
        return sequence(UNKNOWN)
    if name in ("count", "index", "numel"):
        return NUMBER
    return base if name in ("copy", "union", "difference", "intersection") else OTHER
