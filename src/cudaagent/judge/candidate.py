"""One candidate from a fresh runner to verified outputs, as the judge sees it.

Runs in the judge's process. The runner gets the text of ``model_new.py``, the library's bytes, the
initial arguments and, through the ring, inputs and weights: never the task's source, never an
expected value. Every way in which it can fail is a ``Failure`` with a contract code.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cudaagent.judge.compare import (
    Array,
    Comparison,
    LeafLayout,
    Policy,
    Pool,
    check_layout,
    compare,
)
from cudaagent.judge.facts import Case, TaskBulk, TaskFacts, aliased_input, case_values
from cudaagent.judge.manifest import (
    ManifestError,
    Node,
    TensorSpec,
    Value,
    constants,
    foreign,
    leaves,
    parse_value,
)
from cudaagent.judge.operators import check_operators
from cudaagent.judge.process import (
    RUNNER_FAULTS,
    Deadline,
    RunnerDied,
    RunnerError,
    RunnerForged,
    RunnerProcess,
    RunnerRefused,
    RunnerTimeout,
    UnreadableMemory,
)
from cudaagent.judge.reference import Names, Shared, parse_names, read_leaves
from cudaagent.judge.ring import Ring
from cudaagent.judge.settings import LimitSettings
from cudaagent.judge.verdict import Failure
from cudaagent.judge.wire import memory_file

GROUP = "candidate"
_WATCHED_SHARE = 0.5
"""Calls of verification in which the operators of torch are listed."""
_MAX_SPREAD, _SMALL_SPREAD = 4, 1 << 20
"""Elements from an output's first to its last, at most: so many for each of its own, and some."""
_HELP = {
    "load": "while the library was loaded and model_new.py imported",
    "constructor": "while ModelNew was constructed",
    "forward": "in forward",
    "pass": "in a timed pass",
}

RUNNER_ERRORS = (*RUNNER_FAULTS, ManifestError)


