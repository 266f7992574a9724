"""What a configuration may hold, beyond what its types say.

Every number is finite. An integer is at least 1 and a fraction above 0 unless it is listed here;
so a new option is bounded from the start, and whoever needs 0 says so. Imports neither torch nor
ray.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cudaagent.agent.settings import TOOLS
from cudaagent.errors import UserError

if TYPE_CHECKING:
    from cudaagent.config import Config

_CHOICES: dict[str, tuple[str, ...]] = {
    "target": ("auto", "cuda", "cpu"),
    "judge.weights": ("live", "frozen"),
    "judge.tolerance": ("scaled", "paper"),
    "judge.precision": ("equal", "strict", "paper"),
    "judge.reward": ("milestone", "speedup"),
    "sandbox.backend": ("auto", "namespace", "docker", "process"),
    "reward.of": ("final", "best"),
    "agent.prompt": ("full", "short"),
    "policy.device": ("auto", "cpu", "cuda"),
}
_MAY_BE_ZERO = {
    "run.seed",
    "synthesis.seed",
    "synthesis.heldout",
    "synthesis.min_ms",
    "judge.max_repeats",
    "judge.disturbed_share",
    "rollout.retries",
    "learner.workers",
    "ppo.kl_coef",
    "ppo.entropy_coef",
    "ppo.weight_decay",
    "ppo.beta1",
    "ppo.beta2",
    "ppo.clip_low",
    "ppo.clip_high",
    "ppo.gamma",
    "ppo.lam",
    "ppo.critic_lam",
    "ppo.actor_lr",
    "ppo.critic_lr",
    "ppo.warmup_steps",
    "ppo.max_skipped_steps",
    "rft.lr",
    "rft.warmup_steps",
    "rft.max_repeats",
    "rft.max_skipped_steps",
    "value_pretraining.lr",
    "value_pretraining.lam",
    "value_pretraining.gamma",
    "value_pretraining.warmup_steps",
    "value_pretraining.max_skipped_steps",
    "value_pretraining.stop_explained_variance",
}
_AT_MOST: dict[str, float] = {
    "judge.disturbed_share": 1.0,
    "limits.device_memory": 1.0,
    "ppo.gamma": 1.0,
    "ppo.lam": 1.0,
    "ppo.critic_lam": 1.0,
    "ppo.clip_low": 1.0,
    "ppo.beta1": 1.0,
    "ppo.beta2": 1.0,
    "value_pretraining.gamma": 1.0,
    "value_pretraining.lam": 1.0,
    "value_pretraining.holdout": 0.9,
}
_RUN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def check(config: Config, stages: Sequence[str]) -> None:
    """Refuse impossible values and combinations; ``stages``: the stages there are, in order.

    Raises:
        UserError: names the key, the value and what is allowed.
    """
    values = dict(_leaves(config))
    for key, choices in _CHOICES.items():
        if values[key] not in choices:
            raise UserError(f"{key}={values[key]} is none of {', '.join(choices)}")
    for key, value in values.items():
        _check_number(key, value)
    if not _RUN_NAME.fullmatch(config.run.name):
        raise UserError(
            f"run.name={config.run.name!r} names a directory below run.root: letters, digits, "
            "and . _ - after the first"
        )
    _check_stages(config.run.stages, stages)
    _check_pairs(config)


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(tree):
        value = getattr(tree, field.name)
        key = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _check_number(key: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if not math.isfinite(value):
        raise UserError(f"{key}={value} must be a finite number")
    if key in _MAY_BE_ZERO:
        if value < 0:
            raise UserError(f"{key}={value} must not be negative")
    elif isinstance(value, int) and value < 1:
        raise UserError(f"{key}={value} must be at least 1")
    elif value <= 0:
        raise UserError(f"{key}={value} must be above 0")
    most = _AT_MOST.get(key)
    if most is not None and value > most:
        raise UserError(f"{key}={value} must be at most {most:g}")


def _check_stages(chosen: Sequence[str], stages: Sequence[str]) -> None:
    for stage in chosen:
        if stage not in stages:
            raise UserError(f"run.stages: {stage} is none of {', '.join(stages)}")
    if list(chosen) != [stage for stage in stages if stage in chosen] or not chosen:
        raise UserError(
            f"run.stages={list(chosen)} must hold some of {', '.join(stages)}, each once and in "
            "this order"
        )


def _check_pairs(config: Config) -> None:
    if unknown := [name for name in config.agent.tools if name not in TOOLS]:
        raise UserError(f"agent.tools: {unknown[0]} is none of {', '.join(TOOLS)}")
    if config.policy.top_p != 1.0 or config.policy.temperature != 1.0:
        raise UserError(
            f"policy.top_p={config.policy.top_p}, policy.temperature={config.policy.temperature} "
            "break the importance weights of training; set both to 1.0"
        )
    for low, high, below, above in (
        ("synthesis.min_ms", "synthesis.max_ms", config.synthesis.min_ms, config.synthesis.max_ms),
        (
            "judge.min_rounds",
            "judge.max_rounds",
            config.judge.min_rounds,
            config.judge.max_rounds + 1,
        ),
    ):
        if below >= above:
            raise UserError(f"{low} must be below {high}, or raise {high}")
    for name in ("single_turn", "agentic"):
        batch: int = getattr(config, name).batch
        if batch < config.ppo.mini_batches:
            raise UserError(
                f"{name}.batch={batch} is smaller than ppo.mini_batches="
                f"{config.ppo.mini_batches}; lower ppo.mini_batches"
            )
