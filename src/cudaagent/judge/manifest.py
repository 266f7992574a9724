"""What tensors and structures look like when they cross a process boundary.

Used by the judge, which validates everything here, and by the runner, which only produces it.
Imports neither torch nor NumPy at module level, so that both sides stay light.

A *node* is JSON: ``["t", i]`` the i-th tensor, ``["l", [..]]`` a list, ``["u", [..]]`` a tuple,
``["d", [[key, node], ..]]`` a dictionary, ``["v", value]`` None, bool, int, float or str,
``["y", name]`` a torch dtype, ``["x", type]`` something that may not cross.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
ALIGNMENT = 256
MAX_ELEMENTS = 1 << 33
MAX_DEPTH = 16

Node = list[Any]


class ManifestError(Exception):
    """The other side described something that does not exist or may not cross."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A strided tensor; ``extent`` elements from its first address on hold all of it."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def extent(self) -> int:
        if self.numel == 0:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of the extent."""
        return self.extent * ITEM_BYTES[self.dtype]

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype

    def to_json(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "shape": list(self.shape), "stride": list(self.stride)}

    @property
    def contiguous(self) -> TensorSpec:
        """The same shape and dtype without gaps."""
        strides: list[int] = []
        step = 1
        for size in reversed(self.shape):
            strides.append(step)
            step *= max(1, size)
        return TensorSpec(self.dtype, self.shape, tuple(reversed(strides)))


@dataclass(frozen=True, slots=True)
class Located:
    """A tensor at an address of the runner that reported it."""

    spec: TensorSpec
    address: int


@dataclass(frozen=True, slots=True)
class Value:
    """A structure whose tensors lie in the runner that reported it."""

    node: Node
    tensors: tuple[Located, ...]


def parse_spec(data: object) -> TensorSpec:
    """Validate a tensor's description.

    Raises:
        ManifestError: unknown dtype, impossible shape or stride.
    """
    if not isinstance(data, dict):
        raise ManifestError("a tensor is a JSON object")
    fields = cast(dict[str, Any], data)
    dtype = fields.get("dtype")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ManifestError(f"tensors of dtype {str(dtype)[:40]} are not supported")
    shape = _integers(fields.get("shape"))
    stride = _integers(fields.get("stride"))
    if len(shape) != len(stride) or len(shape) > MAX_DEPTH:
        raise ManifestError("shape and stride of a tensor do not fit")
    spec = TensorSpec(dtype, shape, stride)
    if spec.numel > MAX_ELEMENTS or spec.extent > MAX_ELEMENTS:
        raise ManifestError(f"a tensor of shape {list(shape)} is too large")
    return spec


def parse_located(data: object) -> Located:
    """Validate a tensor's description with its address."""
    spec = parse_spec(data)
    address = cast(dict[str, Any], data).get("address")
    if not isinstance(address, int) or isinstance(address, bool) or not 0 <= address < 1 << 63:
        raise ManifestError("a tensor's address is missing")
    return Located(spec, address)


def parse_value(data: object) -> Value:
    """Validate a structure and its tensors."""
    if not isinstance(data, dict):
        raise ManifestError("a value is a JSON object")
    fields = cast(dict[str, Any], data)
    tensors = fields.get("tensors")
    if not isinstance(tensors, list):
        raise ManifestError("a value lists its tensors")
    located = tuple(parse_located(item) for item in cast(list[object], tensors))
    node = parse_node(fields.get("node"), len(located))
    return Value(node, located)


