"""Options of the judge and the limits it enforces."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class JudgeSettings:
    """What the judge compares and times, and how."""

    weights: str = "live"
    """live: weights change between calls; frozen: fixed after loading."""
    tolerance: str = "scaled"
    """scaled: by how much the output varies; paper: plain atol = rtol = 1e-2."""
    precision: str = "equal"
    """equal, strict or paper: which arithmetic baselines and candidate may use."""
    reward: str = "milestone"
    """milestone: -1, 1, 2, 3 (paper, Eq. 1); speedup: t_compile / t_candidate (the ablation)."""
    share_reference: bool = False
    """One reference runner for all tasks; only where all of them come from our own synthesiser."""
    allow_launch_bound: bool = False
    """Give launch-bound tasks more than reward 1."""
    max_repeats: int = 20
    """Disturbed or throttled passes repeated at most this often in one judgement."""
    disturbed_share: float = 0.05
    """A pass is disturbed when others took more than this share of the machine during it."""
    pass_ms: float = 20.0
    """A timed pass lasts at least this long, unless one call does."""
    min_rounds: int = 5
    """Timed passes of every arm before a decision may be taken."""
    max_rounds: int = 15
    """Timed passes of every arm after which the lower reward is given (undecided-margin)."""
    verify_inputs: int = 6
    """Distinct inputs of the task's own distribution that are compared."""


@dataclass
class LimitSettings:
    """Deadlines and sizes; a message that reports one names its key."""

    build_s: float = 120.0
    """Seconds for one build."""
    load_s: float = 30.0
    """Seconds to load the extension and construct ModelNew."""
    call_s: float = 30.0
    """Seconds for one forward call."""
    verify_s: float = 120.0
    """Seconds for all of verification."""
    profile_s: float = 180.0
    """Seconds for all of profiling."""
    device_memory: float = 0.6
    """Share of the free device memory that a candidate may use."""
    host_memory_bytes: int = 8 << 30
    """Address space of one runner beyond what the warm parent maps."""
    output_bytes: int = 64 << 10
    """Bytes kept of what a build or a candidate prints."""
