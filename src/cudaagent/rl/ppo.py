"""The PPO learner: one batch of trajectories in, one update of critic and actor, metrics out.

Runs in each learner worker, alone or under an initialised ``torch.distributed`` group, where every
worker holds a shard of the batch and a full copy of both networks; gradients, whitening and
normalisation are global, and how a batch is sharded changes nothing but rounding.

Order of an update: old log-probabilities and values under the weights at its start; critic; GAE
from the old values; whitening; actor. In the first step of the first pass the old quantities are
those of the training forward itself, which runs with the same weights: they are computed once.

Not here: sharded parameters, activation checkpointing, mixed precision. Shape suffixes as in
``batch``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from cudaagent.agent.trajectory import Trajectory
from cudaagent.lease import TimingLease
from cudaagent.rl import metrics
from cudaagent.rl.advantages import gae_flat, returns_flat, whiten
from cudaagent.rl.batch import Batch, MicroBatch, MiniBatch, make_batch, plan_steps
from cudaagent.rl.forward import action_logprobs, action_values, check_actor
from cudaagent.rl.losses import PolicyLossInputs, ValueLossInputs, policy_loss, value_loss
from cudaagent.rl.optimization import GuardedAdamW
from cudaagent.rl.passes import Passes, Progress
from cudaagent.rl.settings import PPOSettings
from cudaagent.rl.value import ValueModel

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Step:
    """One optimizer step of an update."""

    mini: MiniBatch
    fresh: bool
    """The weights are still those at the start of the batch."""
    share: float
    """1 / steps of the network in this update."""


class PPOLearner:
    """Owns the optimizers of actor and critic; the networks are the caller's.

    Weights are not part of ``state_dict``: they are saved as model directories (``checkpoint``).
    """

    def __init__(
        self,
        actor: PreTrainedModel,
        critic: ValueModel,
        settings: PPOSettings,
        device: torch.device | str,
        *,
        seed: int = 0,
        lease: TimingLease | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.actor = actor
        self.critic = critic
        for network in (actor, critic):
            torch.nn.Module.to(network, self.device)
            network.eval()
        check_actor(actor)
        self.settings = settings
        self.step = 0
        """Updates done."""
        self._seed = seed
        self._passes = Passes(self.device, settings.micro_tokens, lease, progress)
        self.actor_optimizer = _optimizer("actor", actor, settings.actor_lr, settings)
        self.critic_optimizer = _optimizer("critic", critic, settings.critic_lr, settings)

    def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Train on this worker's shard of a batch; the metrics are of the whole batch.

        Raises:
            ValueError: a trajectory without a finite reward, or malformed.
            TrainingDiverged: non-finite gradients in several consecutive steps.
        """
        settings = self.settings
        batch = make_batch(trajectories)
        sums = metrics.MetricSums(self.device)
        started = time.perf_counter()
        reward_M = torch.from_numpy(batch.reward_M).to(self.device)
        row_N = torch.from_numpy(batch.row_N).to(self.device)
        return_N = returns_flat(reward_M, row_N, gamma=settings.gamma)
        share_N = torch.from_numpy(batch.share_N).to(self.device)
        self.critic.centre(return_N, share_N)
        value_N = self._fit_critic(batch, sums)
        critic_done = time.perf_counter()
        flat = gae_flat(reward_M, value_N, row_N, gamma=settings.gamma, lam=settings.lam)
        white = whiten(flat.advantage_N)
        advantage_N = white.advantage_N if settings.whiten_advantages else flat.advantage_N
        old_logp_N = self._fit_actor(batch, advantage_N, sums)
        actor_done = time.perf_counter()
        self.step += 1
        explained = metrics.explained_variance
        return {
            **metrics.batch_metrics(batch, self.device),
            **metrics.pass_metrics(sums),
            **metrics.mismatch_metrics(batch, old_logp_N),
            "advantage/mean": white.mean,
            "advantage/std": white.std,
            "critic/explained_variance": explained(return_N, value_N, share_N),
            "critic/explained_variance_targets": explained(flat.target_N, value_N, share_N),
            "actor/lr": self.actor_optimizer.lr,
            "critic/lr": self.critic_optimizer.lr,
            "actor/skipped_steps": float(self.actor_optimizer.skipped),
            "critic/skipped_steps": float(self.critic_optimizer.skipped),
            "time/critic_s": critic_done - started,
            "time/actor_s": actor_done - critic_done,
        }

    def state_dict(self) -> dict[str, Any]:
        """All that continues training exactly, the weights apart; loads with ``weights_only``."""
        cuda = self.device.type == "cuda"
        return {
            "version": STATE_VERSION,
            "step": self.step,
            "seed": self._seed,
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(self.device) if cuda else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``.

        Raises:
            ValueError: the state is of another model or format.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"learner state has version {state.get('version')}")
        self.actor_optimizer.load_state_dict(state["actor_optimizer"])
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        self.step = int(state["step"])
        self._seed = int(state["seed"])
        torch.set_rng_state(state["rng"].cpu())
        if self.device.type == "cuda" and state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"].cpu(), self.device)

    def _fit_critic(self, batch: Batch, sums: metrics.MetricSums) -> Tensor:
        """Train the critic; returns its values [N] from before."""
        settings = self.settings
        lam = settings.lam if settings.critic_lam is None else settings.critic_lam
        old_N = torch.zeros(batch.actions, device=self.device)

        def remember(micro: MicroBatch) -> None:
            old_N[micro.action_A] = action_values(self.critic, micro)

        def learn(step: _Step, micro: MicroBatch) -> None:
            value_A = action_values(self.critic, micro)
            if step.fresh:
                old_N[micro.action_A] = value_A.detach()
            old_A = old_N[micro.action_A]
            target_A = gae_flat(
                micro.reward_B, old_A, micro.row_A, gamma=settings.gamma, lam=lam
            ).target_N
            weight_A = micro.share_A / step.mini.trajectories
            inputs = ValueLossInputs(value_A, old_A, target_A, weight_A)
            loss = value_loss(inputs, clip=settings.value_clip)
            loss.backward()
            sums.add(critic_loss=loss * step.share, critic_value=old_A, critic_target=target_A)

        self._passes.forward("values", batch, self._later_rows(batch), remember)
        for step in self._steps(batch, settings.critic_epochs):
            result = self._passes.learn(
                "critic", batch, step.mini, self.critic_optimizer, partial(learn, step)
            )
            sums.note_norm("critic_grad_norm", result)
        return old_N

    def _fit_actor(self, batch: Batch, advantage_N: Tensor, sums: metrics.MetricSums) -> Tensor:
        """Train the actor; returns its log-probabilities [N] from before."""
        settings = self.settings
        old_N = torch.zeros(batch.actions, device=self.device)

        def remember(micro: MicroBatch) -> None:
            old_N[micro.action_A] = action_logprobs(self.actor, micro).logp_A

        def learn(step: _Step, micro: MicroBatch) -> None:
            now = action_logprobs(self.actor, micro, entropy_grad=settings.entropy_coef != 0)
            if step.fresh:
                old_N[micro.action_A] = now.logp_A.detach()
            inputs = PolicyLossInputs(
                logp_A=now.logp_A,
                entropy_A=now.entropy_A,
                old_logp_A=old_N[micro.action_A],
                engine_logp_A=micro.engine_logp_A,
                advantage_A=advantage_N[micro.action_A],
                weight_A=micro.share_A / step.mini.trajectories,
            )
            loss = policy_loss(inputs, settings)
            loss.loss.backward()
            sums.note_policy(loss, now.entropy_A, step.share)

        self._passes.forward("log-probs", batch, self._later_rows(batch), remember)
        for step in self._steps(batch, settings.epochs):
            result = self._passes.learn(
                "actor", batch, step.mini, self.actor_optimizer, partial(learn, step)
            )
            sums.note_norm("actor_grad_norm", result)
        return old_N

    def _plan(self, batch: Batch, epoch: int) -> list[MiniBatch]:
        return plan_steps(
            batch, parts=self.settings.mini_batches, seed=(self._seed, self.step, epoch)
        )

    def _later_rows(self, batch: Batch) -> list[int]:
        """Rows whose old quantities the first step does not produce."""
        return [row for mini in self._plan(batch, 0)[1:] for row in mini.rows]

    def _steps(self, batch: Batch, epochs: int) -> Iterator[_Step]:
        for epoch in range(epochs):
            plan = self._plan(batch, epoch)
            for index, mini in enumerate(plan):
                if mini.trajectories:
                    yield _Step(mini, epoch == index == 0, 1.0 / (len(plan) * epochs))


def _optimizer(
    name: str, module: torch.nn.Module, lr: float, settings: PPOSettings
) -> GuardedAdamW:
    return GuardedAdamW(
        module.parameters(),
        name=name,
        lr=lr,
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
        warmup_steps=settings.warmup_steps,
        max_grad_norm=settings.max_grad_norm,
        max_skipped=settings.max_skipped_steps,
    )