class CandidateFailed(Exception):
    """The candidate is wrong; the verdict's failure is inside."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(slots=True)
class Verified:
    """What verification found out about a candidate that passed it."""

    outputs: tuple[TensorSpec, ...]
    """Leaves as the candidate lays them out."""
    call_ms: float
    """Fastest call, with what asking for it costs."""
    cold_ms: float
    """First call."""
    error: float
    warnings: list[str] = field(default_factory=list[str])
    kinds: tuple[str, ...] = ()


class Candidate:
    """A candidate's runner; whoever starts it closes it."""

    def __init__(
        self,
        process: RunnerProcess,
        facts: TaskFacts,
        ring: Ring,
        limits: LimitSettings,
        policy: Policy,
        shared: Shared,
        rng: random.Random,
    ) -> None:
        self.process = process
        self._facts = facts
        self._ring = ring
        self._limits = limits
        self._policy = policy
        self._shared = shared
        self._rng = rng
        self.ring_address = 0
        """Where the ring lies in the runner, as it says."""
        self._generation = -1
        self._bound = 0

    def close(self) -> None:
        """Kill the runner; may be called twice."""
        self.process.close()

    def load(self, model_new: str, library: bytes | None) -> None:
        """Load the library, import ``model_new.py``, construct ``ModelNew``.

        Raises:
            CandidateFailed: ``load-failed``, ``constructor-failed``, ``parameter-mismatch``,
                ``timeout``, ``crashed``, ``out-of-memory``.
        """
        try:
            if library is not None:
                message = {"op": "library", "scratch": self.process.scratch}
                self._request(message, "load", [library])
            self._request({"op": "import"}, "load", [model_new.encode()])
        except RUNNER_ERRORS as error:
            raise self.failed(error, "load") from error
        init = self._facts.init
        message = {
            "op": "construct",
            "node": init.node,
            "specs": [spec.to_json() for spec in init.specs],
            "seed": self._rng.getrandbits(31),
        }
        try:
            answer = self._request(message, "load", [data.tobytes() for data in init.data])
            names, _ = parse_names(answer)
            self._request({"op": "settle"}, "load")
        except RUNNER_ERRORS as error:
            raise self.failed(error, "constructor") from error
        failure = parameter_mismatch(names, self._facts.binding.names)
        if failure is not None:
            raise CandidateFailed(failure)

    def bind(self, slots: int) -> None:
        """Map the ring and bind its first ``slots`` slots.

        Raises:
            CandidateFailed: the runner failed.
        """
        try:
            if self._generation != self._ring.generation:
                with self._shared():
                    answer = self.process.request(
                        {"op": "ring", "size": self._ring.size},
                        Deadline(self._limits.load_s, "limits.load_s"),
                        fds=[self._ring.fd],
                    )
                address = answer.get("address")
                if not isinstance(address, int):
                    raise RunnerForged("no address")
                self.ring_address = address
                self._generation = self._ring.generation
                self._bound = 0
            if self._bound < slots:
                self._request(self._facts.binding.message(GROUP, slots), "load")
                self._bound = slots
        except RUNNER_ERRORS as error:
            raise self.failed(error, "load") from error

    def verify(self, bulk: TaskBulk, slots: int) -> Verified:
        """Compare on every case of the task; outputs of as many calls as slots are alive at once.

        Raises:
            CandidateFailed: with the first failure found.
        """
        end = time.monotonic() + self._limits.verify_s
        cases = list(bulk.cases)
        self._rng.shuffle(cases)
        pools = {kind: Pool(scale, self._policy) for kind, scale in self._facts.scales.items()}
        verified = Verified((), float("inf"), 0.0, 0.0)
        for start in range(0, len(cases), slots):
            batch = cases[start : start + slots]
            try:
                self._verify_batch(bulk, batch, pools, verified, end)
            except RUNNER_ERRORS as error:
                raise self.failed(error, "forward") from error
        for kind, pool in pools.items():
            failure = pool.failure()
            if failure is None and kind == self._facts.precise_kind:
                failure = pool.precision_failure()
            if failure is not None:
                raise CandidateFailed(failure)
        verified.error = pools["own"].error
        verified.kinds = tuple(pools)
        return verified

    def failed(self, error: Exception, stage: str) -> CandidateFailed:
        """The contract's failure for what the runner did; the runner is ended."""
        self.process.close(grace_s=0.0)
        output = self.process.output.strip()
        failure = blame(error, stage, output[-self._limits.output_bytes :])
        return CandidateFailed(failure)

    def _verify_batch(
        self,
        bulk: TaskBulk,
        batch: Sequence[Case],
        pools: dict[str, Pool],
        verified: Verified,
        end: float,
    ) -> None:
        values = [self._call(bulk, case, slot, verified, end) for slot, case in enumerate(batch)]
        addresses = Counter(
            located.address for value in values for located in value.tensors if located.spec.numel
        )
        for slot, (case, value) in enumerate(zip(batch, values, strict=True)):
            self._check_structure(value)
            with self._shared():
                arrays = read_leaves(self.process, value)
                comparison = self._compare(case, arrays)
            located = [value.tensors[index] for _, index in leaves(value.node)]
            failure = comparison.failure()
            if failure is not None:
                used_again = any(addresses[t.address] > 1 for t in located)
                failure = self._explain(bulk, case, slot, arrays, failure, used_again, end)
                raise CandidateFailed(failure)
            pools[case.kind].add(comparison)
            verified.outputs = tuple(t.spec for t in located)
        self._request({"op": "release"}, "call")

    def _call(self, bulk: TaskBulk, case: Case, slot: int, verified: Verified, end: float) -> Value:
        """One call on a case; checks aliases and, now and then, that inputs were left alone."""
        facts = self._facts
        target = self._ring.slot(facts.layout, slot)
        with self._shared():
            drawn, weights = case_values(facts, bulk.pools, case.kind, case.inputs, case.params)
            bulk.pools.write_exactly(target, drawn, weights)
        limit = Deadline(self._limits.call_s, "limits.call_s").within(end, "limits.verify_s")
        with self._shared():
            start = time.perf_counter()
            # Not the first call, whose time may be reported; which others is nobody's to know.
            watch = bool(verified.cold_ms) and self._rng.random() < _WATCHED_SHARE
            message = {"op": "call", "arm": GROUP, "slot": slot, "watch": watch}
            answer = self.process.request(message, limit)
            elapsed = (time.perf_counter() - start) * 1e3
        if not verified.cold_ms:
            verified.cold_ms = elapsed
        verified.call_ms = min(verified.call_ms, elapsed)
        if watch:
            check_operators(answer.get("operators"))
        value = parse_value(answer.get("value"))
        if slot == 0 and not facts.mutates and "mutated-input" not in verified.warnings:
            with self._shared():
                now = bulk.pools.inputs_of(target)
                if any(not np.array_equal(a, b) for a, b in zip(now, drawn, strict=True)):
                    verified.warnings.append("mutated-input")
        return value

    def _check_structure(self, value: Value) -> None:
        facts = self._facts
        if (kind := foreign(value.node)) is not None:
            text = f"forward returns a {kind}; return ordinary tensors, as the model does"
            raise CandidateFailed(Failure("wrong-structure", "verify", text))
        found = leaves(value.node)
        layouts = [
            LeafLayout(name, value.tensors[index].spec.dtype, value.tensors[index].spec.shape)
            for name, index in found
        ]
        failure = check_layout(layouts, facts.leaves) or _check_constants(value.node, facts)
        if failure is not None:
            raise CandidateFailed(failure)
        slots = max(1, self._bound)
        for (name, index), allowed in zip(found, facts.aliases, strict=True):
            located = value.tensors[index]
            if not located.spec.numel:
                continue
            if located.spec.extent > _MAX_SPREAD * located.spec.numel + _SMALL_SPREAD:
                text = (
                    f"{name} has strides {list(located.spec.stride)}, which spread it over "
                    f"{located.spec.extent} elements; make it contiguous"
                )
                raise CandidateFailed(Failure("wrong-structure", "verify", text, {"leaf": name}))
            lies_in = aliased_input(located.address, self.ring_address, facts.layout, slots=slots)
            if lies_in is not None and lies_in != allowed:
                text = (
                    f"{name} lies in the memory of an input or a weight; the model's does not: "
                    "allocate outputs with torch.empty or torch.empty_like"
                )
                raise CandidateFailed(Failure("aliased-output", "verify", text, {"leaf": name}))

    def _compare(self, case: Case, arrays: list[Array]) -> Comparison:
        scale = self._facts.scales[case.kind]
        return compare(
            arrays, case.expected, scale, self._policy, label=case.label, exempt=list(case.exempt)
        )

    def _explain(
        self,
        bulk: TaskBulk,
        case: Case,
        slot: int,
        arrays: list[Array],
        failure: Failure,
        used_again: bool,
        end: float,
    ) -> Failure:
        """Tell an unstable output and a buffer that was used again from a plain wrong value."""
        if used_again:
            text = (
                f"{failure.message}; another call's output lies at the same address: outputs of "
                "several calls are alive at once, so allocate each with torch.empty in forward"
            )
            return Failure(failure.code, failure.stage, text, failure.evidence)
        if failure.code != "wrong-values":
            return failure
        verified = Verified((), float("inf"), 1.0, 0.0, ["mutated-input"])
        value = self._call(bulk, case, slot, verified, end)
        self._check_structure(value)
        with self._shared():
            again = read_leaves(self.process, value)
            scale = self._facts.scales[case.kind]
            repeated = compare(again, arrays, scale, self._policy, label=case.label).failure()
        if repeated is None:
            return failure
        text = (
            f"the same input gives different outputs: {repeated.message}; look for a race, an "
            "uninitialised value or an element that nobody writes"
        )
        return Failure("unstable-output", "verify", text, repeated.evidence)

    def _request(
        self, message: dict[str, Any], limit: str, blobs: Sequence[bytes] = ()
    ) -> dict[str, Any]:
        seconds = {"load": self._limits.load_s, "call": self._limits.call_s}[limit]
        fds = [memory_file(f"blob{i}", blob) for i, blob in enumerate(blobs)]
        try:
            with self._shared():
                return self.process.request(
                    message, Deadline(seconds, f"limits.{limit}_s"), fds=fds
                )
        finally:
            for fd in fds:
                os.close(fd)


