"""Timed passes: the judge's clock round calls in a runner, and arms interleaved in rounds.

Runs in the judge's process. Invariants of a timed pass: from the first byte of the renewal to
"go" the runner is stopped; the order of the slots is known to nobody before "go" and no slot
comes twice; at "done" the runner is stopped, then the clock, and outputs are read from the
stopped process; every slot was renewed. Warm-up passes are the same calls without renewal, and
nothing of them counts.

What a pass costs without any work is measured by the null runner in the same rhythm and
subtracted (``hand-over``). Passes in which others computed are repeated, within a budget.

Not covered: who slows the whole machine evenly slows all arms.
"""

from __future__ import annotations

import array
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cudaagent.errors import InfrastructureError
from cudaagent.judge import machine
from cudaagent.judge.manifest import ITEM_BYTES, SlotLayout, TensorSpec
from cudaagent.judge.operators import check_operators
from cudaagent.judge.process import (
    RUNNER_FAULTS,
    Deadline,
    RunnerForged,
    RunnerProcess,
    RunnerRefused,
)
from cudaagent.judge.ring import Bytes, PassShape, Pools, Ring

NULL = "null"
WARM_UPS = 3
_SAMPLE_BYTES = 4 << 20
_ADDRESS_BYTES = 8
_SMALL_WORK_NS = 1_000_000
_LEAST_SHARE = 0.05
_STILL_NS = 20_000
"""A stopped runner computes nothing; what its last thread's stop still took may be booked late."""
_WATCHED_SHARE = 0.1
"""Timed passes of a candidate after so many of which an untimed one lists torch's operators."""


class PassFailed(Exception):
    """A runner failed in a pass: which arm, and how."""

    def __init__(self, arm: str, error: Exception) -> None:
        super().__init__(f"{arm}: {error}")
        self.arm = arm
        self.error = error


class Disturbed(InfrastructureError):
    """Too many passes were disturbed; the runners themselves are well."""


@dataclass(frozen=True, slots=True)
class TimedArm:
    """A module in a runner; ``outputs`` are the leaves' layouts as the judge has seen them."""

    runner: RunnerProcess
    name: str
    outputs: tuple[TensorSpec, ...]
    warm_ups: int = WARM_UPS
    """Fewer where passes of this shape were the last thing that the runner did."""
    ring_address: int | None = None
    """Where the ring lies in the runner, if no output may lie in it but those of ``aliases``."""
    aliases: tuple[int | None, ...] = ()
    """For each output, the input whose memory it may lie in."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One call's outputs, or pieces of them, as they lay in the stopped runner."""

    seed: int
    """Decides the slot's values."""
    call: int
    leaves: tuple[Bytes, ...]
    """Raw extents or contiguous pieces."""
    offsets: tuple[int, ...]
    """First element of each piece."""
    whole: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class PassResult:
    """One timed pass."""

    ns: int
    foreign_ns: int
    """What others computed meanwhile; where nobody counts that, the runner's wait for a core."""
    samples: tuple[Sample, ...] = ()


@dataclass(slots=True)
class Timing:
    """What the rounds so far have shown."""

    shape: PassShape
    handover_ns: list[int] = field(default_factory=list[int])
    rounds: list[dict[str, int]] = field(default_factory=list[dict[str, int]])
    """Nanoseconds of every arm's pass, hand-over included."""
    samples: list[Sample] = field(default_factory=list[Sample])
    repeats: int = 0

    @property
    def handover(self) -> float:
        """Median hand-over in nanoseconds."""
        return statistics.median(self.handover_ns) if self.handover_ns else 0.0

    @property
    def handover_sd(self) -> float:
        """Standard deviation of the hand-over, from the median deviation: outliers do not count."""
        if len(self.handover_ns) < 2:
            return 0.0
        middle = self.handover
        return 1.4826 * statistics.median(abs(ns - middle) for ns in self.handover_ns)

    def ms(self, arm: str) -> list[float]:
        """Milliseconds a call of ``arm``, one for each round."""
        return [self.call_ms(result[arm]) for result in self.rounds]

    def call_ms(self, ns: int) -> float:
        """A pass as milliseconds a call; one no longer than the hand-over counts as a bit of it."""
        least = max(_LEAST_SHARE * self.handover, 1.0)
        return max(ns - self.handover, least) / self.shape.calls / 1e6

    def pass_ms(self, arm: str) -> float:
        """Median pass of ``arm`` in milliseconds, hand-over subtracted."""
        return statistics.median(self.ms(arm)) * self.shape.calls


