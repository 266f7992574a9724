"""The profiler pool: one process that hands judgements to profilers and remembers verdicts.

Invariants: within a run a reward or evaluation verdict is made once for a (task, submission,
device, policies) and afterwards returned with the warning ``reused``; requests for the same key
that arrive while it is being made wait for it. A profiler that dies costs its judgement a retry on
another one, at most twice, then the verdict is ``infrastructure``.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import ray
from ray.exceptions import RayActorError, RayTaskError

from cudaagent.config import Config
from cudaagent.judge.verdict import SYSTEM_CODES, Baseline, Failure, Purpose, Verdict, failed
from cudaagent.tasks.task import Task
from cudaagent.toolchain.compiler import CompileResult
from cudaagent.verdict_store import VerdictStore, policies_of
from cudaagent.workspace.submission import Submission

_RETRIES = 2
log = logging.getLogger(__name__)


class ProfilerPool:
    """Dispatches to free profilers in the order of arrival."""

    def __init__(self, profilers: list[str], config: Config, store: str) -> None:
        # By name: Ray restarts no actor whose arguments hold other actors' handles.
        self._profilers = [ray.get_actor(name) for name in profilers]
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for index in range(len(profilers)):
            self._free.put_nowait(index)
        self._store = VerdictStore(Path(store))
        self._policies = policies_of(config.judge)
        self._device: str | None = None
        self._running: dict[tuple[str, str, str, str], asyncio.Future[Verdict]] = {}
        self.judged = 0

    async def prepare(self, task: Task) -> Baseline:
        """The task's baselines; every profiler prepares a task when it first meets it."""
        for attempt in range(1 + _RETRIES):
            index = await self._free.get()
            try:
                baseline: Baseline = await self._profilers[index].prepare.remote(task)
            except RayActorError as error:
                reason = f"profiler {index} died: {str(error)[-500:]}"
                failure = Failure("infrastructure", "system", reason)
                baseline = Baseline(task.id, failure, None, None)
            finally:
                self._free.put_nowait(index)
            if baseline.failure is None or baseline.failure.code not in SYSTEM_CODES:
                return baseline
            log.warning("preparing %s failed (%d): %s", task.id, attempt, baseline.failure.message)
        return baseline

    async def judge(
        self,
        task: Task,
        submission: Submission,
        build: CompileResult | None,
        purpose: Purpose = "judge",
    ) -> Verdict:
        device = await self.ready()
        policies = self._policies if purpose == "judge" else f"{self._policies} purpose={purpose}"
        key = (task.digest, submission.digest, device, policies)
        known = self._store.get(*key)
        if known is not None:
            return known
        if key in self._running:
            verdict = await asyncio.shield(self._running[key])
            return verdict if verdict.blames_system else verdict.with_warning("reused")
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._running[key] = future
        try:
            verdict = await self._judge(task, submission, build, purpose)
            self._store.put(*key, verdict=verdict, task_id=task.id)
            self._store.flush(lazily=True)
            future.set_result(verdict)
            return verdict
        except BaseException as error:
            future.set_exception(error)
            future.exception()
            raise
        finally:
            del self._running[key]

    async def _judge(
        self, task: Task, submission: Submission, build: CompileResult | None, purpose: Purpose
    ) -> Verdict:
        reason = ""
        for _ in range(1 + _RETRIES):
            index = await self._free.get()
            try:
                verdict = await self._profilers[index].judge.remote(
                    task, submission, build, purpose
                )
                self.judged += 1
                if not verdict.blames_system:
                    return verdict
                reason = verdict.failure.message if verdict.failure else ""
            except (RayActorError, RayTaskError) as error:
                reason = f"profiler {index}: {type(error).__name__}: {str(error)[-500:]}"
            finally:
                self._free.put_nowait(index)
            log.warning("judgement of %s failed, retried: %s", task.id, reason)
        return failed("infrastructure", "system", f"{1 + _RETRIES} attempts failed: {reason}")

    async def flush(self) -> None:
        """Write every verdict to disk."""
        self._store.flush()

    async def ready(self) -> str:
        """The device's name, once a profiler has answered."""
        if self._device is None:
            self._device = await self._profilers[0].device.remote()
        return self._device


class RemoteJudge:
    """The ``Judge`` protocol over the profiler pool."""

    def __init__(self, pool: ray.actor.ActorHandle, timeout_s: float = 3600.0) -> None:
        self._pool = pool
        self._timeout_s = timeout_s

    def judge(
        self,
        task: Task,
        submission: Submission,
        build: CompileResult | None,
        *,
        purpose: Purpose = "judge",
    ) -> Verdict:
        reference = self._pool.judge.remote(task, submission, build, purpose)
        return ray.get(reference, timeout=self._timeout_s)

    def prepare(self, task: Task) -> Baseline:
        return ray.get(self._pool.prepare.remote(task), timeout=self._timeout_s)
