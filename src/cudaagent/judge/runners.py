"""The judge's processes: the zygote, the reference runner, the null runner, and new candidates.

Runs in the judge's process; owns the ring that they all map.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from cudaagent.errors import InfrastructureError
from cudaagent.judge.facts import TaskFacts
from cudaagent.judge.passes import NULL, WARM_UPS, TimedArm, ring_bytes_limit
from cudaagent.judge.process import RUNNER_FAULTS, Deadline, RunnerProcess
from cudaagent.judge.profile import COMPILED, EAGER, null_outputs
from cudaagent.judge.reference import ReferenceHost, ReferenceRunner, task_key
from cudaagent.judge.ring import PassShape, Ring, slot_stride
from cudaagent.judge.settings import LimitSettings
from cudaagent.judge.warm_parent import ZygoteProcess
from cudaagent.lease import TimingLease
from cudaagent.sandbox.confine import best_backend
from cudaagent.sandbox.settings import SandboxSettings
from cudaagent.tasks.task import Task


class Runners:
    """Starts and ends every process below the judge."""

    def __init__(
        self,
        limits: LimitSettings,
        sandbox: SandboxSettings,
        lease: TimingLease,
        *,
        share_reference: bool,
    ) -> None:
        self._limits = limits
        self._sandbox = sandbox
        self._lease = lease
        self.threads = len(os.sched_getaffinity(0))
        named = sandbox.backend in ("namespace", "process")
        self.isolation = sandbox.backend if named else best_backend()
        self._share_reference = share_reference
        self.zygote = self._start_zygote()
        self.ring = Ring(self.threads)
        self.ring_limit = ring_bytes_limit(limits.host_memory_bytes)
        self._references = ReferenceHost(
            self.fork, self.ring, limits, self.shared, share=share_reference
        )
        self._null: RunnerProcess | None = None
        self._null_state: tuple[str, int, int] | None = None
        self._warmed: tuple[str, int, int, int] | None = None

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """The timing lease held shared, for one piece of work."""
        with self._lease.shared():
            yield

    def fork(self) -> RunnerProcess:
        """A fresh confined runner; whoever asks for it closes it.

        Raises:
            InfrastructureError: it could not be made.
        """
        with self.shared():
            return self.zygote.fork(
                backend=self.isolation,
                memory_bytes=self._limits.host_memory_bytes + self.ring_limit,
                processes=self._sandbox.processes,
                file_bytes=self._sandbox.file_bytes,
            )

    def reference(self, task: Task) -> ReferenceRunner:
        """The warm reference runner for ``task``, or a new one."""
        if self._warmed is not None and self._warmed[0] != task_key(task):
            self._warmed = None
        return self._references.runner(task)

    def baseline_arms(self, task: Task, facts: TaskFacts, shape: PassShape) -> dict[str, TimedArm]:
        """Eager, compiled and null, bound to the ring."""
        runner = self.bind_reference(task, facts, shape.slots)
        runner.compile(facts.key)
        state = self._state(runner, facts, shape)
        known = self._warmed
        warm = known is not None and known[:3] == state[:3] and known[3] >= state[3]
        count = 1 if warm else WARM_UPS
        self._warmed = None
        return {
            EAGER: TimedArm(runner.process, f"{facts.key}:eager", facts.outputs, count),
            COMPILED: TimedArm(runner.process, f"{facts.key}:compiled", facts.outputs, count),
            NULL: TimedArm(self._null_for(facts, shape.slots), NULL, facts.outputs),
        }

    def warmed(self, task: Task, facts: TaskFacts, shape: PassShape) -> None:
        """The baselines have just made passes of this shape."""
        self._warmed = self._state(self.reference(task), facts, shape)

    def _state(
        self, runner: ReferenceRunner, facts: TaskFacts, shape: PassShape
    ) -> tuple[str, int, int, int]:
        return facts.key, runner.process.pid, self.ring.generation, shape.calls

    def bind_reference(self, task: Task, facts: TaskFacts, slots: int) -> ReferenceRunner:
        """The reference runner with ``task`` loaded and bound to ``slots`` slots of the ring."""
        runner = self.reference(task)
        self.ring.ensure(slots * slot_stride(facts.layout))
        runner.load(task, facts.seed)
        runner.bind(facts.key, facts.binding, slots)
        return runner

    def drop_reference(self) -> None:
        """End the reference runner; the next task gets a new one."""
        self._references.drop()

    def drop_all(self) -> None:
        """End all warm runners; they are made again when they are needed."""
        with contextlib.suppress(InfrastructureError):
            self._references.drop()
        with contextlib.suppress(InfrastructureError):
            self._drop_null()
        if not self.zygote.alive:
            self.zygote.close()
            self.zygote = self._start_zygote()

    def _start_zygote(self) -> ZygoteProcess:
        return ZygoteProcess(
            threads=self.threads,
            output_bytes=self._limits.output_bytes,
            many_compiles=self._share_reference,
        )

    def close(self) -> None:
        """End every process and give the ring back."""
        self.zygote.close()
        self.ring.close()

    def _null_for(self, facts: TaskFacts, slots: int) -> RunnerProcess:
        """The judge's own empty runner, bound like the others."""
        if self._null is None:
            self._null = self.fork()
            self._null_state = None
        null, state = self._null, (facts.key, slots, self.ring.generation)
        if state == self._null_state:
            return null
        deadline = Deadline(self._limits.load_s, "limits.load_s")
        try:
            if self._null_state is None or self._null_state[2] != self.ring.generation:
                request = {"op": "ring", "size": self.ring.size}
                null.request(request, deadline, fds=[self.ring.fd])
            null.request(null_outputs(facts), deadline)
            null.request(facts.binding.message(NULL, slots), deadline)
        except RUNNER_FAULTS as error:
            self._drop_null()
            raise InfrastructureError(f"the null runner failed: {error}") from error
        self._null_state = state
        return null

    def _drop_null(self) -> None:
        if self._null is not None:
            null, self._null = self._null, None
            null.close()
