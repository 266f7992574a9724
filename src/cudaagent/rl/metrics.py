"""The learner's metrics: sums over micro-batches and workers, and what is read from them.

Runs in the learner's process; everything that reads a result is collective, so every worker calls
it at the same point. Shape suffixes as in ``batch``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from cudaagent.agent.trajectory import ExitReason
from cudaagent.rl import world
from cudaagent.rl.batch import Batch
from cudaagent.rl.losses import PolicyLoss, bounded
from cudaagent.rl.optimization import StepResult

_NO_VARIANCE = 1e-12


class MetricSums:
    """Weighted means and extremes; every worker must name the same metrics when reading."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums: dict[str, Tensor] = defaultdict(self._zero)
        self._counts: dict[str, Tensor] = defaultdict(self._zero)
        self._maxima: dict[str, Tensor] = {}

    def add(self, **values: Tensor) -> None:
        """Add each element of each array with weight 1."""
        for name, value in values.items():
            self._sums[name] = self._sums[name] + value.detach().double().sum()
            self._counts[name] = self._counts[name] + value.numel()

    def extremes(self, **values: Tensor) -> None:
        """Note the largest element of each array."""
        for name, value in values.items():
            if value.numel():
                top = value.detach().double().max()
                self._maxima[name] = torch.maximum(self._maxima.get(name, top), top)

    def note_policy(self, loss: PolicyLoss, entropy_A: Tensor, share: float) -> None:
        """Add what one micro-batch of the actor showed; ``share`` scales its losses."""
        self.add(
            loss=loss.loss * share,
            surrogate=loss.surrogate * share,
            entropy=entropy_A,
            kl1=loss.kl1_A,
            kl3=loss.kl3_A,
            clipped=loss.clipped_A,
            truncated=loss.truncated_A,
        )
        self.extremes(ratio=loss.ratio_A, inverse=1.0 / loss.ratio_A)

    def note_norm(self, name: str, result: StepResult) -> None:
        """Add the gradient norm of a step that was taken."""
        if result.applied:
            self.add(**{name: torch.tensor(result.grad_norm, device=self._device)})

    def means(self, *names: str) -> dict[str, float]:
        """Global mean of each; 0 where nothing was added."""
        sums = [self._sums[name] for name in names] + [self._counts[name] for name in names]
        total = world.all_sum(torch.stack(sums)).tolist()
        pairs = zip(names, total[: len(names)], total[len(names) :], strict=True)
        return {name: value / count if count else 0.0 for name, value, count in pairs}

    def totals(self, *names: str) -> dict[str, float]:
        """Global sum of each."""
        total = world.all_sum(torch.stack([self._sums[name] for name in names])).tolist()
        return dict(zip(names, total, strict=True))

    def maxima(self, *names: str) -> dict[str, float]:
        """Global maximum of each; 0 where nothing was noted."""
        lowest = torch.tensor(float("-inf"), dtype=torch.float64, device=self._device)
        values = torch.stack([self._maxima.get(name, lowest) for name in names])
        top = world.all_max(values).tolist()
        return {
            name: value if value > float("-inf") else 0.0
            for name, value in zip(names, top, strict=True)
        }

    def _zero(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=self._device)


def explained_variance(target_N: Tensor, value_N: Tensor, weight_N: Tensor) -> float:
    """1 - Var(target - value) / Var(target), weighted, over all workers.

    At most 1; 0 is as good as a constant; 0 too where the targets do not vary.
    """
    weight = weight_N.double()
    error = target_N.double() - value_N.double()
    target = target_N.double()
    moments = [weight.sum(), (weight * target).sum(), (weight * error).sum()]
    total, target_mean, error_mean = world.all_sum(torch.stack(moments)).tolist()
    if total <= 0:
        return 0.0
    squares = [
        (weight * (target - target_mean / total).square()).sum(),
        (weight * (error - error_mean / total).square()).sum(),
    ]
    target_var, error_var = (world.all_sum(torch.stack(squares)) / total).tolist()
    return 1.0 - error_var / target_var if target_var > _NO_VARIANCE else 0.0


