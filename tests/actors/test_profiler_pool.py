"""The pool as a real actor over stand-in profilers that count what reaches them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from cudaagent.config import Config
from cudaagent.judge.verdict import Verdict, failed
from cudaagent.tasks.task import Task
from cudaagent.workspace.submission import Submission

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]
TASK = Task(id="t", source="class Model: pass")


class CountingProfiler:
    """Answers after a moment and counts; dies, or blames the system, on request."""

    def __init__(self, directory: str) -> None:
        self._log = Path(directory) / "judged"

    def device(self) -> str:
        return "test device"

    def judge(self, task: Task, submission: Submission, build: object, purpose: str) -> Verdict:
        with self._log.open("a") as log:
            log.write("x")
        text = submission.model_new or ""
        if text == "die" and self._log.stat().st_size < 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if text == "system":
            return failed("infrastructure", "system", "no device")
        time.sleep(0.3)
        return Verdict(correct=True, reward=2.0)


@pytest.fixture
def pool(tmp_path: Path):
    import ray

    from cudaagent.actors.profiler_pool import ProfilerPool

    name = f"profiler of {tmp_path.name}"
    options = {"num_cpus": 0, "max_restarts": -1, "name": name}
    profilers = [ray.remote(CountingProfiler).options(**options).remote(str(tmp_path))]
    actor = ray.remote(ProfilerPool).options(num_cpus=0, max_concurrency=64)
    handle = actor.remote([name], Config(), str(tmp_path / "verdicts.parquet"))
    yield handle
    for each in (handle, *profilers):
        ray.kill(each)


def submission(text: str) -> Submission:
    return Submission.from_mapping({"model_new.py": text.encode()})


def judged(tmp_path: Path) -> int:
    return len((tmp_path / "judged").read_text())


def test_a_verdict_is_made_once_and_says_reused(pool, tmp_path: Path) -> None:
    import ray

    first = ray.get(pool.judge.remote(TASK, submission("a"), None))
    second = ray.get(pool.judge.remote(TASK, submission("a"), None))
    assert first.warnings == ()
    assert second.warnings == ("reused",)
    assert second.reward == first.reward
    assert judged(tmp_path) == 1


def test_equal_requests_at_the_same_time_share_one_judgement(pool, tmp_path: Path) -> None:
    import ray

    verdicts = ray.get([pool.judge.remote(TASK, submission("b"), None) for _ in range(8)])
    assert judged(tmp_path) == 1
    assert sum("reused" in verdict.warnings for verdict in verdicts) == 7


def test_a_tool_call_never_serves_as_the_reward(pool, tmp_path: Path) -> None:
    import ray

    ray.get(pool.judge.remote(TASK, submission("c"), None, "profile"))
    verdict = ray.get(pool.judge.remote(TASK, submission("c"), None, "judge"))
    assert verdict.warnings == ()
    assert judged(tmp_path) == 2


def test_a_profiler_that_dies_costs_a_retry(pool, tmp_path: Path) -> None:
    import ray

    verdict = ray.get(pool.judge.remote(TASK, submission("die"), None))
    assert verdict.correct
    assert judged(tmp_path) == 2


def test_failures_of_the_system_are_retried_and_not_remembered(pool, tmp_path: Path) -> None:
    import ray

    verdict = ray.get(pool.judge.remote(TASK, submission("system"), None))
    assert verdict.code == "infrastructure"
    assert verdict.reward is None
    assert judged(tmp_path) == 3
    ray.get(pool.judge.remote(TASK, submission("system"), None))
    assert judged(tmp_path) == 6


def test_verdicts_outlive_the_pool(pool, tmp_path: Path) -> None:
    import ray

    from cudaagent.verdict_store import VerdictStore

    ray.get(pool.judge.remote(TASK, submission("d"), None))
    ray.get(pool.flush.remote())
    assert len(VerdictStore(tmp_path / "verdicts.parquet")) == 1
