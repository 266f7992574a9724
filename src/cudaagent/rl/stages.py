"""What one stage does with a batch of trajectories: the body of the learner's training loop.

Runs in each learner worker; knows trajectories and files, nothing of kernels or of Ray. A stage
starts from a checkpoint (or a plain model directory), learns batch after batch, and writes a whole
checkpoint after each, so that a worker that dies continues after its last one. Batches are sorted
by trajectory id first: the result does not depend on the order in which episodes ended.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from cudaagent.agent.trajectory import Trajectory
from cudaagent.lease import TimingLease
from cudaagent.rl import world
from cudaagent.rl.checkpoint import load_checkpoint, save_checkpoint
from cudaagent.rl.ppo import PPOLearner
from cudaagent.rl.rft import filter_trajectories, fit_supervised
from cudaagent.rl.settings import PPOSettings, RFTSettings, ValuePretrainingSettings
from cudaagent.rl.value import ValueModel
from cudaagent.rl.value_pretraining import pretrain_value


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage as the learner sees it."""

    stage: str
    """``single_turn``, ``rft``, ``value_pretraining`` or ``agentic``."""
    batch_ids: tuple[str, ...]
    """Batches of the stage in order; the stage ends after the last."""
    first_step: int
    """Global step of the first batch: step N is saved as ``checkpoints/step-N``."""
    done: int
    """Batches of the stage that are already in a checkpoint."""
    actor: str
    """Hugging Face directory the actor starts from."""
    critic: str | None
    """Directory of the critic; None: the critic starts from the actor."""
    optimizer: str | None
    """Checkpoint whose optimizer state is continued; None: fresh optimizers."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One batch learned: its metrics and the checkpoint that holds the new weights."""

    step: int
    checkpoint: str
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class StageOptions:
    """What a stage needs to know beside its plan."""

    run_dir: Path
    seed: int
    device: str
    ppo: PPOSettings
    rft: RFTSettings
    value_pretraining: ValuePretrainingSettings
    shuffle_rewards: bool = False
    """Control experiment: permute the rewards within each batch."""


class StageLoop:
    """Actor, critic and optimizers of one stage."""

    def __init__(self, plan: StagePlan, options: StageOptions) -> None:
        torch.manual_seed(options.seed)
        self._options = options
        self._stage = plan.stage
        self._lease = TimingLease()
        plan = _after_newest(plan, options.run_dir)
        self.done = plan.done
        """Batches that need not be learned again."""
        checkpoint = load_checkpoint(Path(plan.actor), device=options.device)
        self._tokenizer = Path(plan.actor)
        self._actor = checkpoint.actor
        critic = (
            ValueModel.load(Path(plan.critic), device=options.device)
            if plan.critic is not None
            else ValueModel.from_policy(checkpoint.actor)
        )
        self._critic = critic
        self._ppo = PPOLearner(
            self._actor, critic, options.ppo, options.device, seed=options.seed, lease=self._lease
        )
        if plan.optimizer is not None and checkpoint.learner_state is not None:
            self._ppo.load_state_dict(checkpoint.learner_state)

    def learn(self, trajectories: Sequence[Trajectory], step: int) -> StepResult:
        """Learn from one batch, of which this worker takes its share, and save the checkpoint.

        Raises:
            TrainingDiverged: non-finite gradients in several consecutive optimizer steps.
        """
        batch = sorted(trajectories, key=lambda item: item.id)
        if self._options.shuffle_rewards:
            batch = shuffle_rewards(batch, self._options.seed + step)
        shard = batch[world.rank() :: world.size()]
        metrics = self._learn(shard)
        directory = self._options.run_dir / "checkpoints" / f"step-{step}"
        if world.rank() == 0:
            save_checkpoint(
                directory,
                self._actor,
                self._tokenizer,
                self._critic,
                self._ppo.state_dict(),
                trainer_state={"stage": self._stage, "step": step},
            )
        return StepResult(step, str(directory), metrics)

    def _learn(self, shard: Sequence[Trajectory]) -> dict[str, float]:
        if self._stage == "rft":
            return self._fine_tune(shard)
        if self._stage == "value_pretraining":
            return self._pretrain(shard)
        return self._ppo.update(shard)

    def _fine_tune(self, shard: Sequence[Trajectory]) -> dict[str, float]:
        options = self._options
        report = filter_trajectories(shard, options.rft)
        history = fit_supervised(
            self._actor,
            report.kept,
            options.rft,
            device=options.device,
            seed=options.seed,
            lease=self._lease,
        )
        counts = {f"filter/{reason}": float(count) for reason, count in report.counts.items()}
        metrics = {"filter/kept": float(len(report.kept)), **counts}
        if history:
            metrics["supervised/loss_first"] = history[0].loss
            metrics["supervised/loss_last"] = history[-1].loss
        return metrics

    def _pretrain(self, shard: Sequence[Trajectory]) -> dict[str, float]:
        options = self._options
        report = pretrain_value(
            self._critic,
            shard,
            options.value_pretraining,
            device=options.device,
            seed=options.seed,
            lease=self._lease,
        )
        return {
            "value/explained_variance_before": report.history[0].explained_variance,
            "value/explained_variance": report.explained_variance,
            "value/epochs": float(len(report.history) - 1),
            "value/best_epoch": float(report.best_epoch),
        }


def shuffle_rewards(batch: Sequence[Trajectory], seed: int) -> list[Trajectory]:
    """The same trajectories with their rewards permuted."""
    rewards = [item.reward for item in batch]
    random.Random(seed).shuffle(rewards)
    return [item.with_reward(reward) for item, reward in zip(batch, rewards, strict=True)]


def _after_newest(plan: StagePlan, run_dir: Path) -> StagePlan:
    """The plan moved on to the stage's newest checkpoint: a restarted worker has an old plan."""
    for index in range(len(plan.batch_ids), plan.done, -1):
        directory = run_dir / "checkpoints" / f"step-{plan.first_step + index - 1}"
        if directory.is_dir():
            return replace(
                plan,
                done=index,
                actor=str(directory),
                critic=str(directory / "critic"),
                optimizer=str(directory),
            )
    return plan
