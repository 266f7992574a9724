"""The quickstart's actors on a Ray with two CPUs, the learner in a Ray Train worker of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ray

from cudaagent.config import load_config
from cudaagent.jobs.cluster import Cluster
from cudaagent.rl.stages import StagePlan

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_placement_fits_two_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray.shutdown()  # a Ray that another test left
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    config = load_config(ROOT / "configs" / "quickstart.yaml", ["learner.workers=1"])
    plan = StagePlan(
        stage="single_turn",
        batch_ids=("single_turn-0",),
        first_step=0,
        done=0,
        actor=str(ROOT / "checkpoints" / "quickstart"),
        critic=None,
        optimizer=None,
    )
    with Cluster(
        config, "cpu", verdicts=tmp_path / "verdicts.parquet", learner_dir=tmp_path
    ) as cluster:
        assert cluster.ready().startswith("cpu:")
        assert ray.cluster_resources()["CPU"] == 2
        # Returns when the worker has its models and waits for the first batch.
        ray.get(cluster.learner.start.remote(plan), timeout=300)
        assert ray.available_resources()["CPU"] <= 1.0
