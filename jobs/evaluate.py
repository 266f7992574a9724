"""Evaluate a policy on a suite: the paper's Table 1 for one model."""

from __future__ import annotations

import sys

from cudaagent.config import Config
from cudaagent.jobs.cluster import Cluster
from cudaagent.jobs.evaluation import evaluate_tasks
from cudaagent.policy.open import check_policy
from cudaagent.run_dir import RunDir
from cudaagent.target import resolve_target
from cudaagent.tasks.suites import load_suite


def evaluate(config: Config) -> RunDir:
    """Run ``evaluation.samples`` episodes of every task in ``tasks.heldout`` and keep them.

    Raises:
        UserError: a suite or policy that cannot be used.
    """
    assert config.tasks.heldout is not None
    check_policy(config.policy.spec)  # before anything is written
    tasks = load_suite(config.tasks.heldout)
    target = resolve_target(config.target)
    run = RunDir.open(config)
    verdicts = run.path.resolve() / "verdicts.parquet"
    with run.exclusive(), Cluster(config, target, verdicts=verdicts) as cluster:
        cluster.ready()
        run.write_tasks({"heldout": tasks})
        evaluate_tasks(cluster, run, tasks, "policy")
        run.event("finished")
    return run


if __name__ == "__main__":
    from cudaagent.cli import main

    sys.exit(main(["evaluate", *sys.argv[1:]]))
