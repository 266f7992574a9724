"""Collecting episodes: chunks of specs to rollout workers, results to the replay buffer.

Invariants: every spec that was asked for ends in exactly one summary; a worker that dies costs its
chunk a new run on another worker with the same seeds, so the result is the same; a dropped episode
is queued again with a new seed at most ``rollout.retries`` times, unless its task is at fault.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import RayActorError

from cudaagent.actors.rollout_worker import EpisodeSummary
from cudaagent.agent.episode import EpisodeSpec
from cudaagent.errors import InfrastructureError
from cudaagent.jobs.cluster import Cluster
from cudaagent.judge.verdict import TASK_CODES

_MAX_LOSSES = 20


@dataclass(slots=True)
class Collected:
    """References to lists of trajectories, and a summary of every episode, in order of arrival."""

    references: list[ray.ObjectRef] = field(default_factory=list)
    summaries: list[EpisodeSummary] = field(default_factory=list)
    lost_workers: int = 0

    @property
    def bad_tasks(self) -> set[str]:
        """Ids of tasks that cannot be judged."""
        return {s.task_id for s in self.summaries if s.code in TASK_CODES}


@dataclass(frozen=True, slots=True)
class _Running:
    worker: int
    chunk: tuple[EpisodeSpec, ...]


def collect(
    cluster: Cluster,
    specs: Sequence[EpisodeSpec],
    on_summaries: Callable[[list[EpisodeSummary]], None],
) -> Collected:
    """Run all ``specs`` on the cluster's rollout workers.

    Raises:
        InfrastructureError: workers died more than twenty times.
    """
    result = Collected()
    queue = deque(_chunks(specs, cluster.config.rollout.chunk, len(cluster.workers)))
    by_id = {spec.id: spec for spec in specs}
    attempts: dict[str, int] = {}
    idle = list(range(len(cluster.workers)))
    running: dict[Any, tuple[_Running, ray.ObjectRef]] = {}
    while queue or running:
        while queue and idle:
            _submit(cluster, running, idle.pop(0), queue.popleft())
        done, _ = ray.wait(list(running), num_returns=1)
        job, trajectories = running.pop(done[0])
        try:
            summaries: list[EpisodeSummary] = ray.get(done[0])
        except RayActorError:
            result.lost_workers += 1
            if result.lost_workers > _MAX_LOSSES:
                raise InfrastructureError(
                    f"rollout workers died {result.lost_workers} times; see the Ray logs"
                ) from None
            cluster.workers[job.worker] = cluster.spawn_worker(job.worker)
            queue.appendleft(job.chunk)
            idle.append(job.worker)
            continue
        idle.append(job.worker)
        result.references.append(trajectories)
        result.summaries.extend(summaries)
        on_summaries(summaries)
        again = _again(summaries, by_id, attempts, cluster.config.rollout.retries)
        queue.extend((spec,) for spec in again)
        by_id.update({spec.id: spec for spec in again})
    return result


def _submit(cluster: Cluster, running: dict[Any, Any], worker: int, chunk: Any) -> None:
    method = cluster.workers[worker].rollout.options(num_returns=2)
    trajectories, summaries = method.remote(list(chunk))
    running[summaries] = (_Running(worker, tuple(chunk)), trajectories)


def _chunks(specs: Sequence[EpisodeSpec], size: int, workers: int) -> list[tuple[EpisodeSpec, ...]]:
    size = max(1, min(size, -(-len(specs) // workers)))
    return [tuple(specs[i : i + size]) for i in range(0, len(specs), size)]


def _again(
    summaries: Sequence[EpisodeSummary],
    by_id: dict[str, EpisodeSpec],
    attempts: dict[str, int],
    retries: int,
) -> list[EpisodeSpec]:
    again: list[EpisodeSpec] = []
    for summary in summaries:
        if summary.drop_reason is None or summary.code in TASK_CODES:
            continue
        root = summary.id.partition("~")[0]
        attempts[root] = attempts.get(root, 0) + 1
        if attempts[root] <= retries:
            spec = by_id[summary.id]
            again.append(replace(spec, id=f"{root}~{attempts[root]}", seed=spec.seed + (1 << 40)))
    return again
