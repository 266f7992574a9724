"""The learner: one actor that runs one Ray Train ``fit`` per stage in a thread of its own.

``fit`` blocks, so the actor keeps it in a thread and answers the driver from others. The workers
pull batches from the replay buffer by id, update, write a checkpoint and report the step here;
the driver waits for that report. A worker that dies is restarted by Ray Train and continues after
the newest checkpoint; a learner actor that dies is started again by the driver, likewise.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from cudaagent.config import Config
from cudaagent.errors import InfrastructureError
from cudaagent.rl.stages import StageLoop, StageOptions, StagePlan, StepResult

_POLL_S = 0.05
_START_S = 1800.0


class LearnerLost(InfrastructureError):
    """The actor was restarted and knows of no stage; start the stage again."""


class Learner:
    """Starts stages and hands their step results to the driver."""

    def __init__(self, config: Config, run_dir: str, buffer: str) -> None:
        self._config = config
        self._run_dir = Path(run_dir)
        # By name: Ray restarts no actor whose arguments hold other actors' handles.
        self._buffer = ray.get_actor(buffer)
        self._results: dict[int, StepResult] = {}
        self._failure: str | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()

    def start(self, plan: StagePlan) -> None:
        """Begin a stage; returns when its workers have loaded their models.

        Not earlier, because the start of worker processes computes for many seconds, which would
        disturb whatever is timed meanwhile.

        Raises:
            InfrastructureError: the workers failed, or did not start within half an hour.
        """
        if self._thread is not None and self._thread.is_alive():
            raise InfrastructureError("the learner is still in an earlier stage")
        self._failure = None
        self._results = {}
        self._ready.clear()
        me = ray.get_runtime_context().current_actor
        self._thread = threading.Thread(target=self._fit, args=(plan, me), daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_S
        while not self._ready.wait(_POLL_S):
            self._raise_failure()
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"learner: workers not ready within {_START_S:.0f} s; "
                    f"cluster has {ray.available_resources()} free"
                )

    def _fit(self, plan: StagePlan, me: ray.actor.ActorHandle) -> None:
        settings = self._config.learner
        try:
            trainer = TorchTrainer(
                train_loop_per_worker,
                train_loop_config={
                    "plan": plan,
                    "config": self._config,
                    "run_dir": str(self._run_dir),
                    "buffer": self._buffer,
                    "learner": me,
                },
                torch_config=TorchConfig(backend="nccl" if settings.use_gpu else "gloo"),
                scaling_config=ScalingConfig(
                    num_workers=settings.workers,
                    use_gpu=settings.use_gpu,
                    resources_per_worker={"CPU": 1, **({"GPU": 1} if settings.use_gpu else {})},
                ),
                run_config=RunConfig(
                    name=f"{plan.stage}-{plan.first_step + plan.done}-{time.time_ns()}",
                    storage_path=str((self._run_dir / "ray_train").resolve()),
                    failure_config=FailureConfig(max_failures=3),
                ),
            )
            trainer.fit()
        except Exception as error:
            # The driver raises it: a thread has nobody to raise to.
            self._failure = f"{type(error).__name__}: {error}"

    def ready(self) -> None:
        """Called by the worker of rank 0 when it is about to wait for its first batch."""
        self._ready.set()

    def report(self, result: StepResult) -> None:
        """Called by the worker of rank 0 after its checkpoint is on disk."""
        self._results[result.step] = result

    def wait(self, step: int, timeout_s: float) -> StepResult:
        """The result of global step ``step``.

        Raises:
            LearnerLost: this is a restarted actor.
            InfrastructureError: the stage failed, or the step did not end within ``timeout_s``.
        """
        if self._thread is None:
            raise LearnerLost("the learner was restarted")
        deadline = time.monotonic() + timeout_s
        while step not in self._results:
            self._raise_failure()
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"learner: step {step} not done within {timeout_s:.0f} s; "
                    f"cluster has {ray.available_resources()} free"
                )
            time.sleep(_POLL_S)
        return self._results[step]

    def join(self, timeout_s: float) -> None:
        """Wait until the stage's ``fit`` has returned."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                raise InfrastructureError(f"learner: stage not closed within {timeout_s:.0f} s")
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise InfrastructureError(f"learner failed: {self._failure}")


def train_loop_per_worker(loop: dict[str, Any]) -> None:
    """What each Ray Train worker runs: pull, learn, save, report, until the stage's last batch."""
    plan: StagePlan = loop["plan"]
    config: Config = loop["config"]
    torch.set_num_threads(config.learner.threads)
    stage = StageLoop(plan, _options(config, Path(loop["run_dir"])))
    if ray.train.get_context().get_world_rank() == 0:
        ray.get(loop["learner"].ready.remote())
    for index in range(stage.done, len(plan.batch_ids)):
        trajectories = _pull(loop["buffer"], plan.batch_ids[index])
        result = stage.learn(trajectories, plan.first_step + index)
        if ray.train.get_context().get_world_rank() == 0:
            ray.get(loop["learner"].report.remote(result))
        ray.train.report({"step": result.step, **result.metrics})


def _options(config: Config, run_dir: Path) -> StageOptions:
    return StageOptions(
        run_dir=run_dir,
        seed=config.run.seed,
        device="cuda" if config.learner.use_gpu else "cpu",
        ppo=config.ppo,
        rft=config.rft,
        value_pretraining=config.value_pretraining,
        shuffle_rewards=config.run.shuffle_rewards,
    )


def _pull(buffer: ray.actor.ActorHandle, batch_id: str) -> list[Any]:
    references = None
    while references is None:
        references = ray.get(buffer.pull.remote(batch_id, 30.0))
    try:
        return ray.get(references)
    except ray.exceptions.RayError:
        return ray.get(buffer.trajectories.remote(batch_id))
