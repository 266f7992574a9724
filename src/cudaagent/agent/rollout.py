"""Runs a batch of episodes side by side on one policy.

Runs in a rollout worker or a plain script. Lockstep: one ``policy.generate`` for all episodes that
wait for an answer, then the tools of each in a small thread pool, and again; an episode that has
ended is judged meanwhile. Every episode has a workspace and a sandbox of its own, which are gone
when its trajectory is returned; what a ``kill -9`` left is swept when the next batch starts.

Invariants: the trajectories come back in the order of their specifications, one each; with a
deterministic policy they are the same every time, up to times measured. ``policy.start`` and
``policy.observe`` are never called by two threads at once; the compiler and the judge may be.

Not covered: an episode's wall clock runs while others of its batch keep the policy waiting.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cudaagent.agent.episode import Episode, EpisodeSpec
from cudaagent.agent.gateway import Gateway
from cudaagent.agent.hold import LeaseHold
from cudaagent.agent.settings import AgentSettings
from cudaagent.agent.shell import Shell
from cudaagent.agent.tools import ToolBox
from cudaagent.agent.trajectory import ExitReason, Trajectory
from cudaagent.errors import InfrastructureError
from cudaagent.judge.verdict import Judge, failed
from cudaagent.lease import TimingLease
from cudaagent.policy.base import Generation, GenerationRequest, Message, Policy
from cudaagent.sandbox.base import open_sandbox
from cudaagent.sandbox.local import WORKSPACE
from cudaagent.sandbox.settings import SandboxSettings
from cudaagent.toolchain.compiler import Compiler
from cudaagent.workspace.workspace import Workspace

_PREFIX = "cudaagent-rollout-"
TOOL_THREADS = 4
JUDGE_THREADS = 4
Progress = Callable[[Trajectory], None]
"""Called in the caller's thread with each episode as it is done."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all episodes of a batch share."""

    policy: Policy
    compiler: Compiler
    judge: Judge
    agent: AgentSettings
    sandbox: SandboxSettings
    target: str
    reward_of: str
    lease: TimingLease | None


def run_episodes(
    specs: Sequence[EpisodeSpec],
    *,
    policy: Policy,
    compiler: Compiler,
    judge: Judge,
    agent: AgentSettings,
    sandbox: SandboxSettings,
    target: str = "cpu",
    reward_of: str = "final",
    lease: TimingLease | None = None,
    progress: Progress | None = None,
) -> list[Trajectory]:
    """Run the episodes to their verdicts.

    Args:
        specs: one for each episode.
        policy: answers all of them.
        compiler: used from several threads.
        judge: used from several threads.
        agent: limits, tools and prompt.
        sandbox: where the agents' commands run.
        target: ``cpu`` or ``cuda``; decides what the workspace teaches.
        reward_of: ``final`` or ``best``.
        lease: held shared while a command runs; None where timing has a device of its own.
        progress: told of each episode as it is done.

    Raises:
        UserError: a setting that cannot work; whatever the policy raises.
    """
    around = Surroundings(
        _OneAtATime(policy), compiler, judge, agent, sandbox, target, reward_of, lease
    )
    sweep()
    root = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")).resolve()
    # Sandboxes run as other users, who must pass through but need not look around.
    root.chmod(0o711)
    try:
        return _Batch(specs, around, root, progress).run()
    finally:
        remove_tree(root)


class _Room:
    """One episode with the directory, the sandbox and the gateway that it lives in."""

    def __init__(self, spec: EpisodeSpec, around: Surroundings, directory: Path) -> None:
        self.spec = spec
        self._around = around
        self._directory = directory
        self._closing = contextlib.ExitStack()
        self.episode: Episode | None = None
        self._failure: InfrastructureError | None = None
        try:
            self._open()
        except InfrastructureError as error:
            self._failure = error
            self.close()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        around, spec = self._around, self.spec
        Workspace.create(spec.task, self._directory, around.target)
        self._closing.callback(remove_tree, self._directory)
        box = open_sandbox(self._directory, around.sandbox)
        self._closing.callback(box.close)
        hold = LeaseHold(around.lease)
        shell = Shell(box, hold, command_s=around.sandbox.command_s)
        tools = ToolBox(
            self._directory,
            shell,
            names=around.agent.tools,
            observation_chars=around.agent.observation_chars,
            aliases=(WORKSPACE,),
        )
        self._closing.callback(tools.close)
        gateway = Gateway(self._directory, spec.task, around.compiler, around.judge, hold=hold)
        self._closing.callback(gateway.close)
        self.episode = Episode(spec, around.policy, tools, gateway, around.agent)

    @property
    def request(self) -> GenerationRequest | None:
        """What the policy is to answer, or None when the episode has ended or never began."""
        return None if self.episode is None else self.episode.request

    def finish(self) -> Trajectory:
        """Judge the episode and leave nothing of it behind."""
        try:
            if self.episode is None:
                return _never_began(self.spec, str(self._failure))
            return self.episode.finish(
                self._around.compiler, self._around.judge, reward_of=self._around.reward_of
            )
        finally:
            self.close()

    def close(self) -> None:
        """Undo what ``__init__`` did, last things first; may be called twice."""
        self._closing.close()


