"""Study of a task before any candidate: can it be judged, on which inputs, and by which scale.

Runs in the judge's process; the task's code runs in a reference runner. The result has two parts:
facts, small and kept, and bulk (inputs, weights, expected outputs), which the same seed makes
again.

Cases: ``verify_inputs`` draws of the task's own inputs (half of them with weights of their own),
and two of each variant on which the reference stays finite. Expected outputs come from the model
in float64 where it can be converted, else from the model as it is.

Not covered: complex outputs; tasks whose shapes change from draw to draw (``task-invalid``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cudaagent.errors import TaskError
from cudaagent.judge import probes
from cudaagent.judge.compare import (
    BASELINE_LIMIT,
    Array,
    LeafLayout,
    Policy,
    Scale,
    compare,
    disagreement,
    measure_scale,
)
from cudaagent.judge.facts import Case, Mask, TaskBulk, TaskFacts, aliased_input, case_values
from cudaagent.judge.manifest import (
    ManifestError,
    TensorSpec,
    Value,
    constants,
    foreign,
    leaves,
    slot_layout,
)
from cudaagent.judge.passes import memory_available, slot_too_large
from cudaagent.judge.process import RunnerError
from cudaagent.judge.reference import (
    Binding,
    ReferenceRunner,
    Shared,
    read_leaves,
    task_key,
)
from cudaagent.judge.renewal import renewable, variant_pools
from cudaagent.judge.ring import Bytes, Pools, Ring, slot_stride
from cudaagent.judge.settings import JudgeSettings
from cudaagent.judge.values import (
    OWN,
    SIGNED,
    from_floats,
    input_variants,
    perturbed,
    to_floats,
)
from cudaagent.judge.verdict import Failure
from cudaagent.tasks.task import Task, check_source

PARAMETER_SETS = 4
_SCALE_INPUTS = 6
_KEPT_VARIANTS = 2
_BLOCKS, _BLOCK = 16, 1 << 13
_MATTERS = 3
_TRIALS = 2
_TRAIN_SEED = 12345


class Study:
    """Makes facts and bulk of one task."""

    def __init__(
        self,
        task: Task,
        runner: ReferenceRunner,
        ring: Ring,
        settings: JudgeSettings,
        shared: Shared,
        *,
        seed: int,
        ring_limit: int,
    ) -> None:
        self._task = task
        self._runner = runner
        self._ring = ring
        self._settings = settings
        self._policy = Policy(settings.tolerance, settings.precision)
        self._shared = shared
        self._seed = seed
        self._ring_limit = ring_limit
        self._key = task_key(task)
        self._double = False

    def run(self) -> tuple[TaskFacts, TaskBulk]:
        """Study the task.

        Raises:
            TaskError: with its ``task-*`` code.
            RunnerError, RunnerTimeout, ...: the reference runner failed (``raise_as_task_error``).
        """
        check_source(self._task)
        self._loaded = self._runner.load(self._task, self._seed)
        binding, pools = self._draw()
        self._binding, self._pools = binding, pools
        self._bind()
        self._double = self._runner.double(self._key)
        value, aliases, mutates = self._first_call()
        self._node = value.node
        found = leaves(value.node)
        specs = tuple(value.tensors[index].spec for _, index in found)
        self._check_size(sum(spec.nbytes for spec in specs))
        self._leaves = tuple(
            LeafLayout(name, spec.dtype, spec.shape)
            for (name, _), spec in zip(found, specs, strict=True)
        )
        self._blocks = [_blocks(spec.numel, self._seed) for spec in specs]
        self._check_repeatable()
        cases, scales = self._own_cases()
        self._check_hidden_state(cases[0], scales[OWN])
        precise: str | None = OWN
        for kind in input_variants(pools.inputs[0], binding.layout.inputs):
            more, scale = self._variant(kind)
            if scale is not None:
                cases += more
                scales[kind] = scale
            if kind == SIGNED:
                precise = SIGNED if scale is not None else None
        trials = renewable(pools, binding)
        pools = next((trial for trial in trials if self._bears(trial)), pools)
        mode_dependent = self._mode_dependent(cases[0], scales[OWN])
        matters = self._matters()
        if self._double:
            self._runner.forget_double(self._key)
        facts = TaskFacts(
            self._key, self._seed, self._loaded.init, binding, value.node, constants(value.node),
            specs, self._leaves, aliases, mutates, scales, precise,
            "fp64" if self._double else "fp32", mode_dependent, matters,
        )  # fmt: skip
        if precise is not None and precise != OWN:
            pools = replace(pools, variant=variant_pools(pools, binding, precise, _KEPT_VARIANTS))
        return facts, TaskBulk(pools, tuple(cases))

    def _draw(self) -> tuple[Binding, Pools]:
        """Inputs under several seeds and perturbed weights."""
        draws: list[tuple[Bytes, ...]] = []
        first: Value | None = None
        for number in range(max(self._settings.verify_inputs, _SCALE_INPUTS)):
            value, data = self._runner.inputs(self._key, self._seed + 1 + number)
            if first is None:
                first = value
                if (kind := foreign(value.node)) is not None:
                    raise ManifestError(f"get_inputs() returns a {kind}, which has no variants")
            elif value.node != first.node or _specs(value) != _specs(first):
                raise TaskError(
                    "task-invalid",
                    f"task {self._task.id}: get_inputs() gives other shapes, dtypes or constants "
                    "from draw to draw; they must not depend on the random state",
                )
            draws.append(data)
        assert first is not None
        names = self._loaded.names
        layout = slot_layout(_specs(first), [p.spec for p in names.parameters])
        if (reason := slot_too_large(layout, self._ring_limit)) is not None:
            raise TaskError("task-too-large", f"task {self._task.id}: {reason}")
        live = self._settings.weights == "live"
        rng = np.random.default_rng(self._seed)
        sets = tuple(
            tuple(
                perturbed(data, parameter, rng)
                for data, parameter in zip(self._loaded.values, names.parameters, strict=True)
            )
            for _ in range(PARAMETER_SETS if live else 1)
        )
        binding = Binding(first.node, layout, names, live)
        return binding, Pools(layout, tuple(draws), sets, (False,) * len(layout.specs))

    def _bind(self) -> None:
        self._ring.ensure(slot_stride(self._binding.layout))
        self._runner.bind(self._key, self._binding, 1)

    def _write(self, kind: str, inputs: int, params: int) -> tuple[list[Bytes], list[Bytes]]:
        """Put a case into slot 0."""
        drawn, weights = case_values(self._binding, self._pools, kind, inputs, params)
        slot = self._ring.slot(self._binding.layout, 0)
        self._pools.write_exactly(slot, drawn, weights)
        return drawn, weights

    def _check_size(self, output_bytes: int) -> None:
        """Whether everything that is kept of the task fits into half of the free memory."""
        inputs, params = self._pools.inputs, self._pools.params
        kept = sum(data.nbytes for one in (*inputs, *params) for data in one)
        kept += output_bytes * (len(inputs) + _SCALE_INPUTS)
        free = memory_available() // 2
        if output_bytes > self._ring_limit or kept > free:
            raise TaskError(
                "task-too-large",
                f"task {self._task.id}: inputs, weights and outputs take {kept >> 20} MiB, one "
                f"output {output_bytes >> 20} MiB; there is room for {free >> 20} MiB and "
                f"{self._ring_limit >> 20} MiB",
            )

    def _first_call(self) -> tuple[Value, tuple[int | None, ...], bool]:
        """The eager model's first output: its structure, and what it does to its inputs."""
        drawn, _ = self._write(OWN, 0, 0)
        value = self._runner.call(self._key, "eager", 0)
        if (kind := foreign(value.node)) is not None:
            raise ManifestError(f"forward returns a {kind}, which is no ordinary tensor")
        if not leaves(value.node):
            raise ManifestError("forward returns no tensor")
        aliases = tuple(
            self.aliased_input(value.tensors[index].address) for _, index in leaves(value.node)
        )
        slot = self._ring.slot(self._binding.layout, 0)
        now = self._pools.inputs_of(slot)
        mutates = any(not np.array_equal(a, b) for a, b in zip(now, drawn, strict=True))
        self._runner.release()
        return value, aliases, mutates

    def aliased_input(self, address: int) -> int | None:
        """Which input's memory in slot 0 an address lies in."""
        return aliased_input(address, self._runner.ring_address, self._binding.layout, slots=1)

    def _reference(self, kind: str, inputs: int, params: int) -> list[Array]:
        """Expected outputs; drops to float32 for good where float64 does not work."""
        self._write(kind, inputs, params)
        if self._double:
            try:
                return self._runner.outputs(self._key, "double", 0)
            except RunnerError as error:
                if error.memory:
                    raise
                self._double = False
                self._write(kind, inputs, params)
        return self._runner.outputs(self._key, "eager", 0)

    def _eager(self, kind: str, inputs: int, params: int) -> list[Array]:
        self._write(kind, inputs, params)
        return self._runner.outputs(self._key, "eager", 0)

    def _own_cases(self) -> tuple[list[Case], dict[str, Scale]]:
        """Cases on the task's own inputs and their scale, if it separates right from wrong."""
        sets = len(self._pools.params)
        references: list[list[Array]] = []
        baselines: list[list[Array]] = []
        masks: list[list[Mask | None]] = []
        cases: list[Case] = []
        for number in range(len(self._pools.inputs)):
            expected = self._reference(OWN, number, 0)
            self._check_somewhere_finite(expected)
            baseline = self._eager(OWN, number, 0)
            mask = disagreement(expected, baseline)
            with self._shared():
                references.append(self._cut(expected))
                baselines.append(self._cut(baseline))
            masks.append(mask)
            params = number % sets if number % 2 else 0
            if params:
                expected = self._reference(OWN, number, params)
                mask = disagreement(expected, self._eager(OWN, number, params))
            cases.append(
                Case(f"input {number}", OWN, number, params, self._keep(expected), tuple(mask))
            )
        with self._shared():
            scale = measure_scale(references, baselines, layouts=self._leaves)
            separability = probes.probe(references, scale, self._policy)
            failure = probes.task_failure([separability])
        failure = failure or probes.exemption_failure(masks, scale)
        self._raise(failure)
        return cases, {OWN: scale}

    def _check_somewhere_finite(self, output: Sequence[Array]) -> None:
        for leaf, layout in zip(output, self._leaves, strict=True):
            if leaf.size and leaf.dtype.kind == "f" and not np.isfinite(leaf).any():
                raise TaskError(
                    "task-invalid",
                    f"task {self._task.id}: no element of {layout.name} is finite; look at what "
                    "get_inputs() feeds the model",
                )

    def _variant(self, kind: str) -> tuple[list[Case], Scale | None]:
        """Two cases of a variant and its scale; None where the reference does not bear it.

        How much the output varies comes from the eager model, its error from the two cases alone.
        """
        eager: list[list[Array]] = []
        expected: list[list[Array]] = []
        cases: list[Case] = []
        for number in range(_SCALE_INPUTS):
            try:
                baseline = self._eager(kind, number, 0)
                precise = self._reference(kind, number, 0) if number < _KEPT_VARIANTS else None
            except RunnerError:
                return [], None
            with self._shared():
                eager.append(self._cut(baseline))
                if not all(_finite(leaf) for leaf in eager[-1]):
                    return [], None
            if precise is not None:
                mask = tuple(disagreement(precise, baseline))
                label = f"{kind} input {number}"
                cases.append(Case(label, kind, number, 0, self._keep(precise), mask))
                expected.append(self._cut(precise))
        with self._shared():
            spread = measure_scale(eager, eager, layouts=self._leaves)
            again = [eager[i % _KEPT_VARIANTS] for i in range(_SCALE_INPUTS)]
            errors = measure_scale(
                [expected[i % _KEPT_VARIANTS] for i in range(_SCALE_INPUTS)],
                again,
                layouts=self._leaves,
            )
        scale = Scale(
            tuple(
                replace(one, sigma=other.sigma, output_rms=other.output_rms)
                for one, other in zip(errors.leaves, spread.leaves, strict=True)
            )
        )
        floats = [leaf for leaf in scale.leaves if leaf.layout.is_float]
        if any(leaf.sigma == 0.0 for leaf in floats) or scale.baseline_ratio > BASELINE_LIMIT:
            return [], None
        return cases, scale

    def _check_repeatable(self) -> None:
        """The same input twice must agree far below what any tolerance would allow."""
        first, again = self._eager(OWN, 0, 0), self._eager(OWN, 0, 0)
        with self._shared():
            if all(_agree(a, b) for a, b in zip(first, again, strict=True)):
                return
        raise TaskError(
            "task-random",
            f"task {self._task.id}: forward gives different outputs for the same input; it cannot "
            "be judged",
        )

    def _check_hidden_state(self, case: Case, scale: Scale) -> None:
        """A model constructed under another seed, with the same weights, must agree."""
        first = self._eager(OWN, case.inputs, case.params)
        self._runner.reconstruct(self._key, self._seed + 1000)
        self._bind()
        other = self._eager(OWN, case.inputs, case.params)
        with self._shared():
            if compare(other, first, scale, self._policy, label="the same input").failure():
                raise TaskError(
                    "task-random",
                    f"task {self._task.id}: Model holds random values that are neither parameters "
                    "nor buffers, so a candidate cannot be given them; register them as buffers",
                )

    def _bears(self, pools: Pools) -> bool:
        """Whether the eager model stays finite on slots written from ``pools``."""
        for seed in range(_TRIALS):
            pools.write(self._ring.slot(self._binding.layout, 0), self._seed + seed)
            try:
                outputs = self._runner.outputs(self._key, "eager", 0)
            except RunnerError:
                return False
            with self._shared():
                if not all(_finite(leaf) for leaf in self._cut(outputs)):
                    return False
        return True

    def _mode_dependent(self, case: Case, scale: Scale) -> bool:
        """Whether train mode gives other outputs than eval mode."""
        self._write(OWN, case.inputs, case.params)
        try:
            value = self._runner.call(self._key, "eager", 0, train=True)
        except RunnerError:
            return True
        with self._shared():
            found = leaves(value.node)
            if len(found) != len(self._leaves):
                return True
            trained = read_leaves(self._runner.process, value)
            differs = compare(
                trained, case.expected, scale, self._policy, exempt=list(case.exempt)
            ).failure()
        self._runner.release()
        return differs is not None

    def _matters(self) -> int:
        """Bytes of the inputs of which single random elements all change the output."""
        rng = np.random.default_rng(self._seed + 2)
        base = self._eager(OWN, 0, 0)
        total = 0
        for position, spec in enumerate(self._binding.layout.inputs):
            if not spec.is_float or spec.extent != spec.numel or spec.numel < 1 << 16:
                continue
            if all(self._element_matters(position, spec, base, rng) for _ in range(_MATTERS)):
                total += spec.nbytes
        return total

    def _element_matters(
        self, position: int, spec: TensorSpec, base: Sequence[Array], rng: np.random.Generator
    ) -> bool:
        self._write(OWN, 0, 0)
        slot = self._ring.slot(self._binding.layout, 0)
        data = self._pools.inputs_of(slot)[position]
        item = spec.nbytes // spec.extent
        at = int(rng.integers(spec.extent))
        element = data[at * item : (at + 1) * item]
        one = TensorSpec(spec.dtype, (1,), (1,))
        value = float(to_floats(element.copy(), one)[0])
        raised = np.asarray([1000.0 + 8.0 * abs(value)], np.float32)
        element[:] = from_floats(raised, one)
        outputs = self._runner.outputs(self._key, "eager", 0)
        with self._shared():
            return any(
                not np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
                for a, b in zip(outputs, base, strict=True)
            )

    def _cut(self, output: Sequence[Array]) -> list[Array]:
        """The same few blocks of every output: enough for a scale."""
        return [
            leaf.reshape(-1) if blocks is None else leaf.reshape(-1)[blocks]
            for leaf, blocks in zip(output, self._blocks, strict=True)
        ]

    def _keep(self, output: Sequence[Array]) -> tuple[Array, ...]:
        """float64 results of narrower outputs are kept as float32, whose error does not count."""
        return tuple(
            leaf.astype(np.float32)
            if leaf.dtype == np.float64 and layout.dtype != "float64"
            else leaf
            for leaf, layout in zip(output, self._leaves, strict=True)
        )

    def _raise(self, failure: Failure | None) -> None:
        if failure is not None:
            raise TaskError(failure.code, f"task {self._task.id}: {failure.message}")


def _specs(value: Value) -> tuple[TensorSpec, ...]:
    return tuple(located.spec for located in value.tensors)


def _agree(first: Array, again: Array) -> bool:
    """Whether two outputs for one input are the same up to the order of additions."""
    if first.size == 0 or np.array_equal(first, again, equal_nan=first.dtype.kind == "f"):
        return True
    if first.dtype.kind != "f":
        return float(np.mean(first != again)) < 1e-3
    both = np.isfinite(first) & np.isfinite(again)
    error = float(np.linalg.norm((first[both] - again[both]).ravel()))
    return error <= 1e-3 * float(np.linalg.norm(first[both].ravel()))


def _finite(leaf: Array) -> bool:
    return leaf.dtype.kind != "f" or bool(np.isfinite(leaf).all())


def _blocks(size: int, seed: int) -> NDArray[np.int64] | None:
    """Indices of ``_BLOCKS`` blocks of a leaf, or None to take all of it."""
    if size <= _BLOCKS * _BLOCK:
        return None
    starts = np.random.default_rng(seed).integers(0, size - _BLOCK, _BLOCKS)
    return (starts[:, None] + np.arange(_BLOCK)).reshape(-1)
