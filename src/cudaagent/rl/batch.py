"""Trajectories to tensors: flat action arrays and padded micro-batches under a token budget.

Pure functions of their arguments, called in the learner's process.

Shape suffixes: M trajectories of this worker's shard; N action tokens of the shard, trajectory by
trajectory; B rows and T tokens of one micro-batch; A action tokens of one micro-batch.

The token at position t is an action in the state before it, so its log-probability and its value
are read at model position t - 1. Rows are padded on the right and the models are causal, so no
attention mask is needed: a real token never sees padding, and no row sees another. Tokens after a
row's last action are cut. Rows sorted by length keep the padding small; packing without padding
is not here yet.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cudaagent.agent.trajectory import Trajectory
from cudaagent.rl import world


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows of one forward pass, and where their action tokens are."""

    token_ids_BT: Tensor
    reward_B: Tensor
    row_A: Tensor
    """Row of each action, ascending."""
    position_A: Tensor
    """Model position that predicts the action."""
    target_A: Tensor
    """The action's token id."""
    engine_logp_A: Tensor
    """Behaviour log-probability that the engine reported."""
    action_A: Tensor
    """Index of each action among the shard's N."""
    share_A: Tensor
    """1 / actions of the trajectory; divided by the trajectory count it is the loss weight."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One worker's shard; arrays are on the host."""

    trajectories: tuple[Trajectory, ...]
    offset_M: NDArray[np.int64]
    """Actions of trajectory m are ``offset_M[m]:offset_M[m + 1]`` of N; M + 1 entries."""
    position_N: NDArray[np.int64]
    """Index of each action in its trajectory's ``token_ids``."""
    row_N: NDArray[np.int64]
    reward_M: NDArray[np.float32]
    engine_logp_N: NDArray[np.float32]

    @property
    def actions(self) -> int:
        """N."""
        return len(self.position_N)

    @property
    def tokens(self) -> int:
        """Tokens of the shard, prompts and observations included."""
        return sum(len(item.token_ids) for item in self.trajectories)

    @property
    def share_N(self) -> NDArray[np.float32]:
        """1 / actions of the token's trajectory."""
        return (1.0 / np.diff(self.offset_M)[self.row_N]).astype(np.float32)

    @property
    def rows(self) -> list[int]:
        """Trajectories with at least one action."""
        return np.flatnonzero(np.diff(self.offset_M)).tolist()

    def micro_batches(
        self, rows: Sequence[int], micro_tokens: int, device: torch.device
    ) -> Iterator[MicroBatch]:
        """Cut ``rows`` into padded micro-batches of at most ``micro_tokens`` positions.

        A row longer than the budget is alone in its micro-batch. Rows without an action are left
        out.
        """
        for group in self._groups(rows, micro_tokens):
            yield self._micro_batch(group, device)

    def micro_batch_count(self, rows: Sequence[int], micro_tokens: int) -> int:
        """How many micro-batches ``micro_batches`` yields."""
        return sum(1 for _ in self._groups(rows, micro_tokens))

    def _groups(self, rows: Sequence[int], micro_tokens: int) -> Iterator[list[int]]:
        group: list[int] = []
        for row in sorted(rows, key=lambda row: (-self._width(row), row)):
            if self._width(row) == 0:
                continue
            if group and (len(group) + 1) * self._width(group[0]) > micro_tokens:
                yield group
                group = []
            group.append(row)
        if group:
            yield group

    def _width(self, row: int) -> int:
        """Model positions that the row needs: everything before its last action."""
        start, end = self.offset_M[row], self.offset_M[row + 1]
        return int(self.position_N[end - 1]) if end > start else 0

    def _micro_batch(self, group: list[int], device: torch.device) -> MicroBatch:
        width = self._width(group[0])
        token_ids_BT = np.zeros((len(group), width), dtype=np.int64)
        spans: list[NDArray[np.int64]] = []
        targets: list[NDArray[np.int64]] = []
        for index, row in enumerate(group):
            ids = self.trajectories[row].token_ids
            length = self._width(row)
            token_ids_BT[index, :length] = ids[:length]
            span = np.arange(self.offset_M[row], self.offset_M[row + 1])
            spans.append(span)
            targets.append(ids[self.position_N[span]].astype(np.int64))
        action_A = np.concatenate(spans)
        counts = [len(span) for span in spans]

        def put(array: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        return MicroBatch(
            token_ids_BT=put(token_ids_BT),
            reward_B=put(self.reward_M[group]),
            row_A=put(np.repeat(np.arange(len(group)), counts)),
            position_A=put(self.position_N[action_A] - 1),
            target_A=put(np.concatenate(targets)),
            engine_logp_A=put(self.engine_logp_N[action_A]),
            action_A=put(action_A),
            share_A=put(np.repeat(1.0 / np.asarray(counts), counts).astype(np.float32)),
        )


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """Rows of this worker that take part in one optimizer step."""

    rows: tuple[int, ...]
    trajectories: int
    """Trajectories with actions in this step, over all workers."""


def make_batch(trajectories: Sequence[Trajectory], *, need_reward: bool = True) -> Batch:
    """Collect the action tokens of ``trajectories``.

    Raises:
        ValueError: arrays of unequal length, an action at position 0 (nothing predicts it), a
            reward or an action's log-probability that is not finite, or no reward.
    """
    offsets = [0]
    positions: list[NDArray[np.int64]] = []
    logprobs: list[NDArray[np.float32]] = []
    for item in trajectories:
        _check(item, need_reward)
        position = np.flatnonzero(item.loss_mask)
        positions.append(position)
        logprobs.append(item.logprobs[position])
        offsets.append(offsets[-1] + len(position))
    offset_M = np.asarray(offsets, dtype=np.int64)
    rewards = [0.0 if item.reward is None else item.reward for item in trajectories]
    return Batch(
        trajectories=tuple(trajectories),
        offset_M=offset_M,
        position_N=np.concatenate(positions) if positions else np.zeros(0, np.int64),
        row_N=np.repeat(np.arange(len(positions)), np.diff(offset_M)),
        reward_M=np.asarray(rewards, dtype=np.float32),
        engine_logp_N=np.concatenate(logprobs) if logprobs else np.zeros(0, np.float32),
    )


def plan_steps(
    batch: Batch, *, parts: int | None = None, size: int | None = None, seed: Sequence[int | str]
) -> list[MiniBatch]:
    """Shuffle all workers' trajectories and cut them into optimizer steps.

    Either ``parts`` equal steps or steps of ``size`` trajectories. The cut depends on the
    trajectories' ids and ``seed`` alone, not on how they are sharded over workers, nor on their
    order of arrival. Trajectories without an action take no part.
    """
    own = [(batch.trajectories[row].id, world.rank(), row) for row in batch.rows]
    everyone: list[tuple[str, int, int]] = sorted(itertools.chain.from_iterable(world.gather(own)))
    random.Random("/".join(map(str, seed))).shuffle(everyone)
    total = len(everyone)
    if parts is None:
        parts = -(-total // size) if size else 1
    parts = max(1, min(parts, total))
    steps: list[MiniBatch] = []
    for index in range(parts):
        chosen = everyone[total * index // parts : total * (index + 1) // parts]
        rows = tuple(sorted(row for _, rank, row in chosen if rank == world.rank()))
        steps.append(MiniBatch(rows, len(chosen)))
    return steps


def _check(item: Trajectory, need_reward: bool) -> None:
    length = len(item.token_ids)
    if len(item.loss_mask) != length or len(item.logprobs) != length:
        raise ValueError(f"trajectory {item.id}: ids, mask and log-probs differ in length")
    if length and item.loss_mask[0]:
        raise ValueError(f"trajectory {item.id}: its first token is an action; nothing predicts it")
    if not np.isfinite(item.logprobs[item.loss_mask]).all():
        raise ValueError(f"trajectory {item.id}: a behaviour log-probability is not finite")
    if not need_reward:
        return
    if item.reward is None:
        raise ValueError(f"trajectory {item.id} has no reward; leave dropped episodes out")
    if not np.isfinite(item.reward):
        raise ValueError(f"trajectory {item.id}: its reward is not finite")
