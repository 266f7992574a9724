"""Rejection fine-tuning: which trajectories are worth imitating, and the fit on their actions.

Runs in the learner's process. Kept are trajectories with a positive reward, without redundant
loops and without schema violations (paper, 3.3); every rejection has one reason and is counted.
The loss is the negative log-likelihood of the action tokens alone, token mean within a trajectory,
then the mean over trajectories. ``fit_supervised`` also serves the cold start.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from transformers import PreTrainedModel

from cudaagent.agent.trajectory import Trajectory
from cudaagent.lease import TimingLease
from cudaagent.rl import metrics
from cudaagent.rl.batch import Batch, MicroBatch, MiniBatch, make_batch, plan_steps
from cudaagent.rl.forward import action_logprobs, check_actor
from cudaagent.rl.losses import supervised_loss
from cudaagent.rl.optimization import GuardedAdamW
from cudaagent.rl.passes import Passes, Progress
from cudaagent.rl.settings import RFTSettings


class Rejection(StrEnum):
    """Why a trajectory is not imitated, in the order of the checks."""

    DROPPED = "dropped"
    """The episode has no reward."""
    REWARD = "reward"
    """The reward is not positive."""
    NO_ACTIONS = "no-actions"
    SCHEMA = "schema"
    """A tool call broke the schema."""
    LOOP = "loop"
    """More identical consecutive tool calls than ``max_repeats``."""


@dataclass(frozen=True, slots=True)
class FilterReport:
    """The kept trajectories, and how many fell to each reason; every reason has an entry."""

    kept: tuple[Trajectory, ...]
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class SupervisedStep:
    """One optimizer step of a supervised fit; ``loss`` in nats, before the step."""

    step: int
    epoch: int
    loss: float
    grad_norm: float
    lr: float
    trajectories: int
    action_tokens: int


def filter_trajectories(trajectories: Sequence[Trajectory], settings: RFTSettings) -> FilterReport:
    """Keep what is worth imitating, in the order given."""
    counts = {str(reason): 0 for reason in Rejection}
    kept: list[Trajectory] = []
    for item in trajectories:
        reason = rejection(item, settings)
        if reason is None:
            kept.append(item)
        else:
            counts[reason] += 1
    return FilterReport(tuple(kept), counts)


def rejection(item: Trajectory, settings: RFTSettings) -> Rejection | None:
    """The first reason against ``item``, if there is one."""
    if item.reward is None:
        return Rejection.DROPPED
    if item.reward <= 0:
        return Rejection.REWARD
    if not item.loss_mask.any():
        return Rejection.NO_ACTIONS
    if any(call.schema_error for turn in item.turns for call in turn.calls):
        return Rejection.SCHEMA
    if longest_repeat(item) > settings.max_repeats:
        return Rejection.LOOP
    return None


def longest_repeat(item: Trajectory) -> int:
    """Longest run of identical consecutive tool calls, across turns."""
    calls = [(call.name, call.arguments) for turn in item.turns for call in turn.calls]
    return max((len(list(run)) for _, run in itertools.groupby(calls)), default=0)


class RFTLearner:
    """Owns the optimizer of a supervised fit; under ``torch.distributed`` gradients are global."""

    def __init__(
        self,
        model: PreTrainedModel,
        settings: RFTSettings,
        device: torch.device | str,
        *,
        lease: TimingLease | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.model = model
        self.device = torch.device(device)
        torch.nn.Module.to(model, self.device)
        model.eval()
        check_actor(model)
        self.optimizer = GuardedAdamW(
            model.parameters(),
            name="supervised",
            lr=settings.lr,
            warmup_steps=settings.warmup_steps,
            max_grad_norm=settings.max_grad_norm,
            max_skipped=settings.max_skipped_steps,
        )
        self._passes = Passes(self.device, settings.micro_tokens, lease, progress)

    def step(self, batch: Batch, mini: MiniBatch, *, epoch: int = 0) -> SupervisedStep:
        """One optimizer step on the rows of ``mini``."""
        sums = metrics.MetricSums(self.device)

        def learn(micro: MicroBatch) -> None:
            logp_A = action_logprobs(self.model, micro).logp_A
            loss = supervised_loss(logp_A, micro.share_A / mini.trajectories)
            loss.backward()
            sums.add(loss=loss, actions=torch.ones_like(logp_A))

        result = self._passes.learn("supervised", batch, mini, self.optimizer, learn)
        totals = sums.totals("loss", "actions")
        return SupervisedStep(
            step=self.optimizer.steps,
            epoch=epoch,
            loss=totals["loss"],
            grad_norm=result.grad_norm,
            lr=result.lr,
            trajectories=mini.trajectories,
            action_tokens=int(totals["actions"]),
        )


def fit_supervised(
    model: PreTrainedModel,
    trajectories: Sequence[Trajectory],
    settings: RFTSettings,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    lease: TimingLease | None = None,
    progress: Progress | None = None,
    on_step: Callable[[SupervisedStep], None] | None = None,
) -> list[SupervisedStep]:
    """Fit ``model`` to the action tokens of this worker's ``trajectories``; one record a step.

    Raises:
        ValueError: a malformed trajectory.
        TrainingDiverged: non-finite gradients in several consecutive steps.
    """
    learner = RFTLearner(model, settings, device, lease=lease, progress=progress)
    batch = make_batch(trajectories, need_reward=False)
    history: list[SupervisedStep] = []
    for epoch in range(settings.epochs):
        for mini in plan_steps(batch, size=settings.batch, seed=(seed, "supervised", epoch)):
            if not mini.trajectories:
                continue
            history.append(learner.step(batch, mini, epoch=epoch))
            if on_step is not None:
                on_step(history[-1])
    return history
