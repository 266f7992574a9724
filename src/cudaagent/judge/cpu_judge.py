"""The local judge for the CPU target.

Runs in the judge's process: it holds seeds, buffers, comparison and clock, and imports neither
torch nor anybody's code. Processes below it: the zygote, a reference runner, a null runner, and a
candidate runner for the length of one judgement. One judgement at a time; callers must not hold
the timing lease.

Invariants: every fault of candidate, task or system is a verdict, never an exception; nothing
that a runner says is believed without bytes that the judge read or a clock that the judge holds;
whatever happens, ``close`` (and the judge's own death) leaves no process behind.

What an adversary with native code in the candidate runner can still do: let work run for the
microseconds between "done" and the stop; answer from a store of results when it recognises the
pieces that an input was put together from for less than computing costs; slow the whole machine,
which slows all arms.
"""

from __future__ import annotations

import contextlib
import platform
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata

import numpy as np

from cudaagent.errors import InfrastructureError, TaskError
from cudaagent.judge.candidate import GROUP, Candidate, CandidateFailed, Verified
from cudaagent.judge.compare import Policy
from cudaagent.judge.decision import arm_times
from cudaagent.judge.facts import TaskBulk, TaskFacts
from cudaagent.judge.floor import Bandwidth, floor_ms, measure_bandwidth
from cudaagent.judge.known import RUNNER_ERRORS, KnownTask, KnownTasks
from cudaagent.judge.passes import Disturbed, PassFailed, Sample, TimedArm
from cudaagent.judge.profile import (
    CANDIDATE,
    COMPILED,
    EAGER,
    Profile,
    Profiler,
    check_samples,
)
from cudaagent.judge.reward import reward_of
from cudaagent.judge.ring import PassShape, slot_stride
from cudaagent.judge.runners import Runners
from cudaagent.judge.settings import JudgeSettings, LimitSettings
from cudaagent.judge.static_check import check_submission, scan_library
from cudaagent.judge.verdict import Baseline, Failure, Purpose, Verdict, failed
from cudaagent.lease import TimingLease
from cudaagent.sandbox.settings import SandboxSettings
from cudaagent.tasks.task import Task
from cudaagent.toolchain.compiler import CompileResult
from cudaagent.workspace.submission import Submission

_VERIFY_SLOTS = 6
_REQUEST_MS = 0.15
"""What asking for one call costs, roughly; decides only how many calls a pass has."""
_ABOVE_NOISE = 20.0
"""A floor is believed only where a pass at the floor stands out of the hand-over's noise."""

