"""UNTRUSTED SIDE: how values, models and errors of a runner are described to the judge, and back.

Runs inside runners. Nothing here protects anything: the judge validates every description
(``manifest``) and reads the bytes itself.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cudaagent.judge.wire import read_memory_file

_TEXT = 8000

Message = dict[str, Any]


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def describe_model(model: nn.Module) -> Message:
    """Names, kinds and initial values; tied tensors appear once, under several names."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    unique: dict[int, int] = {}
    tensors: list[Tensor] = []
    names: list[Message] = []
    for name, tensor in named_tensors(model):
        if id(tensor) not in unique:
            unique[id(tensor)] = len(tensors)
            tensors.append(tensor.detach())
        names.append({"name": name, "buffer": name not in parameters, "value": unique[id(tensor)]})
    return {"names": names, "tensors": [_located(tensor) for tensor in tensors]}


def map_floats(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, list | tuple):
        return type(value)(map_floats(item, dtype) for item in value)
    if isinstance(value, dict):
        return {key: map_floats(item, dtype) for key, item in value.items()}
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Tensors in the order of ``describe_value`` after the judge has sorted dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            yield from tensors_in(value[key])


def describe_value(value: Any) -> Message:
    tensors: list[Tensor] = []
    if isinstance(value, list) and len(value) == 2 and value[0] == "l":
        node = ["l", [_encode(item, tensors) for item in value[1]]]
    else:
        node = _encode(value, tensors)
    return {"node": node, "tensors": [_located(tensor) for tensor in tensors]}


def _encode(value: Any, tensors: list[Tensor]) -> list[Any]:
    if isinstance(value, Tensor):
        plain = type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided
        if not plain or value.is_quantized or value.is_conj() or value.is_neg():
            return ["x", f"{type(value).__name__} ({value.layout})"]
        tensors.append(value.detach())
        return ["t", len(tensors) - 1]
    if value is None or type(value) in (bool, int, float, str):
        return ["v", value]
    if isinstance(value, list):
        return ["l", [_encode(item, tensors) for item in value]]
    if isinstance(value, tuple):
        return ["u", [_encode(item, tensors) for item in value]]
    if isinstance(value, dict):
        return ["d", [[key, _encode(value[key], tensors)] for key in sorted(value, key=repr)]]
    if isinstance(value, torch.dtype):
        return ["y", str(value).removeprefix("torch.")]
    return ["x", type(value).__name__]


def decode(node: list[Any], tensors: Sequence[Tensor]) -> Any:
    kind, content = node
    if kind == "t":
        return tensors[content]
    if kind == "l":
        return [decode(item, tensors) for item in content]
    if kind == "u":
        return tuple(decode(item, tensors) for item in content)
    if kind == "d":
        return {key: decode(item, tensors) for key, item in content}
    if kind == "y":
        return getattr(torch, content)
    return content


def _located(tensor: Tensor) -> Message:
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "address": tensor.data_ptr(),
    }


def tensor_from_file(fd: int, spec: Message) -> Tensor:
    """A tensor of one's own from a memory file that holds its extent."""
    data = bytearray(read_memory_file(fd))
    dtype = getattr(torch, spec["dtype"])
    if not data:
        return torch.empty_strided(spec["shape"], spec["stride"], dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).as_strided(spec["shape"], spec["stride"])


def describe_error(error: BaseException, stage: str) -> Message:
    """What an honest author needs: the exception and the frames of the text that was judged."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename in ("model_new.py", "model.py")
    ]
    text = "".join(traceback.format_list(frames)[-6:])
    text += "".join(traceback.format_exception_only(type(error), error))
    memory = isinstance(error, MemoryError) or any(
        mark in text for mark in ("can't allocate memory", "bad_alloc", "Cannot allocate memory")
    )
    return {
        "error": {
            "stage": stage,
            "type": type(error).__name__,
            "text": text[-_TEXT:],
            "memory": memory,
        }
    }
