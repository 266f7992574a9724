"""How far a candidate's outputs are from the reference, and how far they may be.

Runs in the judge's own process on arrays that it read itself; imports neither torch nor anybody's
code. Floats are compared in float64, chunk by chunk, so that the largest temporary is one chunk.

An output is a list of *leaves*: NumPy arrays in the order in which the output structure is walked.
A ``Scale`` belongs to one *kind* of inputs (the task's own distribution, or one variant of it):
measure it on at least six reference outputs of that kind and compare only outputs of that kind by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudaagent.judge.verdict import Failure

Array = NDArray[Any]
Output = Sequence[Array]
"""One output: its leaves."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Which tolerance applies (``judge.tolerance``, ``judge.precision``)."""

    tolerance: str = "scaled"
    precision: str = "equal"


@dataclass(frozen=True, slots=True)
class LeafLayout:
    """Name (``output``, ``output[1]``, ``output['a']``), torch dtype name and shape of a leaf."""

    name: str
    dtype: str
    """``float32``, ``bfloat16``, ``int64``, ``bool``, ..."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeafScale:
    """What the tolerance of one leaf is made of; all zero for integer and boolean leaves."""

    layout: LeafLayout
    sigma: float = 0.0
    baseline_largest: float = 0.0
    baseline_rms: float = 0.0
    output_rms: float = 0.0


@dataclass(frozen=True, slots=True)
class Scale:
    """The scales of all leaves for one kind of inputs."""

    leaves: tuple[LeafScale, ...]

    @property
    def baseline_ratio(self) -> float:
        """The baseline's rms error over sigma, worst float leaf (``error_baseline``)."""
        raise NotImplementedError


def from_raw(data: bytes | memoryview, layout: LeafLayout) -> Array:
    """The contiguous bytes of a leaf as an array of ``layout.shape``; bfloat16 becomes float32.

    Raises:
        ValueError: the number of bytes does not fit the layout.
    """
    raise NotImplementedError


def check_layout(
    actual: Sequence[LeafLayout], expected: Sequence[LeafLayout], *, stage: str = "verify"
) -> Failure | None:
    """``wrong-structure``, ``wrong-shape`` or ``wrong-dtype``, or None."""
    raise NotImplementedError


def measure_scale(
    reference_outputs: Sequence[Output],
    baseline_outputs: Sequence[Output],
    *,
    layouts: Sequence[LeafLayout] | None = None,
    compiled_outputs: Sequence[Output] = (),
) -> Scale:
    """Scale of one kind from the reference's and the baselines' outputs on the same inputs.

    ``layouts`` are those of the task's own outputs (the reference may be float64); when left out
    they are taken from ``baseline_outputs``.

    Raises:
        ValueError: fewer than six inputs, or outputs that do not belong together.
    """
    raise NotImplementedError


def disagreement(reference: Output, *baselines: Output) -> list[NDArray[np.bool_] | None]:
    """Per leaf: elements of exact leaves on which the baselines disagree; None where nowhere."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class LeafComparison:
    """One leaf against its reference."""

    layout: LeafLayout
    elements: int
    """Compared elements (exempt and non-finite ones left out)."""
    squared_error: float
    largest_error: float
    wrong: int
    """Elements beyond their allowance, non-finite mismatches included."""
    nonfinite: int
    """Elements that are non-finite here and not in the reference, or the other way round."""
    index: tuple[int, ...]
    """The worst element, with what it is, should be, and how far off it may be."""
    got: float
    expected: float
    allowed: float
    sigma: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output against its reference."""

    label: str
    """Which input, for the message: ``input 3``, ``negated input 1``, ``timed call 7``."""
    leaves: tuple[LeafComparison, ...]

    def failure(self, stage: str = "verify") -> Failure | None:
        """The elementwise rule: ``non-finite`` or ``wrong-values`` with a sentence, or None."""
        raise NotImplementedError


def compare(
    actual: Output,
    expected: Output,
    scale: Scale,
    policy: Policy,
    *,
    label: str = "input 0",
    offsets: Sequence[int] | None = None,
    exempt: Sequence[NDArray[np.bool_] | None] | None = None,
) -> Comparison:
    """Compare one output; sizes must already fit (``check_layout``).

    ``offsets``: the leaves are flat pieces that begin at these elements of the whole leaf.
    ``exempt``: what ``disagreement`` gave for this input.
    """
    raise NotImplementedError


class Pool:
    """The aggregate rule over all outputs of one kind."""

    def __init__(self, scale: Scale, policy: Policy) -> None:
        raise NotImplementedError

    def add(self, comparison: Comparison) -> None:
        raise NotImplementedError

    @property
    def error(self) -> float:
        """rms error over sigma, worst float leaf (``error_candidate``)."""
        raise NotImplementedError

    def failure(self, stage: str = "verify") -> Failure | None:
        """``wrong-values`` when the pooled rms error exceeds 0.1 sigma, else None."""
        raise NotImplementedError

    def precision_failure(self, stage: str = "verify") -> Failure | None:
        """``precision``: meaningful only where inputs and parameters have zero mean."""
        raise NotImplementedError
