"""Train an agent: the whole loop, top to bottom.

``ray job submit --working-dir . -- python jobs/train.py --config configs/quickstart.yaml``, or
outside a job ``cudaagent train --config ...``, which starts a local Ray of its own.

A run killed at any moment continues with the same command: what is on disk (tasks, trajectories,
verdicts, checkpoints, evaluations) is taken as it is, and the rest is done.
"""

from __future__ import annotations

import sys

from cudaagent.config import Config
from cudaagent.jobs.session import TrainingSession
from cudaagent.policy.checkpoint import local_checkpoint
from cudaagent.run_dir import RunDir


def train(config: Config, *, from_scratch: bool = False) -> RunDir:
    """Run the stages of ``config.run.stages`` and evaluate on held-out tasks after each.

    Raises:
        UserError: an option, task, checkpoint or target that cannot be used.
        InfrastructureError: the cluster failed in a way that retries do not mend.
    """
    if not from_scratch:
        local_checkpoint(config.policy.spec)  # before anything is written
    run = RunDir.open(config)
    with run.exclusive(), TrainingSession(config, run, from_scratch=from_scratch) as session:
        session.prepare_tasks()
        session.evaluate("cold_start")
        for stage in config.run.stages:
            plan = session.plan(stage)
            with session.learning(plan):  # one Ray Train fit
                for index in range(plan.done, len(plan.batch_ids)):
                    session.collect(plan, index)  # episodes, judged and on disk
                    result = session.learn(plan, index)  # critic, actor, checkpoint
                    session.publish(result)  # weights to the engine
            session.evaluate(stage)
        run.event("finished")
    return run


if __name__ == "__main__":
    from cudaagent.cli import main

    sys.exit(main(["train", *sys.argv[1:]]))