def parameter_mismatch(have: Names, want: Names) -> Failure | None:
    """``parameter-mismatch`` when names, shapes or dtypes differ from the model's, or None."""
    ours = {
        name: have.parameters[i].spec for name, i in zip(have.names, have.value_of, strict=True)
    }
    theirs = {
        name: want.parameters[i].spec for name, i in zip(want.names, want.value_of, strict=True)
    }
    problems = [f"{name} is missing" for name in theirs if name not in ours]
    problems += [f"{name} is not the model's" for name in ours if name not in theirs]
    for name, spec in theirs.items():
        mine = ours.get(name)
        if mine is not None and (mine.shape, mine.dtype) != (spec.shape, spec.dtype):
            problems.append(
                f"{name} has shape {list(mine.shape)} and dtype {mine.dtype}, the model's has "
                f"{list(spec.shape)} and {spec.dtype}"
            )
    if not problems:
        return None
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    text = (
        f"ModelNew's parameters and buffers must be Model's by name, shape and dtype: "
        f"{'; '.join(problems[:3])}{more}"
    )
    return Failure("parameter-mismatch", "load", text, {"problems": problems[:50]})


def blame(error: Exception, stage: str, output: str) -> Failure:
    """The contract's code and a helpful sentence for a runner's failure."""
    where = _HELP[stage]
    place = {"load": "load", "constructor": "load", "forward": "verify", "pass": "profile"}[stage]
    evidence: dict[str, Any] = {"output": output} if output else {}
    if isinstance(error, RunnerTimeout):
        text = f"no answer within {error.seconds:g} s ({error.key}) {where}; the process was ended"
        return Failure("timeout", place, text, evidence | {"limit": error.key})
    if isinstance(error, RunnerError):
        code = {"load": "load-failed", "constructor": "constructor-failed"}.get(
            stage, "runtime-error"
        )
        code = "out-of-memory" if error.memory else code
        text = f"{error.kind} {where}: {error.summary.removeprefix(error.kind + ': ')}"
        return Failure(code, place, text, evidence | {"traceback": error.text})
    if isinstance(error, RunnerRefused):
        return Failure(error.code, place, str(error), evidence)
    if isinstance(error, RunnerDied):
        return _blame_death(error, stage, where, place, evidence)
    if isinstance(error, UnreadableMemory):
        text = f"an output cannot be read {where} ({error}); allocate outputs with torch.empty"
        return Failure("foreign-output", place, text, evidence)
    if isinstance(error, ManifestError):
        text = f"forward returns something that no model may return: {error}"
        return Failure("wrong-structure", place, text, evidence)
    text = f"the runner's channel carried what only other code can have written {where}: {error}"
    return Failure("tampering", place, text, evidence)


