"""The run directory: what survives a kill, what is refused, what comes back as it was written."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cudaagent.agent.trajectory import ExitReason, ToolCall, Trajectory, Turn
from cudaagent.config import Config, load_config
from cudaagent.errors import UserError
from cudaagent.judge.settings import JudgeSettings
from cudaagent.judge.verdict import Times, Verdict, failed
from cudaagent.run_dir import RunDir
from cudaagent.tasks.task import Task
from cudaagent.verdict_store import VerdictStore, policies_of


def config_for(root: Path, *overrides: str) -> Config:
    return load_config(overrides=[f"run.root={root}", "run.name=r", *overrides])


def trajectory(identifier: str = "e0", verdict: Verdict | None = None) -> Trajectory:
    call = ToolCall("Bash", {"command": "true"}, "ok", True)
    return Trajectory(
        id=identifier,
        task_id="t",
        stage="agentic",
        step=1,
        seed=7,
        policy_version=2,
        token_ids=np.array([1, 2, 3], dtype=np.int32),
        loss_mask=np.array([False, True, True]),
        logprobs=np.array([0.0, -0.5, -0.25], dtype=np.float32),
        turns=(Turn(1, 3, (call,)),),
        exit_reason=ExitReason.SUBMITTED,
        files={"model_new.py": "pass\n"},
        verdict=verdict,
        reward=3.0,
    )


CORRECT = Verdict(True, eager_ms=Times(2.0, 1.9, 2.1), speedup_vs_eager=2.0, reward=3.0)
KEY = ("task", "submission", "cpu", policies_of(JudgeSettings()))


def test_continuing_with_the_same_configuration_keeps_the_events(tmp_path: Path) -> None:
    RunDir.open(config_for(tmp_path)).event("step", stage="agentic", step=0, reward=1.0)
    run = RunDir.open(config_for(tmp_path))
    assert [event["kind"] for event in run.events()] == ["started", "step", "continued"]
    assert run.config() == config_for(tmp_path)


def test_a_changed_key_is_refused_by_name(tmp_path: Path) -> None:
    RunDir.open(config_for(tmp_path)).write_tasks({"train": []})
    with pytest.raises(UserError, match=r"ppo\.clip_high=0\.28, not 0\.3") as caught:
        RunDir.open(config_for(tmp_path, "ppo.clip_high=0.3"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "override", ["rollout.workers=3", "learner.threads=1", "run.stages=[rft]", "ppo.micro_tokens=9"]
)
def test_keys_of_the_machine_may_change_and_are_noted(tmp_path: Path, override: str) -> None:
    RunDir.open(config_for(tmp_path))
    run = RunDir.open(config_for(tmp_path, override))
    assert list(run.events("continued")[0]["changed"]) == [override.partition("=")[0]]


def test_an_attempt_that_made_nothing_binds_nobody_unless_it_is_still_at_it(tmp_path: Path) -> None:
    run = RunDir.open(config_for(tmp_path))
    with run.exclusive(), pytest.raises(UserError, match="another process"):
        RunDir.open(config_for(tmp_path, "ppo.clip_high=0.3"))
    assert run.config().ppo.clip_high == 0.28
    assert RunDir.open(config_for(tmp_path, "ppo.clip_high=0.3")).config().ppo.clip_high == 0.3


def test_a_refused_attempt_leaves_nothing_a_begun_one_stays(tmp_path: Path) -> None:
    def refuse(run: RunDir) -> None:
        with run.exclusive():
            raise UserError("no")

    run = RunDir.open(config_for(tmp_path))
    with pytest.raises(UserError, match="no"):
        refuse(run)
    assert not run.path.exists()
    run = RunDir.open(config_for(tmp_path))
    run.write_tasks({"train": []})
    with pytest.raises(UserError, match="no"):
        refuse(run)
    assert run.config_path.is_file()


def test_a_moved_run_continues(tmp_path: Path) -> None:
    RunDir.open(config_for(tmp_path / "a")).event("x")
    (tmp_path / "a").rename(tmp_path / "b")
    assert len(RunDir.open(config_for(tmp_path / "b")).events("x")) == 1


def test_a_torn_last_line_is_ignored_then_cut(tmp_path: Path) -> None:
    run = RunDir.open(config_for(tmp_path))
    with run.events_path.open("a") as handle:
        handle.write('{"kind": "step", "st')
    assert [event["kind"] for event in run.events()] == ["started"]
    RunDir(run.path).event("after")
    assert [event["kind"] for event in run.events()] == ["started", "after"]
    assert run.events_path.read_text().endswith("\n")


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    run = RunDir.open(config_for(tmp_path))
    with run.events_path.open("a") as handle:
        handle.write("not json\n")
    run.event("after")
    with pytest.raises(UserError, match="line 2, is not a JSON object"):
        run.events()


def test_events_hold_numpy_and_non_finite_numbers(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.event("step", a=np.float32(0.5), b=np.int64(3), c=math.nan, d={"e": (1, math.inf)})
    event = run.events()[0]
    assert (event["a"], event["b"], event["c"], event["d"]) == (0.5, 3, None, {"e": [1, None]})
    with pytest.raises(TypeError, match="object"):
        run.event("step", a=object())


def test_of_a_repeated_step_the_last_metrics_count(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for step, reward in ((0, 1.0), (1, 2.0), (10, 4.0), (1, 3.0)):
        run.step("agentic", step, {"reward": reward})
    run.step("single_turn", 5, {"reward": 0.0})
    assert [(m["step"], m["reward"]) for m in run.metrics("agentic")] == [
        (0, 1.0),
        (1, 3.0),
        (10, 4.0),
    ]


def test_a_writer_killed_at_any_moment_leaves_a_readable_run(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cudaagent.run_dir import RunDir\n"
        "run = RunDir(Path(sys.argv[1])); i = 0\n"
        "print('go', flush=True)\n"
        "while True: run.event('step', stage='agentic', step=i, pad='x' * 9000); i += 1\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        run = RunDir(tmp_path)
        while not run.events():
            pass
        os.kill(process.pid, signal.SIGKILL)
    steps = [event["step"] for event in run.events()]
    assert steps == list(range(len(steps)))
    RunDir(tmp_path).event("continued")
    assert run.events()[-1]["kind"] == "continued"


def test_only_one_writer(tmp_path: Path) -> None:
    with (
        RunDir(tmp_path).exclusive(),
        pytest.raises(UserError, match="another process"),
        RunDir(tmp_path).exclusive(),
    ):
        pass
    with RunDir(tmp_path).exclusive():
        pass


def test_trajectories_and_evaluations_come_back(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for step in (2, 10, 1):
        run.write_trajectories("agentic", step, [trajectory(f"e{step}", CORRECT)])
    run.write_evaluation("cold_start", [trajectory("c")])
    assert run.steps("agentic") == [1, 2, 10]
    assert run.steps("single_turn") == []
    item = run.read_trajectories("agentic", 10)[0]
    assert item.id == "e10"
    assert item.verdict == CORRECT
    assert item.turns == trajectory().turns
    np.testing.assert_array_equal(item.logprobs, trajectory().logprobs)
    assert run.evaluations() == ["cold_start"]
    assert run.read_evaluation("cold_start")[0].id == "c"


def test_tasks_come_back_by_split(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.tasks() == []
    train = Task("a", "x = 1\n", "synth", 2, ("relu", "sum"), {"rows": 8})
    heldout = Task("b", "y = 2\n")
    run.write_tasks({"train": [train], "heldout": [heldout]})
    assert run.tasks("train") == [train]
    assert run.tasks() == [train, heldout]


def test_half_written_checkpoints_do_not_count(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for name in ("step-2", "step-10", ".step-11.42.abcd.tmp", "notes"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert run.checkpoints() == [2, 10]
    assert run.checkpoint(10).is_dir()


@pytest.mark.parametrize(("make", "message"), [(False, "does not exist"), (True, "config.yaml")])
def test_a_missing_or_foreign_directory_is_refused(
    tmp_path: Path, make: bool, message: str
) -> None:
    path = tmp_path / "nothing"
    if make:
        path.mkdir()
    with pytest.raises(UserError, match=message):
        RunDir.existing(path)


def test_verdicts_are_given_again_as_reused(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path / "verdicts.parquet")
    assert store.get(*KEY) is None
    store.put(*KEY, verdict=CORRECT, task_id="t")
    store.flush()
    again = VerdictStore(tmp_path / "verdicts.parquet").get(*KEY)
    assert again == CORRECT.with_warning("reused")
    assert store.rows()[0].task_id == "t"
    assert "reused" not in json.loads(store.rows()[0].verdict)["warnings"]


def test_another_policy_or_device_is_another_verdict(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path / "verdicts.parquet")
    store.put(*KEY, verdict=CORRECT, task_id="t")
    assert store.get(*KEY[:3], policies_of(JudgeSettings(weights="frozen"))) is None
    assert store.get(*KEY[:2], "cuda:0", KEY[3]) is None


def test_verdicts_that_blame_the_system_are_not_kept(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path / "verdicts.parquet")
    store.put(*KEY, verdict=failed("infrastructure", "system", "runner lost"), task_id="t")
    store.flush()
    assert len(store) == 0
    assert not (tmp_path / "verdicts.parquet").exists()


def test_a_flush_after_lazy_ones_writes_everything(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path / "verdicts.parquet")
    for number in range(50):
        store.put(f"task{number}", *KEY[1:], verdict=CORRECT, task_id="t")
        store.flush(lazily=True)
    store.flush()
    assert len(VerdictStore(tmp_path / "verdicts.parquet")) == 50


def test_without_a_path_verdicts_stay_in_memory() -> None:
    store = VerdictStore(None)
    store.put(*KEY, verdict=CORRECT, task_id="t")
    store.flush()
    assert store.get(*KEY) is not None
