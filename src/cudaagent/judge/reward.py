"""The reward of a verdict: the paper's milestones (Eq. 1) or, as the ablation, raw speed-up.

Pure functions; runs in the judge's process.
"""

from __future__ import annotations

from cudaagent.errors import UserError
from cudaagent.judge.decision import Decision

FAILED = -1.0
CORRECT = 1.0
BEATS_EAGER = 2.0
BEATS_BOTH = 3.0


def is_faster(baseline_ms: float, candidate_ms: float, line: float = 0.05) -> bool:
    """(t0 - t) / t0 > line, of exact times (``decision`` decides on noisy ones)."""
    return (baseline_ms - candidate_ms) / baseline_ms > line


def milestone(correct: bool, *, beats_eager: bool = False, beats_compile: bool = False) -> float:
    """-1 wrong; 3 more than 5 % faster than both; 2 than eager only; else 1."""
    if not correct:
        return FAILED
    if beats_eager:
        return BEATS_BOTH if beats_compile else BEATS_EAGER
    return CORRECT


def reward_of(
    decision: Decision | None, *, variant: str = "milestone", launch_bound: bool = False
) -> float:
    """The reward of a timed candidate; ``decision`` is None for one that failed.

    ``speedup`` gives compiled time / candidate time (eager's where the compiled time is unknown).
    ``launch_bound`` caps either variant at 1.

    Raises:
        UserError: unknown variant.
    """
    if variant not in ("milestone", "speedup"):
        raise UserError(f"judge.reward={variant} is none of milestone, speedup")
    if decision is None:
        return FAILED
    if variant == "speedup":
        reward = 1.0 / (decision.compile or decision.eager).value
    else:
        reward = milestone(
            True, beats_eager=decision.beats_eager, beats_compile=decision.beats_compile
        )
    return min(reward, CORRECT) if launch_bound else reward
