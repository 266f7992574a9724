"""Key-value caches for decoding: a layer that grows in place, and a store across turns.

Runs in the process that generates. Shapes: B rows, H key-value heads, T columns, D head size, N
tokens. Keys are cached after their position is rotated in, so entries may move between columns.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.cache_utils import DynamicLayer


class GrowingLayer(DynamicLayer):
    """A cache layer over buffers [B, H, T, D], filled in place from column ``length`` on.

    The stock layer concatenates, that is copies all it holds, at every token.
    """

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns
        self.length = 0
        self.key_buffer: torch.Tensor
        self.value_buffer: torch.Tensor

    def allocate(self, rows: int, key_like: torch.Tensor, value_like: torch.Tensor) -> None:
        """Make buffers for ``rows`` rows with dtype, device, H and D as in [..., H, N, D]."""
        # Zeros, not empty: masked columns are multiplied by zero, and zero times nan is nan.
        self.key_buffer, self.value_buffer = (
            like.new_zeros(rows, like.shape[-3], self.columns, like.shape[-1])
            for like in (key_like, value_like)
        )
        self.dtype, self.device = key_like.dtype, key_like.device
        self.is_initialized = True
        self._view()

    def advance_to(self, length: int) -> None:
        """Count the first ``length`` columns, filled by hand, as held."""
        self.length = length
        self._view()

    def select(self, rows: torch.Tensor) -> None:
        """Keep only ``rows``."""
        self.key_buffer = self.key_buffer.index_select(0, rows)
        self.value_buffer = self.value_buffer.index_select(0, rows)
        self._view()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append states [B, H, N, D]; returns all keys and values so far."""
        if not self.is_initialized:
            self.allocate(key_states.shape[0], key_states, value_states)
        end = self.length + key_states.shape[-2]
        self.key_buffer[:, :, self.length : end] = key_states
        self.value_buffer[:, :, self.length : end] = value_states
        self.length = end
        return self._view()

    def _view(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys = self.key_buffer[:, :, : self.length]
        self.values = self.value_buffer[:, :, : self.length]
        return self.keys, self.values


@dataclass(frozen=True, slots=True)
class Memory:
    """Keys and values [H, N, D] of every layer for the first N tokens of an episode."""

    token_ids: NDArray[np.int64]
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    @property
    def size_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))


class MemoryStore:
    """Caches of episodes, the least recently used dropped first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._total = 0
        self._items: OrderedDict[str, Memory] = OrderedDict()

    def put(self, key: str, memory: Memory) -> None:
        """Keep ``memory``; it replaces an older one of the same episode."""
        if memory.size_bytes > self._limit_bytes:
            return
        self._drop(key)
        self._items[key] = memory
        self._total += memory.size_bytes
        while self._total > self._limit_bytes:
            self._drop(next(iter(self._items)))

    def take(self, key: str, token_ids: NDArray[np.int64]) -> Memory | None:
        """Remove and return what is known of ``token_ids``; None unless it is a true prefix."""
        memory = self._drop(key)
        if memory is None:
            return None
        known = len(memory.token_ids)
        if known >= len(token_ids) or not np.array_equal(memory.token_ids, token_ids[:known]):
            return None
        return memory

    def clear(self) -> None:
        """Forget everything, as after a change of the weights."""
        self._items.clear()
        self._total = 0

    def _drop(self, key: str) -> Memory | None:
        memory = self._items.pop(key, None)
        if memory is not None:
            self._total -= memory.size_bytes
        return memory
