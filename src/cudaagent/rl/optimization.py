"""AdamW that sums gradients over workers, clips them, and never takes a non-finite step.

Runs in the learner's process; every worker steps at the same points. The decision to skip is taken
on the summed gradients, so all workers take it alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from cudaagent.errors import CudaAgentError
from cudaagent.rl import world


class TrainingDiverged(CudaAgentError):
    """Gradients stayed non-finite; continue from the last checkpoint with other settings."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One optimizer step: gradient norm before clipping, and whether it was taken."""

    grad_norm: float
    applied: bool
    lr: float


class GuardedAdamW:
    """One network's optimizer; constant learning rate after a linear warm-up."""

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        name: str,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        max_grad_norm: float = 1.0,
        max_skipped: int = 3,
    ) -> None:
        self.name = name
        self.steps = 0
        """Steps taken."""
        self.skipped = 0
        """Steps skipped because a gradient was not finite, all in all."""
        self._consecutive = 0
        self._lr = lr
        self._warmup_steps = warmup_steps
        self._max_grad_norm = max_grad_norm
        self._max_skipped = max_skipped
        self._parameters = [item for item in parameters if item.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=lr, betas=betas, weight_decay=weight_decay
        )

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        if self.steps >= self._warmup_steps:
            return self._lr
        return self._lr * (self.steps + 1) / self._warmup_steps

    def reduce(self) -> None:
        """Sum the gradients over all workers."""
        world.sum_gradients(self._parameters)

    def step(self) -> StepResult:
        """Check, clip, step on reduced gradients; they are cleared in every case.

        Raises:
            TrainingDiverged: more than ``max_skipped`` consecutive steps were not finite.
        """
        gradients = [item.grad for item in self._parameters if item.grad is not None]
        norm = get_total_norm(gradients)
        grad_norm, lr = float(norm), self.lr
        applied = bool(torch.isfinite(norm))
        if applied:
            clip_grads_with_norm_(self._parameters, self._max_grad_norm, norm)
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step()
            self.steps += 1
            self._consecutive = 0
        self._optimizer.zero_grad(set_to_none=True)
        if not applied:
            self.skipped += 1
            self._consecutive += 1
            if self._consecutive > self._max_skipped:
                raise TrainingDiverged(
                    f"{self.name}: gradients were not finite in {self._consecutive} steps in a "
                    "row; continue from the last checkpoint with a lower learning rate"
                )
        return StepResult(grad_norm, applied, lr)

    def zero_grad(self) -> None:
        """Clear what an interrupted step left behind."""
        self._optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Moments and counters."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "steps": self.steps,
            "skipped": self.skipped,
            "consecutive": self._consecutive,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``; the settings stay those of the constructor."""
        groups = self._optimizer.state_dict()["param_groups"]
        saved = dict(state["optimizer"])
        if [len(group["params"]) for group in saved["param_groups"]] != [
            len(group["params"]) for group in groups
        ]:
            raise ValueError(f"{self.name}: the optimizer state is of another model")
        saved["param_groups"] = groups
        self._optimizer.load_state_dict(saved)
        self.steps = int(state["steps"])
        self.skipped = int(state["skipped"])
        self._consecutive = int(state["consecutive"])
