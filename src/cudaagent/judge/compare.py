"""How far a candidate's outputs are from the reference, and how far they may be.

Runs in the judge's own process on arrays that it read itself; imports neither torch nor anybody's
code. Floats are compared in float64, chunk by chunk, so that the largest temporary is one chunk.

An output is a list of *leaves*: NumPy arrays in the order in which the output structure is walked.
A ``Scale`` belongs to one *kind* of inputs (the task's own distribution, or one variant of it):
measure it on at least six reference outputs of that kind and compare only outputs of that kind by
it. The rules are those of the comparison's three questions: is every element near enough, are all
of them together near enough, and was the arithmetic precise enough.

Not covered: complex leaves (``ValueError``), and the rank margin of index outputs, which only the
task's own operator could tell (``disagreement`` exempts what the baselines themselves cannot agree
on).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudaagent.judge.elementwise import CHUNK, chunks, measure_errors
from cudaagent.judge.verdict import Failure

Array = NDArray[Any]
Output = Sequence[Array]
"""One output: its leaves."""

MIN_INPUTS = 6
ELEMENT_TOLERANCE = 1e-2
AGGREGATE_TOLERANCE = 0.1
BASELINE_LIMIT = 0.05
"""A baseline whose own error is above this share of sigma makes the task inseparable."""
PRECISION_FACTOR = 4.5
PRECISION_FLOOR = {
    "float64": 2.0**-47,
    "float32": 2.0**-18,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
"""Share of the output's rms below which an error is never held against a candidate."""

_BASELINE_ERRORS = 8.0


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

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype


@dataclass(frozen=True, slots=True)
class LeafScale:
    """What the tolerance of one leaf is made of; all zero for integer and boolean leaves."""

    layout: LeafLayout
    sigma: float = 0.0
    """rms over elements and inputs of (reference - its mean over the inputs)."""
    baseline_largest: float = 0.0
    """Largest error of a baseline under the precision policy (``e`` of the tolerance)."""
    baseline_rms: float = 0.0
    output_rms: float = 0.0

    def allowance(self, policy: Policy) -> tuple[float, float, float]:
        """(a, b, c): an element may be off by max(a + b |reference|, c)."""
        if policy.tolerance == "paper":
            return ELEMENT_TOLERANCE, ELEMENT_TOLERANCE, 0.0
        base = ELEMENT_TOLERANCE * self.sigma
        return base, ELEMENT_TOLERANCE, _BASELINE_ERRORS * self.baseline_largest


@dataclass(frozen=True, slots=True)
class Scale:
    """The scales of all leaves for one kind of inputs."""

    leaves: tuple[LeafScale, ...]

    @property
    def baseline_ratio(self) -> float:
        """The baseline's rms error over sigma, worst float leaf (``error_baseline``)."""
        return max((_ratio(leaf.baseline_rms, leaf.sigma) for leaf in self.leaves), default=0.0)


def from_raw(data: bytes | bytearray | memoryview, layout: LeafLayout) -> Array:
    """The contiguous bytes of a leaf as an array of ``layout.shape``; bfloat16 becomes float32.

    Raises:
        ValueError: the number of bytes does not fit the layout.
    """
    if layout.dtype == "bfloat16":
        words = np.frombuffer(data, dtype=np.uint16).astype(np.uint32)
        return (words << 16).view(np.float32).reshape(layout.shape)
    return np.frombuffer(data, dtype=np.dtype(layout.dtype)).reshape(layout.shape)


def check_layout(
    actual: Sequence[LeafLayout], expected: Sequence[LeafLayout], *, stage: str = "verify"
) -> Failure | None:
    """``wrong-structure``, ``wrong-shape`` or ``wrong-dtype``, or None."""
    if [leaf.name for leaf in actual] != [leaf.name for leaf in expected]:
        got = ", ".join(leaf.name for leaf in actual) or "nothing"
        want = ", ".join(leaf.name for leaf in expected) or "nothing"
        return Failure("wrong-structure", stage, f"forward returns {got}; the model returns {want}")
    for have, want in zip(actual, expected, strict=True):
        evidence = {"leaf": want.name}
        if have.shape != want.shape:
            text = f"{want.name} has shape {have.shape}; the model's has {want.shape}"
            return Failure("wrong-shape", stage, text, evidence)
        if have.dtype != want.dtype:
            text = f"{want.name} has dtype {have.dtype}; the model's has {want.dtype}"
            return Failure("wrong-dtype", stage, text, evidence)
    return None


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
    if len(reference_outputs) < MIN_INPUTS:
        raise ValueError(f"a scale needs {MIN_INPUTS} inputs, got {len(reference_outputs)}")
    arms = [arm for arm in (baseline_outputs, compiled_outputs) if arm]
    if not arms or any(len(arm) != len(reference_outputs) for arm in arms):
        raise ValueError("each baseline needs one output for every reference output")
    if layouts is None:
        layouts = _layouts(baseline_outputs[0])
    scales: list[LeafScale] = []
    for position, layout in enumerate(layouts):
        if not layout.is_float:
            scales.append(LeafScale(layout))
            continue
        references = [_flat(output[position]) for output in reference_outputs]
        sigma, output_rms = _spread(references)
        worst, rms = 0.0, 0.0
        for arm in arms:
            largest, arm_rms = _errors([_flat(output[position]) for output in arm], references)
            worst, rms = max(worst, largest), max(rms, arm_rms)
        scales.append(LeafScale(layout, sigma, worst, rms, output_rms))
    return Scale(tuple(scales))


