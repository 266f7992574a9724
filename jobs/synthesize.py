"""Synthesise tasks, filter them by execution, write a suite."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from cudaagent.config import Config
from cudaagent.jobs.cluster import Cluster
from cudaagent.jobs.tasks import make_tasks
from cudaagent.run_dir import RunDir
from cudaagent.target import resolve_target
from cudaagent.tasks.suites import write_suite


def synthesize(config: Config, out: Path) -> dict[str, int]:
    """Write ``synthesis.train`` + ``synthesis.heldout`` tasks to ``out``; returns the counts."""
    with tempfile.TemporaryDirectory(prefix="cudaagent-") as scratch:
        run = RunDir(Path(scratch))
        target = resolve_target(config.target)
        verdicts = run.path / "verdicts.parquet"
        with Cluster(config, target, verdicts=verdicts, policy=False) as cluster:
            cluster.ready()
            splits = make_tasks(config, cluster, run)
        rejected = sum(not event["kept"] for event in run.events("task"))
    tasks = [task for split in splits.values() for task in split]
    write_suite(out, tasks)
    return {"tasks": len(tasks), "rejected": rejected}


if __name__ == "__main__":
    from cudaagent.cli import main

    sys.exit(main(["synthesize", *sys.argv[1:]]))
