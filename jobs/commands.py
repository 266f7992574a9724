"""The commands that start actors: train, evaluate, synthesize."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from cudaagent.config import Config, load_config, to_dict, to_yaml
from cudaagent.errors import UserError
from cudaagent.target import resolve_target


def run(options: argparse.Namespace) -> int:
    """Run one command; returns its exit status."""
    overrides = list(options.overrides)
    if options.target is not None:
        overrides.append(f"target={options.target}")
    config = load_config(options.config, overrides)
    if options.command == "evaluate":
        if not options.suite:
            raise UserError("--suite is empty; name a Parquet file or a directory of tasks")
        config.policy.spec, config.tasks.heldout = options.policy, options.suite
    if options.dry_run:
        return _dry_run(config, as_json=options.json)
    resolve_target(config.target)
    if options.command == "train":
        return _train(config, options)
    if options.command == "evaluate":
        return _evaluate(config, options)
    return _synthesize(config, options)


def _train(config: Config, options: argparse.Namespace) -> int:
    from cudaagent.jobs.cluster import inside_job
    from cudaagent.jobs.train import train
    from cudaagent.report.command import command

    if inside_job() and not Path(config.run.root).is_absolute():
        print(
            f"note: run.root={config.run.root} lies in the job's copy of the working directory, "
            "which Ray deletes later; give run.root=/absolute/path to keep the run",
            file=sys.stderr,
        )
    with _stdout_kept():
        run_dir = train(config, from_scratch=options.from_scratch)
    return command([run_dir.path], as_json=options.json)


def _evaluate(config: Config, options: argparse.Namespace) -> int:
    from cudaagent.jobs.evaluate import evaluate
    from cudaagent.report.command import command

    with _stdout_kept():
        run_dir = evaluate(config)
    return command([run_dir.path], as_json=options.json)


def _synthesize(config: Config, options: argparse.Namespace) -> int:
    from cudaagent.jobs.synthesize import synthesize

    out: Path = options.out
    if out.suffix != ".parquet":
        raise UserError(f"--out {out}: give a name that ends in .parquet")
    with _stdout_kept():
        counts = synthesize(config, out)
    print(json.dumps(counts) if options.json else f"{out}: {counts['tasks']} tasks")
    return 0


@contextlib.contextmanager
def _stdout_kept() -> Iterator[None]:
    """Send what Ray prints to stdout now and then to stderr: a result must stand there alone."""
    sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:  # closed by whoever started us
        yield
        return
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def _dry_run(config: Config, *, as_json: bool) -> int:
    plan = placement(config)
    if as_json:
        print(json.dumps({"config": to_dict(config), "placement": plan}))
        return 0
    print(to_yaml(config), end="")
    print("placement:")
    for name, text in plan.items():
        print(f"  {name}: {text}")
    return 0


def placement(config: Config) -> dict[str, str]:
    """Which actors a run starts and what each asks Ray for."""
    profiler = "0.01 CPU, timing lease" if config.target != "cuda" else "1 GPU, 1 CPU"
    gpu = ", 1 GPU" if config.learner.use_gpu else ""
    return {
        "rollout workers": f"{config.rollout.workers} x 0 CPU, {config.rollout.chunk} episodes "
        "side by side",
        "compile sandboxes": f"{config.rollout.sandboxes} x 0 CPU",
        "profilers": f"{config.rollout.profilers} x {profiler} (placement group)",
        "profiler pool, policy engine, replay buffer, learner": "1 x 0 CPU each",
        "learner workers": f"{config.learner.workers} x 1 CPU{gpu} (Ray Train)",
    }
