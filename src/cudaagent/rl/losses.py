"""The losses of actor and critic, as functions of per-token arrays.

Runs wherever its tensors are. Shape suffix: A action tokens of one micro-batch.

Each loss is a sum of per-token terms times ``weight_A`` = 1 / (actions of the trajectory x
trajectories of the step): the token mean within a trajectory, then the mean over trajectories (the
paper's normalisation). Sums over micro-batches and workers therefore need no further scaling, and
the gradient does not depend on how the batch is cut.

The surrogate is clipped asymmetrically (0.2 below, 0.28 above; DAPO, arXiv 2503.14476). Its ratio
is against the trainer's own log-probabilities at the start of the batch; the mismatch between
those and the engine's is weighted by min(pi_old / pi_engine, cap), without gradient (truncated
importance sampling). KL is against the batch's old policy; both estimates assume its samples:
k1 = -log r and k3 = r - 1 - log r.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cudaagent.rl.settings import PPOSettings

_LOG_RATIO_BOUND = 20.0


@dataclass(frozen=True, slots=True)
class PolicyLossInputs:
    """Per action token; only ``logp_A`` and, when weighted, ``entropy_A`` carry gradients."""

    logp_A: Tensor
    entropy_A: Tensor
    old_logp_A: Tensor
    engine_logp_A: Tensor
    advantage_A: Tensor
    weight_A: Tensor


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """``loss`` is what to call backward on; the rest is detached."""

    loss: Tensor
    surrogate: Tensor
    ratio_A: Tensor
    clipped_A: Tensor
    """Whether the clip stopped this token's gradient."""
    kl1_A: Tensor
    kl3_A: Tensor
    truncated_A: Tensor
    """Whether the cap cut this token's importance weight."""


@dataclass(frozen=True, slots=True)
class ValueLossInputs:
    """Per action token; only ``value_A`` carries a gradient."""

    value_A: Tensor
    old_value_A: Tensor
    target_A: Tensor
    weight_A: Tensor


def policy_loss(inputs: PolicyLossInputs, settings: PPOSettings) -> PolicyLoss:
    """Clipped surrogate with truncated importance weights, KL and entropy terms."""
    log_ratio_A = bounded(inputs.logp_A - inputs.old_logp_A)
    ratio_A = log_ratio_A.exp()
    free_A = ratio_A * inputs.advantage_A
    clip_A = ratio_A.clamp(1 - settings.clip_low, 1 + settings.clip_high) * inputs.advantage_A
    importance_A = importance_weight(inputs.old_logp_A, inputs.engine_logp_A, settings.tis_cap)
    surrogate = -(torch.minimum(free_A, clip_A) * importance_A * inputs.weight_A).sum()
    kl3_A = ratio_A - 1 - log_ratio_A
    loss = surrogate
    if settings.kl_coef:
        loss = loss + settings.kl_coef * (kl3_A * inputs.weight_A).sum()
    if settings.entropy_coef:
        loss = loss - settings.entropy_coef * (inputs.entropy_A * inputs.weight_A).sum()
    return PolicyLoss(
        loss=loss,
        surrogate=surrogate.detach(),
        ratio_A=ratio_A.detach(),
        clipped_A=(clip_A < free_A).detach(),
        kl1_A=-log_ratio_A.detach(),
        kl3_A=kl3_A.detach(),
        truncated_A=importance_A >= settings.tis_cap,
    )


def value_loss(inputs: ValueLossInputs, *, clip: float | None = None) -> Tensor:
    """Half the squared error; with ``clip`` the larger of it and the clipped value's."""
    error_A = (inputs.value_A - inputs.target_A).square()
    if clip is not None:
        moved_A = (inputs.value_A - inputs.old_value_A).clamp(-clip, clip)
        clipped_A = (inputs.old_value_A + moved_A - inputs.target_A).square()
        error_A = torch.maximum(error_A, clipped_A)
    return 0.5 * (error_A * inputs.weight_A).sum()


def supervised_loss(logp_A: Tensor, weight_A: Tensor) -> Tensor:
    """Negative log-likelihood of the action tokens."""
    return -(logp_A * weight_A).sum()


def importance_weight(old_logp_A: Tensor, engine_logp_A: Tensor, cap: float) -> Tensor:
    """min(pi_old / pi_engine, cap), without gradient."""
    return bounded(old_logp_A - engine_logp_A).exp().clamp(max=cap).detach()


def bounded(log_ratio_A: Tensor) -> Tensor:
    """Log-ratio kept where its exponential is finite; far outside every clip."""
    return log_ratio_A.clamp(-_LOG_RATIO_BOUND, _LOG_RATIO_BOUND)
