"""Value pretraining: fit the critic on stored trajectories before agentic PPO begins.

Runs in the learner's process. Targets are GAE targets V + A (lambda 0.95; 1 gives Monte-Carlo
returns) under the critic at the start of each epoch; the loss is half the squared error, averaged
per trajectory, then over trajectories (paper, 3.3). The trajectories are unfiltered: a critic that
has seen only successes cannot warn.

Progress is measured on held-out trajectories as explained variance of the *outcome*, not of the
GAE targets: those contain the critic's own estimates, and a critic explains itself easily. The
weights of the best epoch are kept; epoch 0 is the critic as it came.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from cudaagent.agent.trajectory import Trajectory
from cudaagent.lease import TimingLease
from cudaagent.rl import metrics, world
from cudaagent.rl.advantages import gae_flat, returns_flat
from cudaagent.rl.batch import Batch, MicroBatch, MiniBatch, make_batch, plan_steps
from cudaagent.rl.forward import action_values
from cudaagent.rl.losses import ValueLossInputs, value_loss
from cudaagent.rl.optimization import GuardedAdamW
from cudaagent.rl.passes import Passes, Progress
from cudaagent.rl.settings import ValuePretrainingSettings
from cudaagent.rl.value import ValueModel

StopReason = Literal["reached", "patience", "epochs"]


@dataclass(frozen=True, slots=True)
class ValueEpoch:
    """The critic after an epoch; ``loss`` is the epoch's mean training loss (0 in epoch 0)."""

    epoch: int
    loss: float
    explained_variance: float
    """Of the outcome, on the held-out part."""
    explained_variance_train: float
    """The same on the training part."""


@dataclass(frozen=True, slots=True)
class ValuePretrainingReport:
    """What happened; the critic holds the weights of ``best_epoch``."""

    history: tuple[ValueEpoch, ...]
    best_epoch: int
    explained_variance: float
    stop_reason: StopReason
    train: int
    """Trajectories trained on, over all workers."""
    heldout: int
    """Trajectories held out, over all workers."""


