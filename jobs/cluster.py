"""The driver's view of the cluster: which Ray it talks to, and the actors of one run.

Placement groups are created here, never inside an actor (one made there outlives it), each is
waited for with a deadline, and all of them are removed on the way out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from cudaagent.actors.compile_sandbox import CompileSandbox, RemoteCompiler
from cudaagent.actors.gpu_profiler import Profiler
from cudaagent.actors.learner import Learner
from cudaagent.actors.policy_engine import PolicyEngine
from cudaagent.actors.profiler_pool import ProfilerPool, RemoteJudge
from cudaagent.actors.replay_buffer import ReplayBuffer
from cudaagent.actors.rollout_worker import RolloutWorker
from cudaagent.config import Config
from cudaagent.errors import CudaAgentError, InfrastructureError, UserError
from cudaagent.toolchain.open import object_cache_dir

_PLACEMENT_S = 120.0
_START_S = 300.0
_CLOSE_S = 2.0
_OUR_ERROR = re.compile(r"UserError: (.+)")
"""How Ray quotes an error that an actor's constructor raised."""
_TINY_CPU = 0.01
"""A placement-group bundle needs some resource; a CPU profiler shares the machine by the lease."""


def inside_job() -> bool:
    """Whether this process is the entry point of ``ray job submit``."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def connect() -> None:
    """Join the cluster of the job we run in, else start a local Ray of our own.

    ``address="local"`` is explicit: another head on this machine, or the address file that a
    killed head left behind, must not be joined by accident.
    """
    warnings.filterwarnings("ignore", module="ray")
    handler = signal.getsignal(signal.SIGTERM)
    terminated = False
    try:
        _init()
    except SystemExit:  # what Ray makes of SIGTERM
        terminated = True
    finally:
        # Ray's handler aborts the process, which would leave its actors behind.
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
    if terminated:
        signal.raise_signal(signal.SIGTERM)


def _init() -> None:
    if inside_job():
        ray.init(
            address="auto",
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": {"OMP_WAIT_POLICY": "PASSIVE"}},
        )
        return
    ray.init(
        address="local",
        num_cpus=max(1, os.cpu_count() or 1),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=256 << 20,
    )


class Cluster:
    """The actors of one run; a context manager that ends what it started."""

    def __init__(
        self,
        config: Config,
        target: str,
        *,
        verdicts: Path,
        learner_dir: Path | None = None,
        latest: Path | None = None,
        policy: bool = True,
    ) -> None:
        self.config = config
        self.target = target
        self._verdicts = verdicts
        self._learner_dir = learner_dir
        self._latest = latest
        self._with_policy = policy

    def __enter__(self) -> Cluster:
        connect()
        try:
            self._check_learner()
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_learner(self) -> None:
        """Refuse a learner that a Ray of our own can never place; another Ray may still grow."""
        if self._learner_dir is None or inside_job():
            return
        settings, there = self.config.learner, ray.cluster_resources()
        for resource, wanted in (
            ("CPU", settings.workers),
            ("GPU", max(1, settings.workers) if settings.use_gpu else 0),
        ):
            if wanted > there.get(resource, 0):
                raise UserError(
                    f"learner.workers={settings.workers}, learner.use_gpu={settings.use_gpu}: "
                    f"{wanted} {resource}s are needed, this machine has "
                    f"{there.get(resource, 0):.0f}; lower the one or switch off the other"
                )

    def _start(self) -> None:
        config = self.config
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        cache = str(object_cache_dir())
        self.sandboxes = [
            self._spawn(CompileSandbox, config, self.target, cache, name=f"sandbox-{i}", threads=2)
            for i in range(config.rollout.sandboxes)
        ]
        self.profilers = self._start_profilers()
        self.pool = self._spawn(
            ProfilerPool,
            [self._name(f"profiler-{index}") for index in range(config.rollout.profilers)],
            config,
            str(self._verdicts),
            name="pool",
            threads=4096,
            strategy=here,
        )
        self.judge = RemoteJudge(self.pool)
        self.compiler = RemoteCompiler(self.sandboxes)
        if self._with_policy:
            self.engine = self._spawn(
                PolicyEngine,
                config.policy,
                config.learner.threads,
                None if self._latest is None else str(self._latest),
                name="engine",
                threads=8,
                num_gpus=0,
            )
            self.workers = [self.spawn_worker(i) for i in range(config.rollout.workers)]
        if self._learner_dir is not None:
            self.buffer = self._spawn(ReplayBuffer, name="buffer", threads=64, strategy=here)
            self.learner = self._spawn(
                Learner, config, str(self._learner_dir), self._name("buffer"), name="learner",
                threads=8, strategy=here,
            )  # fmt: skip

    def spawn_worker(self, index: int) -> Any:
        """Start rollout worker ``index``; also used to replace one that died."""
        return self._spawn(
            RolloutWorker, self.config, self.target, self.engine, self.sandboxes, self.pool, index,
            name=None, restarts=0, retries=0,
        )  # fmt: skip

    def _start_profilers(self) -> list[Any]:
        count = self.config.rollout.profilers
        bundle = {"GPU": 1, "CPU": 1} if self.target == "cuda" else {"CPU": _TINY_CPU}
        group = self._place([bundle] * count, "profilers")
        return [
            self._spawn(
                Profiler,
                self.config,
                self.target,
                name=f"profiler-{index}",
                num_gpus=1 if self.target == "cuda" else 0,
                strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=index
                ),
            )
            for index in range(count)
        ]

    def _place(self, bundles: Sequence[dict[str, float]], name: str) -> PlacementGroup:
        group = placement_group(list(bundles), strategy="PACK", name=f"cudaagent-{name}")
        if not group.wait(_PLACEMENT_S):
            raise InfrastructureError(
                f"{name}: {len(bundles)} bundles of {bundles[0]} not placed within "
                f"{_PLACEMENT_S:.0f} s; free now: {ray.available_resources()}. "
                f"Lower rollout.{name} or add nodes"
            )
        return group

    def _spawn(
        self,
        cls: type,
        *args: Any,
        name: str | None,
        threads: int = 1,
        num_gpus: float = 0,
        restarts: int = -1,
        retries: int = 3,
        strategy: Any = "DEFAULT",
    ) -> Any:
        options: dict[str, Any] = {
            "num_cpus": 0,
            "num_gpus": num_gpus,
            "max_concurrency": threads,
            "max_restarts": restarts,
            "max_task_retries": retries,
            "scheduling_strategy": strategy,
        }
        if name is not None:
            options["name"] = self._name(name)
        return ray.remote(cls).options(**options).remote(*args)

    def _name(self, role: str) -> str:
        return f"{self.config.run.name}/{role}"

    def ready(self) -> str:
        """Wait until judge, compilers and engine answer; returns the device's name.

        Raises:
            UserError: a checkpoint, target or sandbox that this machine cannot serve.
        """
        return _call(lambda: ray.get(self._ready_references(), timeout=_START_S)[0])

    def _ready_references(self) -> list[Any]:
        # Without retries: what a constructor refuses once it refuses again, and Ray says so aloud.
        calls = [self.pool.ready, *(sandbox.ready for sandbox in self.sandboxes)]
        if self._with_policy:
            calls.append(self.engine.version)
        return [call.options(max_task_retries=0).remote() for call in calls]

    def close(self) -> None:
        """Leave Ray, which ends the actors and placement groups, and a Ray of our own with them."""
        if not ray.is_initialized():
            return
        # A profiler that is in the middle of a judgement is killed; its runners end with it.
        with contextlib.suppress(RayActorError, ray.exceptions.GetTimeoutError, AttributeError):
            ray.get([p.close.remote() for p in self.profilers], timeout=_CLOSE_S)
        ray.shutdown()


def _call(function: Callable[[], Any]) -> Any:
    """Run ``function``; an error of ours that crossed Ray is raised as what it is."""
    try:
        return function()
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, CudaAgentError):
            raise error.cause from None
        raise
    except RayActorError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, CudaAgentError):
            raise cause from None
        if found := _OUR_ERROR.search(str(error)):
            raise UserError(found.group(1)) from None
        raise InfrastructureError(f"an actor did not start: {error}") from error
