"""Reference runners as the judge sees them: load, bind to the ring, call, read.

Runs in the judge's process. The task's code runs in reference runners only, which are confined
like a candidate's. What comes back are descriptions, which are validated, and bytes at addresses,
whose amount the descriptions fix.

With ``share_reference`` one runner stays warm for all tasks; otherwise the last task's runner
stays warm and another task gets a new one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import numpy as np

from cudaagent.errors import InfrastructureError, TaskError
from cudaagent.judge.compare import Array, LeafLayout, from_raw
from cudaagent.judge.manifest import (
    ITEM_BYTES,
    ManifestError,
    Node,
    SlotLayout,
    TensorSpec,
    Value,
    foreign,
    leaves,
    parse_located,
    parse_value,
)
from cudaagent.judge.process import (
    Deadline,
    RunnerDied,
    RunnerError,
    RunnerForged,
    RunnerProcess,
    RunnerTimeout,
    UnreadableMemory,
)
from cudaagent.judge.ring import Bytes, Ring, slot_stride, strided
from cudaagent.judge.settings import LimitSettings
from cudaagent.judge.values import Parameter
from cudaagent.judge.wire import memory_file
from cudaagent.tasks.task import Task

Shared = Callable[[], AbstractContextManager[None]]
"""The timing lease held shared, for one piece of work."""

MAX_PARAMETERS = 8192


@dataclass(frozen=True, slots=True)
class InitArgs:
    """``get_init_inputs()``: structure, and raw extents of its tensors."""

    node: Node
    specs: tuple[TensorSpec, ...]
    data: tuple[Bytes, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """Parameters and buffers by name; ``value_of[i]`` is the tensor that ``names[i]`` means."""

    names: tuple[str, ...]
    value_of: tuple[int, ...]
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A task's model as constructed under one seed."""

    init: InitArgs
    names: Names
    values: tuple[Bytes, ...]


@dataclass(frozen=True, slots=True)
class Binding:
    """What a runner needs to know to call a module on the ring's slots."""

    node: Node
    layout: SlotLayout
    names: Names
    live: bool

    def message(self, group: str, slots: int) -> dict[str, Any]:
        """The ``slots`` request for ``group``."""
        return {
            "op": "slots",
            "group": group,
            "names": list(self.names.names),
            "value_of": list(self.names.value_of),
            "live": self.live,
            "stride": slot_stride(self.layout),
            "count": slots,
            "node": self.node,
            "inputs": [spec.to_json() for spec in self.layout.inputs],
            "params": [spec.to_json() for spec in self.layout.params],
            "offsets": list(self.layout.offsets),
        }


def task_key(task: Task) -> str:
    """How runners call a task; contains no secret."""
    return hashlib.sha256(task.source.encode()).hexdigest()[:16]


def parse_names(answer: dict[str, Any]) -> tuple[Names, tuple[int, ...]]:
    """Validate a model's parameters and buffers; (names, addresses of the tensors).

    Raises:
        ManifestError: malformed, or more than ``MAX_PARAMETERS``.
    """
    listed, tensors = answer.get("names"), answer.get("tensors")
    if not isinstance(listed, list) or not isinstance(tensors, list):
        raise ManifestError("a model lists its parameters")
    located = [parse_located(item) for item in cast(list[object], tensors)]
    if len(located) > MAX_PARAMETERS or len(cast(list[object], listed)) > MAX_PARAMETERS:
        raise ManifestError(f"a model may have {MAX_PARAMETERS} parameters and buffers")
    names: list[str] = []
    value_of: list[int] = []
    held: list[list[str]] = [[] for _ in located]
    buffers = [False] * len(located)
    for item in cast(list[dict[str, Any]], listed):
        name, value = item.get("name"), item.get("value")
        if not isinstance(name, str) or not isinstance(value, int) or not 0 <= value < len(located):
            raise ManifestError("malformed parameter")
        names.append(name)
        value_of.append(value)
        held[value].append(name)
        buffers[value] = buffers[value] or bool(item.get("buffer"))
    parameters = tuple(
        Parameter(tuple(held[i]), located[i].spec, buffers[i]) for i in range(len(located))
    )
    addresses = tuple(item.address for item in located)
    return Names(tuple(names), tuple(value_of), parameters), addresses


