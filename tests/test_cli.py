"""The command line's promises: one line, the right status, one JSON object."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from cudaagent import cli
from cudaagent.cli import main
from cudaagent.config import load_config
from cudaagent.run_dir import RunDir

SOLUTIONS = Path(__file__).parent / "judge" / "solutions"


def fails(arguments: list[str], capfd: pytest.CaptureFixture[str], status: int = 2) -> str:
    """The one line on stderr; with --json also the one object on stdout."""
    assert main([*arguments, "--json"]) == status
    captured = capfd.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("cudaagent: ")
    assert isinstance(json.loads(captured.out), dict)
    return lines[0]


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "task.py"
    shutil.copyfile(SOLUTIONS / "slow" / "model.py", path)
    return path


def test_a_workspace_in_the_way_or_out_of_reach(
    task: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "not an empty directory" in fails(["init-workspace", str(task), str(task)], capfd)
    assert str(task) in fails(["init-workspace", str(task), str(task / "below")], capfd)
    assert main(["init-workspace", str(task), str(tmp_path / "new")]) == 0


def test_a_run_root_that_is_a_file(task: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = fails(["train", f"run.root={task}"], capfd)
    assert str(task) in line


@pytest.mark.parametrize("suite", ["", "kernelbench:", "ops6k:", "[a]", "a: b", "null"])
def test_a_suite_is_taken_as_it_is_written(
    suite: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = fails(
        ["evaluate", "--policy", "teacher", "--suite", suite, f"run.root={tmp_path}"], capfd
    )
    assert "uite" in line
    assert not (tmp_path / "default").exists()


def test_no_compiler_is_said_for_a_task_too(
    task: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("CXX", raising=False)
    assert "g++" in fails(["lint-task", str(task)], capfd)


@pytest.mark.parametrize("damage", [b"", b"PAR1 not really", None])
def test_a_damaged_run_is_named_by_file(
    damage: bytes | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = RunDir.open(load_config(overrides=[f"run.root={tmp_path}", "run.name=r"]))
    path = run.evaluation_path("cold_start")
    path.parent.mkdir(parents=True)
    if damage is None:
        path.mkdir()
    else:
        path.write_bytes(damage)
    assert "cold_start.parquet is not readable" in fails(["report", str(run.path)], capfd)


def test_options_are_not_abbreviated(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--js"]) == 2
    assert "--js" in capfd.readouterr().err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_command_in_order(
    number: int, status: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def native(_: object) -> None:
        """As Ray's waits do: they pass on a KeyboardInterrupt of their own."""
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(cli, "_run", native)
    before = signal.getsignal(signal.SIGTERM)
    # Tests that run in the background were started with SIGINT ignored.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        fails(["doctor"], capfd, status)
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt)


@pytest.mark.parametrize("device", ["cpu:7", "gpu", "cuda:", "cuda:x", ""])
def test_a_device_is_cpu_or_numbered(device: str, capfd: pytest.CaptureFixture[str]) -> None:
    line = fails(["judge", str(SOLUTIONS / "slow"), "--device", device], capfd)
    assert "cuda:N" in line
