"""Learning curves of one stage, from its trajectories' rewards and its step metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cudaagent.report.records import Panel, RunReport, Series

METRIC_TITLES = {
    "explained_variance": "explained variance of the critic",
    "entropy": "entropy, nats a token",
    "kl": "KL from the batch's old policy",
    "clip_fraction": "share of tokens clipped",
    "mismatch_kl": "KL between engine and learner",
    "policy_loss": "policy loss",
    "value_loss": "value loss",
    "loss": "loss",
    "grad_norm": "gradient norm",
}
"""Metrics that are shown first, in this order; every other number of a step follows by name."""

_NOT_METRICS = frozenset({"time", "step", "kind", "stage", "reward"})
_MILESTONES = (3.0, 2.0, 1.0, -1.0)


def panels_of(
    stage: str,
    rewards: Mapping[int, Sequence[float]],
    metrics: Sequence[Mapping[str, Any]],
    milestone: bool,
) -> list[Panel]:
    """Reward, share of each reward, then the learner's metrics; only what has a value."""
    panels: list[Panel] = []
    steps = sorted(step for step, values in rewards.items() if values)
    if steps:
        mean = tuple((s, sum(rewards[s]) / len(rewards[s])) for s in steps)
        panels.append(Panel(stage, "reward", "mean reward", (Series("reward", mean),)))
    if steps and milestone:
        shares = tuple(_share(rewards, steps, value) for value in _MILESTONES)
        panels.append(Panel(stage, "shares", "share of each reward", shares))
    numbers = {
        name: tuple((int(event["step"]), _number(event.get(name))) for event in metrics)
        for name in sorted({name for event in metrics for name in event} - _NOT_METRICS)
    }
    order = [name for name in METRIC_TITLES if name in numbers]
    order += [name for name in numbers if name not in METRIC_TITLES]
    for name in order:
        if any(value is not None for _, value in numbers[name]):
            title = METRIC_TITLES.get(name, name.replace("_", " "))
            panels.append(Panel(stage, name, title, (Series(name, numbers[name]),)))
    return panels


def merge_panels(reports: Sequence[RunReport]) -> list[Panel]:
    """The panels of several runs laid over one another, a series a run.

    Of the shares only the top reward's is kept, or the chart would be unreadable.
    """
    if len(reports) == 1:
        return list(reports[0].panels)
    merged: dict[tuple[str, str], Panel] = {}
    for report in reports:
        for panel in report.panels:
            key = (panel.stage, panel.metric)
            title = "share of the top reward" if panel.metric == "shares" else panel.title
            series = Series(report.name, panel.series[0].points)
            before = merged[key].series if key in merged else ()
            merged[key] = Panel(panel.stage, panel.metric, title, (*before, series))
    return list(merged.values())


def _share(rewards: Mapping[int, Sequence[float]], steps: Sequence[int], value: float) -> Series:
    points = tuple((s, sum(r == value for r in rewards[s]) / len(rewards[s])) for s in steps)
    return Series(f"{value:g}", points)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)
