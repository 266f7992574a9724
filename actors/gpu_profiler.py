"""A profiler: one process that owns a device and judges submissions on it.

On the CPU target the device is the machine itself, held through the timing lease.
"""

from __future__ import annotations

from cudaagent.config import Config
from cudaagent.judge.open import open_judge
from cudaagent.judge.verdict import Baseline, Purpose, Verdict
from cudaagent.lease import TimingLease
from cudaagent.tasks.task import Task
from cudaagent.toolchain.compiler import CompileResult
from cudaagent.workspace.submission import Submission


class Profiler:
    """Judges one submission at a time."""

    def __init__(self, config: Config, target: str) -> None:
        self._judge = open_judge(
            target, config.judge, config.limits, config.sandbox, lease=TimingLease()
        )

    def device(self) -> str:
        return self._judge.device

    def prepare(self, task: Task) -> Baseline:
        return self._judge.prepare(task)

    def judge(
        self,
        task: Task,
        submission: Submission,
        build: CompileResult | None,
        purpose: Purpose = "judge",
    ) -> Verdict:
        return self._judge.judge(task, submission, build, purpose=purpose)

    def close(self) -> None:
        """End every process the judge started."""
        self._judge.close()
