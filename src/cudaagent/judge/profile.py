"""Timing of a candidate, or of a task's baselines alone, on passes of one shape.

Runs in the judge's process. All timed passes of one measurement happen in one exclusive hold of the
timing lease; the values of the sampled calls are compared afterwards.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cudaagent.judge.compare import Policy, Pool, compare
from cudaagent.judge.decision import Decision, Round, confirm, decide
from cudaagent.judge.facts import TaskBulk, TaskFacts
from cudaagent.judge.passes import NULL, PassClock, Sample, TimedArm, Timing, calls_for
from cudaagent.judge.reference import ReferenceRunner, Shared, piece_to_array, read_leaves, to_array
from cudaagent.judge.ring import PassShape, Ring, pass_shape, slot_stride
from cudaagent.judge.settings import JudgeSettings, LimitSettings
from cudaagent.judge.values import OWN
from cudaagent.judge.verdict import Failure
from cudaagent.lease import TimingLease

CANDIDATE, EAGER, COMPILED = "candidate", "eager", "compiled"
_LEASE_S = 600.0
_SAMPLES = 3
"""Calls of a timed pass whose outputs are read and compared."""
_HANDOVERS = 20.0
"""Eager below so many times the hand-over's noise a call is launch-bound."""


@dataclass(slots=True)
class Profile:
    """What timing a candidate has shown."""

    timing: Timing
    decision: Decision
    fresh: Timing | None = None
    """The rounds that a winner had to win again."""
    warnings: list[str] = field(default_factory=list[str])

    @property
    def final(self) -> Timing:
        """The rounds whose times are reported."""
        return self.fresh or self.timing

    @property
    def samples(self) -> list[Sample]:
        return self.timing.samples + (self.fresh.samples if self.fresh else [])

    def evidence(self) -> dict[str, Any]:
        """Pass lengths and rounds for the verdict."""
        final = self.final
        return {
            "slots": final.shape.slots,
            "calls": final.shape.calls,
            "ring_shorter": final.shape.shorter,
            "rounds": len(self.timing.rounds) + (len(self.fresh.rounds) if self.fresh else 0),
            "repeats": self.timing.repeats + (self.fresh.repeats if self.fresh else 0),
            "handover_ms": final.handover / 1e6,
            "handover_sd_ms": final.handover_sd / 1e6,
            "pass_ms": {name: final.pass_ms(name) for name in final.rounds[0]},
            "checked_calls": len(self.samples),
            "decided": self.decision.state,
        }