def parse_node(data: object, tensors: int, depth: int = 0) -> Node:
    """Validate a node that may refer to ``tensors`` tensors.

    Raises:
        ManifestError: unknown kind, wrong reference, or nested too deeply.
    """
    if depth > MAX_DEPTH or not isinstance(data, list) or len(cast(list[Any], data)) != 2:
        raise ManifestError("malformed structure")
    kind, content = cast(list[Any], data)
    if kind == "t" and isinstance(content, int) and 0 <= content < tensors:
        return ["t", content]
    if kind in ("l", "u") and isinstance(content, list):
        items = cast(list[object], content)
        return [kind, [parse_node(item, tensors, depth + 1) for item in items]]
    if kind == "d" and isinstance(content, list):
        pairs = [_pair(item, tensors, depth) for item in cast(list[object], content)]
        return ["d", sorted(pairs, key=lambda pair: repr(pair[0]))]
    if kind == "v" and (content is None or isinstance(content, bool | int | float | str)):
        return ["v", content]
    if kind == "y" and isinstance(content, str):
        return ["y", content[:40]]
    if kind == "x" and isinstance(content, str):
        return ["x", content[:200]]
    raise ManifestError("malformed structure")


def foreign(node: Node) -> str | None:
    """The type of something that may not cross, or None."""
    kind, content = node
    if kind == "x":
        return str(content)
    children: list[Node] = []
    if kind in ("l", "u"):
        children = content
    elif kind == "d":
        children = [pair[1] for pair in content]
    for child in children:
        if (found := foreign(child)) is not None:
            return found
    return None


def leaves(node: Node, name: str = "output") -> list[tuple[str, int]]:
    """(name, tensor) of every tensor in the order in which the structure is walked."""
    kind, content = node
    if kind == "t":
        return [(name, content)]
    if kind in ("l", "u"):
        return [leaf for i, child in enumerate(content) for leaf in leaves(child, f"{name}[{i}]")]
    if kind == "d":
        return [leaf for key, child in content for leaf in leaves(child, f"{name}[{key!r}]")]
    return []


def constants(node: Node, name: str = "output") -> dict[str, str]:
    """Everything about a structure except its tensors, by name; lists and tuples count alike."""
    kind, content = node
    if kind == "t":
        return {}
    if kind in ("l", "u"):
        found = {f"len({name})": str(len(content))}
        for i, child in enumerate(content):
            found |= constants(child, f"{name}[{i}]")
        return found
    if kind == "d":
        found = {f"keys({name})": repr(sorted(repr(key) for key, _ in content))}
        for key, child in content:
            found |= constants(child, f"{name}[{key!r}]")
        return found
    return {name: f"{type(content).__name__} {content!r}" if kind == "v" else f"{kind} {content}"}


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """Where the tensors of one slot of the ring lie: inputs first, then parameters and buffers."""

    inputs: tuple[TensorSpec, ...]
    params: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]
    """Bytes from the slot's start, for ``inputs`` then ``params``."""
    slot_bytes: int

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return self.inputs + self.params

    @property
    def input_bytes(self) -> int:
        return sum(spec.nbytes for spec in self.inputs)


def slot_layout(inputs: Sequence[TensorSpec], params: Sequence[TensorSpec]) -> SlotLayout:
    """Lay tensors out one after the other, each aligned to ``ALIGNMENT``."""
    offsets: list[int] = []
    position = 0
    for spec in (*inputs, *params):
        offsets.append(position)
        position += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
    return SlotLayout(tuple(inputs), tuple(params), tuple(offsets), max(position, ALIGNMENT))


def _integers(data: object) -> tuple[int, ...]:
    if not isinstance(data, list):
        raise ManifestError("a shape is a list of integers")
    numbers: list[int] = []
    for item in cast(list[object], data):
        if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item <= MAX_ELEMENTS:
            raise ManifestError("a shape is a list of integers")
        numbers.append(item)
    return tuple(numbers)


def _pair(data: object, tensors: int, depth: int) -> list[Any]:
    if not isinstance(data, list) or len(cast(list[Any], data)) != 2:
        raise ManifestError("malformed structure")
    key, child = cast(list[Any], data)
    if not isinstance(key, str | int) or isinstance(key, bool):
        raise ManifestError("dictionary keys must be strings or integers")
    return [key, parse_node(child, tensors, depth + 1)]
