"""A rollout worker: one process that runs episodes, sandboxes included, and has them judged.

Stateless: the trajectories are the return value of ``rollout``, so that they belong to the caller;
a worker that dies loses only the chunk it was running, which the driver hands to another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ray

from cudaagent.actors.compile_sandbox import RemoteCompiler
from cudaagent.actors.policy_engine import RemotePolicy
from cudaagent.actors.profiler_pool import RemoteJudge
from cudaagent.agent.episode import EpisodeSpec
from cudaagent.agent.rollout import run_episodes
from cudaagent.agent.trajectory import Trajectory
from cudaagent.config import Config
from cudaagent.lease import TimingLease


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """What the driver needs to know of an episode; the trajectory itself stays in the store."""

    id: str
    task_id: str
    reward: float | None
    code: str | None
    drop_reason: str | None
    exit_reason: str
    tokens: int
    seconds: float


class RolloutWorker:
    """Runs chunks of episodes side by side."""

    def __init__(
        self,
        config: Config,
        target: str,
        engine: ray.actor.ActorHandle,
        sandboxes: list[ray.actor.ActorHandle],
        pool: ray.actor.ActorHandle,
        index: int,
    ) -> None:
        self._config = config
        self._target = target
        self._policy = RemotePolicy(engine)
        self._compiler = RemoteCompiler(sandboxes, first=index)
        self._judge = RemoteJudge(pool)

    def rollout(
        self, specs: Sequence[EpisodeSpec]
    ) -> tuple[list[Trajectory], list[EpisodeSummary]]:
        """Run the episodes; returns trajectories and their summaries as two objects."""
        config = self._config
        trajectories = run_episodes(
            specs,
            policy=self._policy,
            compiler=self._compiler,
            judge=self._judge,
            agent=config.agent,
            sandbox=config.sandbox,
            target=self._target,
            reward_of=config.reward.of,
            lease=TimingLease(),
        )
        return trajectories, [summarise(item) for item in trajectories]


def summarise(item: Trajectory) -> EpisodeSummary:
    """The summary of one trajectory."""
    return EpisodeSummary(
        id=item.id,
        task_id=item.task_id,
        reward=item.reward,
        code=item.verdict.code if item.verdict else None,
        drop_reason=item.drop_reason,
        exit_reason=str(item.exit_reason),
        tokens=len(item.token_ids),
        seconds=item.seconds,
    )
