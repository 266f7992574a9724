"""The CPU judge on real runners, real kernels and real code of strangers; no timing is asserted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cudaagent.judge.cpu_judge import LocalJudge
from cudaagent.judge.settings import JudgeSettings, LimitSettings
from cudaagent.judge.verdict import Verdict
from cudaagent.lease import TimingLease
from cudaagent.sandbox.settings import SandboxSettings
from cudaagent.tasks.task import Task
from cudaagent.toolchain.compiler import CompileResult
from cudaagent.toolchain.cpu import CpuToolchain
from cudaagent.workspace.submission import Submission

LIMITS = LimitSettings(call_s=10.0, load_s=60.0)
# Other work may run beside tests, so no pass counts as disturbed; passes are short.
SETTINGS = JudgeSettings(
    share_reference=True, disturbed_share=1e6, pass_ms=2.0, min_rounds=6, max_rounds=6
)

KERNELS = (Path(__file__).parent / "kernels.cpp").read_text()

SQUARE = Task(
    "square",
    """
import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, x):
        return x * x + 2.0 * x + 1.0
def get_inputs(): return [torch.randn(64, 1024)]
def get_init_inputs(): return []
""",
)

LINEAR = Task(
    "linear",
    """
import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, wide, deep):
        super().__init__()
        self.linear = nn.Linear(wide, deep)
    def forward(self, x):
        return self.linear(x).sum(dim=1, keepdim=True)
def get_inputs(): return [torch.rand(32, 64)]
def get_init_inputs(): return [64, 16]
""",
)


def model(call: str, *, before: str = "", output: str = "torch.empty_like(x)") -> str:
    """A ``model_new.py`` whose forward calls one kernel."""
    return f"""
import torch
import torch.nn as nn
import cuda_extension
{before}
class ModelNew(nn.Module):
    def forward(self, x):
        out = {output}
        {call}
        return out
"""


LINEAR_NEW = """
import torch
import torch.nn as nn
import cuda_extension
class ModelNew(nn.Module):
    def __init__(self, wide, deep):
        super().__init__()
        self.linear = nn.Linear(wide, deep)
    def forward(self, x):
        out = torch.empty((x.shape[0], 1))
        cuda_extension.row_sum(x, self.linear.weight, self.linear.bias, out)
        return out
"""


@pytest.fixture(scope="module")
def lease(tmp_path_factory: pytest.TempPathFactory) -> TimingLease:
    return TimingLease("cpu", directory=tmp_path_factory.mktemp("lease"))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> CompileResult:
    toolchain = CpuToolchain(tmp_path_factory.mktemp("cache"), LIMITS, SandboxSettings())
    result = toolchain.compile(submission("pass"))
    assert result.ok, result.diagnostics
    return result


@pytest.fixture(scope="module")
def judge(lease: TimingLease) -> Iterator[LocalJudge]:
    with LocalJudge(SETTINGS, LIMITS, SandboxSettings(), lease=lease) as local:
        yield local


def submission(model_new: str) -> Submission:
    return Submission.from_mapping(
        {"model_new.py": model_new.encode(), "kernels/all.cpp": KERNELS.encode()}
    )


def verify(judge: LocalJudge, library: CompileResult, call: str, task: Task = SQUARE) -> Verdict:
    return judge.judge(task, submission(model(call)), library, purpose="verify")


def test_an_honest_solution_verifies(judge: LocalJudge, library: CompileResult) -> None:
    verdict = verify(judge, library, "cuda_extension.fast(x, out)")
    assert verdict.correct, verdict.failure
    assert verdict.failure is None
    assert verdict.reward is None
    assert verdict.reference == "fp64"
    assert verdict.error_candidate is not None
    assert verdict.error_candidate < 1e-5
    assert verdict.isolation in ("namespace", "process")
    assert verdict.versions["torch"]
    assert Verdict.from_json(verdict.to_json()).correct


def test_weights_are_handed_over_by_name(judge: LocalJudge, library: CompileResult) -> None:
    right = judge.judge(LINEAR, submission(LINEAR_NEW), library, purpose="verify")
    assert right.correct, right.failure
    renamed = LINEAR_NEW.replace("self.linear", "self.dense")
    wrong = judge.judge(LINEAR, submission(renamed), library, purpose="verify")
    assert wrong.code == "parameter-mismatch"
    assert wrong.failure is not None
    assert "linear.weight" in wrong.failure.message
    frozen = LINEAR_NEW.replace("self.linear.bias, out", "self.bias, out").replace(
        "    def forward", "        self.bias = torch.zeros(deep)\n    def forward"
    )
    assert judge.judge(LINEAR, submission(frozen), library, purpose="verify").code == "wrong-values"


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("cuda_extension.nearly(x, out)", "wrong-values"),
        ("cuda_extension.truncated(x, out)", "precision"),
        ("cuda_extension.once(x, out)", "wrong-values"),
        ("cuda_extension.segv(x, out)", "crashed"),
        ("raise ValueError('no such shape')", "runtime-error"),
        ("cuda_extension.absent(x, out)", "runtime-error"),
        ("return torch.empty(3)", "wrong-shape"),
        ("return torch.empty_like(x, dtype=torch.float64)", "wrong-dtype"),
        ("return out, out", "wrong-structure"),
        ("return x", "aliased-output"),
    ],
)
def test_each_failure_has_its_code(
    judge: LocalJudge, library: CompileResult, call: str, code: str
) -> None:
    verdict = verify(judge, library, call)
    assert verdict.code == code, verdict.failure
    assert verdict.reward == -1.0
    assert not verdict.correct


def test_a_forbidden_operator_is_refused_before_it_runs(
    judge: LocalJudge, library: CompileResult
) -> None:
    verdict = verify(judge, library, "return torch.relu(x)")
    assert verdict.code == "forbidden-operator"
    assert verdict.failure is not None
    assert "relu" in verdict.failure.message


def test_an_exit_at_import_is_named(judge: LocalJudge) -> None:
    # Such text never gets past the static check; the runner must hold without it.
    from cudaagent.judge.candidate import Candidate, CandidateFailed
    from cudaagent.judge.compare import Policy

    known = judge.tasks.studied(SQUARE)
    assert known.facts is not None
    import random

    for code, end in (("import os; os._exit(0)", "exit status 0"), ("1 / 0", "division by zero")):
        candidate = Candidate(
            judge.runners.fork(),
            known.facts,
            judge.runners.ring,
            LIMITS,
            Policy(),
            judge.runners.shared,
            random.Random(),
        )
        with pytest.raises(CandidateFailed) as caught:
            candidate.load(code, None)
        candidate.close()
        assert caught.value.failure.code == "load-failed"
        assert end in caught.value.failure.message


def test_an_endless_kernel_ends_at_the_limit(
    judge: LocalJudge, library: CompileResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judge.tasks.studied(SQUARE).failure is None
    with monkeypatch.context() as patch:
        patch.setattr(LIMITS, "call_s", 1.0)
        verdict = verify(judge, library, "cuda_extension.hang(x, out)")
    assert verdict.code == "timeout", verdict.failure
    assert verdict.failure is not None
    assert "limits.call_s" in verdict.failure.message
    after = verify(judge, library, "cuda_extension.fast(x, out)")
    assert after.correct, after.failure


def test_mutated_inputs_are_a_warning(judge: LocalJudge, library: CompileResult) -> None:
    verdict = verify(judge, library, "cuda_extension.zeroing(x, out)")
    assert verdict.correct, verdict.failure
    assert "mutated-input" in verdict.warnings


def test_an_output_buffer_used_again_is_wrong(judge: LocalJudge, library: CompileResult) -> None:
    text = """
