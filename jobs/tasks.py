"""The tasks of a run: loaded from suites, or synthesised and filtered by execution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import ray

from cudaagent.config import Config
from cudaagent.errors import InfrastructureError, UserError
from cudaagent.jobs.cluster import Cluster
from cudaagent.jobs.progress import Progress
from cudaagent.judge.verdict import SYSTEM_CODES, Baseline
from cudaagent.run_dir import RunDir
from cudaagent.synthesis.synthesize import candidates, keep
from cudaagent.tasks.suites import load_suite
from cudaagent.tasks.task import Task


def make_tasks(config: Config, cluster: Cluster, run: RunDir) -> dict[str, list[Task]]:
    """``train`` and ``heldout`` tasks; what was rejected and why goes to ``events.jsonl``.

    Raises:
        UserError: too few candidates pass the filter.
        InfrastructureError: too few of them could be timed.
    """
    if config.tasks.suite is not None:
        heldout = load_suite(config.tasks.heldout) if config.tasks.heldout else []
        return {"train": load_suite(config.tasks.suite), "heldout": heldout}
    settings = config.synthesis
    train, heldout = candidates(settings)
    wanted = {"train": settings.train, "heldout": settings.heldout}
    kept: dict[str, list[Task]] = {}
    with Progress("synthesise tasks", sum(wanted.values())) as bar:
        for split, pool in (("train", train), ("heldout", heldout)):
            kept[split] = []
            failures: Counter[str] = Counter()
            last = None
            for task, baseline in prepare(cluster, pool, wanted[split]):
                fit = keep(task, baseline, settings)
                run.event(
                    "task",
                    task=task.id,
                    split=split,
                    kept=fit,
                    failure=baseline.failure.code if baseline.failure else None,
                    message=baseline.failure.message if baseline.failure else None,
                    eager_ms=baseline.eager_ms,
                    compile_ms=baseline.compile_ms,
                )
                if fit and len(kept[split]) < wanted[split]:
                    kept[split].append(task)
                    bar.advance(1)
                if baseline.failure is not None:
                    failures[baseline.failure.code] += 1
                    last = baseline.failure
                if len(kept[split]) == wanted[split]:
                    break
            if len(kept[split]) < wanted[split] and last is not None:
                counts = ", ".join(f"{code} {count}" for code, count in failures.most_common())
                raise (InfrastructureError if failures.keys() & SYSTEM_CODES else UserError)(
                    f"only {len(kept[split])} of synthesis.{split}={wanted[split]} tasks can be "
                    f"judged ({counts}); the last: {last.message}"
                )
            if len(kept[split]) < wanted[split]:
                raise UserError(
                    f"only {len(kept[split])} of synthesis.{split}={wanted[split]} tasks have an "
                    f"eager time of {settings.min_ms:g}-{settings.max_ms:g} ms on this machine; "
                    "widen synthesis.min_ms / synthesis.max_ms or ask for fewer"
                )
    return kept


def prepare(cluster: Cluster, tasks: Sequence[Task], ahead: int) -> Iterator[tuple[Task, Baseline]]:
    """Baselines of ``tasks`` in order, with as many under way as there are profilers."""
    width = min(len(cluster.profilers), ahead)
    running = [(task, cluster.pool.prepare.remote(task)) for task in tasks[:width]]
    rest = list(tasks[width:])
    while running:
        task, reference = running.pop(0)
        baseline = ray.get(reference)
        if rest:
            following = rest.pop(0)
            running.append((following, cluster.pool.prepare.remote(following)))
        yield task, baseline
