"""The true loop: small policy, real compiler, real judge, two rollout workers, kills, resume.

One uninterrupted run is the yardstick. A second run of the same seed is killed with -9 in four
places (rollout workers, the learner, the driver itself) and continued with the same command. It
starts from the first one's tasks and verdicts, since measured times are never equal twice;
everything else it makes itself. Tokens and rewards must be equal, weights to rounding: the last
bits of a log-probability depend on which episodes the engine happened to decode together.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from cudaagent.run_dir import RunDir

ROOT = Path(__file__).parents[2]
OVERRIDES = (
    "synthesis.train=4 synthesis.heldout=2 synthesis.max_ms=30 judge.min_rounds=3 "
    "judge.max_rounds=4 single_turn.steps=1 single_turn.batch=4 rft.trajectories=4 rft.batch=4 "
    "value_pretraining.epochs=2 agentic.steps=2 agentic.batch=4 rollout.chunk=2 "
    "evaluation.samples=1"
).split()
DEADLINE_S = 900.0

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def command(root: Path, name: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "cudaagent.cli",
        "train",
        "--config",
        str(ROOT / "configs" / "quickstart.yaml"),
        f"run.root={root}",
        f"run.name={name}",
        *OVERRIDES,
    ]


def start(root: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(root, name),
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    try:
        output, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output[-4000:]
    return output


@pytest.fixture(scope="module")
def yardstick(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, str]:
    root = tmp_path_factory.mktemp("runs")
    output = finish(start(root, "whole"))
    return RunDir.existing(root / "whole"), output


def test_the_run_trains_through_all_stages_and_ends_in_the_table(
    yardstick: tuple[RunDir, str],
) -> None:
    run, output = yardstick
    steps = [(event["stage"], event["step"]) for event in run.events("step")]
    assert steps == [
        ("single_turn", 0),
        ("rft", 0),
        ("value_pretraining", 0),
        ("agentic", 0),
        ("agentic", 1),
    ]
    assert run.evaluations() == [
        "cold_start",
        "single_turn",
        "rft",
        "value_pretraining",
        "agentic",
    ]
    assert "cold start" in output.lower().replace("_", " ")
    assert (run.path / "table.md").is_file()
    assert (run.path / "report.html").is_file()


def test_every_trajectory_is_judged_and_trained_on_its_own_tokens(
    yardstick: tuple[RunDir, str],
) -> None:
    run, _ = yardstick
    trajectories = run.read_trajectories("agentic", 0)
    assert len(trajectories) == 4
    for item in trajectories:
        assert item.reward is not None
        assert item.verdict is not None
        assert item.verdict.reward == item.reward
        assert item.loss_mask.any()
        assert np.isfinite(item.logprobs[item.loss_mask]).all()
        assert not item.logprobs[~item.loss_mask].any()
    assert {item.policy_version for item in trajectories} == {3}
    metrics = run.metrics("agentic")[0]
    # Engine and learner hold the same weights: the first update's mismatch is rounding.
    assert abs(metrics["mismatch/kl3"]) < 1e-3


def test_actor_and_critic_moved(yardstick: tuple[RunDir, str]) -> None:
    run, _ = yardstick
    last = run.checkpoint(run.checkpoints()[-1])
    trained = load_file(last / "model.safetensors")
    assert all(np.isfinite(value).all() for value in trained.values())
    before = run.checkpoint(run.checkpoints()[-2])
    earlier = load_file(before / "model.safetensors")
    assert any((trained[name] != earlier[name]).any() for name in trained)
    assert (last / "critic" / "value_head.safetensors").is_file()


def test_a_finished_run_does_nothing_more(yardstick: tuple[RunDir, str]) -> None:
    run, _ = yardstick
    steps = len(run.events("step"))
    finish(start(run.path.parent, "whole"))
    assert len(RunDir.existing(run.path).events("step")) == steps


def test_kills_change_nothing(yardstick: tuple[RunDir, str], tmp_path: Path) -> None:
    whole, _ = yardstick
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("tasks.parquet", "verdicts.parquet"):
        (broken / name).write_bytes((whole.path / name).read_bytes())

    process = start(tmp_path, "broken")
    _await(process, lambda: kill_descendant(process, "ray::RolloutWorker.rollout"))
    _await(process, lambda: (broken / "trajectories" / "single_turn-0.parquet").is_file())
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)

    process = start(tmp_path, "broken")
    _await(process, lambda: (broken / "trajectories" / "agentic-0.parquet").is_file())
    _await(process, lambda: kill_descendant(process, "ray::Learner"))
    _await(process, lambda: kill_descendant(process, "ray::RolloutWorker.rollout"))
    finish(process)

    run = RunDir.existing(broken)
    lost = {(e["stage"], e["step"]): e["lost_workers"] for e in run.events("rollout")}
    assert lost["agentic", 1] == 1
    for stage, step in (("single_turn", 0), ("sampling", 0), ("agentic", 0), ("agentic", 1)):
        expected = {t.id: t for t in whole.read_trajectories(stage, step)}
        found = {t.id: t for t in run.read_trajectories(stage, step)}
        assert found.keys() == expected.keys()
        for key, item in found.items():
            np.testing.assert_array_equal(item.token_ids, expected[key].token_ids)
            assert item.reward == expected[key].reward
    _assert_equal_weights(whole, run)


def test_a_run_refuses_another_configuration(yardstick: tuple[RunDir, str]) -> None:
    run, _ = yardstick
    result = subprocess.run(
        [*command(run.path.parent, "whole"), "ppo.actor_lr=0.5"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 2
    assert "ppo.actor_lr" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def _assert_equal_weights(one: RunDir, other: RunDir) -> None:
    assert one.checkpoints() == other.checkpoints()
    step = one.checkpoints()[-1]
    for name in ("model.safetensors", "critic/model.safetensors"):
        first = load_file(one.checkpoint(step) / name)
        second = load_file(other.checkpoint(step) / name)
        for key, value in first.items():
            np.testing.assert_allclose(value, second[key], rtol=0, atol=1e-5, err_msg=key)


def _await(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if process.poll() is not None:
            output, _ = process.communicate()
            raise AssertionError(f"the run ended early: {output[-4000:]}")
        if time.monotonic() > deadline:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError("the condition did not come true in time")
        time.sleep(0.05)


def kill_descendant(process: subprocess.Popen[str], title: str) -> bool:
    """Kill -9 one process whose title begins with ``title`` and which our driver started."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "cmdline").read_bytes().decode(errors="replace")
            if not text.startswith(title) or not _descends(int(entry.name), process.pid):
                continue
        except (FileNotFoundError, ProcessLookupError):
            continue
        os.kill(int(entry.name), signal.SIGKILL)
        return True
    return False


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
    return False


def test_dry_run_prints_config_and_placement() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "cudaagent.cli", "train", "--config",
         str(ROOT / "configs" / "quickstart.yaml"), "--dry-run", "--json"],
        cwd=ROOT, text=True, capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    answer = json.loads(result.stdout)
    assert answer["config"]["run"]["name"] == "quickstart"
    assert "learner workers" in answer["placement"]
