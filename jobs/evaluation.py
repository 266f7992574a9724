"""Evaluation episodes: sample tasks with the present policy, keep best and final state."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import ray

from cudaagent.actors.rollout_worker import EpisodeSummary
from cudaagent.agent.episode import EpisodeSpec
from cudaagent.agent.trajectory import write_trajectories
from cudaagent.jobs.cluster import Cluster
from cudaagent.jobs.collect import Collected, collect
from cudaagent.jobs.progress import Progress
from cudaagent.run_dir import RunDir
from cudaagent.tasks.task import Task


def evaluate_tasks(
    cluster: Cluster, run: RunDir, tasks: Sequence[Task], label: str, title: str = ""
) -> Collected | None:
    """Run the episodes of evaluation ``label`` unless its file is there; None when it is."""
    path = run.evaluation_path(label)
    if path.is_file() or not tasks:
        return None
    settings = cluster.config.evaluation
    specs = [
        EpisodeSpec(
            id=f"eval_{label}/{task.id}/{sample}",
            task=task,
            stage=f"eval_{label}",
            step=0,
            # Equal seeds for every label: what differs between two rows is the policy.
            seed=seed_of(cluster.config.run.seed, "evaluation", task.id, sample),
            max_turns=settings.max_turns,
            context_tokens=settings.context_tokens,
            best=True,
        )
        for task in tasks
        for sample in range(settings.samples)
    ]
    with Progress(f"evaluate {title or label}", len(specs)) as bar:
        collected = collect(cluster, specs, report_to(bar))
    parts = ray.get(collected.references)
    write_trajectories(path, [item for part in parts for item in part])
    ray.get(cluster.pool.flush.remote())
    return collected


def report_to(bar: Progress) -> Callable[[list[EpisodeSummary]], None]:
    """Advance ``bar`` by the episodes of a chunk and show their mean reward."""

    def advance(summaries: list[EpisodeSummary]) -> None:
        rewards = [s.reward for s in summaries if s.reward is not None]
        note = f"reward {sum(rewards) / len(rewards):+.2f}" if rewards else ""
        bar.advance(len(summaries), note)

    return advance


def seed_of(*parts: object) -> int:
    """A seed that depends on ``parts`` alone."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:5], "big")