def read_extent(process: RunnerProcess, address: int, spec: TensorSpec) -> Bytes:
    """A tensor's extent as raw bytes of the judge's own."""
    data = np.empty(spec.nbytes, np.uint8)
    if spec.nbytes:
        process.read_into(address, data.data)
    return data


def to_array(data: Bytes, spec: TensorSpec, name: str = "output") -> Array:
    """An extent as the array that ``compare`` wants."""
    if not spec.numel:
        return np.empty(spec.shape, np.float32)
    contiguous = np.ascontiguousarray(strided(data, spec)).reshape(-1)
    return from_raw(contiguous.view(np.uint8).data, LeafLayout(name, spec.dtype, spec.shape))


def piece_to_array(data: Bytes, dtype: str) -> Array:
    """A contiguous piece of a tensor as a flat array."""
    count = data.size // ITEM_BYTES[dtype]
    return from_raw(data.data, LeafLayout("piece", dtype, (count,)))


def read_leaves(process: RunnerProcess, value: Value) -> list[Array]:
    """All tensors of a value, in the order in which its structure is walked."""
    arrays: list[Array] = []
    for name, index in leaves(value.node):
        located = value.tensors[index]
        arrays.append(
            to_array(read_extent(process, located.address, located.spec), located.spec, name)
        )
    return arrays


class ReferenceRunner:
    """One reference runner; holds one task's models, or many when it is shared."""

    def __init__(
        self, process: RunnerProcess, ring: Ring, limits: LimitSettings, shared: Shared
    ) -> None:
        self.process = process
        self._ring = ring
        self._limits = limits
        self._shared = shared
        self._loaded: dict[str, Loaded] = {}
        self._compiled: set[str] = set()
        self._bound: dict[str, tuple[SlotLayout, int, bool]] = {}
        self._generation = -1
        self.ring_address = 0

    def load(self, task: Task, seed: int) -> Loaded:
        """Load a task once.

        Raises:
            RunnerError, ManifestError and the other runner exceptions.
        """
        key = task_key(task)
        if key in self._loaded:
            return self._loaded[key]
        fd = memory_file("task", task.source.encode())
        try:
            answer = self._request(
                {"op": "task", "key": key, "seed": seed}, self._limits.load_s, "load_s", [fd]
            )
        finally:
            os.close(fd)
        value = parse_value(answer.get("init"))
        if (kind := foreign(value.node)) is not None:
            raise ManifestError(f"get_init_inputs() returns a {kind}, which cannot be handed over")
        data = tuple(read_extent(self.process, t.address, t.spec) for t in value.tensors)
        init = InitArgs(value.node, tuple(t.spec for t in value.tensors), data)
        names, values = self._model(answer)
        self._loaded[key] = Loaded(init, names, values)
        return self._loaded[key]

    def reconstruct(self, key: str, seed: int) -> None:
        """Construct the model again under another seed; the ring must be bound again."""
        self._request(
            {"op": "reconstruct", "key": key, "seed": seed}, self._limits.load_s, "load_s"
        )
        self._bound.pop(key, None)
        self._compiled.discard(key)

    def inputs(self, key: str, seed: int) -> tuple[Value, tuple[Bytes, ...]]:
        """One draw of ``get_inputs()``."""
        answer = self._request(
            {"op": "inputs", "key": key, "seed": seed}, self._limits.load_s, "load_s"
        )
        value = parse_value(answer.get("value"))
        data = tuple(read_extent(self.process, t.address, t.spec) for t in value.tensors)
        self.release()
        return value, data

    def bind(self, key: str, binding: Binding, slots: int) -> None:
        """Bind the task to at least ``slots`` slots of the ring."""
        if self._generation != self._ring.generation:
            answer = self._request(
                {"op": "ring", "size": self._ring.size}, self._limits.load_s, "load_s",
                [self._ring.fd],
            )  # fmt: skip
            self.ring_address = int(answer["address"])
            self._generation = self._ring.generation
            self._bound.clear()
        bound = self._bound.get(key)
        if bound and bound[0] == binding.layout and bound[1] >= slots and bound[2] == binding.live:
            return
        self._request(binding.message(key, slots), self._limits.load_s, "load_s")
        self._bound[key] = (binding.layout, slots, binding.live)

    def compile(self, key: str) -> float:
        """Make the compiled arm and compile it on slot 0; seconds."""
        if key in self._compiled:
            return 0.0
        message = {"op": "call", "arm": f"{key}:compiled", "slot": 0}
        try:
            self._request({"op": "compile", "key": key}, self._limits.load_s, "load_s")
            answer = self._request(message, self._limits.build_s, "build_s")
        except RunnerError as error:
            raise RunnerError("torch.compile", error.kind, error.text, error.memory) from error
        self.release()
        self._request({"op": "settle"}, self._limits.load_s, "load_s")
        self._compiled.add(key)
        seconds = answer.get("seconds")
        return float(seconds) if isinstance(seconds, int | float) else 0.0

    def double(self, key: str) -> bool:
        """Make the float64 arm; False when the model cannot be converted."""
        try:
            self._request({"op": "double", "key": key}, self._limits.load_s, "load_s")
        except RunnerError:
            return False
        return True

    def forget_double(self, key: str) -> None:
        self._request({"op": "forget", "key": key}, self._limits.load_s, "load_s")

    def call(self, key: str, arm: str, slot: int, *, train: bool = False) -> Value:
        """One call; the output stays in the runner until ``release``."""
        message = {
            "op": "call",
            "arm": f"{key}:{arm}",
            "slot": slot,
            "double": arm == "double",
            "train": train,
        }
        answer = self._request(message, self._limits.call_s, "call_s")
        return parse_value(answer.get("value"))

    def outputs(self, key: str, arm: str, slot: int) -> list[Array]:
        """One call, its leaves, and the runner's memory given back."""
        value = self.call(key, arm, slot)
        with self._shared():
            arrays = read_leaves(self.process, value)
        self.release()
        return arrays

    def release(self) -> None:
        """Let the runner drop the outputs it keeps."""
        self._request({"op": "release"}, self._limits.call_s, "call_s")

    def _model(self, answer: dict[str, Any]) -> tuple[Names, tuple[Bytes, ...]]:
        names, addresses = parse_names(answer)
        values = tuple(
            read_extent(self.process, address, parameter.spec)
            for address, parameter in zip(addresses, names.parameters, strict=True)
        )
        return names, values

    def _request(
        self, message: dict[str, Any], seconds: float, key: str, fds: Sequence[int] = ()
    ) -> dict[str, Any]:
        with self._shared():
            return self.process.request(message, Deadline(seconds, f"limits.{key}"), fds=fds)