import torch
import torch.nn as nn
import cuda_extension
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = None
    def forward(self, x):
        if self.kept is None:
            self.kept = torch.empty_like(x)
        cuda_extension.fast(x, self.kept)
        return self.kept
"""
    verdict = judge.judge(SQUARE, submission(text), library, purpose="verify")
    assert verdict.code == "wrong-values"
    assert verdict.failure is not None
    assert "same address" in verdict.failure.message


def test_times_and_rewards(judge: LocalJudge, library: CompileResult) -> None:
    baseline = judge.prepare(SQUARE)
    assert baseline.failure is None
    assert baseline.eager_ms is not None
    assert baseline.compile_ms is not None
    slow = judge.judge(SQUARE, submission(model("cuda_extension.slow(x, out)")), library)
    assert slow.correct, slow.failure
    assert slow.reward == 1.0
    fast = judge.judge(SQUARE, submission(model("cuda_extension.fast(x, out)")), library)
    assert fast.correct, fast.failure
    assert fast.reward in (1.0, 2.0, 3.0)
    for verdict in (slow, fast):
        assert verdict.candidate_ms is not None
        assert (
            verdict.candidate_ms.low_ms <= verdict.candidate_ms.ms <= verdict.candidate_ms.high_ms
        )
        assert verdict.evidence["checked_calls"] >= 6
        assert verdict.evidence["calls"] < verdict.evidence["slots"]
    assert slow.candidate_ms.ms > fast.candidate_ms.ms


@pytest.mark.parametrize(
    ("late", "code"),
    [
        ("cuda_extension.truncated(x, out)", "precision"),
        ("return x", "aliased-output"),
        ("cuda_extension.nearly(x, out)", "wrong-values"),
        ("return {'y': x, 'n': 1}['y'] * 2", "forbidden-operator"),
    ],
)
def test_what_holds_in_verification_holds_in_timed_passes(
    judge: LocalJudge, library: CompileResult, late: str, code: str
) -> None:
    text = f"""
import torch
import torch.nn as nn
import cuda_extension
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        out = torch.empty_like(x)
        if self.calls > 40:
            {late}
            return out
        cuda_extension.fast(x, out)
        return out
