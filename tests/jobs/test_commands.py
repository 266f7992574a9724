"""What commands that start a Ray say when they are refused or ended by others."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "configs" / "quickstart.yaml")

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cudaagent.cli", *arguments]


def test_a_checkpoint_that_fails_only_when_loaded_is_one_line(tmp_path: Path) -> None:
    """Its files can be opened, but config.json describes other shapes than the weights have."""
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(ROOT / "checkpoints" / "quickstart", checkpoint)
    config = json.loads((checkpoint / "config.json").read_text())
    config["hidden_size"] *= 2
    (checkpoint / "config.json").write_text(json.dumps(config))
    suite = tmp_path / "suite"
    suite.mkdir()
    shutil.copyfile(ROOT / "tests/judge/solutions/slow/model.py", suite / "task.py")
    done = subprocess.run(
        command(
            "evaluate", "--policy", f"hf:{checkpoint}", "--suite", str(suite), "--config", CONFIG,
            f"run.root={tmp_path}/runs", "--json",
        ),
        cwd=ROOT, text=True, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "other shapes" in done.stderr
    assert "other shapes" in json.loads(done.stdout)["error"]
    assert not list((tmp_path / "runs").iterdir())


def test_sigterm_ends_a_run_in_order(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("train", "--config", CONFIG, f"run.root={tmp_path}", "run.name=r", "--json"),
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    events = tmp_path / "r" / "events.jsonl"
    deadline = time.monotonic() + 300
    try:
        while not (events.is_file() and '"cluster"' in events.read_text()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 143, err
    assert json.loads(out) == {"error": "terminated"}
    assert err.strip().splitlines()[-1] == "cudaagent: terminated"
    assert "SIGTERM received" not in err
