"""Whether a task can be judged at all: cheap wrong answers must be far from right ones.

Runs in the judge's own process, once per task and kind of inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cudaagent.judge.compare import Output, Policy, Scale
from cudaagent.judge.verdict import Failure


@dataclass(frozen=True, slots=True)
class Separability:
    """What the probes scored on one kind of inputs."""

    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    """Probe -> its rms error over sigma (worst float leaf, the best leaf decides)."""
    passed: tuple[str, ...] = ()
    """Probes that the comparison would have accepted on some leaf."""
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

    ``extra``: name of a probe -> its outputs, one per input (the input itself, a parameter dropped).
    """
    raise NotImplementedError


def task_failure(kinds: Sequence[Separability]) -> Failure | None:
    """``task-constant`` or ``task-inseparable`` when no kind of inputs separates, else None."""
    raise NotImplementedError
