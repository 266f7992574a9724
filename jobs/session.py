"""One training run as the driver sees it: tasks, episodes, learner, engine, records.

State lives in the run directory and in the actors; this object holds handles and counters only, so
that a killed driver loses nothing. Global step N is saved as ``checkpoints/step-N``; the numbering
is fixed by the configuration (single-turn PPO first, then one step each for rejection fine-tuning
and value pretraining, then agentic PPO), whichever stages a command runs.
"""

from __future__ import annotations

import contextlib
import copy
import random
import shutil
import time
from collections.abc import Iterator
from types import TracebackType

import ray
from ray.exceptions import RayActorError

from cudaagent.actors.learner import LearnerLost
from cudaagent.agent.episode import EpisodeSpec
from cudaagent.config import STAGES, Config
from cudaagent.errors import InfrastructureError, UserError
from cudaagent.files import write_text
from cudaagent.jobs.cluster import Cluster
from cudaagent.jobs.collect import Collected, collect
from cudaagent.jobs.evaluation import evaluate_tasks, report_to, seed_of
from cudaagent.jobs.progress import Progress
from cudaagent.jobs.tasks import make_tasks
from cudaagent.policy.checkpoint import local_checkpoint
from cudaagent.rl.stages import StagePlan, StepResult
from cudaagent.run_dir import RunDir
from cudaagent.sandbox.base import choose_backend
from cudaagent.target import resolve_target
from cudaagent.tasks.task import Task

_STEP_S = 6 * 3600.0
_KEEP_CHECKPOINTS = 2
_TITLES = {
    "single_turn": "single-turn PPO",
    "rft": "rejection fine-tuning",
    "value_pretraining": "value pretraining",
    "agentic": "agentic PPO",
    "cold_start": "cold start",
}


