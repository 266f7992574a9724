"""What the judge makes of values that a task gave: perturbed weights and variants of inputs.

Runs in the judge's process on raw bytes; NumPy only. Everything keeps its dtype and its domain:
integers and booleans are never touched, non-negative buffers (variances) stay non-negative, masks
stay masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudaagent.judge.manifest import TensorSpec
from cudaagent.judge.ring import Bytes

Floats = NDArray[Any]

OWN = "own"
SIGNED = "signed"
_NUMPY = {"float64": np.float64, "float32": np.float32, "float16": np.float16}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of the task's model; several names when it is tied."""

    names: tuple[str, ...]
    spec: TensorSpec
    buffer: bool

    @property
    def positive(self) -> bool:
        """By its name, a variance."""
        return any(name.rsplit(".", 1)[-1].endswith("var") for name in self.names)

    @property
    def statistic(self) -> bool:
        return any("running_" in name for name in self.names)


def to_floats(data: Bytes, spec: TensorSpec) -> Floats:
    """The extent's elements as float64 or float32."""
    if spec.dtype == "bfloat16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    values = data.view(_NUMPY[spec.dtype])
    return values.astype(np.float32) if spec.dtype == "float16" else values


def from_floats(values: Floats, spec: TensorSpec) -> Bytes:
    """The inverse of ``to_floats``, rounded to nearest."""
    if spec.dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.uint8)
    with np.errstate(over="ignore"):
        return values.astype(_NUMPY[spec.dtype]).view(np.uint8)


def perturbed(initial: Bytes, parameter: Parameter, rng: np.random.Generator) -> Bytes:
    """Initial values moved so far that no default (ones, zeros) is special any more."""
    spec = parameter.spec
    if not spec.is_float or not spec.nbytes:
        return initial
    values = to_floats(initial, spec)
    if parameter.buffer and not parameter.statistic and _is_table(values):
        return initial
    noise = rng.standard_normal(values.shape, dtype=np.float32)
    if parameter.positive or (parameter.buffer and bool((values >= 0).all())):
        base = np.where(values == 0, 0.0, values) if not parameter.positive else values
        return from_floats(np.asarray(base * np.exp(0.3 * noise)), spec)
    spread = float(np.std(values))
    scale = spread if spread > 1e-6 else 0.2 * max(float(np.abs(np.mean(values))), 0.5)
    return from_floats(np.asarray(values + 0.5 * scale * noise), spec)


def input_variants(inputs: Sequence[Bytes], specs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """Kinds of inputs worth comparing beside the task's own."""
    floats = [to_floats(d, s) for d, s in zip(inputs, specs, strict=True) if s.is_float and d.size]
    if not floats:
        return ()
    if all(abs(float(np.mean(v))) <= 0.1 * float(np.std(v)) for v in floats):
        return ("scaled", "shifted")
    return ("scaled", SIGNED)


def transform_input(data: Bytes, spec: TensorSpec, kind: str) -> Bytes:
    """A variant of one input."""
    if kind == OWN or not spec.is_float or not spec.nbytes:
        return data
    values = to_floats(data, spec)
    if kind == "scaled":
        changed = values * 3.0
    elif kind == "shifted":
        changed = values + float(np.std(values))
    else:
        changed = values - float(np.mean(values))
    return from_floats(np.asarray(changed), spec)


def transform_parameter(data: Bytes, parameter: Parameter, kind: str) -> Bytes:
    """Parameters of the signed variant have zero mean; buffers keep their domain."""
    small = parameter.spec.numel < 2
    if kind != SIGNED or parameter.buffer or not parameter.spec.is_float or small:
        return data
    values = to_floats(data, parameter.spec)
    return from_floats(np.asarray(values - float(np.mean(values))), parameter.spec)


def _is_table(values: Floats) -> bool:
    """A mask or a table with a meaning of its own: few distinct values, or infinities."""
    if not bool(np.isfinite(values).all()):
        return True
    return len(np.unique(values[: 1 << 16])) <= 2
