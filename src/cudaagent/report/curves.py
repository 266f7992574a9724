"""Learning curves of one stage, from its trajectories' rewards and its step metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cudaagent.report.records import Panel, RunReport, Series

METRIC_TITLES = {
    "critic/explained_variance": "explained variance of the critic",
    "actor/entropy": "entropy, nats a token",
    "actor/kl3": "KL of the update, nats a token",
    "actor/clip_fraction": "share of tokens clipped",
    "mismatch/kl3": "KL between engine and learner, nats a token",
    "batch/length_mean": "mean length of an episode, tokens",
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
    """Reward, share of each reward, then the learner's metrics; only what has two values."""
    panels: list[Panel] = []
    steps = sorted(step for step, values in rewards.items() if values)
    if steps:
        mean = tuple((s, sum(rewards[s]) / len(rewards[s])) for s in steps)
        panels.append(Panel(stage, "reward", "mean reward", (Series("reward", mean),)))
    if steps and milestone:
        shares = tuple(_share(rewards, steps, value) for value in _MILESTONES)
        panels.append(Panel(stage, "shares", "share of each reward", shares))
    names = sorted({name for event in metrics for name in numbers_of(event)})
    order = [name for name in METRIC_TITLES if name in names]
    order += [name for name in names if name not in METRIC_TITLES]
    for name in order:
        points = tuple((int(event["step"]), numbers_of(event).get(name)) for event in metrics)
        title = METRIC_TITLES.get(name, name.replace("_", " "))
        panels.append(Panel(stage, name, title, (Series(name, points),)))
    return [panel for panel in panels if _drawable(panel)]


def is_main(panel: Panel) -> bool:
    """Whether a panel is shown at once, rather than among all metrics."""
    return panel.metric in ("reward", "shares") or panel.metric in METRIC_TITLES


def numbers_of(event: Mapping[str, Any]) -> dict[str, float]:
    """The learner's metrics in a ``step`` event."""
    return {
        name: float(value)
        for name, value in sorted(event.items())
        if name not in _NOT_METRICS
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    }


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


def _drawable(panel: Panel) -> bool:
    return any(sum(y is not None for _, y in series.points) > 1 for series in panel.series)