class ReferenceHost:
    """Keeps reference runners: one for all tasks, or the last task's."""

    def __init__(
        self,
        fork: Callable[[], RunnerProcess],
        ring: Ring,
        limits: LimitSettings,
        shared: Shared,
        *,
        share: bool,
    ) -> None:
        self._fork = fork
        self._ring = ring
        self._limits = limits
        self._shared = shared
        self._share = share
        self._runner: ReferenceRunner | None = None
        self._owner = ""

    def runner(self, task: Task) -> ReferenceRunner:
        """The warm runner for ``task``, or a new one."""
        key = task_key(task)
        if self._runner is not None and not self._share and self._owner != key:
            self.drop()
        if self._runner is None:
            process = self._fork()
            self._runner = ReferenceRunner(process, self._ring, self._limits, self._shared)
        self._owner = key
        return self._runner

    def freeze(self) -> None:
        """Stop the runner while another one is on turn."""
        if self._runner is not None:
            self._runner.process.stop()

    def drop(self) -> None:
        """End the runner; the next task gets a new one. May be called twice."""
        if self._runner is not None:
            process, self._runner = self._runner.process, None
            process.close()


def raise_as_task_error(task: Task, error: Exception) -> NoReturn:
    """A failure of the reference runner while a task was studied is the task's fault."""
    name = f"task {task.id}"
    if isinstance(error, RunnerError):
        where = {"import": "its source", "forward": "forward"}.get(error.stage, error.stage)
        code = "task-too-large" if error.memory else "task-invalid"
        raise TaskError(code, f"{name}: {where} fails: {error.summary}") from error
    if isinstance(error, RunnerTimeout | ManifestError):
        raise TaskError("task-invalid", f"{name}: {error}") from error
    if isinstance(error, RunnerDied):
        raise TaskError("task-invalid", f"{name}: its process ended with {error}") from error
    if isinstance(error, RunnerForged | UnreadableMemory):
        raise TaskError("task-invalid", f"{name}: its runner misbehaved: {error}") from error
    if isinstance(error, TaskError | InfrastructureError):
        raise error
    raise InfrastructureError(f"{name}: {type(error).__name__}: {error}") from error
