"""Batched sampling from a causal language model, with a key-value cache that is never copied.

Runs in the process that generates. Rows that grow are right-aligned, so all of them do at one
column. A row's next token is the inverse of its cumulative distribution at a uniform number from
its own generator, so what it draws does not depend on its neighbours beyond rounding. Rows that
ended leave the batch. The cache of an episode is kept for its next turn.

Shapes: B rows, V vocabulary, T columns (padding, prompt, new tokens), N tokens of one forward pass.
Not covered: models with recurrent state, whose cache cannot be cut at a token.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.cache_utils import Cache

from cudaagent.lease import TimingLease
from cudaagent.policy.base import GenerationRequest
from cudaagent.policy.forward import CausalModel
from cudaagent.policy.kvcache import GrowingLayer, Memory, MemoryStore

PIECE_S = 0.5
"""Seconds of decoding under one hold of the lease."""
_PREFILL_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Drawn:
    """Ids [N] and log-probabilities [N] that one row drew; ``stopped`` at a stop token."""

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    stopped: bool


@dataclass(slots=True)
class _Row:
    prompt: NDArray[np.int64]
    limit: int
    uniform: torch.Tensor
    episode_id: str
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    stopped: bool = False

    @property
    def done(self) -> bool:
        return self.stopped or len(self.ids) >= self.limit


class Decoder:
    """Draws continuations and keeps the caches of episodes, at most ``memory_bytes`` of them."""

    def __init__(
        self,
        model: CausalModel,
        stop_ids: Collection[int],
        *,
        temperature: float = 1.0,
        lease: TimingLease | None = None,
        memory_bytes: int = 1 << 30,
    ) -> None:
        self._model = model
        self._stop = frozenset(stop_ids)
        self._temperature = temperature
        self._lease = lease
        self._store = MemoryStore(memory_bytes)

    def forget(self) -> None:
        """Drop every kept cache; call it when the weights change."""
        self._store.clear()

    def draw(self, requests: Sequence[GenerationRequest]) -> list[Drawn]:
        """Continue every request; in order. Prompts may not be empty."""
        rows = [self._row(request) for request in requests]
        batch = _Batch(self._model, [row for row in rows if row.limit > 0])
        with torch.inference_mode():
            for piece in self._pieces(batch):
                with self._lease.shared() if self._lease else contextlib.nullcontext():
                    piece()
        return [
            Drawn(
                np.asarray(row.ids, dtype=np.int32),
                np.asarray(row.logprobs, dtype=np.float32),
                row.stopped,
            )
            for row in rows
        ]

    def _row(self, request: GenerationRequest) -> _Row:
        prompt = np.asarray(request.token_ids, dtype=np.int64)
        limit = max(0, min(request.max_new_tokens, self._model.positions - len(prompt)))
        generator = torch.Generator().manual_seed(request.seed)
        uniform = torch.rand(limit, dtype=torch.float64, generator=generator)
        return _Row(prompt, limit, uniform, request.episode_id)

    def _pieces(self, batch: _Batch) -> Iterator[Callable[[], None]]:
        """Work of about half a second each, so that whoever times need not wait for long."""
        known = [self._store.take(row.episode_id, row.prompt) for row in batch.rows]
        for group in _groups(batch.rows, known):
            yield lambda group=group: batch.prefill(group, [known[i] for i in group])
        if batch.rows:
            yield batch.assemble
        while batch.rows:
            yield lambda: self._decode(batch)

    def _decode(self, batch: _Batch) -> None:
        end = time.monotonic() + PIECE_S
        while batch.rows and time.monotonic() < end:
            ended = batch.sample(self._stop, self._temperature)
            for index in ended:
                row = batch.rows[index]
                if row.episode_id and row.stopped:
                    self._store.put(row.episode_id, batch.memory(index))
            batch.advance()


class _Batch:
    """The rows that still draw, and their columns in the cache."""

    def __init__(self, model: CausalModel, rows: list[_Row]) -> None:
        self.rows = rows
        self._model = model
        self._known: dict[int, tuple[Memory, torch.Tensor]] = {}
        self._width = max((len(row.prompt) for row in rows), default=0)
        self._steps = 0

    def prefill(self, group: Sequence[int], known: Sequence[Memory | None]) -> None:
        """Run the prompts of ``group``, behind what is known of them if anything is."""
        memories = [memory for memory in known if memory is not None]
        if memories:
            self._continue(group, memories)
        else:
            self._begin(group)

    def _begin(self, group: Sequence[int]) -> None:
        prompts = [self.rows[i].prompt for i in group]
        lengths = [len(p) for p in prompts]
        width = min(_round_up(max(lengths)), self._model.positions)
        ids = np.zeros((len(group), width), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = prompt
        layers = [GrowingLayer(width) for _ in range(self._model.layers)]
        logits = self._model.prompt(
            self._tensor(ids), self._tensor(np.asarray(lengths) - 1), Cache(layers=[*layers])
        )
        for row, index in enumerate(group):
            memory = _cut(layers, row, 0, lengths[row], prompts[row])
            self._known[index] = (memory, logits[row])

    def _continue(self, group: Sequence[int], known: Sequence[Memory]) -> None:
        """Rows are right-aligned; the last columns, as many as the longest news, are run."""
        prompts = [self.rows[i].prompt for i in group]
        lengths = [len(p) for p in prompts]
        width = _round_up(max(lengths))
        past = width - max(
            length - len(memory.token_ids) for length, memory in zip(lengths, known, strict=True)
        )
        layers = [GrowingLayer(width) for _ in range(self._model.layers)]
        _recall(layers, known, lengths, past)
        starts = width - np.asarray(lengths)[:, None]
        ids = np.zeros((len(group), width), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = prompt
        columns = np.arange(width)[None]
        logits = self._model.advance(
            self._tensor(ids[:, past:]),
            self._tensor(columns >= starts),
            self._tensor(np.maximum(columns - starts, 0)[:, past:]),
            Cache(layers=[*layers]),
        )
        for row, index in enumerate(group):
            memory = _cut(layers, row, width - lengths[row], width, prompts[row])
            self._known[index] = (memory, logits[row])

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._model.device)

    def assemble(self) -> None:
        """Lay the prefilled rows side by side, right-aligned, with room for what they draw."""
        device = self._model.device
        count, width = len(self.rows), self._width
        steps = max(row.limit for row in self.rows)
        self._layers = [GrowingLayer(width + steps) for _ in range(self._model.layers)]
        self._valid = torch.ones(count, width + steps, dtype=torch.bool, device=device)
        self._uniform = torch.zeros(count, steps, dtype=torch.float64, device=device)
        for index, row in enumerate(self.rows):
            start = width - len(row.prompt)
            memory = self._known[index][0]
            self._valid[index, :start] = False
            self._uniform[index, : row.limit] = row.uniform
            for layer, key, value in zip(self._layers, memory.keys, memory.values, strict=True):
                if index == 0:
                    layer.allocate(count, key, value)
                layer.key_buffer[index, :, start:width] = key
                layer.value_buffer[index, :, start:width] = value
        for layer in self._layers:
            layer.advance_to(width)
        self._cache = Cache(layers=[*self._layers])
        self._logits = torch.stack([self._known[i][1] for i in range(count)])
        lengths = [len(row.prompt) for row in self.rows]
        self._position = torch.tensor(lengths, dtype=torch.int64, device=device)[:, None]
        self._known.clear()

    def sample(self, stop: Collection[int], temperature: float) -> list[int]:
        """Draw one token for every row; returns the indices of rows that end with it."""
        self._next, logp = choose(
            self._logits, self._uniform[:, self._steps : self._steps + 1], temperature
        )
        ended: list[int] = []
        tokens, logprobs = self._next[:, 0].tolist(), logp[:, 0].tolist()
        for index, (row, token, value) in enumerate(zip(self.rows, tokens, logprobs, strict=True)):
            if row.done:
                continue
            row.ids.append(token)
            row.logprobs.append(value)
            row.stopped = token in stop
            if row.done:
                ended.append(index)
        self._steps += 1
        return ended

    def memory(self, index: int) -> Memory:
        """The cache of one row; the last token drawn is not yet in it."""
        row = self.rows[index]
        end = self._layers[0].length
        tokens = np.concatenate([row.prompt, np.asarray(row.ids[:-1], dtype=np.int64)])
        return _cut(self._layers, index, end - len(tokens), end, tokens)

    def advance(self) -> None:
        """Drop the rows that ended, once they are many, and run the others one token further."""
        alive = [index for index, row in enumerate(self.rows) if not row.done]
        if not alive:
            self.rows = []
            return
        if len(alive) <= 0.8 * len(self.rows):
            self._select(alive)
        end = self._width + self._steps
        self._logits = self._model.advance(
            self._next, self._valid[:, :end], self._position, self._cache
        )
        self._position = self._position + 1

    def _select(self, alive: Sequence[int]) -> None:
        chosen = torch.tensor(alive, dtype=torch.int64, device=self._model.device)
        for layer in self._layers:
            layer.select(chosen)
        self.rows = [self.rows[index] for index in alive]
        for name in ("_valid", "_uniform", "_next", "_position"):
            setattr(self, name, getattr(self, name).index_select(0, chosen))


def choose(
    logits_BV: torch.Tensor, uniform_B1: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [B, 1] and their float32 log-probabilities [B, 1] under the sampling distribution.

    At temperature 0 the likeliest token, with its log-probability at temperature 1.
    """
    logp = torch.log_softmax(logits_BV / (temperature or 1.0), dim=-1)
    if temperature == 0:
        ids = logp.argmax(dim=-1, keepdim=True)
    else:
        cumulative = logp.double().exp_().cumsum(-1)
        target = uniform_B1 * cumulative[:, -1:]
        ids = torch.searchsorted(cumulative, target, right=True)
        ids.clamp_(max=logp.shape[-1] - 1)
    return ids, logp.gather(-1, ids)