def _blame_death(
    error: RunnerDied, stage: str, where: str, place: str, evidence: dict[str, Any]
) -> Failure:
    evidence = evidence | {"exit": error.code, "signal": error.signal}
    output = str(evidence.get("output", ""))
    if error.signal is None:
        code = {"load": "load-failed", "constructor": "constructor-failed"}.get(stage, "crashed")
        text = (
            f"the process ended by itself with {error.describe()} {where}; a solution must not "
            "call exit, os._exit or std::exit"
        )
        return Failure(code, place, text, evidence)
    if error.signal == 9 or "bad_alloc" in output:
        text = f"the process was killed by {error.describe()} {where}: probably out of memory"
        return Failure("out-of-memory", place, text, evidence)
    text = (
        f"the process was killed by {error.describe()} {where}; check indices, sizes and strides "
        "of every access in the kernel"
    )
    return Failure("crashed", place, text, evidence)


def _check_constants(node: Node, facts: TaskFacts) -> Failure | None:
    have = constants(node)
    for name, want in facts.constants.items():
        got = have.get(name)
        if got != want:
            structural = got is None or name.startswith(("len(", "keys("))
            code = "wrong-structure" if structural else "wrong-values"
            return Failure(code, "verify", f"{name} is {got}; the model's is {want}")
    return None