def spread(values: Sequence[float], device: torch.device) -> dict[str, float]:
    """Global mean, standard deviation, minimum and maximum of a few numbers; zeros if none."""
    own = torch.tensor(list(values), dtype=torch.float64, device=device)
    total, count = world.all_sum(
        torch.stack([own.sum(), own.new_tensor(float(own.numel()))])
    ).tolist()
    if not count:
        return {"mean": 0.0, "std": 0.0, "min": 0.0, "max": 0.0}
    mean = total / count
    variance = float(world.all_sum((own - mean).square().sum().reshape(1))) / count
    lowest = own.new_tensor([float("-inf")])
    top = world.all_max(
        torch.stack([torch.cat([own, lowest]).max(), torch.cat([-own, lowest]).max()])
    )
    return {"mean": mean, "std": variance**0.5, "min": -float(top[1]), "max": float(top[0])}


def batch_metrics(batch: Batch, device: torch.device) -> dict[str, float]:
    """What the batch is made of; exit reasons as shares of its trajectories."""
    sums = MetricSums(device)
    exits = [item.exit_reason for item in batch.trajectories]
    one = torch.ones((), device=device)
    sums.add(
        trajectories=one * len(exits),
        tokens=one * batch.tokens,
        actions=one * batch.actions,
        empty=one * (len(exits) - len(batch.rows)),
        context_full=one * exits.count(ExitReason.CONTEXT_FULL),
        turn_limit=one * exits.count(ExitReason.TURN_LIMIT),
    )
    totals = sums.totals("trajectories", "tokens", "actions", "empty", "context_full", "turn_limit")
    count = max(totals["trajectories"], 1.0)
    reward = spread(batch.reward_M.tolist(), device)
    length = spread([float(len(item.token_ids)) for item in batch.trajectories], device)
    return {
        "batch/trajectories": totals["trajectories"],
        "batch/tokens": totals["tokens"],
        "batch/action_tokens": totals["actions"],
        "batch/rows_without_actions": totals["empty"],
        "batch/length_clipped_ratio": totals["context_full"] / count,
        "batch/turn_limited_ratio": totals["turn_limit"] / count,
        "batch/zero_variance": float(reward["max"] == reward["min"]),
        **{f"batch/reward_{name}": value for name, value in reward.items()},
        "batch/length_mean": length["mean"],
        "batch/length_max": length["max"],
    }


def pass_metrics(sums: MetricSums) -> dict[str, float]:
    """What the training passes showed, as token means over all passes."""
    means = sums.means(
        *("entropy", "kl1", "kl3", "clipped", "truncated", "actor_grad_norm"),
        *("critic_grad_norm", "critic_value", "critic_target"),
    )
    losses = sums.totals("surrogate", "loss", "critic_loss")
    tops = sums.maxima("ratio", "inverse")
    return {
        "actor/loss": losses["loss"],
        "actor/surrogate": losses["surrogate"],
        "actor/entropy": means["entropy"],
        "actor/kl1": means["kl1"],
        "actor/kl3": means["kl3"],
        "actor/clip_fraction": means["clipped"],
        "actor/ratio_max": tops["ratio"],
        "actor/ratio_min": 1.0 / tops["inverse"] if tops["inverse"] else 0.0,
        "actor/grad_norm": means["actor_grad_norm"],
        "mismatch/truncated_fraction": means["truncated"],
        "critic/loss": losses["critic_loss"],
        "critic/value_mean": means["critic_value"],
        "critic/target_mean": means["critic_target"],
        "critic/grad_norm": means["critic_grad_norm"],
    }


def mismatch_metrics(batch: Batch, old_logp_N: Tensor) -> dict[str, float]:
    """KL(engine || trainer) at the start of the batch, estimated from the engine's samples."""
    engine_N = torch.from_numpy(batch.engine_logp_N).to(old_logp_N.device)
    log_ratio_N = bounded(old_logp_N - engine_N)
    ratio_N = log_ratio_N.exp()
    sums = MetricSums(old_logp_N.device)
    sums.add(kl1=-log_ratio_N, kl3=ratio_N - 1 - log_ratio_N)
    sums.extremes(ratio=ratio_N, inverse=1.0 / ratio_N)
    means, tops = sums.means("kl1", "kl3"), sums.maxima("ratio", "inverse")
    return {
        "mismatch/kl1": means["kl1"],
        "mismatch/kl3": means["kl3"],
        "mismatch/ratio_max": tops["ratio"],
        "mismatch/ratio_min": 1.0 / tops["inverse"] if tops["inverse"] else 0.0,
    }
