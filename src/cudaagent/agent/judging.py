"""One way from a submission to a verdict, for the gateway's requests and the final judgement.

Runs on the trusted side. Holds nothing of its own: the compiler and the judge may be local or
actors, and may be called from several threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from cudaagent.errors import InfrastructureError
from cudaagent.judge.verdict import Judge, Purpose, Verdict, failed
from cudaagent.tasks.task import Task
from cudaagent.toolchain.compiler import Compiler, CompileResult
from cudaagent.workspace.submission import Submission
from cudaagent.workspace.workspace import is_untouched

ATTEMPTS = 2
"""How often a judgement is made before its ``infrastructure`` failure is believed."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of the workspace and what a tool call's judgement said about it."""

    submission: Submission
    verdict: Verdict

    @property
    def rank(self) -> tuple[float, float]:
        """Larger is better: the reward, then the speed; what was not timed comes last."""
        verdict = self.verdict
        reward = 0.0 if verdict.reward is None else verdict.reward
        speed = 0.0 if verdict.candidate_ms is None else 1.0 / max(verdict.candidate_ms.ms, 1e-9)
        return reward, speed


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict and the build that it is about."""

    build: CompileResult | None
    verdict: Verdict


def judge_submission(
    compiler: Compiler,
    judge: Judge,
    task: Task,
    submission: Submission,
    *,
    purpose: Purpose,
    build: CompileResult | None = None,
) -> Judged:
    """Build ``submission`` unless ``build`` is already its build, and judge it.

    Without a ``model_new.py``, or with the one it started with, there is nothing to judge.
    A failure of the system is tried again; what is left of it is a verdict with the code
    ``infrastructure``, never an exception.
    """
    if submission.model_new is None or is_untouched(submission):
        message = "model_new.py is missing or still the starter; write a class ModelNew into it"
        return Judged(build, failed("no-solution", "static", message))
    verdict = failed("infrastructure", "system", "not judged")
    for _ in range(ATTEMPTS):
        try:
            if build is None:
                build = compiler.compile(submission)
            verdict = judge.judge(task, submission, build, purpose=purpose)
        except InfrastructureError as error:
            verdict = failed("infrastructure", "system", str(error))
        if not verdict.blames_system:
            break
    return Judged(build, verdict)
