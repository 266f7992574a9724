"""What the static check knows about a Python value without running anything.

Pure data; used by ``python_check``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto


class Kind(Enum):
    """The sorts of values that the check tells apart."""

    TENSOR = auto()
    RESULT = auto()
    """What a function of the extension returned that was given a tensor."""
    NUMBER = auto()
    OTHER = auto()
    """Surely no tensor: text, None, a dtype, a device, a type of the standard library."""
    CONTAINER = auto()
    MODULE = auto()
    """An imported module."""
    BUILTIN = auto()
    TORCH = auto()
    """An allowed function of torch."""
    LIBRARY = auto()
    """An allowed name of another module."""
    EXTENSION = auto()
    """A function of the extension."""
    LAYER_CLASS = auto()
    LAYER = auto()
    """An instance of a torch.nn class: holds parameters, is never called."""
    FUNCTION = auto()
    CLASS = auto()
    INSTANCE = auto()
    SUPER = auto()
    METHOD = auto()
    """A method of a value of another kind, not yet called."""
    UNKNOWN = auto()


@dataclass(eq=False, slots=True)
class ClassInfo:
    """A class of the file under check."""

    name: str
    is_module: bool
    bases: tuple[ClassInfo, ...]
    attributes: dict[str, Value] = field(default_factory=dict)
    methods: dict[str, FunctionInfo] = field(default_factory=dict)

    def find(self, name: str) -> Value | None:
        """An attribute by name, in this class or its bases."""
        if name in self.attributes:
            return self.attributes[name]
        for base in self.bases:
            if (found := base.find(name)) is not None:
                return found
        return None

    def find_method(self, name: str) -> FunctionInfo | None:
        """A method by name, in this class or its bases."""
        if name in self.methods:
            return self.methods[name]
        for base in self.bases:
            if (found := base.find_method(name)) is not None:
                return found
        return None


@dataclass(eq=False, slots=True)
class FunctionInfo:
    """A function or lambda of the file under check; ``scope`` is where it was defined."""

    name: str
    node: ast.FunctionDef | ast.Lambda
    scope: Scope
    owner: ClassInfo | None = None
    bound: bool = False
    """Called on an instance: the first parameter is ``self``."""


@dataclass(eq=False, slots=True)
class Scope:
    """Names of one function call, class body or the module."""

    kind: str
    """module, class or function."""
    parent: Scope | None
    names: dict[str, Value]
    bound: frozenset[str]
    """Every name that is assigned somewhere in this scope."""
    owner: ClassInfo | None = None
    constructor: bool = False
    """Inside ``__init__`` of a module, or what it calls."""
    returned: Value | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """One abstract value; which fields count depends on the kind."""

    kind: Kind
    name: str = ""
    element: Value | None = None
    """CONTAINER: what iterating gives."""
    items: tuple[Value, ...] | None = None
    """CONTAINER: the elements, where their number is known."""
    base: Value | None = None
    function: FunctionInfo | None = None
    owner: ClassInfo | None = None
    depth: int = 0
    """CONTAINER: how deeply containers are nested in it."""


TENSOR = Value(Kind.TENSOR)
NUMBER = Value(Kind.NUMBER)
OTHER = Value(Kind.OTHER)
NONE = Value(Kind.OTHER, "None")
UNKNOWN = Value(Kind.UNKNOWN)
PARAMETER = Value(Kind.UNKNOWN, "parameter")
"""An argument nobody described; its function is checked again with every call's arguments."""
SHAPE = Value(Kind.CONTAINER, element=NUMBER, depth=1)
TENSORS = Value(Kind.CONTAINER, element=TENSOR, depth=1)

_MAX_NESTING = 4


def container(items: Iterable[Value]) -> Value:
    """A list or tuple with known elements."""
    known = tuple(items)
    depth = 1 + max((item.depth for item in known), default=0)
    if depth > _MAX_NESTING:
        return _flattened(known)
    return Value(Kind.CONTAINER, element=common(known), items=known, depth=depth)


def sequence(element: Value) -> Value:
    """A container of unknown length."""
    if element.depth >= _MAX_NESTING:
        return _flattened((element,))
    return Value(Kind.CONTAINER, element=element, depth=1 + element.depth)


def _flattened(items: tuple[Value, ...]) -> Value:
    """What is nested too deeply to be followed keeps only whether a tensor or layer is in it."""
    for value in (TENSOR, Value(Kind.LAYER, "child")):
        if any(holds(item, value.kind, _MAX_NESTING) for item in items):
            return Value(Kind.CONTAINER, element=value, depth=1)
    return Value(Kind.CONTAINER, element=UNKNOWN, depth=1)


def common(values: Iterable[Value]) -> Value:
    """What holds for all of several elements."""
    result: Value | None = None
    for value in values:
        if result is None or result == value:
            result = value
        elif result.kind is value.kind and result.kind in (Kind.LAYER, Kind.LAYER_CLASS):
            continue
        else:
            return UNKNOWN
    return UNKNOWN if result is None else result


def merge(first: Value, second: Value) -> Value:
    """Where two ways through the program meet; a tensor on one of them stays a tensor."""
    if first is second or first == second:
        return first
    for kind in (Kind.TENSOR, Kind.LAYER):
        if kind in (first.kind, second.kind):
            return first if first.kind is kind else second
    if first == NONE:
        return second
    if second == NONE:
        return first
    if first.kind is second.kind is Kind.CONTAINER:
        left, right = first.items, second.items
        if left is not None and right is not None and len(left) == len(right):
            return container(map(merge, left, right))
        return sequence(merge(first.element or UNKNOWN, second.element or UNKNOWN))
    return UNKNOWN


def holds(value: Value, kind: Kind, depth: int = 3) -> bool:
    """Whether a value is of a kind, or a container with such an element."""
    if value.kind is kind:
        return True
    if value.kind is not Kind.CONTAINER or depth == 0:
        return False
    if value.items is not None:
        return any(holds(item, kind, depth - 1) for item in value.items)
    return value.element is not None and holds(value.element, kind, depth - 1)
