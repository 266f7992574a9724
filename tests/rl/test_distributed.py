"""One worker and two must train alike; the second process is real."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from learner_data import build_model, build_trajectories

from cudaagent.agent.trajectory import Trajectory
from cudaagent.rl.ppo import PPOLearner
from cudaagent.rl.rft import fit_supervised
from cudaagent.rl.settings import PPOSettings, RFTSettings, ValuePretrainingSettings
from cudaagent.rl.value import ValueModel
from cudaagent.rl.value_pretraining import pretrain_value

PPO = PPOSettings(
    actor_lr=1e-3, critic_lr=1e-3, mini_batches=2, epochs=2, micro_tokens=120, warmup_steps=2
)
RFT = RFTSettings(lr=1e-3, batch=3, epochs=2)
VALUE = ValuePretrainingSettings(epochs=2, lr=1e-3, batch=4)


def trajectories() -> list[Trajectory]:
    items = build_trajectories(7)
    items[2] = dataclasses.replace(items[2], loss_mask=np.zeros_like(items[2].loss_mask))
    return items


def train(shard: slice) -> dict[str, object]:
    """Every kind of training on this worker's shard."""
    torch.set_num_threads(1)
    items = trajectories()[shard]
    model = build_model()
    learner = PPOLearner(model, ValueModel.from_policy(model), PPO, "cpu")
    metrics = [learner.update(items) for _ in range(2)]
    actor = [p.detach().clone() for p in model.parameters()]
    critic = ValueModel.from_policy(build_model())
    report = pretrain_value(critic, items, VALUE)
    student = build_model()
    history = fit_supervised(student, items, RFT)
    return {
        "metrics": metrics,
        "actor": torch.cat([p.flatten() for p in actor]),
        "critic": torch.cat([p.detach().flatten() for p in learner.critic.parameters()]),
        "value": [record.explained_variance for record in report.history],
        "losses": [record.loss for record in history],
    }


def worker(rank: int, directory: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2
    )
    try:
        # Shards of 5 and 2, so that one worker runs out of micro-batches first.
        result = train(slice(0, 5) if rank == 0 else slice(5, None))
        torch.save(result, Path(directory) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_two_workers_equal_one(tmp_path: Path) -> None:
    context = mp.spawn(worker, args=(str(tmp_path),), nprocs=2, join=False)
    alone = train(slice(None))
    assert context is not None
    for _ in range(60):
        if context.join(timeout=5.0):
            break
    else:
        for process in context.processes:
            process.kill()
        pytest.fail("workers did not end within 300 s")
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for name in ("actor", "critic"):
        assert torch.equal(first[name], second[name]), name
        assert float((first[name] - alone[name]).abs().mean()) < 1e-6, name
    for name in ("value", "losses"):
        assert first[name] == pytest.approx(alone[name], rel=1e-3, abs=1e-4)
    for ours, theirs in zip(first["metrics"], alone["metrics"], strict=True):
        for key, value in theirs.items():
            if not key.startswith("time/"):
                assert ours[key] == pytest.approx(value, rel=5e-3, abs=1e-4), key
