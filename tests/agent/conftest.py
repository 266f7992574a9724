"""A workspace by hand, with a real sandbox and a real gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles import SOURCE, TextCompiler, TextJudge

from cudaagent.agent.gateway import Gateway
from cudaagent.agent.hold import LeaseHold
from cudaagent.agent.shell import Shell
from cudaagent.agent.tools import ToolBox
from cudaagent.sandbox.base import Sandbox, open_sandbox
from cudaagent.sandbox.settings import SandboxSettings
from cudaagent.tasks.task import Task
from cudaagent.workspace.workspace import Workspace


@pytest.fixture
def task() -> Task:
    return Task("task-1", SOURCE)


@pytest.fixture
def workspace(tmp_path: Path, task: Task) -> Path:
    tmp_path.chmod(0o755)
    return Workspace.create(task, tmp_path / "workspace", "cpu").directory


@pytest.fixture
def sandbox(workspace: Path) -> Iterator[Sandbox]:
    box = open_sandbox(workspace, SandboxSettings(command_s=20.0))
    yield box
    box.close()


@pytest.fixture
def hold() -> LeaseHold:
    return LeaseHold()


@pytest.fixture
def tools(workspace: Path, sandbox: Sandbox, hold: LeaseHold) -> Iterator[ToolBox]:
    box = ToolBox(workspace, Shell(sandbox, hold, command_s=20.0), aliases=("/workspace",))
    yield box
    box.close()


@pytest.fixture
def compiler() -> TextCompiler:
    return TextCompiler()


@pytest.fixture
def judge() -> TextJudge:
    return TextJudge()


@pytest.fixture
def gateway(
    workspace: Path,
    sandbox: Sandbox,
    task: Task,
    compiler: TextCompiler,
    judge: TextJudge,
    hold: LeaseHold,
) -> Iterator[Gateway]:
    with Gateway(workspace, task, compiler, judge, hold=hold) as running:
        yield running
