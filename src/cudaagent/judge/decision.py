"""From interleaved timings to "more than 5 % faster or not", never by luck.

Pure functions of numbers; runs in the judge's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from cudaagent.judge.verdict import Times


@dataclass(frozen=True, slots=True)
class Round:
    """One interleaved round: milliseconds a call of every arm, in whatever order they ran."""

    candidate_ms: float
    eager_ms: float
    compile_ms: float | None = None
    """None when the compiled baseline was not timed in this round (see ``Ratio`` in ``decide``)."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of times with its 95 % confidence interval; below 1 the numerator is faster."""

    value: float
    low: float
    high: float
    rounds: int


class Side(StrEnum):
    """Where a ratio's interval lies."""

    FASTER = "faster"
    NOT_FASTER = "not-faster"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Decision:
    """The candidate against both baselines.

    ``state``: ``decided``; ``more`` (measure another round); ``undecided`` (budget spent: the lower
    reward, warning ``undecided-margin``).
    """

    vs_eager: Side
    vs_compile: Side
    eager: Ratio
    """candidate / eager."""
    compile: Ratio | None
    """candidate / compiled; None when nothing is known about it."""
    state: Literal["decided", "more", "undecided"]

    @property
    def beats_eager(self) -> bool:
        return self.vs_eager is Side.FASTER

    @property
    def beats_compile(self) -> bool:
        return self.vs_compile is Side.FASTER

    @property
    def needs_confirmation(self) -> bool:
        """A win that must be won again on fresh rounds (see ``confirm``)."""
        raise NotImplementedError

    @property
    def warnings(self) -> tuple[str, ...]:
        """``undecided-margin`` when the budget ran out before the interval left the line."""
        raise NotImplementedError


def decide(
    rounds: Sequence[Round],
    *,
    line: float = 0.05,
    min_rounds: int = 5,
    max_rounds: int = 15,
    cached_compile: Ratio | None = None,
) -> Decision:
    """Decide on the rounds so far.

    ``cached_compile``: eager / compiled from earlier, used when the rounds have no ``compile_ms``.
    """
    raise NotImplementedError


def confirm(first: Decision, fresh: Decision) -> Decision:
    """Combine a win with the decision on rounds measured after it: a side is won if won twice."""
    raise NotImplementedError


def near_line(ratio: Ratio, *, line: float = 0.05, margin: float = 0.10) -> bool:
    """Whether the interval comes so near to the line that a cached baseline must be timed again."""
    raise NotImplementedError


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Ratio of two arms timed in the same rounds."""
    raise NotImplementedError


def arm_times(samples_ms: Sequence[float]) -> Times:
    """Median of one arm with its 95 % interval."""
    raise NotImplementedError