def _groups(rows: Sequence[_Row], known: Sequence[Memory | None]) -> list[list[int]]:
    """Rows of like fresh length together, each group a bounded number of tokens."""
    fresh = [
        len(row.prompt) - (len(m.token_ids) if m else 0) for row, m in zip(rows, known, strict=True)
    ]
    groups: list[list[int]] = []
    for index in sorted(range(len(rows)), key=lambda i: fresh[i]):
        room = groups and (len(groups[-1]) + 1) * fresh[index] <= _PREFILL_TOKENS
        same = groups and (known[groups[-1][0]] is None) == (known[index] is None)
        if room and same:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _recall(
    layers: Sequence[GrowingLayer], known: Sequence[Memory], lengths: Sequence[int], past: int
) -> None:
    """Put what is known into the columns before ``past``; rows are right-aligned."""
    width = layers[0].columns
    for number, layer in enumerate(layers):
        layer.allocate(len(known), known[0].keys[number], known[0].values[number])
        for row, (memory, length) in enumerate(zip(known, lengths, strict=True)):
            start = width - length
            count = past - start
            if count > 0:
                layer.key_buffer[row, :, start:past] = memory.keys[number][:, :count]
                layer.value_buffer[row, :, start:past] = memory.values[number][:, :count]
        layer.advance_to(past)


def _round_up(width: int) -> int:
    # Seen on CUDA (torch 2.11, float32): of the widths 780 to 849 one, 833, gave wrong logits for a
    # whole padded batch. None that is a multiple of eight did.
    return -(-width // 8) * 8


def _cut(
    layers: Sequence[GrowingLayer], row: int, start: int, end: int, tokens: NDArray[np.int64]
) -> Memory:
    return Memory(
        tokens,
        tuple(layer.key_buffer[row, :, start:end].clone() for layer in layers),
        tuple(layer.value_buffer[row, :, start:end].clone() for layer in layers),
    )