class PassClock:
    """Times arms on one ring."""

    def __init__(
        self,
        ring: Ring,
        pools: Pools,
        arms: Mapping[str, TimedArm],
        *,
        shape: PassShape,
        rng: random.Random,
        call_s: float,
        end: float,
        end_key: str,
        max_repeats: int,
        disturbed_share: float,
        threads: int,
    ) -> None:
        self._ring = ring
        self._pools = pools
        self._arms = dict(arms)
        self._rng = rng
        self._call_s = call_s
        self._end = end
        self._end_key = end_key
        self._max_repeats = max_repeats
        self._share = disturbed_share
        self._threads = threads
        self._stopped_at: dict[int, int] = {}
        """What each runner had computed when its last pass was over; it is stopped since."""
        self.timing = Timing(shape)

    def warm_up(self) -> None:
        """Full passes of each arm, so that the memory of its outputs has been used before."""
        seeds = self._seeds()
        self._ring.renew(self._pools, seeds, [])
        for name, arm in self._arms.items():
            for _ in range(arm.warm_ups):
                self._pass(name, seeds, renew=False, samples=0)

    def watch(self, name: str) -> None:
        """An untimed pass of ``name`` in which the operators of torch are listed.

        Raises:
            PassFailed: one of them computes.
        """
        try:
            self._watched_pass(self._arms[name])
        except RUNNER_FAULTS as error:
            raise PassFailed(name, error) from error

    def _watched_pass(self, arm: TimedArm) -> None:
        # Nothing is timed or compared here, so the slots keep what the last pass had.
        self._release(arm, watch=True)
        arm.runner.send_raw(array.array("i", self._order()).tobytes())
        raw, answer = arm.runner.receive(self._deadline(self.timing.shape.calls), "a pass")
        arm.runner.stop()
        arm.runner.await_stop()
        self._stopped_at[arm.runner.pid] = arm.runner.cpu_ns()
        if raw is not None:
            raise RunnerForged("raw bytes where a message was due")
        check_operators(answer.get("operators"))

    def round(self, *, sampled: str | None = None, samples: int = 0) -> None:
        """One pass of every arm in random order; ``samples`` calls of ``sampled`` are read.

        Raises:
            InfrastructureError: too many passes were disturbed.
        """
        names = list(self._arms)
        self._rng.shuffle(names)
        results: dict[str, int] = {}
        for name in names:
            count = samples if name == sampled else 0
            if count and self._rng.random() < _WATCHED_SHARE:
                self.watch(name)
            result = self._undisturbed(name, count)
            results[name] = result.ns
            self.timing.samples += result.samples
        handover = results.pop(NULL, None)
        if handover is not None:
            self.timing.handover_ns.append(handover)
        self.timing.rounds.append(results)

    def _undisturbed(self, name: str, samples: int) -> PassResult:
        runner = self._arms[name].runner
        while True:
            result = self._pass(name, self._seeds(), renew=True, samples=samples)
            allowed = self._share * result.ns * self._threads + _SMALL_WORK_NS
            if result.foreign_ns <= allowed:
                return result
            # Where only waits are known: more threads than cores keep each other waiting.
            if not machine.counts() and runner.threads > 4 * self._threads:
                return result
            self.timing.repeats += 1
            if self.timing.repeats > self._max_repeats:
                raise Disturbed(
                    f"more than {self._max_repeats} timed passes were disturbed by other work on "
                    f"this machine (judge.max_repeats): in the last, {result.ns / 1e6:.1f} ms "
                    f"long, others computed for {result.foreign_ns / 1e6:.1f} ms; end that work, "
                    "or raise judge.disturbed_share"
                )

    def _seeds(self) -> list[int]:
        return [self._rng.getrandbits(63) for _ in range(self.timing.shape.slots)]

    def _pass(self, name: str, seeds: list[int], *, renew: bool, samples: int) -> PassResult:
        try:
            return self._one_pass(name, seeds, renew=renew, samples=samples)
        except RUNNER_FAULTS as error:
            raise PassFailed(name, error) from error

    def _one_pass(self, name: str, seeds: list[int], *, renew: bool, samples: int) -> PassResult:
        arm = self._arms[name]
        shape = self.timing.shape
        order = self._order()
        runner = arm.runner
        self._release(arm)
        if renew:
            self._renew(arm, seeds, order)
        foreign = _Foreign(runner)
        message = array.array("i", order).tobytes()
        deadline = self._deadline(shape.calls)
        start = time.perf_counter_ns()
        runner.send_raw(message)
        if renew:
            runner.resume()
        raw, _ = runner.receive(deadline, f"a pass of {shape.calls} calls")
        end = runner.stop()
        runner.await_stop()
        foreign_ns = foreign.since()
        self._stopped_at[runner.pid] = runner.cpu_ns()
        calls = self._sampled_calls(samples)
        addresses = self._addresses(arm, raw)
        taken = tuple(self._read(arm, addresses[call], seeds, order, call) for call in calls)
        return PassResult(end - start, foreign_ns, taken)

    def _order(self) -> list[int]:
        return self._rng.sample(range(self.timing.shape.slots), self.timing.shape.calls)

    def _release(self, arm: TimedArm, *, watch: bool = False) -> None:
        """Have a runner give the outputs of its last pass back and wait for "go"."""
        before = self._stopped_at.pop(arm.runner.pid, None)
        if before is not None:
            self._check_still(arm.runner, before, "while others had their turn")
        message = {"op": "pass", "arm": arm.name, "watch": watch}
        if arm.runner.request(message, self._deadline(1)).get("released") is not True:
            raise RunnerForged("a pass was refused")

    def _renew(self, arm: TimedArm, seeds: list[int], order: list[int]) -> None:
        arm.runner.stop()
        arm.runner.await_stop()
        before = arm.runner.cpu_ns()
        self._ring.renew(self._pools, seeds, order)
        self._check_still(arm.runner, before, "while inputs were renewed")

    @staticmethod
    def _check_still(runner: RunnerProcess, before: int, when: str) -> None:
        if runner.cpu_ns() - before > _STILL_NS:
            raise RunnerRefused("tampering", f"the stopped runner computed {when}")

    def _addresses(self, arm: TimedArm, raw: bytes | None) -> NDArray[np.int64]:
        """Where the outputs lie, by call and leaf."""
        calls, count = self.timing.shape.calls, len(arm.outputs)
        if raw is None or len(raw) != _ADDRESS_BYTES * count * calls:
            raise RunnerForged("a pass ended without the addresses of its outputs")
        addresses = np.frombuffer(raw, np.int64).reshape(calls, count)
        if arm.ring_address is not None:
            offsets = addresses - arm.ring_address
            inside = (offsets >= 0) & (offsets < self._ring.size)
            for leaf, spec in enumerate(arm.outputs):
                if spec.numel and arm.aliases[leaf] is None and inside[:, leaf].any():
                    raise RunnerRefused(
                        "aliased-output",
                        "in a timed pass an output lies in the memory of an input or a weight; "
                        "allocate outputs with torch.empty or torch.empty_like",
                    )
        return addresses

    def _deadline(self, calls: int) -> Deadline:
        return Deadline(self._call_s * calls, "limits.call_s").within(self._end, self._end_key)

    def _sampled_calls(self, samples: int) -> list[int]:
        """The last call first, then others at random; a single one is often the last."""
        calls = self.timing.shape.calls
        if not samples:
            return []
        if samples == 1 and self._rng.randrange(3):
            return [self._rng.randrange(calls)]
        others = self._rng.sample(range(calls - 1), min(samples - 1, calls - 1))
        return [calls - 1, *others]

    def _read(
        self,
        arm: TimedArm,
        addresses: NDArray[np.int64],
        seeds: list[int],
        order: list[int],
        call: int,
    ) -> Sample:
        leaves: list[Bytes] = []
        offsets: list[int] = []
        whole: list[bool] = []
        for position, spec in enumerate(arm.outputs):
            item = ITEM_BYTES[spec.dtype]
            most = _SAMPLE_BYTES // item
            first, size = 0, spec.extent
            if spec.stride == spec.contiguous.stride and size > most:
                first, size = self._rng.randrange(size - most), most
            data = np.empty(size * item, np.uint8)
            address = int(addresses[position])
            arm.runner.read_into(address + first * item, data.data)
            leaves.append(data)
            offsets.append(first)
            whole.append(size == spec.extent)
        return Sample(seeds[order[call]], call, tuple(leaves), tuple(offsets), tuple(whole))