def disagreement(reference: Output, *baselines: Output) -> list[NDArray[np.bool_] | None]:
    """Per leaf: elements of exact leaves on which the baselines disagree; None where nowhere."""
    masks: list[NDArray[np.bool_] | None] = []
    for position, leaf in enumerate(reference):
        mask: NDArray[np.bool_] | None = None
        if leaf.dtype.kind in "iub":
            for baseline in baselines:
                differs = _flat(leaf) != _flat(baseline[position])
                if bool(differs.any()):
                    mask = differs if mask is None else mask | differs
        masks.append(mask)
    return masks


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


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output against its reference."""

    label: str
    """Which input, for the message: ``input 3``, ``negated input 1``, ``timed call 7``."""
    leaves: tuple[LeafComparison, ...]

    def failure(self, stage: str = "verify") -> Failure | None:
        """The elementwise rule: ``non-finite`` or ``wrong-values`` with a sentence, or None."""
        wrong = [leaf for leaf in self.leaves if leaf.wrong]
        if not wrong:
            return None
        leaf = max(wrong, key=lambda item: (item.nonfinite > 0, item.wrong))
        code = "non-finite" if leaf.nonfinite else "wrong-values"
        count = leaf.nonfinite or leaf.wrong
        total = math.prod(leaf.layout.shape) if leaf.nonfinite else leaf.elements
        where = f"{leaf.layout.name}{list(leaf.index)}" if leaf.index else leaf.layout.name
        text = f"{self.label}: {where} is {leaf.got:.6g}, expected {leaf.expected:.6g}"
        if code == "wrong-values":
            text += (
                f", off by {abs(leaf.got - leaf.expected):.3g} where {leaf.allowed:.3g} is allowed"
            )
        text += f"; {count} of {total} compared elements are wrong"
        return Failure(
            code,
            stage,
            text,
            {
                "input": self.label,
                "leaf": leaf.layout.name,
                "index": list(leaf.index),
                "got": _jsonable(leaf.got),
                "expected": _jsonable(leaf.expected),
                "allowed": _jsonable(leaf.allowed),
                "wrong": count,
                "elements": total,
            },
        )


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
    ``exempt``: what ``disagreement`` gave for this input (or the same pieces of it).

    Raises:
        ValueError: leaves of different number or size, or a complex leaf.
    """
    if not len(actual) == len(expected) == len(scale.leaves):
        raise ValueError("the outputs do not have the scale's number of leaves")
    results: list[LeafComparison] = []
    for position, leaf in enumerate(scale.leaves):
        got, want = _flat(actual[position]), _flat(expected[position])
        if got.size != want.size:
            raise ValueError(f"{leaf.layout.name}: {got.size} elements against {want.size}")
        if leaf.layout.is_float:
            result = _compare_floats(got, want, leaf.layout, leaf.allowance(policy))
        else:
            mask = exempt[position] if exempt is not None else None
            result = _compare_exactly(got, want, leaf.layout, mask)
        start = offsets[position] if offsets is not None else 0
        results.append(_locate(result, start))
    return Comparison(label, tuple(results))


class Pool:
    """The aggregate rules over all outputs of one kind of inputs."""

    def __init__(self, scale: Scale, policy: Policy) -> None:
        self._scale = scale
        self._policy = policy
        self._squares = [0.0] * len(scale.leaves)
        self._elements = [0] * len(scale.leaves)

    def add(self, comparison: Comparison) -> None:
        """Take one output's errors in; its scale must be this pool's."""
        for position, leaf in enumerate(comparison.leaves):
            self._squares[position] += leaf.squared_error
            self._elements[position] += leaf.elements

    @property
    def error(self) -> float:
        """rms error over sigma, worst float leaf (``error_candidate``)."""
        return max((_ratio(rms, leaf.sigma) for leaf, rms in self._floats()), default=0.0)

    def failure(self, stage: str = "verify") -> Failure | None:
        """``wrong-values`` when the pooled rms error exceeds 0.1 sigma, else None."""
        if self._policy.tolerance == "paper":
            return None
        for leaf, rms in self._floats():
            ratio = _ratio(rms, leaf.sigma)
            if ratio > AGGREGATE_TOLERANCE:
                text = (
                    f"{leaf.layout.name}: over all elements the error is {ratio:.3g} of how much "
                    f"the output varies from input to input; {AGGREGATE_TOLERANCE} is allowed. "
                    "Single elements are near: is a term that depends on the input missing?"
                )
                return Failure(
                    "wrong-values", stage, text, {"leaf": leaf.layout.name, "ratio": ratio}
                )
        return None

    def precision_failure(
        self, stage: str = "verify", *, against_baseline: bool = False
    ) -> Failure | None:
        """``precision`` or None; meaningful only where inputs and parameters have zero mean.

        Args:
            against_baseline: the errors are against the baseline's output, not the float64
                reference, and so may be larger by the baseline's own.
        """
        if self._policy.precision == "paper":
            return None
        for leaf, rms in self._floats():
            floor = PRECISION_FLOOR.get(leaf.layout.dtype, 0.0) * leaf.output_rms
            limit = PRECISION_FACTOR * max(leaf.baseline_rms, floor)
            if against_baseline:
                limit += leaf.baseline_rms
            if rms > limit:
                text = (
                    f"{leaf.layout.name}: rms error {rms:.3g} against float64, the baseline's is "
                    f"{leaf.baseline_rms:.3g} and {limit:.3g} is allowed: accumulate in float32 or "
                    f"wider, use nothing narrower than {leaf.layout.dtype}, round and never "
                    "truncate"
                )
                evidence = {"leaf": leaf.layout.name, "rms": rms, "limit": limit}
                return Failure("precision", stage, text, evidence)
        return None

    def _floats(self) -> Iterator[tuple[LeafScale, float]]:
        for leaf, squares, elements in zip(
            self._scale.leaves, self._squares, self._elements, strict=True
        ):
            if leaf.layout.is_float and elements:
                yield leaf, math.sqrt(min(squares, sys.float_info.max) / elements)


