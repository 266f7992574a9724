"""The loop with nothing made up: teacher, workspace, sandbox, g++, reference and candidate runner.

Only timing is left out, which a busy machine would make long: the judge verifies, and what is
correct earns 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from cudaagent.agent.episode import EpisodeSpec
from cudaagent.agent.rollout import run_episodes
from cudaagent.agent.settings import AgentSettings
from cudaagent.agent.trajectory import ExitReason, Trajectory
from cudaagent.judge.open import open_judge
from cudaagent.judge.settings import JudgeSettings, LimitSettings
from cudaagent.judge.verdict import Baseline, Judge, Purpose, Verdict
from cudaagent.lease import TimingLease
from cudaagent.policy.base import Policy
from cudaagent.policy.fake import FakePolicy
from cudaagent.policy.teacher import TeacherPolicy, conversation, variants
from cudaagent.sandbox.settings import SandboxSettings
from cudaagent.tasks.task import Task
from cudaagent.toolchain.compiler import Compiler, CompileResult
from cudaagent.toolchain.open import open_toolchain
from cudaagent.workspace.submission import Submission

pytestmark = pytest.mark.slow

TASK = Task(
    "relu",
    """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        x = torch.relu(x)
        return x


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return []
""",
)


@dataclass
class Untimed:
    """The real judge, asked for correctness only."""

    judge_: Judge

    def judge(
        self,
        task: Task,
        submission: Submission,
        build: CompileResult | None,
        *,
        purpose: Purpose = "judge",
    ) -> Verdict:
        verdict = self.judge_.judge(task, submission, build, purpose="verify")
        return replace(verdict, reward=1.0) if verdict.correct else verdict

    def prepare(self, task: Task) -> Baseline:
        return self.judge_.prepare(task)


@dataclass(frozen=True)
class Machinery:
    compiler: Compiler
    judge: Untimed
    lease: TimingLease


@pytest.fixture(scope="module")
def machinery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machinery]:
    sandbox, limits = SandboxSettings(), LimitSettings()
    lease = TimingLease("test", directory=tmp_path_factory.mktemp("lease"))
    compiler = open_toolchain(
        "cpu",
        cache_dir=tmp_path_factory.mktemp("objects"),
        limits=limits,
        sandbox=sandbox,
        lease=lease,
    )
    judge = open_judge("cpu", JudgeSettings(), limits, sandbox, lease=lease, seed=1)
    yield Machinery(compiler, Untimed(judge), lease)
    judge.close()


def play(machinery: Machinery, policy: Policy, prompt: str = "short") -> Trajectory:
    (done,) = run_episodes(
        [EpisodeSpec("e", TASK, "agentic", 0, seed=3)],
        policy=policy,
        compiler=machinery.compiler,
        judge=machinery.judge,
        agent=AgentSettings(prompt=prompt),
        sandbox=SandboxSettings(),
        lease=machinery.lease,
    )
    return done


@pytest.mark.parametrize("prompt", ["short", "full"])
def test_the_teacher_solves_a_task(machinery: Machinery, prompt: str) -> None:
    done = play(machinery, TeacherPolicy(), prompt)
    results = [call.result for turn in done.turns for call in turn.calls]
    assert results[2].startswith("BUILD OK")
    assert results[3].startswith("VERIFY OK\n")
    assert (done.exit_reason, done.reward) == (ExitReason.SUBMITTED, 1.0)
    assert set(done.files) == {"kernels/kernel.cpp", "model_new.py"}


def test_a_wrong_kernel_and_one_that_does_not_build_are_told_so(machinery: Machinery) -> None:
    first, verify, _ = conversation(TASK.source, variants(TASK.source)[0])
    assert "TVM_FFI_DLL_EXPORT_TYPED_FUNC" in first
    broken = first.replace("TVM_FFI_DLL_EXPORT_TYPED_FUNC", "NO_SUCH_MACRO")
    done = play(machinery, FakePolicy([broken, verify]))
    results = [call.result for turn in done.turns for call in turn.calls]
    assert results[2].startswith("BUILD FAILED\n")
    assert "kernels/kernel.cpp" in results[2]
    assert results[2].endswith("\nexit status 1")
    assert results[3].startswith("VERIFY FAILED: build-failed\n")
    assert done.verdict is not None
    assert (done.reward, done.verdict.code) == (-1.0, "build-failed")
