"""What the judge remembers about tasks: facts and baseline times for good, bulk up to a budget.

Runs in the judge's process. A fault of a task is remembered like its facts; a fault of the system
is not.
"""

from __future__ import annotations

import random
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from cudaagent.errors import InfrastructureError, TaskError
from cudaagent.judge.facts import TaskBulk, TaskFacts
from cudaagent.judge.manifest import ManifestError
from cudaagent.judge.passes import NULL, PassFailed, memory_available
from cudaagent.judge.process import RUNNER_FAULTS, RunnerTimeout
from cudaagent.judge.profile import COMPILED, EAGER, Profiler
from cudaagent.judge.reference import ReferenceRunner, raise_as_task_error
from cudaagent.judge.runners import Runners
from cudaagent.judge.settings import JudgeSettings, LimitSettings
from cudaagent.judge.study import Study
from cudaagent.judge.verdict import Failure
from cudaagent.lease import TimingLease
from cudaagent.tasks.task import Task

RUNNER_ERRORS = (*RUNNER_FAULTS, ManifestError)
_BULK_SHARE = 4
"""One part in so many of the free memory may hold bulk of studied tasks."""


@dataclass(slots=True)
class KnownTask:
    """A studied task, or why it cannot be judged."""

    facts: TaskFacts | None = None
    failure: Failure | None = None
    eager_ms: float | None = None
    compile_ms: float | None = None
    warnings: tuple[str, ...] = ()


class KnownTasks:
    """Studies and times tasks once."""

    def __init__(
        self,
        runners: Runners,
        settings: JudgeSettings,
        limits: LimitSettings,
        lease: TimingLease,
        seed: int | None,
    ) -> None:
        self._runners = runners
        self._settings = settings
        self._limits = limits
        self._lease = lease
        self._seed = seed
        self._known: dict[str, KnownTask] = {}
        self._bulk: OrderedDict[str, TaskBulk] = OrderedDict()
        self._budget = memory_available() // _BULK_SHARE

    def draw_seed(self) -> int:
        """A seed for one judgement or one study; secret until it is over."""
        return secrets.randbits(62) if self._seed is None else self._seed

    def studied(self, task: Task) -> KnownTask:
        """Facts about a task, or its failure."""
        known = self._known.get(task.digest)
        if known is None:
            known = KnownTask()
            try:
                known.facts = self._study(task, self.draw_seed() % (1 << 31))
                if known.facts.mode_dependent:
                    known.warnings = ("mode-dependent",)
            except TaskError as error:
                known.failure = Failure(error.code, "task", str(error))
            self._known[task.digest] = known
        return known

    def timed(self, task: Task) -> KnownTask:
        """Facts and baseline times of a task, or its failure."""
        known = self.studied(task)
        if known.failure is not None or known.eager_ms is not None:
            return known
        assert known.facts is not None
        try:
            self._time(task, known, known.facts)
        except TaskError as fault:
            known.failure = Failure(fault.code, "task", str(fault))
        return known

    def bulk(self, task: Task, facts: TaskFacts) -> TaskBulk:
        """The task's bulk, made again from its seed when it was dropped."""
        if task.digest not in self._bulk:
            self._study(task, facts.seed)
        self._bulk.move_to_end(task.digest)
        return self._bulk[task.digest]

    def profiler(self, facts: TaskFacts, bulk: TaskBulk, rng: random.Random) -> Profiler:
        """A profiler for one task on the judge's ring."""
        return Profiler(
            self._runners.ring,
            facts,
            bulk,
            settings=self._settings,
            limits=self._limits,
            lease=self._lease,
            rng=rng,
            ring_limit=self._runners.ring_limit,
            threads=self._runners.threads,
        )

    def _study(self, task: Task, seed: int) -> TaskFacts:
        try:
            study = Study(
                task,
                self._runners.reference(task),
                self._runners.ring,
                self._settings,
                self._runners.shared,
                seed=seed,
                ring_limit=self._runners.ring_limit,
            )
            facts, bulk = study.run()
        except (TaskError, *RUNNER_ERRORS) as error:
            # What a failed task leaves behind in the runner must not meet the next one.
            self._runners.drop_reference()
            raise_as_task_error(task, error)
        self._bulk[task.digest] = bulk
        while len(self._bulk) > 1 and sum(b.nbytes for b in self._bulk.values()) > self._budget:
            self._bulk.popitem(last=False)
        return facts

    def _time(self, task: Task, known: KnownTask, facts: TaskFacts) -> None:
        profiler = self.profiler(facts, self.bulk(task, facts), random.Random(self.draw_seed()))
        try:
            runner = self._runners.bind_reference(task, facts, 1)
            shape = profiler.shape([_rough_ms(runner, facts)])
            timing = profiler.baselines(self._runners.baseline_arms(task, facts, shape), shape)
            self._runners.warmed(task, facts, shape)
        except PassFailed as error:
            self._runners.drop_all()
            # The study has called it within the limit, so a pass that hangs is the machine's fault.
            if error.arm == NULL or isinstance(error.error, RunnerTimeout):
                raise InfrastructureError(f"a timed pass failed: {error}") from error
            raise_as_task_error(task, error.error)
        except RUNNER_ERRORS as error:
            self._runners.drop_all()
            raise_as_task_error(task, error)
        known.eager_ms = float(np.median(timing.ms(EAGER)))
        known.compile_ms = float(np.median(timing.ms(COMPILED)))
        if known.compile_ms > known.eager_ms:
            known.warnings = (*known.warnings, "baseline-slower-than-eager")


def _rough_ms(runner: ReferenceRunner, facts: TaskFacts) -> float:
    """Milliseconds of one eager call, for the shape of the passes."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        runner.call(facts.key, EAGER, 0)
        best = min(best, (time.perf_counter() - start) * 1e3)
        runner.release()
    return best
