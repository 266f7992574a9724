"""The learner's workers as the arithmetic sees them: sums over all, or nothing to do.

Runs in every learner process. With ``torch.distributed`` initialised each process holds a shard of
the batch and every sum below is global; otherwise these are the identity. All workers must call
them in the same order. A lost peer shows as the process group's own time-out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_distributed() -> bool:
    """Whether a process group is up."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """This worker's number."""
    return dist.get_rank() if is_distributed() else 0


def size() -> int:
    """Number of workers."""
    return dist.get_world_size() if is_distributed() else 1


def all_sum(values: Tensor) -> Tensor:
    """Elementwise sum over all workers."""
    if is_distributed():
        values = values.clone()
        dist.all_reduce(values, op=dist.ReduceOp.SUM)
    return values


def all_max(values: Tensor) -> Tensor:
    """Elementwise maximum over all workers."""
    if is_distributed():
        values = values.clone()
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return values


def sum_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Replace each gradient by its sum over all workers; an absent one counts as zero."""
    pending: list[Any] = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if is_distributed():
            pending.append(dist.all_reduce(parameter.grad, async_op=True))
    for work in pending:
        work.wait()


def gather(item: Any) -> list[Any]:
    """``item`` of every worker, by rank; small Python objects only."""
    if not is_distributed():
        return [item]
    items: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(items, item)
    return items