class Profiler:
    """Builds passes for one task and runs them."""

    def __init__(
        self,
        ring: Ring,
        facts: TaskFacts,
        bulk: TaskBulk,
        *,
        settings: JudgeSettings,
        limits: LimitSettings,
        lease: TimingLease,
        rng: random.Random,
        ring_limit: int,
        threads: int,
    ) -> None:
        self._ring = ring
        self._facts = facts
        self._bulk = bulk
        self._settings = settings
        self._limits = limits
        self._lease = lease
        self._rng = rng
        self._ring_limit = ring_limit
        self._threads = threads

    def shape(self, times_ms: list[float]) -> PassShape:
        """The shape of passes for arms that take so many milliseconds a call; makes the ring."""
        layout = self._facts.layout
        wanted = calls_for(self._settings.pass_ms, times_ms)
        shape = pass_shape(layout, wanted, self._ring_limit)
        self._ring.ensure(shape.slots * slot_stride(layout))
        return shape

    def baselines(self, arms: Mapping[str, TimedArm], shape: PassShape) -> Timing:
        """Times of the baselines: a few interleaved rounds."""
        with self._lease.exclusive(_LEASE_S):
            clock = self._clock(arms, shape, time.monotonic() + self._limits.profile_s)
            clock.warm_up()
            for _ in range(self._settings.min_rounds):
                clock.round()
        return clock.timing

    def candidate(self, arms: Mapping[str, TimedArm], shape: PassShape) -> Profile:
        """Rounds until the decision is made; a winner has to win again on fresh rounds."""
        end = time.monotonic() + self._limits.profile_s
        with self._lease.exclusive(_LEASE_S):
            clock = self._clock(arms, shape, end)
            clock.warm_up()
            first = self._rounds(clock)
            clock.watch(CANDIDATE)
            if not first.needs_confirmation:
                return self._warned(Profile(clock.timing, first))
            again = self._clock(arms, shape, end)
            again.timing.repeats = clock.timing.repeats
            again.timing.handover_ns += clock.timing.handover_ns
            fresh = self._rounds(again)
        again.timing.repeats -= clock.timing.repeats
        return self._warned(Profile(clock.timing, confirm(first, fresh), again.timing))

    def again_fully_checked(self, arms: Mapping[str, TimedArm], shape: PassShape) -> Timing:
        """Two more rounds in which every call of the candidate is read."""
        with self._lease.exclusive(_LEASE_S):
            clock = self._clock(arms, shape, time.monotonic() + self._limits.profile_s)
            for _ in range(2):
                clock.round(sampled=CANDIDATE, samples=shape.calls)
        return clock.timing

    def _rounds(self, clock: PassClock) -> Decision:
        while True:
            clock.round(sampled=CANDIDATE, samples=_SAMPLES)
            timing = clock.timing
            rounds = [
                Round(
                    timing.call_ms(result[CANDIDATE]),
                    timing.call_ms(result[EAGER]),
                    timing.call_ms(result[COMPILED]) if COMPILED in result else None,
                )
                for result in timing.rounds
            ]
            decision = decide(
                rounds,
                min_rounds=self._settings.min_rounds,
                max_rounds=self._settings.max_rounds,
            )
            if decision.state != "more":
                return decision

    def _warned(self, profile: Profile) -> Profile:
        profile.warnings += profile.decision.warnings
        timing = profile.final
        shortest = min(timing.pass_ms(name) for name in timing.rounds[0])
        if shortest < 0.9 * self._settings.pass_ms:
            profile.warnings.append("short-pass")
        eager = float(np.median(timing.ms(EAGER)))
        if eager < _HANDOVERS * timing.handover_sd / timing.shape.calls / 1e6:
            profile.warnings.append("launch-bound")
        if COMPILED in timing.rounds[0] and float(np.median(timing.ms(COMPILED))) > eager:
            profile.warnings.append("baseline-slower-than-eager")
        return profile

    def _clock(self, arms: Mapping[str, TimedArm], shape: PassShape, end: float) -> PassClock:
        return PassClock(
            self._ring,
            self._bulk.pools,
            arms,
            shape=shape,
            rng=self._rng,
            call_s=self._limits.call_s,
            end=end,
            end_key="limits.profile_s",
            max_repeats=self._settings.max_repeats,
            disturbed_share=self._settings.disturbed_share,
            threads=self._threads,
        )


def check_samples(
    samples: Sequence[Sample],
    arm: TimedArm,
    facts: TaskFacts,
    bulk: TaskBulk,
    ring: Ring,
    runner: ReferenceRunner,
    policy: Policy,
    shared: Shared,
) -> Failure | None:
    """Compare the outputs read in timed passes with the reference on the same values."""
    kinds = {False: OWN, True: facts.precise_kind or OWN}
    pools = {kind: Pool(facts.scales[kind], policy) for kind in kinds.values()}
    slot = ring.slot(facts.layout, 0)
    for sample in samples:
        with shared():
            bulk.pools.write(slot, sample.seed)
        value = runner.call(facts.key, EAGER, 0)
        with shared():
            expected = read_leaves(runner.process, value)
            got: list[Any] = []
            want: list[Any] = []
            for position, spec in enumerate(arm.outputs):
                flat = expected[position].reshape(-1)
                if sample.whole[position]:
                    got.append(to_array(sample.leaves[position], spec).reshape(-1))
                    want.append(flat)
                else:
                    piece = piece_to_array(sample.leaves[position], spec.dtype)
                    first = sample.offsets[position]
                    got.append(piece)
                    want.append(flat[first : first + piece.size])
            label = f"timed call {sample.call}"
            kind = kinds[bulk.pools.is_variant(sample.seed)]
            comparison = compare(
                got, want, facts.scales[kind], policy, label=label, offsets=sample.offsets
            )
            pools[kind].add(comparison)
        runner.release()
        if (failure := comparison.failure("profile")) is not None:
            return failure
    for kind, pool in pools.items():
        failure = pool.failure("profile")
        if failure is None and kind == facts.precise_kind:
            failure = pool.precision_failure("profile", against_baseline=True)
        if failure is not None:
            return failure
    return None


def null_outputs(facts: TaskFacts) -> dict[str, Any]:
    """The request that prepares the null runner for a task."""
    return {
        "op": "null",
        "group": NULL,
        "outputs": len(facts.outputs),
        "names": list(facts.binding.names.names),
    }
