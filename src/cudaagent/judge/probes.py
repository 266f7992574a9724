"""Whether a task can be judged at all: cheap wrong answers must be far from right ones.

Runs in the judge's own process, once per task and kind of inputs, on arrays that it read itself.

The scaled tolerance refuses zeros, a constant and the mean over the inputs by its very definition;
there the baseline's own error against how much the output varies is what tells. Under
``tolerance=paper`` every probe can pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cudaagent.judge.compare import (
    BASELINE_LIMIT,
    Array,
    LeafScale,
    Output,
    Policy,
    Pool,
    Scale,
    compare,
)
from cudaagent.judge.verdict import Failure

MAX_EXEMPT = 0.01
"""Largest share of an exact leaf on which the baselines may disagree."""


@dataclass(frozen=True, slots=True)
class Separability:
    """What the probes scored on one kind of inputs."""

    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    """``probe on leaf`` -> rms error over sigma; float leaves only."""
    passed: tuple[str, ...] = ()
    """``probe on leaf`` of the probes that the comparison would have accepted."""
    constant: tuple[str, ...] = ()
    """Leaves that are the same for every input."""
    baseline_ratio: float = 0.0


def probe(
    reference_outputs: Sequence[Output],
    scale: Scale,
    policy: Policy,
    *,
    extra: Mapping[str, Sequence[Output]] | None = None,
) -> Separability:
    """Score zeros, one constant, the mean over inputs, another input's output and ``extra``.

    ``extra``: name of a probe -> its outputs, one per input (the input itself, a parameter
    dropped); a probe whose outputs do not have the leaves' sizes is left out.
    """
    scores: dict[str, float] = {}
    passed: list[str] = []
    constant: list[str] = []
    for position, leaf in enumerate(scale.leaves):
        name = leaf.layout.name
        references = [np.asarray(output[position]) for output in reference_outputs]
        if all(np.array_equal(references[0], other, equal_nan=True) for other in references[1:]):
            constant.append(name)
            continue
        answers = _answers(references, leaf)
        for probe_name, outputs in (extra or {}).items():
            guesses = [np.asarray(output[position]) for output in outputs if len(output) > position]
            if [guess.size for guess in guesses] == [ref.size for ref in references]:
                answers[probe_name] = guesses
        for probe_name, guesses in answers.items():
            accepted, score = _accepted(guesses, references, leaf, policy)
            if leaf.layout.is_float:
                scores[f"{probe_name} on {name}"] = score
            if accepted:
                passed.append(f"{probe_name} on {name}")
    return Separability(scores, tuple(passed), tuple(constant), scale.baseline_ratio)


def task_failure(kinds: Sequence[Separability]) -> Failure | None:
    """``task-constant`` or ``task-inseparable`` when no kind of inputs separates, else None."""
    if not kinds:
        return None
    constant = set(kinds[0].constant).intersection(*(kind.constant for kind in kinds[1:]))
    if constant:
        names = ", ".join(sorted(constant))
        text = f"{names} is the same for every input, so a stored answer would pass"
        return Failure("task-constant", "task", text, {"leaves": sorted(constant)})
    passed = set(kinds[0].passed).intersection(*(kind.passed for kind in kinds[1:]))
    if passed:
        names = ", ".join(sorted(passed))
        text = f"a wrong answer would be accepted: {names}"
        return Failure("task-inseparable", "task", text, {"probes": sorted(passed)})
    if all(kind.baseline_ratio > BASELINE_LIMIT for kind in kinds):
        ratio = min(kind.baseline_ratio for kind in kinds)
        text = (
            f"eager's own error is {ratio:.3g} of how much the output varies from input to input "
            f"(limit {BASELINE_LIMIT}), so right and wrong answers cannot be told apart"
        )
        return Failure("task-inseparable", "task", text, {"baseline_ratio": ratio})
    return None


def exemption_failure(
    masks: Sequence[Sequence[NDArray[np.bool_] | None]], scale: Scale
) -> Failure | None:
    """``task-inseparable`` when the baselines disagree on more than 1 % of an exact leaf.

    ``masks``: what ``compare.disagreement`` gave, one list for each input.
    """
    for position, leaf in enumerate(scale.leaves):
        shares = [float(m.mean()) for row in masks if (m := row[position]) is not None and m.size]
        share = sum(shares) / len(masks) if masks else 0.0
        if share > MAX_EXEMPT:
            text = (
                f"{leaf.layout.name}: eager, compiled and float64 disagree on {share:.1%} of its "
                f"elements (limit {MAX_EXEMPT:.0%}), so no answer can be called wrong"
            )
            return Failure("task-inseparable", "task", text, {"leaf": leaf.layout.name})
    return None


def _answers(references: Sequence[Array], leaf: LeafScale) -> dict[str, list[Array]]:
    count = len(references)
    answers = {
        "zeros": [np.zeros_like(references[0])] * count,
        "another input's output": [references[(i + 1) % count] for i in range(count)],
    }
    if leaf.layout.is_float:
        mean = sum(reference.astype(np.float64) for reference in references) / count
        answers["one constant"] = [np.full(references[0].shape, np.mean(mean))] * count
        answers["the mean over inputs"] = [np.asarray(mean)] * count
    else:
        values, counts = np.unique(
            np.concatenate([r.ravel() for r in references]), return_counts=True
        )
        answers["one constant"] = [np.full_like(references[0], values[counts.argmax()])] * count
    return answers


def _accepted(
    guesses: Sequence[Array], references: Sequence[Array], leaf: LeafScale, policy: Policy
) -> tuple[bool, float]:
    scale = Scale((leaf,))
    pool = Pool(scale, policy)
    accepted = True
    for guess, reference in zip(guesses, references, strict=True):
        comparison = compare([guess], [reference], scale, policy)
        accepted = accepted and comparison.failure() is None
        pool.add(comparison)
    return accepted and pool.failure() is None, pool.error