class _Foreign:
    """What others than ``runner`` compute from now on."""

    def __init__(self, runner: RunnerProcess) -> None:
        self._runner = runner
        self._machine = machine.cpu_ns()
        self._own = self._runner_ns()

    def _runner_ns(self) -> int:
        return self._runner.queue_wait_ns() if self._machine is None else self._runner.cpu_ns()

    def since(self) -> int:
        """Nanoseconds of processor time, over all cores."""
        own = self._runner_ns() - self._own
        now = machine.cpu_ns()
        if self._machine is None or now is None:
            return own
        return max(0, now - self._machine - own)


def calls_for(pass_ms: float, times_ms: Sequence[float], *, longest: float = 3.0) -> int:
    """Calls of a pass: the fastest arm lasts ``pass_ms``, the slowest not ``longest`` times it."""
    fastest, slowest = max(min(times_ms), 1e-4), max(times_ms)
    wanted = int(np.ceil(1.05 * pass_ms / fastest))
    bound = max(int(longest * pass_ms / slowest), int(np.ceil(1.05 * pass_ms / slowest)), 1)
    return max(1, min(wanted, bound))


def memory_available() -> int:
    """Bytes of memory that this machine can still give out."""
    with open("/proc/meminfo") as handle:
        for line in handle:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 1 << 30


def ring_bytes_limit(host_memory_bytes: int) -> int:
    """Bytes that the ring may have: an eighth of the memory that is free, at most 1 GiB."""
    return min(min(memory_available(), host_memory_bytes) // 8, 1 << 30)


def slot_too_large(layout: SlotLayout, limit: int) -> str | None:
    """Why one slot of inputs and weights does not fit, or None."""
    if layout.slot_bytes <= limit:
        return None
    return (
        f"inputs and weights of one call take {layout.slot_bytes >> 20} MiB; this machine's ring "
        f"holds {limit >> 20} MiB"
    )
