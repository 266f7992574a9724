"""The judge's answer: one record, one JSON object, and the vocabulary of its codes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Protocol

from cudaagent.tasks.task import Task
from cudaagent.toolchain.compiler import CompileResult
from cudaagent.workspace.submission import Submission

CANDIDATE_CODES = frozenset(
    "static-check build-failed build-timeout load-failed constructor-failed parameter-mismatch "
    "runtime-error illegal-memory-access timeout out-of-memory crashed wrong-structure wrong-shape "
    "wrong-dtype non-finite wrong-values unstable-output aliased-output foreign-output precision "
    "no-solution forbidden-operator impossible-time profile-failed tampering".split()
)
TASK_CODES = frozenset(
    "task-invalid task-random task-constant task-inseparable task-too-large".split()
)
SYSTEM_CODES = frozenset({"infrastructure"})
WARNINGS = frozenset(
    "launch-bound undecided-margin baseline-slower-than-eager mutated-input nonstationary-clock "
    "mode-dependent short-pass reused".split()
)

Purpose = Literal["verify", "profile", "judge"]
"""``verify``: correctness only. ``profile`` and ``judge``: correctness, times and reward."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a submission, a task or the system failed; ``message`` is a sentence that helps."""

    code: str
    stage: str
    """One of ``static``, ``build``, ``load``, ``verify``, ``profile``, ``task``, ``system``."""
    message: str
    evidence: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds a call: the estimate and its 95 % confidence interval."""

    ms: float
    low_ms: float
    high_ms: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's answer for one submission.

    ``reward`` is None for failures of the task or the system and when nothing was timed.
    """

    correct: bool
    failure: Failure | None = None
    warnings: tuple[str, ...] = ()
    isolation: str = "process"
    precision: str = "equal"
    tolerance: str = "scaled"
    weights: str = "live"
    reference: str = "fp64"
    error_candidate: float | None = None
    """rms error of the candidate over sigma (see ``compare``)."""
    error_baseline: float | None = None
    eager_ms: Times | None = None
    compile_ms: Times | None = None
    candidate_ms: Times | None = None
    candidate_cold_ms: float | None = None
    speedup_vs_eager: float | None = None
    speedup_vs_compile: float | None = None
    reward: float | None = None
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict[str, str])
    evidence: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def code(self) -> str | None:
        """The failure code, or None."""
        return self.failure.code if self.failure else None

    @property
    def blames_task(self) -> bool:
        return self.code in TASK_CODES

    @property
    def blames_system(self) -> bool:
        return self.code in SYSTEM_CODES

    def with_warning(self, code: str) -> Verdict:
        """The same verdict with one more warning."""
        if code in self.warnings:
            return self
        return replace(self, warnings=(*self.warnings, code))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        """One JSON object on one line."""
        return json.dumps(self.to_dict(), allow_nan=False, default=str)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Verdict:
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        if values.get("failure") is not None:
            values["failure"] = Failure(**values["failure"])
        for name in ("eager_ms", "compile_ms", "candidate_ms"):
            if values.get(name) is not None:
                values[name] = Times(**values[name])
        values["warnings"] = tuple(values.get("warnings", ()))
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Verdict:
        return cls.from_dict(json.loads(text))


def failed(code: str, stage: str, message: str, **evidence: Any) -> Verdict:
    """A verdict that ends here; the reward is -1 when the candidate is to blame, else None."""
    reward = -1.0 if code in CANDIDATE_CODES else None
    return Verdict(
        correct=False, failure=Failure(code, stage, message, dict(evidence)), reward=reward
    )


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the judge knows about a task before any candidate: its times and whether it is fit."""

    task_id: str
    failure: Failure | None
    eager_ms: float | None
    compile_ms: float | None
    warnings: tuple[str, ...] = ()


class Judge(Protocol):
    """Judges submissions; implemented by the local judge and by the profiler pool's client."""

    def judge(
        self,
        task: Task,
        submission: Submission,
        build: CompileResult | None,
        *,
        purpose: Purpose = "judge",
    ) -> Verdict:
        """Judge ``submission``; every fault of candidate or task is a verdict, never an exception.

        ``build`` is what a ``Compiler`` made of this very submission; None lets the judge answer
        ``no-solution`` or a static refusal without a build.
        """
        ...

    def prepare(self, task: Task) -> Baseline:
        """Load ``task``, check that it can be judged, and time its baselines once."""
        ...