class _Batch:
    def __init__(
        self,
        specs: Sequence[EpisodeSpec],
        around: Surroundings,
        root: Path,
        progress: Progress | None,
    ) -> None:
        self._specs = specs
        self._around = around
        self._root = root
        self._progress = progress
        self._rooms: list[_Room] = []
        self._judged: dict[int, Future[Trajectory]] = {}
        self._told: set[int] = set()

    def run(self) -> list[Trajectory]:
        count = max(1, len(self._specs))
        with (
            ThreadPoolExecutor(min(TOOL_THREADS, count), "tools") as tools,
            ThreadPoolExecutor(min(JUDGE_THREADS, count), "judgement") as judging,
        ):
            try:
                return self._run(tools, judging)
            finally:
                judging.shutdown(cancel_futures=True)
                for room in self._rooms:
                    room.close()

    def _run(self, tools: ThreadPoolExecutor, judging: ThreadPoolExecutor) -> list[Trajectory]:
        for index, spec in enumerate(self._specs):
            self._rooms.append(_Room(spec, self._around, self._root / str(index)))
        while True:
            waiting: list[tuple[_Room, GenerationRequest]] = []
            for index, room in enumerate(self._rooms):
                request = room.request
                if request is not None:
                    waiting.append((room, request))
                elif index not in self._judged:
                    self._judged[index] = judging.submit(room.finish)
            self._tell(last=not waiting)
            if not waiting:
                break
            answers = self._around.policy.generate([request for _, request in waiting])
            pairs = zip(waiting, answers, strict=True)
            steps = [tools.submit(_advance, room, answer) for (room, _), answer in pairs]
            # All of them, before an error of one can close what the others still use.
            wait(steps)
            for step in steps:
                step.result()
        return [self._judged[index].result() for index in range(len(self._specs))]

    def _tell(self, *, last: bool) -> None:
        """Report what is done; errors of a judgement come out here."""
        for index, future in sorted(self._judged.items()):
            if index not in self._told and (last or future.done()):
                trajectory = future.result()
                self._told.add(index)
                if self._progress is not None:
                    self._progress(trajectory)


class _OneAtATime:
    """A policy whose ``start`` and ``observe`` no two threads enter: tokenizers have state."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._lock = threading.Lock()

    def start(self, messages: Sequence[Message]) -> NDArray[np.int32]:
        with self._lock:
            return self._policy.start(messages)

    def observe(self, text: str) -> NDArray[np.int32]:
        with self._lock:
            return self._policy.observe(text)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return self._policy.generate(requests)


def _advance(room: _Room, answer: Generation) -> None:
    assert room.episode is not None
    room.episode.advance(answer)


def _never_began(spec: EpisodeSpec, message: str) -> Trajectory:
    """The record of an episode whose sandbox could not be made."""
    empty = np.zeros(0, dtype=np.int32)
    return Trajectory(
        id=spec.id,
        task_id=spec.task.id,
        stage=spec.stage,
        step=spec.step,
        seed=spec.seed,
        policy_version=spec.policy_version,
        token_ids=empty,
        loss_mask=empty.astype(np.bool_),
        logprobs=empty.astype(np.float32),
        turns=(),
        exit_reason=ExitReason.SANDBOX_LOST,
        verdict=failed("infrastructure", "system", message),
        drop_reason=str(ExitReason.SANDBOX_LOST),
    )


def sweep() -> None:
    """Remove the workspaces of rollouts of our user whose process was killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        found = re.match(rf"{_PREFIX}(\d+)-", path.name)
        with contextlib.suppress(FileNotFoundError):
            ours = path.lstat().st_uid == os.getuid()
            if found and ours and not Path(f"/proc/{found.group(1)}").exists():
                remove_tree(path)


def remove_tree(directory: Path) -> None:
    """Remove ``directory``, whatever modes its files were given; no link is followed."""
    if not directory.exists():
        return
    for current, directories, _ in os.walk(directory, followlinks=False):
        for name in directories:
            path = os.path.join(current, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(directory)
