"""What a report consists of: plain records, made from a run directory, shown by the renderers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

LABELS = ("cold_start", "single_turn", "rft", "value_pretraining", "agentic")
"""The evaluations of a full run, in order."""

TRAINING = ("single_turn", "sampling", "rft", "value_pretraining", "agentic")
"""What trajectories and step events belong to, in order; ``sampling`` feeds the two after it."""

TITLES = {
    "cold_start": "cold start",
    "single_turn": "single-turn PPO",
    "sampling": "sampling",
    "rft": "RFT",
    "value_pretraining": "value pretraining",
    "agentic": "agentic PPO",
}

Classifier = Callable[[str, Mapping[str, str]], str | None]
"""Names the teacher's variant of (task source, submission's files), or None for none of them."""


@dataclass(frozen=True, slots=True)
class Scores:
    """One row of the paper's Table 1: one evaluation, one state, one level.

    Rates are shares of the episodes; speed-ups are geometric means over correct, timed episodes,
    None when there are none.
    """

    label: str
    state: str
    """``best``: the best state that a tool call of the episode saw; ``final``: as it ended."""
    level: int | None
    """None: all levels together."""
    tasks: int
    episodes: int
    dropped: int
    """Episodes without a verdict on the submission; not among ``episodes``."""
    pass_rate: float
    faster_eager: float
    faster_compile: float
    speedup_eager: float | None
    speedup_compile: float | None
    top: float
    """Share of the top reward, 3."""
    reward: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What else one evaluation shows."""

    label: str
    failures: dict[str, int]
    """Failure codes of the final states."""
    variants: dict[str, int]
    """Teacher variants of the final states; ``other`` is code that the classifier does not know."""


@dataclass(frozen=True, slots=True)
class StageTotals:
    """What a training stage consumed."""

    stage: str
    steps: int
    episodes: int
    dropped: int
    reused: int
    """Episodes whose verdict was made before for the same submission."""
    first_reward: float | None
    last_reward: float | None
    results: dict[str, float]
    """The learner's metrics of a stage that is a single step; empty for the others."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line: (step, value) by rising step; a missing value is a gap."""

    name: str
    points: tuple[tuple[int, float | None], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One small chart."""

    stage: str
    metric: str
    title: str
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything that is shown of one run."""

    name: str
    path: str
    target: str
    isolation: tuple[str, ...]
    devices: tuple[str, ...]
    shuffled_rewards: bool
    tasks: dict[str, int]
    """Number of tasks by split."""
    scores: tuple[Scores, ...]
    evaluations: tuple[Evaluation, ...]
    stages: tuple[StageTotals, ...]
    panels: tuple[Panel, ...]
    config: str

    def to_dict(self) -> dict[str, Any]:
        """Plain containers for JSON."""
        return asdict(self)


def title_of(label: str) -> str:
    """The label as people read it."""
    return TITLES.get(label, label.replace("_", " "))


def geometric_mean(values: list[float]) -> float | None:
    """exp of the mean logarithm; None for no values."""
    if not values:
        return None
    return math.exp(math.fsum(map(math.log, values)) / len(values))
