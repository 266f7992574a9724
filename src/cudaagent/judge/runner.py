"""UNTRUSTED SIDE: the loop inside a runner. Candidate, reference and null runner all run this
file.

Runs in a confined child of the zygote. Code of strangers shares this process and may change
anything in it, so nothing here protects anything: the judge relies on the bytes that it reads at
the addresses reported from here, on its own clock and on its own copies of the inputs. What this
file does owe is the same work in all arms, and good error texts for honest candidates.

A runner answers one request at a time. A timed pass is: ``pass`` (outputs of the last one are
poisoned and released), answer, wait for the order of slots, calls, answer with the outputs'
addresses.
"""

from __future__ import annotations

import array
import contextlib
import copy
import gc
import importlib.machinery
import importlib.util
import linecache
import mmap
import os
import random
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cudaagent.judge.crossing import (
    Message,
    decode,
    describe_error,
    describe_model,
    describe_value,
    map_floats,
    named_tensors,
    tensor_from_file,
    tensors_in,
)
from cudaagent.judge.operator_watch import OperatorWatch
from cudaagent.judge.wire import Channel, ChannelClosed, read_memory_file

_MADV_POPULATE_READ = 22
_POISON = 0xFF


class _StageError(Exception):
    """An error with the stage in which somebody's code raised it."""

    def __init__(self, stage: str, error: BaseException) -> None:
        super().__init__(stage)
        self.stage = stage
        self.error = error


@dataclass(slots=True)
class _Slot:
    args: list[Any]
    values: list[Tensor]


@dataclass(slots=True)
class _Group:
    """Slots of one task, and what its modules' parameters are called."""

    slots: list[_Slot] = field(default_factory=list[_Slot])
    names: list[str] = field(default_factory=list[str])
    live: bool = True
    frozen: list[Tensor] = field(default_factory=list[Tensor])
    """Slot 0's values, which are everybody's, where weights do not change."""


@dataclass(slots=True)
class _Arm:
    """One module that can be called on the slots of its group."""

    module: Callable[..., Any]
    owner: nn.Module
    group: _Group
    tensors: list[Tensor] = field(default_factory=list[Tensor])

    def bind(self) -> None:
        """Find the tensors that follow the slots."""
        by_name = dict(named_tensors(self.owner))
        self.tensors = [by_name[name] for name in self.group.names]


class _Null(nn.Module):
    """Returns what it was given at construction: the judge's own empty module."""

    def __init__(self, outputs: int, names: Sequence[str]) -> None:
        super().__init__()
        self.answer = [torch.empty(1) for _ in range(outputs)]
        self.answer = self.answer[0] if outputs == 1 else self.answer
        self.held = {name: torch.empty(0) for name in names}

    def forward(self, *_: Any) -> Any:
        return self.answer


class _Extension(types.ModuleType):
    """``cuda_extension``: the functions of the built library."""

    def __init__(self, library: Any) -> None:
        super().__init__("cuda_extension")
        self._library = library

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise AttributeError(
                f"cuda_extension has no function {name!r}; export it with "
                f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, ...)"
            ) from None
        setattr(self, name, function)
        return function