class TrainingSession:
    """Context manager around the actors of one run."""

    def __init__(self, config: Config, run: RunDir, *, from_scratch: bool = False) -> None:
        self._config = copy.deepcopy(config)
        self._run = run
        self._base = run.path.resolve()
        self._from_scratch = from_scratch
        self._latest = self._base / "policy"
        self._train: list[Task] = []
        self._heldout: list[Task] = []
        self._isolation = ""

    def __enter__(self) -> TrainingSession:
        config = self._config
        target = resolve_target(config.target)
        if choose_backend(config.sandbox) == "process" and not config.sandbox.allow_weak:
            raise UserError(
                "this machine allows neither root nor user namespaces, so isolation would be only "
                "`process`; allow namespaces, or set sandbox.allow_weak=true for trusted tasks"
            )
        if self._from_scratch:
            self._cold_start()
        self._initial = local_checkpoint(config.policy.spec)
        config.policy.spec = f"hf:{self._initial}"
        if saved := self._run.checkpoints():
            # A kill between a checkpoint and its publication left the pointer one step behind.
            self._point_to(saved[-1])
        self._cluster = Cluster(
            config,
            target,
            verdicts=self._base / "verdicts.parquet",
            learner_dir=self._base,
            latest=self._latest,
        )
        self._cluster.__enter__()
        try:
            device = self._cluster.ready()
            self._run.event("cluster", device=device, resources=ray.cluster_resources())
        except BaseException:
            self._cluster.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cluster.close()

    # Tasks

    def prepare_tasks(self) -> None:
        """Tasks of the run: from disk, from suites, or synthesised and filtered by execution."""
        if not self._run.tasks():
            splits = make_tasks(self._config, self._cluster, self._run)
            self._run.write_tasks(splits)
        removed = {event["task"] for event in self._run.events("task_removed")}
        self._train = [t for t in self._run.tasks("train") if t.id not in removed]
        self._heldout = [t for t in self._run.tasks("heldout") if t.id not in removed]
        if not self._train:
            raise UserError("no task is left to train on; see task_removed in events.jsonl")

    # Stages

    def plan(self, stage: str) -> StagePlan:
        """What is left to do in ``stage``, from the checkpoints on disk."""
        count = self._steps(stage)
        first = sum(self._steps(other) for other in STAGES[: STAGES.index(stage)])
        finished = [step for step in self._run.checkpoints() if step < first + count]
        newest = max(finished, default=None)
        whole = max(self._run.checkpoints(), default=-1)
        done = min(max(0, whole + 1 - first), count)
        start = None if newest is None else self._run.checkpoint(newest)
        critic = None if start is None else start / "critic"
        return StagePlan(
            stage=stage,
            batch_ids=tuple(self._batch_id(stage, index) for index in range(count)),
            first_step=first,
            done=done,
            actor=str(start.resolve() if start is not None else self._initial),
            critic=str(critic.resolve()) if critic is not None and critic.is_dir() else None,
            optimizer=str(start.resolve()) if start is not None and 0 < done < count else None,
        )

    def _steps(self, stage: str) -> int:
        if stage == "single_turn":
            return self._config.single_turn.steps
        return self._config.agentic.steps if stage == "agentic" else 1

    @staticmethod
    def _batch_id(stage: str, index: int) -> str:
        # Rejection fine-tuning and value pretraining learn from the same trajectories.
        return f"{stage}-{index}" if stage in ("single_turn", "agentic") else "sampling-0"

    @contextlib.contextmanager
    def learning(self, plan: StagePlan) -> Iterator[None]:
        """Keep the learner in ``plan``'s stage; nothing to do when the stage is complete."""
        self._restarts = 0
        if plan.done >= len(plan.batch_ids):
            yield
            return
        ray.get(self._cluster.learner.start.remote(plan))
        self._bar = Progress(_TITLES[plan.stage], self._work(plan))
        with self._bar:
            yield
        ray.get(self._cluster.learner.join.remote(300.0))

    def _work(self, plan: StagePlan) -> int:
        steps = len(plan.batch_ids) - plan.done
        return steps * (self._episodes(plan.stage) + 1)

    def _episodes(self, stage: str) -> int:
        if stage in ("single_turn", "agentic"):
            return getattr(self._config, stage).batch
        return self._config.rft.trajectories

    def collect(self, plan: StagePlan, index: int) -> None:
        """Have batch ``index`` of the stage sampled and judged, unless it is on disk already."""
        batch_id = plan.batch_ids[index]
        name, _, number = batch_id.rpartition("-")
        path = self._run.trajectories_path(name, int(number))
        buffer = self._cluster.buffer
        if path.is_file():
            size = ray.get(buffer.restore.remote(batch_id, str(path)))
            self._bar.advance(self._episodes(plan.stage))
        else:
            started = time.monotonic()
            specs = self._specs(name, int(number), self._episodes(plan.stage))
            collected = collect(self._cluster, specs, report_to(self._bar))
            size = ray.get(buffer.add.remote(batch_id, str(path), collected.references))
            ray.get(self._cluster.pool.flush.remote())
            self._record_rollout(plan.stage, index, collected, time.monotonic() - started)
        if size == 0:
            raise InfrastructureError(
                f"every episode of {batch_id} was dropped; see drop reasons in events.jsonl"
            )

    def learn(self, plan: StagePlan, index: int) -> StepResult:
        """Wait for the learner to finish batch ``index``; starts it again when its actor died."""
        step = plan.first_step + index
        learner = self._cluster.learner
        while True:
            try:
                result: StepResult = ray.get(learner.wait.remote(step, _STEP_S))
                break
            except (RayActorError, LearnerLost):
                self._restarts += 1
                if self._restarts > 3:
                    raise InfrastructureError("the learner died four times in one stage") from None
                ray.get(learner.start.remote(self.plan(plan.stage)))
        self._bar.advance(1)
        self._run.event("step", stage=plan.stage, step=index, **result.metrics)
        ray.get(self._cluster.buffer.release.remote(plan.batch_ids[index]))
        return result

    def publish(self, result: StepResult) -> None:
        """Give the engine the new weights; the pointer comes first, for an engine that restarts."""
        self._point_to(result.step)
        ray.get(self._cluster.engine.load.remote(result.checkpoint, result.step + 1))
        self._prune(result.step)

    def _point_to(self, step: int) -> None:
        write_text(self._latest, f"{step + 1} {self._base / 'checkpoints' / f'step-{step}'}\n")

    def _prune(self, newest: int) -> None:
        ends, total = set[int](), 0
        for stage in STAGES:
            total += self._steps(stage)
            ends.add(total - 1)
        for step in self._run.checkpoints():
            if step <= newest - _KEEP_CHECKPOINTS and step not in ends:
                shutil.rmtree(self._run.checkpoint(step))

    # Evaluation

    def evaluate(self, label: str) -> None:
        """Sample the held-out tasks with the present policy, unless it was done already."""
        title = _TITLES.get(label, label)
        collected = evaluate_tasks(self._cluster, self._run, self._heldout, label, title)
        if collected is not None:
            self._remove(collected)

    # Helpers

    def _specs(self, stage: str, step: int, count: int) -> list[EpisodeSpec]:
        """Specs of one batch: every task equally often, in an order the seed decides."""
        settings = self._config.single_turn if stage == "single_turn" else self._config.agentic
        specs: list[EpisodeSpec] = []
        for index in range(count):
            epoch, position = divmod(step * count + index, len(self._train))
            order = list(self._train)
            random.Random(seed_of(self._config.run.seed, stage, "order", epoch)).shuffle(order)
            specs.append(
                EpisodeSpec(
                    id=f"{stage}/{step}/{index}",
                    task=order[position],
                    stage=stage,
                    step=step,
                    seed=seed_of(self._config.run.seed, stage, step, index),
                    max_turns=settings.max_turns,
                    context_tokens=settings.context_tokens,
                )
            )
        return specs

    def _record_rollout(self, stage: str, index: int, collected: Collected, seconds: float) -> None:
        summaries = collected.summaries
        rewards = [s.reward for s in summaries if s.reward is not None]
        dropped = [s for s in summaries if s.drop_reason is not None]
        self._run.event(
            "rollout",
            stage=stage,
            step=index,
            episodes=len(summaries),
            reward_mean=sum(rewards) / len(rewards) if rewards else None,
            rewards={f"{r:g}": rewards.count(r) for r in sorted(set(rewards))},
            exit_reasons=_count(s.exit_reason for s in summaries),
            codes=_count(s.code for s in summaries if s.code),
            dropped=_count(s.drop_reason for s in dropped if s.drop_reason),
            dropped_tokens=[s.tokens for s in dropped],
            tokens=sum(s.tokens for s in summaries),
            lost_workers=collected.lost_workers,
            seconds=seconds,
        )
        self._remove(collected)

    def _remove(self, collected: Collected) -> None:
        bad = collected.bad_tasks
        for task in (*self._train, *self._heldout):
            if task.id in bad:
                self._run.event("task_removed", task=task.id)
        self._train = [t for t in self._train if t.id not in bad]
        self._heldout = [t for t in self._heldout if t.id not in bad]

    def _cold_start(self) -> None:
        from cudaagent.policy.coldstart import ColdStartSettings, cold_start

        directory = self._run.path / "cold_start"
        if not (directory / "config.json").is_file():
            settings = ColdStartSettings.for_device(
                self._config.policy.device, self._config.run.seed
            )
            cold_start(directory, settings)
        self._config.policy.spec = f"hf:{directory}"


def _count(values: Iterator[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts
