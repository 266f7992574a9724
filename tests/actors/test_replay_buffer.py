"""The replay buffer as a real actor: acknowledged means on disk, lost objects come from disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cudaagent.agent.trajectory import ExitReason, Trajectory, Turn, read_trajectories

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]


def trajectory(name: str, reward: float | None = 1.0) -> Trajectory:
    ids = np.arange(6, dtype=np.int32)
    mask = np.array([0, 0, 1, 1, 0, 1], dtype=np.bool_)
    return Trajectory(
        id=name,
        task_id="task",
        stage="agentic",
        step=0,
        seed=1,
        policy_version=2,
        token_ids=ids,
        loss_mask=mask,
        logprobs=np.where(mask, -0.5, 0.0).astype(np.float32),
        turns=(Turn(2, 4), Turn(5, 6)),
        exit_reason=ExitReason.SUBMITTED,
        reward=reward,
        drop_reason=None if reward is not None else "infrastructure",
    )


@pytest.fixture
def buffer():
    import ray

    from cudaagent.actors.replay_buffer import ReplayBuffer

    actor = ray.remote(ReplayBuffer).options(num_cpus=0, max_concurrency=16).remote()
    yield actor
    ray.kill(actor)


def test_a_batch_is_on_disk_when_it_is_acknowledged(buffer, tmp_path: Path) -> None:
    import ray

    path = tmp_path / "agentic-0.parquet"
    parts = [ray.put([trajectory("a"), trajectory("b", None)]), ray.put([trajectory("c")])]
    assert ray.get(buffer.add.remote("agentic-0", str(path), parts)) == 2
    stored = read_trajectories(path)
    assert [item.id for item in stored] == ["a", "b", "c"]
    pulled = ray.get(ray.get(buffer.pull.remote("agentic-0", 5.0)))
    assert [item.id for item in pulled] == ["a", "c"]
    np.testing.assert_array_equal(pulled[0].logprobs, stored[0].logprobs)


def test_pull_waits_for_publication(buffer, tmp_path: Path) -> None:
    import ray

    assert ray.get(buffer.pull.remote("late-0", 0.05)) is None
    waiting = buffer.pull.remote("late-0", 30.0)
    part = ray.put([trajectory("a")])
    ray.get(buffer.add.remote("late-0", str(tmp_path / "late-0.parquet"), [part]))
    assert len(ray.get(waiting)) == 1


def test_trajectories_survive_the_worker_that_made_them(buffer, tmp_path: Path) -> None:
    import ray

    class Maker:
        def make(self) -> list[Trajectory]:
            return [trajectory("a")]

    maker = ray.remote(Maker).options(num_cpus=0).remote()
    path = str(tmp_path / "x-0.parquet")
    ray.get(buffer.add.remote("x-0", path, [maker.make.remote()]))
    ray.kill(maker)
    assert [item.id for item in ray.get(buffer.trajectories.remote("x-0"))] == ["a"]
    assert [item.id for item in ray.get(ray.get(buffer.pull.remote("x-0", 5.0)))] == ["a"]


def test_a_new_buffer_restores_a_batch_from_disk(buffer, tmp_path: Path) -> None:
    import ray

    from cudaagent.actors.replay_buffer import ReplayBuffer

    path = str(tmp_path / "y-0.parquet")
    ray.get(buffer.add.remote("y-0", path, [ray.put([trajectory("a"), trajectory("b", None)])]))
    other = ray.remote(ReplayBuffer).options(num_cpus=0).remote()
    assert ray.get(other.restore.remote("y-0", path)) == 1
    assert [item.id for item in ray.get(other.trajectories.remote("y-0"))] == ["a"]
    ray.kill(other)