class Runner:
    """State of one runner process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ring: mmap.mmap | None = None
        self._ring_range = (0, 0)
        self._modules: dict[str, types.ModuleType] = {}
        self._owners: dict[str, nn.Module] = {}
        self._groups: dict[str, _Group] = {}
        self._arms: dict[str, _Arm] = {}
        self._init: list[Any] = []
        self._kept: list[Any] = []
        self._fds: tuple[int, ...] = ()

    def serve(self) -> None:
        """Answer requests until the judge goes away."""
        torch.set_grad_enabled(False)
        while True:
            try:
                frame = self._channel.receive()
            except ChannelClosed:
                return
            if frame.message is None:
                continue
            self._fds = frame.fds
            operation = getattr(self, f"_do_{frame.message.get('op')}")
            try:
                answer = operation(frame.message)
            except _StageError as failure:
                answer = describe_error(failure.error, failure.stage)
            except Exception as error:
                answer = describe_error(error, "run")
            sys.stdout.flush()
            sys.stderr.flush()
            if isinstance(answer, bytes):
                self._channel.send_raw(answer)
            else:
                self._channel.send(answer)

    # Set-up

    def _do_ring(self, message: Message) -> Message:
        """Map the ring; what was bound to an older one is forgotten."""
        for group in self._groups.values():
            group.slots.clear()
        self._kept.clear()
        size = int(message["size"])
        self._ring = mmap.mmap(self._fds[0], size)
        os.close(self._fds[0])
        address = torch.frombuffer(self._ring, dtype=torch.uint8, count=1).data_ptr()
        self._ring_range = (address, address + size)
        return {"address": address}

    def _do_slots(self, message: Message) -> Message:
        """Bind a group to the first ``count`` slots of the ring."""
        assert self._ring is not None
        group = self._groups.setdefault(message["group"], _Group())
        group.names = list(message["names"])
        group.live = bool(message["live"])
        with contextlib.suppress(OSError, ValueError):
            used = int(message["stride"]) * int(message["count"])
            self._ring.madvise(_MADV_POPULATE_READ, 0, min(used, len(self._ring)))
        group.slots = [
            self._slot(message, index, group.live or index == 0)
            for index in range(int(message["count"]))
        ]
        for arm in self._arms.values():
            if arm.group is group and not isinstance(arm.owner, _Null):
                arm.bind()
                if not group.live:
                    _point(arm.tensors, group.slots[0].values)
        group.frozen = []
        if not group.live:
            group.frozen = group.slots[0].values
            for slot in group.slots:
                slot.values = []
        return {}

    def _slot(self, message: Message, index: int, with_values: bool) -> _Slot:
        base = index * int(message["stride"])
        inputs, offsets = message["inputs"], message["offsets"]
        tensors = [
            self._ring_tensor(spec, base + offset)
            for spec, offset in zip(inputs, offsets, strict=False)
        ]
        args = [decode(node, tensors) for node in message["node"][1]]
        if not with_values:
            return _Slot(args, [])
        values = [
            self._ring_tensor(spec, base + offset)
            for spec, offset in zip(message["params"], offsets[len(inputs) :], strict=True)
        ]
        return _Slot(args, [values[i] for i in message["value_of"]])

    def _ring_tensor(self, spec: Message, offset: int) -> Tensor:
        shape, stride = spec["shape"], spec["stride"]
        dtype = getattr(torch, spec["dtype"])
        if 0 in shape:
            return torch.empty_strided(shape, stride, dtype=dtype)
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        flat = torch.frombuffer(self._ring, dtype=dtype, count=extent, offset=offset)
        return flat.as_strided(shape, stride)

    def _do_null(self, message: Message) -> Message:
        group = self._groups.setdefault(message["group"], _Group())
        module = _Null(int(message["outputs"]), message["names"])
        tensors = list(module.held.values())
        self._arms["null"] = _Arm(module, module, group, tensors)
        return {}

    # The candidate

    def _do_library(self, message: Message) -> Message:
        """Make ``cuda_extension`` importable."""
        path = os.path.join(message["scratch"], "cuda_extension.so")
        data = read_memory_file(self._fds[0])
        with open(path, "wb") as handle:
            handle.write(data)
        with _stage("load"):
            if b"PyInit_cuda_extension" in data:
                loader = importlib.machinery.ExtensionFileLoader("cuda_extension", path)
                spec = importlib.util.spec_from_loader("cuda_extension", loader)
                assert spec is not None
                module = importlib.util.module_from_spec(spec)
                loader.exec_module(module)
            else:
                import tvm_ffi

                module = _Extension(tvm_ffi.load_module(path))
            sys.modules["cuda_extension"] = module
        return {}

    def _do_import(self, message: Message) -> Message:
        source = read_memory_file(self._fds[0]).decode()
        with _stage("load"):
            self._modules["candidate"] = _execute("model_new", "model_new.py", source)
        return {}

    def _do_construct(self, message: Message) -> Message:
        """Construct ``ModelNew`` and say what parameters and buffers it has."""
        flat = [
            tensor_from_file(fd, spec) for fd, spec in zip(self._fds, message["specs"], strict=True)
        ]
        args = [decode(node, flat) for node in message["node"][1]]
        with _stage("constructor"):
            _seed(int(message["seed"]))
            model = self._modules["candidate"].ModelNew(*args)
            if not isinstance(model, nn.Module):
                raise TypeError("ModelNew is not a torch.nn.Module")
            _freeze(model)
        self._owners["candidate"] = model
        group = self._groups.setdefault("candidate", _Group())
        self._arms["candidate"] = _Arm(model, model, group)
        return describe_model(model)

    # The reference

    def _do_task(self, message: Message) -> Message:
        """Load a task, construct its model and report initial arguments and parameters."""
        key = message["key"]
        source = read_memory_file(self._fds[0]).decode()
        with _stage("import"):
            module = _execute(f"task_{key}", "model.py", source)
        self._modules[key] = module
        with _stage("get_init_inputs"):
            _seed(int(message["seed"]))
            args = module.get_init_inputs()
            if not isinstance(args, list | tuple):
                raise TypeError("get_init_inputs() must return a list")
        self._init = list(args)
        answer = self._do_reconstruct(message)
        answer["init"] = describe_value(["l", self._init])
        return answer

    def _do_reconstruct(self, message: Message) -> Message:
        """Construct the task's model (again) under a seed."""
        key = message["key"]
        with _stage("constructor"):
            _seed(int(message["seed"]))
            model = self._modules[key].Model(*copy.deepcopy(self._init))
            _freeze(model)
        self._owners[key] = model
        group = self._groups.setdefault(key, _Group())
        self._arms[f"{key}:eager"] = _Arm(model, model, group)
        return describe_model(model)

    def _do_inputs(self, message: Message) -> Message:
        """Draw inputs under a seed; they are kept until ``release``."""
        with _stage("get_inputs"):
            _seed(int(message["seed"]))
            inputs = self._modules[message["key"]].get_inputs()
            if not isinstance(inputs, list | tuple):
                raise TypeError("get_inputs() must return a list")
        self._kept.append(inputs)
        return {"value": describe_value(["l", list(inputs)])}

    def _do_compile(self, message: Message) -> Message:
        """Make the compiled arm; the first call compiles."""
        key = message["key"]
        eager = self._arms[f"{key}:eager"]
        import torch._dynamo

        torch._dynamo.config.recompile_limit = 64
        module = torch.compile(eager.owner)
        self._arms[f"{key}:compiled"] = _Arm(module, eager.owner, eager.group, eager.tensors)
        return {}

    def _do_double(self, message: Message) -> Message:
        """Make the float64 arm."""
        key = message["key"]
        eager = self._arms[f"{key}:eager"]
        with _stage("double"):
            owner = copy.deepcopy(eager.owner).double()
        arm = _Arm(owner, owner, eager.group)
        arm.bind()
        self._arms[f"{key}:double"] = arm
        return {}

    def _do_forget(self, message: Message) -> Message:
        """Drop the float64 arm, which is needed only while expected values are made."""
        self._arms.pop(f"{message['key']}:double", None)
        return {}

    # Calls

    def _do_call(self, message: Message) -> Message:
        """One call; the output is kept until ``release``."""
        arm = self._arms[message["arm"]]
        slot = arm.group.slots[int(message["slot"])]
        args, values = slot.args, slot.values
        if message.get("double"):
            args = [map_floats(arg, torch.float64) for arg in args]
            values = values or arm.group.frozen
            values = [map_floats(value, torch.float64) for value in values]
        train = bool(message.get("train"))
        if train:
            arm.owner.train()
        watch = OperatorWatch() if message.get("watch") else None
        start = time.perf_counter()
        try:
            with _stage("forward"), watch or contextlib.nullcontext():
                _point(arm.tensors, values)
                output = arm.module(*args)
        finally:
            if train:
                arm.owner.eval()
        seconds = time.perf_counter() - start
        if message.get("double"):
            _point(arm.tensors, values)
        self._kept.append(output)
        answer = {"value": describe_value(output), "seconds": seconds}
        return answer if watch is None else answer | {"operators": watch.names()}

    def _do_release(self, message: Message) -> Message:
        self._kept.clear()
        return {}

    def _do_settle(self, message: Message) -> Message:
        """Take what lives now out of the collector's sight, so that collecting costs nothing."""
        gc.collect()
        gc.freeze()
        return {}

    def _do_pass(self, message: Message) -> Message | bytes:
        """A timed pass; the order of the slots arrives only when the clock has started."""
        arm = self._arms[message["arm"]]
        self._poison(arm)
        outputs = self._kept
        outputs.clear()
        gc.collect()
        gc.disable()
        self._channel.send({"released": True})
        frame = self._channel.receive()
        if frame.raw is None:
            return {"abandoned": True}
        order = array.array("i")
        order.frombytes(frame.raw)
        slots, module, tensors = arm.group.slots, arm.module, arm.tensors
        watch = OperatorWatch() if message.get("watch") else None
        try:
            with watch or contextlib.nullcontext():
                if arm.group.live and tensors:
                    for index in order:
                        slot = slots[index]
                        for tensor, value in zip(tensors, slot.values, strict=False):
                            tensor.data = value
                        outputs.append(module(*slot.args))
                else:
                    for index in order:
                        outputs.append(module(*slots[index].args))
            if watch is not None:
                return {"operators": watch.names()}
            addresses = array.array("q")
            for output in outputs:
                if type(output) is Tensor:
                    addresses.append(output.data_ptr())
                else:
                    addresses.extend(tensor.data_ptr() for tensor in tensors_in(output))
        except Exception as error:
            return describe_error(error, "forward")
        finally:
            gc.enable()
        return addresses.tobytes()

    def _poison(self, arm: _Arm) -> None:
        """Overwrite the outputs of the last pass, so that an element left unwritten shows."""
        first, last = self._ring_range
        held = {tensor.untyped_storage().data_ptr() for tensor in arm.tensors}
        done: set[int] = set()
        for output in self._kept:
            for tensor in tensors_in(output):
                storage = tensor.untyped_storage()
                address = storage.data_ptr()
                if address in done or address in held or first <= address < last:
                    continue
                done.add(address)
                torch.empty(0, dtype=torch.uint8).set_(storage).fill_(_POISON)


def serve(channel: Channel) -> None:
    """Body of a runner process."""
    Runner(channel).serve()


@contextlib.contextmanager
def _stage(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _StageError(name, error) from error


def _execute(name: str, filename: str, source: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = filename
    sys.modules[name] = module
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), module.__dict__)
    return module


def _seed(seed: int) -> None:
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


def _freeze(model: nn.Module) -> None:
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)


def _point(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=False):
        tensor.data = value