"""
    verdict = judge.judge(SQUARE, submission(text), library)
    assert verdict.code == code, verdict.failure
    assert verdict.failure is not None
    assert verdict.failure.stage == "profile"


def test_a_hidden_operator_is_seen_when_it_runs(judge: LocalJudge, library: CompileResult) -> None:
    verdict = verify(judge, library, "{'y': x, 'n': 1}['y'] * 2; cuda_extension.fast(x, out)")
    assert verdict.code == "forbidden-operator"
    assert verdict.failure is not None
    assert "aten.mul" in verdict.failure.message


def test_views_and_allocation_are_no_operators(judge: LocalJudge, library: CompileResult) -> None:
    call = "a, b = x.t().contiguous().t().contiguous(), out.view(-1).view(out.shape); "
    verdict = verify(judge, library, call + "cuda_extension.fast(a, b)")
    assert verdict.correct, verdict.failure


def test_weights_change_within_a_pass(judge: LocalJudge, library: CompileResult) -> None:
    verdict = judge.judge(LINEAR, submission(LINEAR_NEW), library, purpose="profile")
    assert verdict.correct, verdict.failure
    assert verdict.reward in (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("body", "inputs", "code"),
    [
        ("return torch.zeros(4)", "[torch.randn(4)]", "task-constant"),
        ("return torch.bernoulli(torch.sigmoid(x))", "[torch.randn(400)]", "task-random"),
        ("return torch.log(-x.abs() - 1.0)", "[torch.randn(400)]", "task-invalid"),
        ("return x.undefined", "[torch.randn(4)]", "task-invalid"),
        ("return x", "[object()]", "task-invalid"),
        ("import os; os._exit(0)", "[torch.randn(4)]", "task-invalid"),
    ],
)
def test_unfit_tasks(judge: LocalJudge, body: str, inputs: str, code: str) -> None:
    source = f"""
import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, x):
        {body}
def get_inputs(): return {inputs}
def get_init_inputs(): return []
"""
    baseline = judge.prepare(Task("unfit", source))
    assert baseline.failure is not None
    assert baseline.failure.code == code
    # The next task gets a runner that works.
    assert judge.tasks.studied(SQUARE).failure is None


def test_structures_and_dtypes_cross(judge: LocalJudge) -> None:
    task = Task(
        "structure",
        """
import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, scale, table, options):
        super().__init__()
        self.register_buffer("table", table, persistent=False)
        self.scale = scale
        self.flag = options["flag"]
    def forward(self, x, pair, n):
        values, indices = torch.sort(x.float() * self.scale + pair[1][: x.shape[0]], 0)
        return {"values": values.to(torch.bfloat16), "rest": [indices, n, None], "b": x > 0}
def get_inputs():
    return [torch.randn(64, 8, dtype=torch.bfloat16).t().contiguous().t(),
            (torch.zeros(1), torch.rand(64, 8)), 3]
def get_init_inputs(): return [2.0, torch.arange(4.0), {"flag": None, "dtype": torch.float16}]
""",
    )
    known = judge.tasks.studied(task)
    assert known.failure is None, known.failure
    facts = known.facts
    assert facts is not None
    assert [leaf.name for leaf in facts.leaves] == [
        "output['b']", "output['rest'][0]", "output['values']"
    ]  # fmt: skip
    assert [leaf.dtype for leaf in facts.leaves] == ["bool", "int64", "bfloat16"]
    assert facts.layout.inputs[0].stride == (1, 64)


def test_weak_isolation_frozen_weights_and_a_reference_for_each_task(
    library: CompileResult, lease: TimingLease
) -> None:
    settings = replace(SETTINGS, share_reference=False, weights="frozen")
    sandbox = SandboxSettings(backend="process")
    with LocalJudge(settings, LIMITS, sandbox, lease=lease) as judge:
        linear = judge.judge(LINEAR, submission(LINEAR_NEW), library, purpose="verify")
        assert linear.correct, linear.failure
        assert linear.isolation == "process"
        assert linear.weights == "frozen"
        first = judge.runners.reference(LINEAR).process.pid
        square = verify(judge, library, "cuda_extension.fast(x, out)")
        assert square.correct, square.failure
        assert judge.runners.reference(SQUARE).process.pid != first
        # A zygote that somebody killed is replaced.
        os.kill(judge.runners.zygote.pid, signal.SIGKILL)
        lost = verify(judge, library, "cuda_extension.fast(x, out)")
        assert lost.code == "infrastructure"
        assert lost.reward is None
        after = verify(judge, library, "cuda_extension.fast(x, out)")
        assert after.correct, after.failure


def test_nothing_is_left_when_the_judge_is_killed(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from cudaagent.judge.cpu_judge import LocalJudge
from cudaagent.judge.settings import JudgeSettings, LimitSettings
from cudaagent.lease import TimingLease
from cudaagent.sandbox.settings import SandboxSettings
judge = LocalJudge(JudgeSettings(), LimitSettings(), SandboxSettings(),
                   lease=TimingLease("cpu", directory=Path({str(tmp_path)!r})))
runner = judge.runners.fork()
print(judge.runners.zygote.pid, runner.pid, flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 2
    assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a process outlived the judge"
        time.sleep(0.05)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as handle:
            return handle.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
