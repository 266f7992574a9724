"""From a run directory to the records that a report shows.

Process: any; reads only. Invariant: nothing is shown that is not in the run directory.
Definitions (paper, section 4.1): pass = correct; faster = correct and a speed-up above 1, without
the reward's 5 % margin; speed-ups are geometric means over correct solutions; overall is weighted
by tasks through their episodes. The paper scores one episode a task, the best state of it; with
several episodes a task the rates are means over episodes.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudaagent.config import to_yaml
from cudaagent.errors import UserError
from cudaagent.judge.verdict import Verdict
from cudaagent.report.curves import numbers_of, panels_of
from cudaagent.report.records import (
    LABELS,
    TRAINING,
    Classifier,
    Evaluation,
    RunReport,
    Scores,
    StageTotals,
    geometric_mean,
)
from cudaagent.run_dir import RunDir, read_parquet
from cudaagent.tasks.task import Task

TOP_REWARD = 3.0
_MARGIN = 1 / 0.95
_COLUMNS = ["task_id", "files", "verdict", "best_verdict", "reward", "drop_reason"]


@dataclass(frozen=True, slots=True)
class _Episode:
    task_id: str
    files: dict[str, str]
    final: Verdict | None
    best: Verdict | None
    reward: float | None
    dropped: bool


def summarise(run: RunDir, classify: Classifier | None = None) -> RunReport:
    """Everything that a report shows of ``run``.

    ``classify`` names the teacher's variant of a submission; without it no variants are counted.

    Raises:
        UserError: the run holds neither an evaluation nor a training step.
    """
    labels = _ordered(run.evaluations())
    stages = [stage for stage in TRAINING if run.steps(stage) or run.metrics(stage)]
    if not labels and not stages:
        raise UserError(
            f"run {run.path} has nothing to report yet: no evaluation and no training step in it"
        )
    config = run.config()
    tasks = {task.id: task for task in run.tasks()}
    evaluated = {label: _episodes(run.evaluation_path(label)) for label in labels}
    trained = {
        stage: {s: _episodes(run.trajectories_path(stage, s)) for s in run.steps(stage)}
        for stage in stages
    }
    verdicts = [
        verdict
        for episodes in [*evaluated.values(), *(e for s in trained.values() for e in s.values())]
        for episode in episodes
        if (verdict := episode.final) is not None
    ]
    milestone = config.judge.reward == "milestone"
    return RunReport(
        name=run.name,
        path=str(run.path),
        target=config.target,
        # A submission that was refused before it ran says nothing about isolation.
        isolation=tuple(sorted({v.isolation for v in verdicts if v.correct})),
        devices=tuple(sorted({v.device for v in verdicts if v.device})),
        shuffled_rewards=config.run.shuffle_rewards,
        tasks={split: len(run.tasks(split)) for split in ("train", "heldout")},
        scores=tuple(
            row
            for state in ("best", "final")
            for label, episodes in evaluated.items()
            for row in _scores(label, state, episodes, tasks, milestone)
        ),
        evaluations=tuple(
            Evaluation(label, _failures(episodes), _variants(episodes, tasks, classify))
            for label, episodes in evaluated.items()
        ),
        stages=tuple(_totals(stage, run, steps) for stage, steps in trained.items()),
        panels=tuple(
            panel
            for stage, steps in trained.items()
            for panel in panels_of(stage, _rewards(steps), run.metrics(stage), milestone)
        ),
        config=to_yaml(config),
    )


def _ordered(labels: Sequence[str]) -> list[str]:
    return [label for label in LABELS if label in labels] + [
        label for label in labels if label not in LABELS
    ]


def _episodes(path: Path) -> list[_Episode]:
    table = read_parquet(path, columns=_COLUMNS)
    if missing := [name for name in _COLUMNS if name not in table.column_names]:
        raise UserError(f"{path} is not readable: it has no column {missing[0]}")
    return [_episode(row) for row in table.to_pylist()]


def _episode(row: dict[str, Any]) -> _Episode:
    final = None if row["verdict"] is None else Verdict.from_json(row["verdict"])
    best = None if row["best_verdict"] is None else Verdict.from_json(row["best_verdict"])
    blameless = final is not None and (final.blames_task or final.blames_system)
    return _Episode(
        task_id=row["task_id"],
        files=json.loads(row["files"]),
        final=final,
        best=final if best is None else best,
        reward=row["reward"],
        dropped=row["drop_reason"] is not None or blameless,
    )


def _scores(
    label: str,
    state: str,
    episodes: Sequence[_Episode],
    tasks: dict[str, Task],
    milestone: bool,
) -> list[Scores]:
    levels: dict[int | None, list[_Episode]] = defaultdict(list)
    for episode in episodes:
        levels[None].append(episode)
        task = tasks.get(episode.task_id)
        if task is not None and task.level is not None:
            levels[task.level].append(episode)
    known = sorted(level for level in levels if level is not None)
    shown: list[int | None] = [None, *known] if len(known) > 1 else [None]
    return [_score(label, state, level, levels[level], milestone) for level in shown]


def _score(
    label: str, state: str, level: int | None, episodes: Sequence[_Episode], milestone: bool
) -> Scores:
    kept = [episode for episode in episodes if not episode.dropped]
    verdicts = [episode.best if state == "best" else episode.final for episode in kept]
    correct = [verdict for verdict in verdicts if verdict is not None and verdict.correct]
    eager = [v.speedup_vs_eager for v in correct if v.speedup_vs_eager is not None]
    compiled = [v.speedup_vs_compile for v in correct if v.speedup_vs_compile is not None]
    rewards = [
        _reward(verdict, episode.reward) for verdict, episode in zip(verdicts, kept, strict=True)
    ]
    count = max(1, len(kept))
    return Scores(
        label=label,
        state=state,
        level=level,
        tasks=len({episode.task_id for episode in kept}),
        episodes=len(kept),
        dropped=len(episodes) - len(kept),
        pass_rate=len(correct) / count,
        faster_eager=sum(value > 1 for value in eager) / count,
        faster_compile=sum(value > 1 for value in compiled) / count,
        speedup_eager=geometric_mean(eager),
        speedup_compile=geometric_mean(compiled),
        top=sum(_is_top(verdict, milestone) for verdict in correct) / count,
        reward=sum(rewards) / count,
    )


def _reward(verdict: Verdict | None, of_episode: float | None) -> float:
    """An episode that was kept without a verdict ended without a solution."""
    if verdict is not None and verdict.reward is not None:
        return verdict.reward
    return -1.0 if of_episode is None else of_episode


def _is_top(verdict: Verdict, milestone: bool) -> bool:
    if milestone:
        return verdict.reward == TOP_REWARD
    speedups = (verdict.speedup_vs_eager, verdict.speedup_vs_compile)
    return all(speedup is not None and speedup > _MARGIN for speedup in speedups)


def _failures(episodes: Sequence[_Episode]) -> dict[str, int]:
    codes = [e.final.code for e in episodes if e.final is not None and e.final.code is not None]
    return dict(Counter(codes).most_common())


def _variants(
    episodes: Sequence[_Episode], tasks: dict[str, Task], classify: Classifier | None
) -> dict[str, int]:
    if classify is None:
        return {}
    counts: Counter[str] = Counter()
    for episode in episodes:
        task = tasks.get(episode.task_id)
        if episode.dropped or task is None:
            continue
        counts[classify(task.source, episode.files) or "other"] += 1
    return dict(sorted(counts.items()))


def _rewards(steps: dict[int, list[_Episode]]) -> dict[int, list[float]]:
    return {
        step: [e.reward for e in episodes if e.reward is not None and not e.dropped]
        for step, episodes in steps.items()
    }


def _totals(stage: str, run: RunDir, steps: dict[int, list[_Episode]]) -> StageTotals:
    means = [sum(values) / len(values) for values in _rewards(steps).values() if values]
    episodes = [episode for items in steps.values() for episode in items]
    metrics = run.metrics(stage)
    return StageTotals(
        stage=stage,
        steps=len(metrics),
        episodes=len(episodes),
        dropped=sum(episode.dropped for episode in episodes),
        reused=sum(e.final is not None and "reused" in e.final.warnings for e in episodes),
        first_reward=means[0] if means else None,
        last_reward=means[-1] if means else None,
        results=numbers_of(metrics[0]) if len(metrics) == 1 else {},
    )
