"""Generalised advantage estimation over action tokens only, by a parallel scan.

Runs wherever its tensors are. Shape suffixes: B rows, T tokens, N action tokens of all rows laid
end to end, row by row.

GAE (Schulman et al., 2016, arXiv 1506.02438) is the recursion A_k = delta_k + gamma lambda A_k+1
with delta_k = r_k + gamma V_k+1 - V_k. Here k counts *action* tokens: observations are cut out
before the recursion and get zeros after it, so a turn boundary costs one factor of gamma lambda
however long the tool's output was. V_k is the value of the state in which action k is chosen, the
observation before it included. The outcome reward falls on the last action and the value after
it is 0, as in the paper (arXiv 2602.24286, sections 3.3 and 4.1: gamma 1, lambda 0.95). Separate
lambdas for actor and critic follow VC-PPO (arXiv 2503.01491).

The recursion is linear with a constant factor, so it is a scan by doubling (Hillis and Steele,
1986): after pass i each sum covers 2^i tokens; log2(longest row) passes, or fewer, since a factor
that has underflowed to zero adds nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cudaagent.rl import world


@dataclass(frozen=True, slots=True)
class Advantages:
    """``advantage_BT`` and critic targets ``target_BT``, zero off the actions."""

    advantage_BT: Tensor
    target_BT: Tensor
    empty_rows: int
    """Rows without an action token."""


@dataclass(frozen=True, slots=True)
class FlatAdvantages:
    """The same over the action tokens alone."""

    advantage_N: Tensor
    target_N: Tensor


@dataclass(frozen=True, slots=True)
class Whitened:
    """Advantages of zero mean and unit variance, and what they were before."""

    advantage_N: Tensor
    mean: float
    std: float


def suffix_sums(x_N: Tensor, row_N: Tensor, decay: float) -> Tensor:
    """y_k = x_k + decay * y_k+1 within each row; ``row_N`` ascending."""
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"decay {decay} is outside [0, 1]")
    if x_N.numel() == 0:
        return x_N.clone()
    row_N = row_N.to(torch.int32)
    longest = int(torch.unique_consecutive(row_N, return_counts=True)[1].max())
    smallest = torch.finfo(x_N.dtype).tiny
    y_N = x_N.clone()
    shift, factor = 1, decay
    while shift < longest and factor >= smallest:
        same = row_N[shift:] == row_N[:-shift]
        # The right-hand side is a new tensor, so the overlapping update is safe.
        y_N[:-shift] += (y_N[shift:] * same).mul_(factor)
        shift, factor = 2 * shift, factor * factor
    return y_N


def gae_flat(
    reward_M: Tensor,
    value_N: Tensor,
    row_N: Tensor,
    *,
    gamma: float,
    lam: float,
    critic_lam: float | None = None,
) -> FlatAdvantages:
    """GAE over action tokens laid end to end; ``row_N`` ascending indices into ``reward_M``."""
    if value_N.numel() == 0:
        return FlatAdvantages(value_N.clone(), value_N.clone())
    last_N = torch.ones_like(row_N, dtype=torch.bool)
    last_N[:-1] = row_N[1:] != row_N[:-1]
    next_N = torch.zeros_like(value_N)
    next_N[:-1] = value_N[1:]
    after_N = torch.where(last_N, reward_M[row_N].to(value_N.dtype), gamma * next_N)
    delta_N = after_N - value_N
    advantage_N = suffix_sums(delta_N, row_N, gamma * lam)
    critic_N = advantage_N
    if critic_lam is not None and critic_lam != lam:
        critic_N = suffix_sums(delta_N, row_N, gamma * critic_lam)
    return FlatAdvantages(advantage_N, critic_N + value_N)


def gae(
    reward_B: Tensor,
    value_BT: Tensor,
    action_mask_BT: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    critic_lam: float | None = None,
) -> Advantages:
    """Advantages and critic targets from outcome rewards; rows without an action give zeros.

    ``value_BT`` at an action is the value of the state before it; elsewhere it is ignored.
    """
    index_N = action_mask_BT.reshape(-1).nonzero().squeeze(1)
    row_N = torch.div(index_N, action_mask_BT.shape[1], rounding_mode="floor")
    flat = gae_flat(
        reward_B, value_BT.reshape(-1)[index_N], row_N, gamma=gamma, lam=lam, critic_lam=critic_lam
    )
    return Advantages(
        _scatter(flat.advantage_N, index_N, value_BT),
        _scatter(flat.target_N, index_N, value_BT),
        int((~action_mask_BT.any(dim=1)).sum()),
    )


def returns_flat(reward_M: Tensor, row_N: Tensor, *, gamma: float) -> Tensor:
    """Monte-Carlo return of each action: the outcome, discounted by the actions that follow."""
    reward_N = reward_M[row_N]
    if gamma == 1.0:
        return reward_N
    left_N = suffix_sums(torch.ones_like(reward_N), row_N, 1.0) - 1.0
    return reward_N * gamma**left_N


def whiten(advantage_N: Tensor) -> Whitened:
    """Whiten over the action tokens of all workers; a constant becomes zero."""
    wide_N = advantage_N.double()
    sums = torch.stack([wide_N.sum(), wide_N.new_tensor(float(wide_N.numel()))])
    total, count = world.all_sum(sums).tolist()
    mean = total / max(count, 1.0)
    squares = world.all_sum((wide_N - mean).square().sum().reshape(1))
    std = (float(squares) / max(count, 1.0)) ** 0.5
    return Whitened(((wide_N - mean) / (std + 1e-8)).to(advantage_N.dtype), mean, std)


def _scatter(value_N: Tensor, index_N: Tensor, like_BT: Tensor) -> Tensor:
    flat = torch.zeros_like(like_BT).reshape(-1)
    flat[index_N] = value_N
    return flat.reshape(like_BT.shape)
