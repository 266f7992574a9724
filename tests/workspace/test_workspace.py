"""Workspaces: what is laid out, what is submitted, and that the skill's own example is right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cudaagent.errors import UserError
from cudaagent.judge.settings import LimitSettings
from cudaagent.judge.static_check import check_submission
from cudaagent.sandbox.settings import SandboxSettings
from cudaagent.tasks.task import Task, check_source
from cudaagent.toolchain.cpu import CpuToolchain
from cudaagent.workspace.submission import Submission
from cudaagent.workspace.workspace import Workspace, is_untouched, skill, starter

TASK = Task("t", "class Model: ...\n")


def test_layout(tmp_path: Path) -> None:
    workspace = Workspace.create(TASK, tmp_path / "new" / "ws", "cpu")
    entries = sorted(p.relative_to(workspace.directory) for p in workspace.directory.rglob("*"))
    assert [str(path) for path in entries] == [
        "SKILL.md",
        "kernels",
        "model.py",
        "model_new.py",
        "utils",
        "utils/compile.py",
        "utils/compile.sh",
        "utils/gateway_client.py",
        "utils/profiling.py",
        "utils/verification.py",
    ]
    assert (workspace.directory / "model.py").read_text() == TASK.source


def test_create_refuses_what_it_would_overwrite(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UserError, match="not an empty directory"):
        Workspace.create(TASK, tmp_path, "cpu")
    with pytest.raises(UserError, match="not an empty directory"):
        Workspace.create(TASK, tmp_path / "mine", "cpu")
    with pytest.raises(UserError, match="neither cpu nor cuda"):
        Workspace.create(TASK, tmp_path / "other", "tpu")


def test_untouched_starter_is_no_solution(tmp_path: Path) -> None:
    workspace = Workspace.create(TASK, tmp_path / "ws", "cpu")
    (workspace.directory / "kernels" / "k.cpp").write_text("int f();\n")
    assert is_untouched(workspace.snapshot)
    submission = workspace.submission()
    assert [path for path, _ in submission.files] == ["kernels/k.cpp"]
    failure = check_submission(submission)
    assert failure is not None
    assert failure.code == "no-solution"
    (workspace.directory / "model_new.py").write_text(starter() + "\nX = 1\n")
    assert workspace.submission().model_new == starter() + "\nX = 1\n"


def test_snapshot_restores(tmp_path: Path) -> None:
    workspace = Workspace.create(TASK, tmp_path / "ws", "cpu")
    directory = workspace.directory
    (directory / "kernels" / "sub").mkdir()
    (directory / "kernels" / "sub" / "k.cpp").write_text("old")
    (directory / "model_new.py").write_text("old")
    kept = workspace.snapshot
    (directory / "kernels" / "sub" / "k.cpp").write_text("new")
    (directory / "kernels" / "more.cpp").write_text("new")
    (directory / "model_new.py").unlink()
    outside = tmp_path / "outside"
    outside.write_text("host")
    (directory / "model_new.py").symlink_to(outside)
    workspace.restore(kept)
    assert workspace.snapshot == kept
    assert outside.read_text() == "host"


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_skill_speaks_of_its_target_alone(target: str) -> None:
    text = skill(target)
    assert f"## Target: {target}" in text
    assert text.count("## Target:") == 1
    assert "<!--" not in text


def test_the_skills_example_is_a_solution(tmp_path: Path) -> None:
    blocks = re.findall(r"```(?:python|cpp)\n(.*?)```", skill("cpu"), flags=re.DOTALL)
    model, kernel, model_new = blocks
    check_source(Task("example", model))
    submission = Submission.from_mapping(
        {"kernels/kernel.cpp": kernel.encode(), "model_new.py": model_new.encode()}
    )
    assert check_submission(submission) is None
    compiler = CpuToolchain(tmp_path / "cache", LimitSettings(), SandboxSettings())
    compiler.prepare()
    result = compiler.compile(submission)
    assert result.ok, result.diagnostics
    assert result.diagnostics == ""
    (tmp_path / "library.so").write_bytes(result.library or b"")
    (tmp_path / "model.py").write_text(model)
    (tmp_path / "model_new.py").write_text(model_new)
    script = """
import sys, torch, tvm_ffi
sys.path.insert(0, ".")
sys.modules["cuda_extension"] = tvm_ffi.load_module("./library.so")
import model, model_new
torch.manual_seed(0)
ours, theirs = model_new.ModelNew(1024), model.Model(1024)
weight = torch.randn(1024)
with torch.no_grad():
    ours.weight.copy_(weight)
    theirs.weight.copy_(weight)
    (x,) = model.get_inputs()
    torch.testing.assert_close(ours(x), theirs(x))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
