"""The reward of a verdict: the paper's milestones (Eq. 1) or, as the ablation, raw speed-up."""

from __future__ import annotations

from cudaagent.judge.decision import Decision


def milestone(correct: bool, *, beats_eager: bool = False, beats_compile: bool = False) -> float:
    """-1 wrong; 3 more than 5 % faster than both; 2 than eager only; else 1."""
    raise NotImplementedError


def is_faster(baseline_ms: float, candidate_ms: float, line: float = 0.05) -> bool:
    """(t0 - t) / t0 > line, of exact times (``decision`` decides on noisy ones)."""
    raise NotImplementedError


def reward_of(
    decision: Decision | None, *, variant: str = "milestone", launch_bound: bool = False
) -> float:
    """The reward; ``decision`` is None for a candidate that failed. ``launch_bound`` caps it at 1."""
    raise NotImplementedError
