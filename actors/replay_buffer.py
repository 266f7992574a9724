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

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._batches: dict[str, list[ray.ObjectRef]] = {}
        self._published = asyncio.Condition()

    def path(self, batch_id: str) -> Path:
        return self._directory / f"{batch_id}.parquet"

    async def add(self, batch_id: str, references: Sequence[ray.ObjectRef]) -> int:
        """Store a batch (references to lists of trajectories) and write its Parquet file.

        Returns the number of trajectories, after the file is on disk.
        """
        parts = await asyncio.gather(*references)
        trajectories = [item for part in parts for item in part]
        await asyncio.to_thread(write_trajectories, self.path(batch_id), trajectories)
        # Re-put here: an object that a rollout worker returned is lost with that worker's node.
        await self._publish(batch_id, [ray.put(item) for item in trajectories])
        return len(trajectories)

    async def restore(self, batch_id: str) -> int:
        """Publish a batch from its Parquet file; -1 when there is none."""
        if not self.path(batch_id).is_file():
            return -1
        trajectories = await asyncio.to_thread(read_trajectories, self.path(batch_id))
        await self._publish(batch_id, [ray.put(item) for item in trajectories])
        return len(trajectories)

    async def _publish(self, batch_id: str, references: list[ray.ObjectRef]) -> None:
        async with self._published:
            self._batches[batch_id] = references
            self._published.notify_all()

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
        except (RayError, KeyError):
            return await asyncio.to_thread(read_trajectories, self.path(batch_id))

    async def release(self, batch_id: str) -> None:
        """Drop a batch's references; its Parquet file stays."""
        self._batches.pop(batch_id, None)