class _Fit:
    """State of one call of ``pretrain_value``."""

    def __init__(
        self,
        critic: ValueModel,
        settings: ValuePretrainingSettings,
        passes: Passes,
        seed: int,
    ) -> None:
        self.critic = critic
        self.settings = settings
        self.passes = passes
        self.seed = seed
        self.optimizer = GuardedAdamW(
            critic.parameters(),
            name="critic",
            lr=settings.lr,
            warmup_steps=settings.warmup_steps,
            max_grad_norm=settings.max_grad_norm,
            max_skipped=settings.max_skipped_steps,
        )

    def values(self, batch: Batch) -> Tensor:
        """Values [N] under the present weights."""
        value_N = torch.zeros(batch.actions, device=self.passes.device)

        def remember(micro: MicroBatch) -> None:
            value_N[micro.action_A] = action_values(self.critic, micro)

        self.passes.forward("values", batch, batch.rows, remember)
        return value_N

    def explained(self, batch: Batch, value_N: Tensor) -> float:
        """Share of the outcome's variance that ``value_N`` explains."""
        return_N, share_N = self.returns(batch)
        return metrics.explained_variance(return_N, value_N, share_N)

    def returns(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Discounted outcomes [N] and their weights [N]."""
        reward_M, row_N = self._tensors(batch)
        return_N = returns_flat(reward_M, row_N, gamma=self.settings.gamma)
        return return_N, torch.from_numpy(batch.share_N).to(self.passes.device)

    def epoch(self, batch: Batch, value_N: Tensor, epoch: int) -> float:
        """One pass over ``batch`` with targets from ``value_N``; the mean loss."""
        reward_M, row_N = self._tensors(batch)
        settings = self.settings
        target_N = gae_flat(
            reward_M, value_N, row_N, gamma=settings.gamma, lam=settings.lam
        ).target_N
        sums = metrics.MetricSums(self.passes.device)
        plan = plan_steps(batch, size=settings.batch, seed=(self.seed, "value", epoch))

        def learn(mini: MiniBatch, micro: MicroBatch) -> None:
            value_A = action_values(self.critic, micro)
            inputs = ValueLossInputs(
                value_A=value_A,
                old_value_A=value_N[micro.action_A],
                target_A=target_N[micro.action_A],
                weight_A=micro.share_A / mini.trajectories,
            )
            loss = value_loss(inputs)
            loss.backward()
            sums.add(loss=loss / len(plan))

        for mini in plan:
            if mini.trajectories:
                self.passes.learn("value", batch, mini, self.optimizer, partial(learn, mini))
        return sums.totals("loss")["loss"]

    def _tensors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        device = self.passes.device
        return torch.from_numpy(batch.reward_M).to(device), torch.from_numpy(batch.row_N).to(device)


def pretrain_value(
    critic: ValueModel,
    trajectories: Sequence[Trajectory],
    settings: ValuePretrainingSettings,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    lease: TimingLease | None = None,
    progress: Progress | None = None,
    on_epoch: Callable[[ValueEpoch], None] | None = None,
) -> ValuePretrainingReport:
    """Fit ``critic`` on this worker's ``trajectories``; it ends with its best epoch's weights.

    Raises:
        ValueError: a malformed trajectory, or too few of them to hold one out.
        TrainingDiverged: non-finite gradients in several consecutive steps.
    """
    passes = Passes(torch.device(device), settings.micro_tokens, lease, progress)
    critic.to(passes.device).eval()
    train, heldout = _split(trajectories, settings.holdout, seed)
    fit = _Fit(critic, settings, passes, seed)
    critic.centre(*fit.returns(train))
    history: list[ValueEpoch] = []

    def measure(epoch: int, loss: float) -> Tensor:
        value_N = fit.values(train)
        heldout_value_N = fit.values(heldout)
        history.append(
            ValueEpoch(
                epoch, loss, fit.explained(heldout, heldout_value_N), fit.explained(train, value_N)
            )
        )
        if on_epoch is not None:
            on_epoch(history[-1])
        return value_N

    value_N = measure(0, 0.0)
    best, weights = history[0], _snapshot(critic)
    stop: StopReason = "epochs"
    for epoch in range(1, settings.epochs + 1):
        loss = fit.epoch(train, value_N, epoch)
        value_N = measure(epoch, loss)
        if history[-1].explained_variance > best.explained_variance:
            best, weights = history[-1], _snapshot(critic)
        if best.explained_variance >= settings.stop_explained_variance:
            stop = "reached"
            break
        if epoch - best.epoch >= settings.patience:
            stop = "patience"
            break
    critic.load_state_dict(weights)
    counts = torch.tensor(
        [len(train.trajectories), len(heldout.trajectories)], device=passes.device
    )
    train_count, heldout_count = (int(count) for count in world.all_sum(counts).tolist())
    return ValuePretrainingReport(
        history=tuple(history),
        best_epoch=best.epoch,
        explained_variance=best.explained_variance,
        stop_reason=stop,
        train=train_count,
        heldout=heldout_count,
    )


def _split(trajectories: Sequence[Trajectory], holdout: float, seed: int) -> tuple[Batch, Batch]:
    """Training and held-out part of this worker; the cut is global and by id."""
    own = [(item.id, world.rank(), row) for row, item in enumerate(trajectories)]
    everyone: list[tuple[str, int, int]] = sorted(itertools.chain.from_iterable(world.gather(own)))
    random.Random(f"{seed}/holdout").shuffle(everyone)
    count = max(1, round(holdout * len(everyone)))
    if count >= len(everyone):
        raise ValueError(
            f"value pretraining has {len(everyone)} trajectories and would hold out {count}; "
            "collect more, or lower value_pretraining.holdout"
        )
    chosen = {row for _, rank, row in everyone[:count] if rank == world.rank()}
    rest = [item for row, item in enumerate(trajectories) if row not in chosen]
    return make_batch(rest), make_batch([trajectories[row] for row in sorted(chosen)])


def _snapshot(critic: ValueModel) -> dict[str, Tensor]:
    return {name: tensor.cpu().clone() for name, tensor in critic.state_dict().items()}