Seconds = dict[str, float]


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
        self._lease = lease or TimingLease("cpu")
        self._lock = threading.RLock()
        self._policy = Policy(judge.tolerance, judge.precision)
        self.runners = Runners(limits, sandbox, self._lease, share_reference=judge.share_reference)
        self.tasks = KnownTasks(self.runners, judge, limits, self._lease, seed)
        self._bandwidth: Bandwidth | None = None
        self._closed = False
        self.device = _device(self.runners.threads)

    def __enter__(self) -> LocalJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process and give the memory back; may be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self.runners.close()

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
            seconds: Seconds = {}
            start = time.perf_counter()
            try:
                verdict = self._judge(task, submission, build, purpose, seconds)
            except CandidateFailed as error:
                verdict = _from_failure(error.failure)
            except TaskError as error:
                verdict = failed(error.code, "task", str(error))
            except InfrastructureError as error:
                verdict = failed("infrastructure", "system", str(error))
                self._recover(error)
            seconds["total"] = time.perf_counter() - start
            return self._stamped(verdict, seconds)

    def prepare(self, task: Task) -> Baseline:
        """Study a task and time its baselines, once; see the protocol ``Judge``."""
        with self._lock:
            try:
                known = self.tasks.timed(task)
            except InfrastructureError as error:
                self._recover(error)
                failure = Failure("infrastructure", "system", str(error))
                return Baseline(task.id, failure, None, None)
            return Baseline(
                task.id, known.failure, known.eager_ms, known.compile_ms, known.warnings
            )

    def _recover(self, error: InfrastructureError) -> None:
        """Start afresh next time, unless only other work on the machine was in the way."""
        if not isinstance(error, Disturbed):
            self.runners.drop_all()

    def _judge(
        self,
        task: Task,
        submission: Submission,
        build: CompileResult | None,
        purpose: Purpose,
        seconds: Seconds,
    ) -> Verdict:
        library = _checked_library(submission, build)
        with _phase(seconds, "task"):
            known = self.tasks.studied(task) if purpose == "verify" else self.tasks.timed(task)
            if known.failure is not None:
                return _from_failure(known.failure)
            assert known.facts is not None
            facts, bulk = known.facts, self.tasks.bulk(task, known.facts)
        seed = self.tasks.draw_seed()
        rng = random.Random(seed)
        with _phase(seconds, "fork"):
            process = self.runners.fork()
        candidate = Candidate(
            process, facts, self.runners.ring, self._limits, self._policy, self.runners.shared, rng
        )
        try:
            with _phase(seconds, "load"):
                candidate.load(submission.model_new or "", library)
            with _phase(seconds, "verify"):
                verified = self._verify(candidate, facts, bulk)
            verdict = Verdict(
                correct=True,
                warnings=(*verified.warnings, *known.warnings),
                reference=facts.reference,
                error_candidate=verified.error,
                error_baseline=facts.scales["own"].baseline_ratio,
                evidence={
                    "kinds": list(verified.kinds),
                    "cases": len(bulk.cases),
                    "seed": seed,
                    "task_seed": facts.seed,
                },
            )
            if purpose == "verify":
                return verdict
            timing = _Timing(task, known, facts, bulk, candidate, verified)
            return self._profiled(timing, verdict, rng, seconds)
        finally:
            candidate.close()

    def _verify(self, candidate: Candidate, facts: TaskFacts, bulk: TaskBulk) -> Verified:
        stride = slot_stride(facts.layout)
        slots = max(1, min(_VERIFY_SLOTS, self.runners.ring_limit // stride, len(bulk.cases)))
        self.runners.ring.ensure(slots * stride)
        candidate.bind(slots)
        return candidate.verify(bulk, slots)

    def _profiled(
        self, of: _Timing, verdict: Verdict, rng: random.Random, seconds: Seconds
    ) -> Verdict:
        profiler = self.tasks.profiler(of.facts, of.bulk, rng)
        eager_ms = of.known.eager_ms or 1.0
        call_ms = max(of.verified.call_ms - _REQUEST_MS, of.verified.call_ms / 4)
        shape = profiler.shape([call_ms, eager_ms, of.known.compile_ms or eager_ms])
        with _phase(seconds, "set-up"):
            of.candidate.bind(shape.slots)
            arms = {
                CANDIDATE: TimedArm(
                    of.candidate.process,
                    GROUP,
                    of.verified.outputs,
                    ring_address=of.candidate.ring_address,
                    aliases=of.facts.aliases,
                )
            }
            try:
                arms |= self.runners.baseline_arms(of.task, of.facts, shape)
            except RUNNER_ERRORS as error:
                raise InfrastructureError(f"the reference runner failed: {error}") from error
        try:
            with _phase(seconds, "timing"):
                profile = profiler.candidate(arms, shape)
                self.runners.warmed(of.task, of.facts, shape)
            with _phase(seconds, "samples"):
                _raise(self._check(profile.samples, arms[CANDIDATE], of))
                _raise(self._too_fast(profiler, arms, shape, profile, of))
        except PassFailed as error:
            if error.arm == CANDIDATE:
                raise of.candidate.failed(error.error, "pass") from error
            raise InfrastructureError(f"a runner of the judge's own failed: {error}") from error
        except RUNNER_ERRORS as error:
            raise InfrastructureError(f"the reference runner failed: {error}") from error
        return self._with_times(profile, verdict, of.verified)

    def _with_times(self, profile: Profile, verdict: Verdict, verified: Verified) -> Verdict:
        timing = profile.final
        decision = profile.decision
        launch_bound = "launch-bound" in profile.warnings and not self._settings.allow_launch_bound
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
            reward=reward_of(decision, variant=self._settings.reward, launch_bound=launch_bound),
            evidence=verdict.evidence | profile.evidence(),
        )

    def _check(self, samples: Sequence[Sample], arm: TimedArm, of: _Timing) -> Failure | None:
        """Compare the outputs that were read in timed passes."""
        return check_samples(
            samples,
            arm,
            of.facts,
            of.bulk,
            self.runners.ring,
            self.runners.reference(of.task),
            self._policy,
            self.runners.shared,
        )

    def _too_fast(
        self,
        profiler: Profiler,
        arms: dict[str, TimedArm],
        shape: PassShape,
        profile: Profile,
        of: _Timing,
    ) -> Failure | None:
        """``impossible-time``, when every call of fresh passes was right and still too fast."""
        if self._bandwidth is None:
            with self._lease.exclusive():
                self._bandwidth = measure_bandwidth(self.runners.threads)
        least = floor_ms(
            of.facts.floor_inputs,
            of.facts.output_bytes,
            self._bandwidth,
            slots=shape.slots,
            calls=shape.calls,
        )
        noise = profile.final.handover_sd / 1e6
        measurable = least * shape.calls > _ABOVE_NOISE * noise
        if not measurable or float(np.median(profile.final.ms(CANDIDATE))) >= least:
            return None
        again = profiler.again_fully_checked(arms, shape)
        failure = self._check(again.samples, arms[CANDIDATE], of)
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

    def _stamped(self, verdict: Verdict, seconds: Seconds) -> Verdict:
        rounded = {name: round(value, 4) for name, value in seconds.items()}
        return replace(
            verdict,
            isolation=self.runners.isolation,
            precision=self._settings.precision,
            tolerance=self._settings.tolerance,
            weights=self._settings.weights,
            device=self.device,
            versions={
                "cudaagent": metadata.version("cudaagent"),
                "torch": metadata.version("torch"),
                "python": platform.python_version(),
                "numpy": np.__version__,
            },
            evidence=verdict.evidence | {"seconds": rounded},
        )


@dataclass(frozen=True, slots=True)
class _Timing:
    """One candidate on its way through timing."""

    task: Task
    known: KnownTask
    facts: TaskFacts
    bulk: TaskBulk
    candidate: Candidate
    verified: Verified


@contextlib.contextmanager
def _phase(seconds: Seconds, name: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = time.perf_counter() - start


def _raise(failure: Failure | None) -> None:
    if failure is not None:
        raise CandidateFailed(failure)


def _from_failure(failure: Failure) -> Verdict:
    return replace(failed(failure.code, failure.stage, failure.message), failure=failure)


def _checked_library(submission: Submission, build: CompileResult | None) -> bytes | None:
    """The library to load, after everything that can be refused without running it."""
    _raise(check_submission(submission))
    _raise(_build_failure(submission, build))
    library = build.library if build is not None else None
    if library is not None:
        _raise(scan_library(library))
    return library


def _build_failure(submission: Submission, build: CompileResult | None) -> Failure | None:
    """The verdict that a build alone decides, or None."""
    if build is None:
        if not submission.sources:
            return None
        return Failure("no-solution", "build", "the submission was not built")
    if build.failure is None:
        return None
    lines = build.diagnostics.strip().splitlines()
    message = {
        "build-failed": "the build failed",
        "build-timeout": "the build took too long",
        "no-solution": "there is nothing to build",
    }.get(build.failure, build.failure)
    first = next((line for line in lines if "error" in line), lines[0] if lines else "")
    text = f"{message}: {first}" if first else message
    return Failure(build.failure, "build", text, {"diagnostics": build.diagnostics})


def _device(threads: int) -> str:
    model = platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as handle:
        for line in handle:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return f"cpu: {model}, {threads} cores"