def _layouts(output: Output) -> list[LeafLayout]:
    single = len(output) == 1
    return [
        LeafLayout("output" if single else f"output[{i}]", leaf.dtype.name, leaf.shape)
        for i, leaf in enumerate(output)
    ]


def _flat(leaf: Array) -> Array:
    if leaf.dtype.kind == "c":
        raise ValueError("complex outputs cannot be compared")
    return np.ascontiguousarray(leaf).reshape(-1)


def _ratio(rms: float, sigma: float) -> float:
    # A leaf that is the same for every input has no scale; the elementwise rule alone judges it.
    return min(rms / sigma, sys.float_info.max) if sigma > 0 else 0.0


def _jsonable(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _spread(references: Sequence[Array]) -> tuple[float, float]:
    """(sigma, rms of the output) over elements that are finite in every reference."""
    inputs = len(references)
    size = references[0].size
    buffer = np.empty((inputs, min(CHUNK, size)))
    varied = squared = 0.0
    count = 0
    for part in chunks(size):
        block = buffer[:, : part.stop - part.start]
        for row, reference in zip(block, references, strict=True):
            row[:] = reference[part]
        total = float(np.einsum("ij,ij->", block, block))
        if not math.isfinite(total):
            block = block[:, np.isfinite(block).all(axis=0)]
            total = float(np.einsum("ij,ij->", block, block))
        squared += total
        centred = block - block.mean(axis=0)
        varied += float(np.einsum("ij,ij->", centred, centred))
        count += block.size
    if not count:
        return 0.0, 0.0
    return math.sqrt(varied / count), math.sqrt(squared / count)


def _errors(outputs: Sequence[Array], references: Sequence[Array]) -> tuple[float, float]:
    """(largest error, rms error) of a baseline."""
    unlimited = (math.inf, 0.0, math.inf)
    results = [
        measure_errors(output, reference, unlimited)
        for output, reference in zip(outputs, references, strict=True)
    ]
    count = sum(result.elements for result in results)
    squares = sum(result.squares for result in results)
    largest = max(result.largest for result in results)
    return largest, math.sqrt(squares / count) if count else 0.0


def _compare_floats(
    got: Array, want: Array, layout: LeafLayout, allowance: tuple[float, float, float]
) -> LeafComparison:
    found = measure_errors(got, want, allowance)
    return LeafComparison(
        layout,
        elements=found.elements,
        squared_error=found.squares,
        largest_error=found.largest,
        wrong=found.wrong,
        nonfinite=found.nonfinite,
        index=(found.at,) if got.size else (),
        got=float(got[found.at]) if got.size else 0.0,
        expected=float(want[found.at]) if got.size else 0.0,
        allowed=found.allowed,
    )


def _locate(result: LeafComparison, start: int) -> LeafComparison:
    """The flat position in ``index`` as a position in the leaf's shape."""
    shape = result.layout.shape
    if not shape or not result.index:
        return replace(result, index=())
    position = np.unravel_index(result.index[0] + start, shape)
    return replace(result, index=tuple(int(i) for i in position))


def _compare_exactly(
    got: Array, want: Array, layout: LeafLayout, exempt: NDArray[np.bool_] | None
) -> LeafComparison:
    differs = got != want
    elements = got.size
    if exempt is not None:
        skip = exempt.reshape(-1)
        differs &= ~skip
        elements -= int(skip.sum())
    wrong = int(differs.sum())
    at = int(differs.argmax()) if wrong else 0
    values = (float(got[at]), float(want[at])) if got.size else (0.0, 0.0)
    largest = abs(values[0] - values[1]) if wrong else 0.0
    return LeafComparison(
        layout, elements, 0.0, largest, wrong, 0, (at,) if wrong else (), *values, 0.0
    )
