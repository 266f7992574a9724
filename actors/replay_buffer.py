"""The replay buffer: one process that holds references to trajectories in the object store.

Invariants: a batch is acknowledged only when its Parquet file is on disk, and each batch has one
id, ``<stage>-<step>``, under which it is published once. The buffer keeps references, never
copies; a batch whose objects are lost with a node is read from disk again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import ray
from ray.exceptions import RayError

from cudaagent.agent.trajectory import Trajectory, read_trajectories, write_trajectories


class ReplayBuffer:
    """Batches of trajectories, published by the driver, pulled by the learner's workers."""

    def __init__(self) -> None:
        self._batches: dict[str, list[ray.ObjectRef]] = {}
        self._paths: dict[str, Path] = {}
        self._published = asyncio.Condition()

    async def add(self, batch_id: str, path: str, references: Sequence[ray.ObjectRef]) -> int:
        """Store a batch (references to lists of trajectories) and write it to ``path``.

        Dropped trajectories (no reward) are kept on disk and left out of the batch. Returns the
        number of trajectories in the batch, after the file is on disk.
        """
        parts = await asyncio.gather(*references)
        trajectories = [item for part in parts for item in part]
        await asyncio.to_thread(write_trajectories, Path(path), trajectories)
        return await self._publish(batch_id, path, trajectories)

    async def restore(self, batch_id: str, path: str) -> int:
        """Publish a batch from its Parquet file; returns the number of trajectories in it."""
        trajectories = await asyncio.to_thread(read_trajectories, Path(path))
        return await self._publish(batch_id, path, trajectories)

    async def _publish(self, batch_id: str, path: str, items: list[Trajectory]) -> int:
        # Put again here: an object that a rollout worker returned dies with that worker's node.
        references = [ray.put(item) for item in _rewarded(items)]
        async with self._published:
            self._batches[batch_id] = references
            self._paths[batch_id] = Path(path)
            self._published.notify_all()
        return len(references)

    async def pull(self, batch_id: str, timeout_s: float) -> list[ray.ObjectRef] | None:
        """References of a batch, waiting for its publication; None when the time is over."""
        async with self._published:
            try:
                await asyncio.wait_for(
                    self._published.wait_for(lambda: batch_id in self._batches), timeout_s
                )
            except TimeoutError:
                return None
            return self._batches[batch_id]

    async def trajectories(self, batch_id: str) -> list[Trajectory]:
        """The trajectories themselves; read from disk when an object is lost."""
        try:
            return list(await asyncio.gather(*self._batches[batch_id]))
        except RayError:
            return _rewarded(await asyncio.to_thread(read_trajectories, self._paths[batch_id]))

    async def release(self, batch_id: str) -> None:
        """Drop a batch's references; its Parquet file stays."""
        self._batches.pop(batch_id, None)
        self._paths.pop(batch_id, None)


def _rewarded(items: Sequence[Trajectory]) -> list[Trajectory]:
    return [item for item in items if item.reward is not None]
