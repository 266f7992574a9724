"""From interleaved timings to "more than 5 % faster or not", never by luck.

Pure functions of numbers; runs in the judge's process.

The estimate is the Hodges-Lehmann median of the rounds' log-ratios, its interval that of
Wilcoxon's signed-rank test, computed exactly. Why: the arms of one round are measured within a
fraction of a second of each other, so what disturbs the machine disturbs both and cancels in the
round's ratio; what remains hits either arm as often, so log-ratios are symmetric, which is all the
test assumes. It needs no normality (a t-interval is ruined by one disturbed round), it is exact
for six rounds (a bootstrap of so few is far too narrow) and loses 5 % of efficiency to the
t-interval where that is best. Fewer than six pairs have no 95 % interval, so six rounds are always
measured.

Looking after each round makes a chance decision likelier than one look would. A win is therefore
decided again on fresh rounds (``confirm``), which also removes the winner's curse from the ratio.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import numpy as np

from cudaagent.judge.verdict import Times

FEWEST_ROUNDS = 6
_TAIL = 0.025


@dataclass(frozen=True, slots=True)
class Round:
    """One interleaved round: milliseconds a call of every arm, in whatever order they ran."""

    candidate_ms: float
    eager_ms: float
    compile_ms: float | None = None
    """None when the compiled baseline was not timed in this round (see ``decide``)."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of times with its 95 % confidence interval; below 1 the numerator is faster."""

    value: float
    low: float
    high: float
    rounds: int

    def times(self, other: Ratio) -> Ratio:
        """Product of two independent ratios; the interval is the wider, safe one."""
        return Ratio(
            self.value * other.value,
            self.low * other.low,
            self.high * other.high,
            min(self.rounds, other.rounds),
        )


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
        return self.state != "more" and self.beats_eager

    @property
    def warnings(self) -> tuple[str, ...]:
        """``undecided-margin`` when the budget ran out before the interval left the line."""
        return ("undecided-margin",) if self.state == "undecided" else ()


def decide(
    rounds: Sequence[Round],
    *,
    line: float = 0.05,
    min_rounds: int = 5,
    max_rounds: int = 15,
    cached_compile: Ratio | None = None,
) -> Decision:
    """Decide on the rounds so far.

    What cannot change the reward is not waited for: a candidate that does not beat eager gets the
    same reward whatever ``torch.compile`` takes.

    ``cached_compile``: eager / compiled from earlier, used when no round has ``compile_ms``; when
    ``near_line`` holds for the resulting ratio, time the compiled arm again, interleaved.
    """
    eager = paired_ratio([r.candidate_ms for r in rounds], [r.eager_ms for r in rounds])
    compiled = _compile_ratio(rounds, eager, cached_compile)
    vs_eager, vs_compile = _side(eager, line), _side(compiled, line)
    settled = vs_eager is Side.NOT_FASTER or (
        vs_eager is Side.FASTER and vs_compile is not Side.UNDECIDED
    )
    state: Literal["decided", "more", "undecided"]
    if settled and len(rounds) >= min_rounds:
        state = "decided"
    elif len(rounds) >= max(max_rounds, FEWEST_ROUNDS):
        state = "undecided"
    else:
        state = "more"
    return Decision(vs_eager, vs_compile, eager, compiled, state)


def confirm(first: Decision, fresh: Decision) -> Decision:
    """Combine a win with the decision on rounds measured after it: a side is won if won twice.

    Ratios are the fresh ones. A side that is lost at the second attempt is undecided.
    """
    vs_eager = _twice(first.vs_eager, fresh.vs_eager)
    vs_compile = _twice(first.vs_compile, fresh.vs_compile)
    undecided = vs_eager is Side.UNDECIDED or (
        vs_eager is Side.FASTER and vs_compile is Side.UNDECIDED
    )
    return replace(
        fresh,
        vs_eager=vs_eager,
        vs_compile=vs_compile,
        state="undecided" if undecided else "decided",
    )


def near_line(ratio: Ratio, *, line: float = 0.05, margin: float = 0.10) -> bool:
    """Whether the interval comes so near to the line that a cached baseline must be timed again."""
    edge = 1.0 - line
    return ratio.low <= edge * (1.0 + margin) and ratio.high >= edge * (1.0 - margin)


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Ratio of two arms timed in the same rounds.

    With fewer than six rounds the interval is unbounded.

    Raises:
        ValueError: no rounds, unequal numbers of them, or a time that is not positive and finite.
    """
    if not numerator or len(numerator) != len(denominator):
        raise ValueError("both arms need the same number of rounds, at least one")
    if not all(math.isfinite(t) and t > 0 for t in (*numerator, *denominator)):
        raise ValueError("times must be positive and finite")
    logs = np.log(np.asarray(numerator)) - np.log(np.asarray(denominator))
    first, second = np.triu_indices(len(logs))
    walsh = np.sort((logs[first] + logs[second]) / 2)
    value = float(np.exp(np.median(walsh)))
    cut = _signed_rank_cut(len(logs))
    if cut is None:
        return Ratio(value, 0.0, math.inf, len(logs))
    return Ratio(value, float(np.exp(walsh[cut])), float(np.exp(walsh[-1 - cut])), len(logs))


def arm_times(samples_ms: Sequence[float]) -> Times:
    """Median of one arm with its 95 % interval (order statistics; the range below six samples).

    Raises:
        ValueError: no samples.
    """
    if not samples_ms:
        raise ValueError("an arm needs at least one sample")
    ordered = sorted(samples_ms)
    cut = _sign_test_cut(len(ordered))
    return Times(float(np.median(ordered)), ordered[cut], ordered[-1 - cut])


def _compile_ratio(
    rounds: Sequence[Round], eager: Ratio, cached_compile: Ratio | None
) -> Ratio | None:
    timed = [r for r in rounds if r.compile_ms is not None]
    if timed:
        return paired_ratio([r.candidate_ms for r in timed], [r.compile_ms or 0.0 for r in timed])
    return eager.times(cached_compile) if cached_compile is not None else None


def _side(ratio: Ratio | None, line: float) -> Side:
    if ratio is None:
        return Side.UNDECIDED
    edge = 1.0 - line
    if ratio.high < edge:
        return Side.FASTER
    if ratio.low >= edge:
        return Side.NOT_FASTER
    return Side.UNDECIDED


def _twice(first: Side, fresh: Side) -> Side:
    if first is Side.FASTER:
        return fresh if fresh is Side.FASTER else Side.UNDECIDED
    return first


@functools.cache
def _signed_rank_cut(pairs: int) -> int | None:
    """How many Walsh averages to drop at each end; None when even none leaves 95 %."""
    counts = np.zeros(pairs * (pairs + 1) // 2 + 1)
    counts[0] = 1.0
    for rank in range(1, pairs + 1):
        shifted = np.zeros_like(counts)
        shifted[rank:] = counts[:-rank]
        counts = counts + shifted
    tails = np.cumsum(counts) / 2.0**pairs
    below = int(np.searchsorted(tails, _TAIL, side="right"))
    return below - 1 if below else None


@functools.cache
def _sign_test_cut(samples: int) -> int:
    tail = 0.0
    for cut in range(samples // 2 + 1):
        tail += math.comb(samples, cut) / 2.0**samples
        if tail > _TAIL:
            return max(cut - 1, 0)
    return max(samples // 2 - 1, 0)
