"""The local judge for the CPU target.

Runs in the judge's process: it holds seeds, buffers, comparison and clock; it imports neither torch
nor anybody's code. Processes below it: the zygote, a reference runner, a null runner, and a candidate
runner for the length of one judgement. One judgement at a time; callers must not hold the timing lease.

Invariants: every fault of candidate, task or system is a verdict, never an exception; nothing that a
runner says is believed without bytes that the judge read or a clock that the judge holds; whatever
happens, ``close`` (and the judge's own death) leaves no process behind.

What an adversary with native code in the candidate runner can still do: let work run for the
microseconds between "done" and the stop; exchange values of inputs after the fact by
recognising them, as far as their pieces can be recognised for less than computing them costs; slow
the whole machine, which slows all arms.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import numpy as np

from cudaagent.errors import InfrastructureError, TaskError
from cudaagent.judge.candidate import (
    GROUP,
    RUNNER_ERRORS,
    Candidate,
    CandidateFailed,
    Verified,
)
from cudaagent.judge.compare import Policy
from cudaagent.judge.decision import arm_times
from cudaagent.judge.floor import Bandwidth, floor_ms, measure_bandwidth
from cudaagent.judge.passes import NULL, PassFailed, TimedArm, ring_bytes_limit
from cudaagent.judge.process import Deadline, RunnerProcess, ZygoteProcess
from cudaagent.judge.profile import (
    CANDIDATE,
    COMPILED,
    EAGER,
    Profile,
    Profiler,
    check_samples,
    null_outputs,
)
from cudaagent.judge.reference import ReferenceHost, ReferenceRunner, raise_as_task_error
from cudaagent.judge.reward import reward_of
from cudaagent.judge.ring import PassShape, Ring, slot_stride
from cudaagent.judge.settings import JudgeSettings, LimitSettings
from cudaagent.judge.static_check import check_submission, scan_library
from cudaagent.judge.study import Study, TaskBulk, TaskFacts
from cudaagent.judge.verdict import Baseline, Failure, Purpose, Verdict, failed
from cudaagent.lease import TimingLease
from cudaagent.sandbox.confine import best_backend
from cudaagent.sandbox.settings import SandboxSettings
from cudaagent.tasks.task import Task
from cudaagent.toolchain.compiler import CompileResult
from cudaagent.workspace.submission import Submission

_VERIFY_SLOTS = 6
_BULK_SHARE = 8
"""One part in so many of the free memory may hold bulk of studied tasks."""


@dataclass(slots=True)
class _Known:
    """A studied task, or why it cannot be judged."""

    facts: TaskFacts | None = None
    failure: Failure | None = None
    eager_ms: float | None = None
    compile_ms: float | None = None
    warnings: tuple[str, ...] = ()


class LocalJudge:
    """Judges submissions on this machine's CPU; a context manager."""

    def __init__(
        self,
        judge: JudgeSettings,
        limits: LimitSettings,
        sandbox: SandboxSettings,
        *,
        lease: TimingLease | None = None,
        seed: int | None = None,
    ) -> None:
        """Start the zygote; torch is imported there while the caller goes on.

        Args:
            seed: makes the draws (inputs, weights, orders) repeatable, for tests; None draws it.
        """
        self._settings = judge
        self._limits = limits
        self._sandbox = sandbox
        self._lease = lease or TimingLease("cpu")
        self._seed = seed
        self._lock = threading.RLock()
        self._threads = len(os.sched_getaffinity(0))
        named = sandbox.backend in ("namespace", "process")
        self._backend = sandbox.backend if named else best_backend()
        self._policy = Policy(judge.tolerance, judge.precision)
        self._zygote = ZygoteProcess(threads=self._threads, output_bytes=limits.output_bytes)
        self._ring = Ring(self._threads)
        self._ring_limit = ring_bytes_limit(limits.host_memory_bytes)
        self._references = ReferenceHost(
            self._fork, self._ring, limits, self._shared, share=judge.share_reference
        )
        self._null: RunnerProcess | None = None
        self._null_state: tuple[str, int, int] | None = None
        self._known: dict[str, _Known] = {}
        self._bulk: OrderedDict[str, TaskBulk] = OrderedDict()
        self._bandwidth: Bandwidth | None = None
        self._closed = False
        self.device = _device(self._threads)

    def __enter__(self) -> LocalJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process and give the memory back; may be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._zygote.close()
            self._ring.close()

    def judge(
        self,
        task: Task,
        submission: Submission,
        build: CompileResult | None,
        *,
        purpose: Purpose = "judge",
    ) -> Verdict:
        """Judge one submission; see the protocol ``Judge``."""
        with self._lock:
            seconds: dict[str, float] = {}
            start = time.perf_counter()
            try:
                verdict = self._judge(task, submission, build, purpose, seconds)
            except CandidateFailed as error:
                failure = error.failure
                verdict = replace(
                    failed(failure.code, failure.stage, failure.message), failure=failure
                )
            except TaskError as error:
                verdict = failed(error.code, "task", str(error))
            except InfrastructureError as error:
                verdict = failed("infrastructure", "system", str(error))
                self._references.drop()
                self._drop_null()
            seconds["total"] = time.perf_counter() - start
            return self._stamped(verdict, seconds)

    def prepare(self, task: Task) -> Baseline:
        """Study a task and time its baselines, once; see the protocol ``Judge``."""
        with self._lock:
            try:
                known = self._timed(task)
            except InfrastructureError as error:
                self._references.drop()
                self._drop_null()
                failure = Failure("infrastructure", "system", str(error))
                return Baseline(task.id, failure, None, None)
            return Baseline(
                task.id, known.failure, known.eager_ms, known.compile_ms, known.warnings
            )

    def _judge(
        self,
        task: Task,
        submission: Submission,
        build: CompileResult | None,
        purpose: Purpose,
        seconds: dict[str, float],
    ) -> Verdict:
        _raise(check_submission(submission))
        _raise(_build_failure(submission, build))
        with _phase(seconds, "task"):
            known = self._studied(task) if purpose == "verify" else self._timed(task)
            if known.failure is not None:
                return replace(
                    failed(known.failure.code, "task", known.failure.message),
                    failure=known.failure,
                )
            assert known.facts is not None
            facts, bulk = known.facts, self._bulk_of(task, known.facts)
        library = build.library if build is not None else None
        if library is not None:
            _raise(scan_library(library))
        rng = self._rng()
        with _phase(seconds, "fork"):
            process = self._fork()
        candidate = Candidate(
            process, facts, self._ring, self._limits, self._policy, self._shared, rng
        )
        try:
            with _phase(seconds, "load"):
                candidate.load(submission.model_new or "", library)
            with _phase(seconds, "verify"):
                verified = self._verify(candidate, facts, bulk)
            verdict = Verdict(
                correct=True,
                warnings=tuple(verified.warnings) + known.warnings,
                reference=facts.reference,
                error_candidate=verified.error,
                error_baseline=facts.scales["own"].baseline_ratio,
                isolation=process.isolation,
                evidence={"kinds": list(verified.kinds), "cases": len(bulk.cases)},
            )
            if purpose == "verify":
                return verdict
            return self._profiled(
                task, candidate, facts, bulk, known, verified, verdict, rng, seconds
            )
        finally:
            candidate.close()

    def _verify(self, candidate: Candidate, facts: TaskFacts, bulk: TaskBulk) -> Verified:
        stride = slot_stride(facts.layout)
        slots = max(1, min(_VERIFY_SLOTS, self._ring_limit // stride, len(bulk.cases)))
        self._ring.ensure(slots * stride)
        candidate.bind(slots)
        return candidate.verify(bulk, slots)

    def _profiled(
        self,
        task: Task,
        candidate: Candidate,
        facts: TaskFacts,
        bulk: TaskBulk,
        known: _Known,
        verified: Verified,
        verdict: Verdict,
        rng: random.Random,
        seconds: dict[str, float],
    ) -> Verdict:
        profiler = self._profiler(facts, bulk, rng)
        times = [verified.call_ms, known.eager_ms or 1.0, known.compile_ms or known.eager_ms or 1.0]
        shape = profiler.shape(times)
        runner = self._references.runner(task)
        with _phase(seconds, "set-up"):
            candidate.bind(shape.slots)
            arms = {CANDIDATE: TimedArm(candidate.process, GROUP, verified.outputs)}
            arms |= self._baseline_arms(task, runner, facts, shape)
        try:
            with _phase(seconds, "timing"):
                profile = profiler.candidate(arms, shape)
            with _phase(seconds, "samples"):
                _raise(self._check(profile.samples, arms[CANDIDATE], facts, bulk, runner))
                _raise(self._too_fast(profiler, arms, shape, profile, facts, bulk, runner))
        except PassFailed as failed_pass:
            if failed_pass.arm == CANDIDATE:
                raise candidate.failed(failed_pass.error, "pass") from failed_pass
            raise InfrastructureError(
                f"a runner of the judge's own failed: {failed_pass}"
            ) from None
        except RUNNER_ERRORS as error:
            raise InfrastructureError(f"the reference runner failed: {error}") from error
        return self._verdict(profile, verdict, verified)

    def _verdict(self, profile: Profile, verdict: Verdict, verified: Verified) -> Verdict:
        timing = profile.final
        decision = profile.decision
        launch_bound = "launch-bound" in profile.warnings and not self._settings.allow_launch_bound
        reward = reward_of(decision, variant=self._settings.reward, launch_bound=launch_bound)
        compiled = decision.compile
        return replace(
            verdict,
            warnings=tuple(dict.fromkeys((*verdict.warnings, *profile.warnings))),
            eager_ms=arm_times(timing.ms(EAGER)),
            compile_ms=arm_times(timing.ms(COMPILED)) if compiled is not None else None,
            candidate_ms=arm_times(timing.ms(CANDIDATE)),
            candidate_cold_ms=verified.cold_ms if self._settings.weights == "frozen" else None,
            speedup_vs_eager=1.0 / decision.eager.value,
            speedup_vs_compile=1.0 / compiled.value if compiled is not None else None,
            reward=reward,
            evidence=verdict.evidence | profile.evidence(),
        )

    def _check(
        self,
        samples: list[Any],
        arm: TimedArm,
        facts: TaskFacts,
        bulk: TaskBulk,
        runner: ReferenceRunner,
    ) -> Failure | None:
        arm.runner.stop()
        return check_samples(
            samples, arm, facts, bulk, self._ring, runner, self._policy, self._shared
        )

    def _too_fast(
        self,
        profiler: Profiler,
        arms: dict[str, TimedArm],
        shape: PassShape,
        profile: Profile,
        facts: TaskFacts,
        bulk: TaskBulk,
        runner: ReferenceRunner,
    ) -> Failure | None:
        """``impossible-time``, when every call of fresh passes was right and still too fast."""
        if self._bandwidth is None:
            with self._lease.exclusive():
                self._bandwidth = measure_bandwidth(self._threads)
        least = floor_ms(
            facts.floor_inputs,
            facts.output_bytes,
            self._bandwidth,
            slots=shape.slots,
            calls=shape.calls,
        )
        if float(np.median(profile.final.ms(CANDIDATE))) >= least:
            return None
        again = profiler.again_fully_checked(arms, shape)
        failure = self._check(again.samples, arms[CANDIDATE], facts, bulk, runner)
        if failure is not None:
            return failure
        fastest = float(np.median(again.ms(CANDIDATE)))
        if fastest >= least:
            return None
        text = (
            f"{fastest:.4g} ms a call is less than the {least:.4g} ms that moving the bytes of its "
            "outputs and inputs takes on this machine"
        )
        return Failure("impossible-time", "profile", text, {"ms": fastest, "floor_ms": least})

    def _studied(self, task: Task) -> _Known:
        """Facts about a task; a task's own fault is remembered."""
        known = self._known.get(task.digest)
        if known is None:
            known = _Known()
            try:
                known.facts = self._study(task, self._draw_seed())
                if known.facts.mode_dependent:
                    known.warnings = ("mode-dependent",)
            except TaskError as error:
                known.failure = Failure(error.code, "task", str(error))
            self._known[task.digest] = known
        return known

    def _study(self, task: Task, seed: int) -> TaskFacts:
        runner: ReferenceRunner | None = None
        try:
            runner = self._references.runner(task)
            study = Study(
                task, runner, self._ring, self._settings, self._shared,
                seed=seed, ring_limit=self._ring_limit,
            )  # fmt: skip
            facts, bulk = study.run()
        except (TaskError, *RUNNER_ERRORS) as error:
            # What a failed task leaves behind in the runner is nobody's business.
            self._references.drop()
            raise_as_task_error(task, error)
        self._keep(task, bulk)
        return facts

    def _bulk_of(self, task: Task, facts: TaskFacts) -> TaskBulk:
        """The task's bulk, made again when it was dropped."""
        bulk = self._bulk.get(task.digest)
        if bulk is None:
            self._study(task, facts.seed)
            bulk = self._bulk[task.digest]
        self._bulk.move_to_end(task.digest)
        return bulk

    def _keep(self, task: Task, bulk: TaskBulk) -> None:
        self._bulk[task.digest] = bulk
        budget = self._limits.host_memory_bytes // _BULK_SHARE * 3
        while len(self._bulk) > 1 and sum(b.nbytes for b in self._bulk.values()) > budget:
            self._bulk.popitem(last=False)

    def _timed(self, task: Task) -> _Known:
        """Facts and baseline times of a task."""
        known = self._studied(task)
        if known.failure is not None or known.eager_ms is not None:
            return known
        assert known.facts is not None
        facts, bulk = known.facts, self._bulk_of(task, known.facts)
        runner = self._references.runner(task)
        profiler = self._profiler(facts, bulk, self._rng())
        try:
            self._bind_reference(task, runner, facts, 1)
            call_ms = self._call_ms(runner, facts)
            shape = profiler.shape([call_ms])
            arms = self._baseline_arms(task, runner, facts, shape)
            timing = profiler.baselines(arms, shape)
        except (PassFailed, *RUNNER_ERRORS) as error:
            self._references.drop()
            if isinstance(error, PassFailed) and error.arm == NULL:
                raise InfrastructureError(f"the null runner failed: {error.error}") from error
            try:
                raise_as_task_error(task, error.error if isinstance(error, PassFailed) else error)
            except TaskError as fault:
                known.failure = Failure(fault.code, "task", str(fault))
                return known
        known.eager_ms = float(np.median(timing.ms(EAGER)))
        known.compile_ms = float(np.median(timing.ms(COMPILED)))
        if known.compile_ms > known.eager_ms:
            known.warnings = (*known.warnings, "baseline-slower-than-eager")
        return known

    def _call_ms(self, runner: ReferenceRunner, facts: TaskFacts) -> float:
        """Rough milliseconds of one eager call, for the shape of the passes."""
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            runner.call(facts.key, EAGER, 0)
            best = min(best, (time.perf_counter() - start) * 1e3)
            runner.release()
        return best

    def _baseline_arms(
        self, task: Task, runner: ReferenceRunner, facts: TaskFacts, shape: PassShape
    ) -> dict[str, TimedArm]:
        """Eager, compiled and null, bound to the ring."""
        self._bind_reference(task, runner, facts, shape.slots)
        runner.compile(facts.key)
        return {
            EAGER: TimedArm(runner.process, f"{facts.key}:eager", facts.outputs),
            COMPILED: TimedArm(runner.process, f"{facts.key}:compiled", facts.outputs),
            NULL: TimedArm(self._null_for(facts, shape.slots), NULL, facts.outputs),
        }

    def _bind_reference(
        self, task: Task, runner: ReferenceRunner, facts: TaskFacts, slots: int
    ) -> None:
        self._ring.ensure(slots * slot_stride(facts.layout))
        runner.load(task, facts.seed)
        runner.bind(facts.key, facts.binding, slots)

    def _null_for(self, facts: TaskFacts, slots: int) -> RunnerProcess:
        """The judge's own empty runner, bound like the others."""
        if self._null is None:
            self._null = self._fork()
            self._null_state = None
        state = (facts.key, slots, self._ring.generation)
        if state != self._null_state:
            deadline = Deadline(self._limits.load_s, "limits.load_s")
            null = self._null
            try:
                if self._null_state is None or self._null_state[2] != self._ring.generation:
                    null.request(
                        {"op": "ring", "size": self._ring.size}, deadline, fds=[self._ring.fd]
                    )
                null.request(null_outputs(facts), deadline)
                null.request(facts.binding.message(NULL, slots), deadline)
            except RUNNER_ERRORS as error:
                self._drop_null()
                raise InfrastructureError(f"the null runner failed: {error}") from error
            self._null_state = state
        return self._null

    def _drop_null(self) -> None:
        if self._null is not None:
            null, self._null = self._null, None
            null.close()

    def _profiler(self, facts: TaskFacts, bulk: TaskBulk, rng: random.Random) -> Profiler:
        return Profiler(
            self._ring,
            facts,
            bulk,
            settings=self._settings,
            limits=self._limits,
            lease=self._lease,
            rng=rng,
            ring_limit=self._ring_limit,
            threads=self._threads,
        )

    def _fork(self) -> RunnerProcess:
        return self._zygote.fork(
            backend=self._backend,
            memory_bytes=self._limits.host_memory_bytes + self._ring_limit,
            processes=self._sandbox.processes,
            file_bytes=self._sandbox.file_bytes,
        )

    @contextlib.contextmanager
    def _shared(self) -> Iterator[None]:
        with self._lease.shared():
            yield

    def _draw_seed(self) -> int:
        return secrets.randbits(31) if self._seed is None else self._seed

    def _rng(self) -> random.Random:
        return random.Random(secrets.randbits(128) if self._seed is None else self._seed)

    def _stamped(self, verdict: Verdict, seconds: dict[str, float]) -> Verdict:
        rounded = {name: round(value, 4) for name, value in seconds.items()}
        return replace(
            verdict,
            isolation=self._backend,
            precision=self._settings.precision,
            tolerance=self._settings.tolerance,
            weights=self._settings.weights,
            device=self.device,
            versions=self._versions(),
            evidence=verdict.evidence | {"seconds": rounded},
        )

    def _versions(self) -> dict[str, str]:
        return {
            "cudaagent": metadata.version("cudaagent"),
            "torch": metadata.version("torch"),
            "python": platform.python_version(),
            "numpy": np.__version__,
        }


@contextlib.contextmanager
def _phase(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = time.perf_counter() - start


def _raise(failure: Failure | None) -> None:
    if failure is not None:
        raise CandidateFailed(failure)


def _build_failure(submission: Submission, build: CompileResult | None) -> Failure | None:
    """The verdict that a build alone decides, or None."""
    if build is None:
        if not submission.sources:
            return None
        return Failure("no-solution", "build", "the submission was not built")
    if build.failure is None:
        return None
    text = build.diagnostics.strip().splitlines()
    message = {
        "build-failed": "the build failed",
        "build-timeout": "the build took too long",
        "no-solution": "there is nothing to build",
    }.get(build.failure, build.failure)
    first = next((line for line in text if "error" in line), text[0] if text else "")
    return Failure(
        build.failure,
        "build",
        f"{message}: {first}" if first else message,
        {"diagnostics": build.diagnostics},
    )


def _device(threads: int) -> str:
    model = platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as handle:
        for line in handle:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return f"cpu: {model}, {threads} cores"
