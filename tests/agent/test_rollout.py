"""Batches of episodes on the real workspace, sandbox, gateway and clients."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles import SOURCE, TextCompiler, TextJudge, bash, write

from cudaagent.agent.episode import EpisodeSpec
from cudaagent.agent.rollout import remove_tree, run_episodes, sweep
from cudaagent.agent.settings import AgentSettings
from cudaagent.agent.trajectory import ExitReason, Trajectory
from cudaagent.errors import UserError
from cudaagent.lease import TimingLease
from cudaagent.policy.base import Generation, GenerationRequest, Policy
from cudaagent.policy.fake import FakePolicy
from cudaagent.policy.replay import ReplayPolicy
from cudaagent.sandbox.settings import SandboxSettings
from cudaagent.tasks.task import Task

TASKS = [Task(f"task-{n}", f"# task {n}\n{SOURCE}") for n in range(3)]


def speak(prompt: str, turn: int, seed: int) -> str:
    """Write, build, verify and profile; task 1 takes a turn less, task 2 is wrong."""
    number = int(prompt[len("# task ")])
    comment = "wrong" if number == 2 else f"reward {1 + number}"
    turns = [
        "\n".join(
            (
                "Plan.",
                write("kernels/k.cpp", f"int a{seed % 2};\n"),
                write("model_new.py", f"class ModelNew: ...\n# {comment}\n"),
                bash("bash utils/compile.sh"),
            )
        ),
        bash("python3 utils/verification.py"),
        bash("python3 utils/profiling.py"),
    ]
    if number == 1:
        del turns[1]
    return turns[turn] if turn < len(turns) else "Done."


def specs(count: int, **changes: Any) -> list[EpisodeSpec]:
    return [
        EpisodeSpec(f"e{n}", TASKS[n % 3], "agentic", 0, seed=n, **changes) for n in range(count)
    ]


def rollout(
    episodes: Sequence[EpisodeSpec],
    policy: Policy,
    *,
    compiler: TextCompiler | None = None,
    judge: TextJudge | None = None,
    **changes: Any,
) -> list[Trajectory]:
    arguments: dict[str, Any] = {
        "agent": AgentSettings(prompt="short"),
        "sandbox": SandboxSettings(),
        **changes,
    }
    return run_episodes(
        episodes,
        policy=policy,
        compiler=compiler or TextCompiler(),
        judge=judge or TextJudge(),
        **arguments,
    )


def test_a_batch_ends_in_order_and_leaves_nothing_behind() -> None:
    before = set(os.listdir(tempfile.gettempdir()))
    descriptors = len(os.listdir("/proc/self/fd"))
    told: list[str] = []
    done = rollout(specs(6), FakePolicy(speak), progress=lambda item: told.append(item.id))

    assert [item.id for item in done] == [f"e{n}" for n in range(6)]
    assert [item.reward for item in done] == [1.0, 2.0, -1.0] * 2
    assert [len(item.turns) for item in done] == [4, 3, 4] * 2
    assert {item.exit_reason for item in done} == {ExitReason.SUBMITTED}
    assert sorted(told) == [f"e{n}" for n in range(6)]
    results = [call.result.splitlines()[0] for turn in done[0].turns for call in turn.calls]
    assert results[2:] == ["BUILD OK", "VERIFY OK", "PROFILE: reward 1"]
    wrong = [call.result for turn in done[2].turns for call in turn.calls][3]
    assert wrong.startswith("VERIFY FAILED: wrong-values\n")
    assert wrong.endswith("\nexit status 1")
    left = set(os.listdir(tempfile.gettempdir())) - before
    assert not [name for name in left if name.startswith(f"cudaagent-rollout-{os.getpid()}")]
    # The launcher of sandboxes stays for the next batch.
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
    assert not [t.name for t in threading.enumerate() if t.name.startswith("gateway")]


def test_the_same_seeds_give_the_same_trajectories() -> None:
    first, second = (rollout(specs(4), FakePolicy(speak)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.token_ids, other.token_ids)
        assert np.array_equal(one.loss_mask, other.loss_mask)
        assert (one.turns, one.submission, one.reward) == (
            other.turns,
            other.submission,
            other.reward,
        )


def test_a_replayed_trajectory_does_the_same_again() -> None:
    (original,) = rollout(specs(1), FakePolicy(speak))
    (again,) = rollout(specs(1), ReplayPolicy([original], "memory"))
    assert (again.submission, again.reward) == (original.submission, original.reward)
    assert [turn.calls for turn in again.turns] == [turn.calls for turn in original.turns]


def test_the_policy_is_asked_for_all_waiting_episodes_at_once() -> None:
    sizes: list[int] = []

    class Counting(FakePolicy):
        def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            sizes.append(len(requests))
            return super().generate(requests)

    rollout(specs(3), Counting(speak))
    assert sizes == [3, 3, 3, 2]


def test_commands_and_timing_share_the_lease_without_deadlock(tmp_path: Path) -> None:
    lease = TimingLease("test", directory=tmp_path / "lease")
    judge = TextJudge()
    alone = threading.Semaphore(1)

    def time_it() -> None:
        with lease.exclusive(timeout_s=60):
            assert alone.acquire(blocking=False), "two judgements timed at once"
            alone.release()

    judge.inside = time_it
    done = rollout(specs(6), FakePolicy(speak), judge=judge, lease=lease)
    assert [item.reward for item in done] == [1.0, 2.0, -1.0] * 2


def test_one_lost_episode_does_not_touch_the_others() -> None:
    def some_break(prompt: str, turn: int, seed: int) -> str:
        text = speak(prompt, turn, seed)
        return text.replace("# reward 2", "# code infrastructure")

    done = rollout(specs(3), FakePolicy(some_break))
    assert [item.drop_reason for item in done] == [None, "infrastructure", None]
    assert [item.reward for item in done] == [1.0, None, -1.0]


def test_a_policys_error_comes_out_and_leaves_nothing_behind() -> None:
    before = set(os.listdir(tempfile.gettempdir()))

    def fail(prompt: str, turn: int, seed: int) -> str:
        if turn == 1:
            raise UserError("no more words")
        return speak(prompt, turn, seed)

    with pytest.raises(UserError, match="no more words"):
        rollout(specs(2), FakePolicy(fail))
    left = set(os.listdir(tempfile.gettempdir())) - before
    assert not [name for name in left if name.startswith(f"cudaagent-rollout-{os.getpid()}")]
    assert not [t.name for t in threading.enumerate() if t.name.startswith("gateway")]


def test_the_weak_sandbox_serves_as_well() -> None:
    (done,) = rollout(specs(1), FakePolicy(speak), sandbox=SandboxSettings(backend="process"))
    assert (done.reward, done.drop_reason, len(done.turns)) == (1.0, None, 4)


def test_what_a_killed_rollout_left_is_swept() -> None:
    code = "import os, sys; print(os.getpid())"
    gone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    left = Path(tempfile.mkdtemp(prefix=f"cudaagent-rollout-{int(gone.stdout)}-"))
    (left / "0/kernels").mkdir(parents=True)
    mine = Path(tempfile.mkdtemp(prefix=f"cudaagent-rollout-{os.getpid()}-"))
    sweep()
    assert not left.exists()
    assert mine.exists()
    mine.rmdir()


def test_no_episodes_are_no_trajectories() -> None:
    assert rollout([], FakePolicy([])) == []


def test_a_tree_that_resists_is_removed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir(mode=0o755)
    tree = tmp_path / "tree"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/file").write_text("x")
    (tree / "link").symlink_to(tmp_path / "outside")
    (tree / "a/b").chmod(0o000)
    (tree / "a").chmod(0o500)
    remove_tree(tree)
    assert not tree.exists()
    assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o755
