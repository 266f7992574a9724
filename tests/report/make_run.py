"""Run directories with known contents for the report's tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cudaagent.agent.trajectory import ExitReason, Trajectory
from cudaagent.config import load_config
from cudaagent.judge.verdict import Verdict, failed
from cudaagent.run_dir import RunDir
from cudaagent.tasks.task import Task


def correct(eager: float, compiled: float, reward: float, *, reused: bool = False) -> Verdict:
    return Verdict(
        True,
        warnings=("reused",) if reused else (),
        speedup_vs_eager=eager,
        speedup_vs_compile=compiled,
        reward=reward,
        device="cpu",
    )


WRONG = failed("wrong-values", "verify", "element 3 differs")


def episode(
    task_id: str,
    final: Verdict | None,
    best: Verdict | None = None,
    *,
    variant: str = "",
    drop_reason: str | None = None,
) -> Trajectory:
    reward = None if drop_reason else (-1.0 if final is None else final.reward)
    return Trajectory(
        id=f"{task_id}-{id(final)}",
        task_id=task_id,
        stage="agentic",
        step=0,
        seed=0,
        policy_version=0,
        token_ids=np.zeros(2, dtype=np.int32),
        loss_mask=np.ones(2, dtype=np.bool_),
        logprobs=np.zeros(2, dtype=np.float32),
        turns=(),
        exit_reason=ExitReason.SUBMITTED,
        files={"kernels/kernel.cpp": f"// {variant}\n"},
        verdict=final,
        best_verdict=best,
        reward=reward,
        drop_reason=drop_reason,
    )


def start(root: Path, name: str = "r", *overrides: str) -> RunDir:
    run = RunDir.open(load_config(overrides=[f"run.root={root}", f"run.name={name}", *overrides]))
    tasks = [Task("a", "A\n", level=1), Task("b", "B\n", level=2), Task("c", "C\n", level=2)]
    run.write_tasks({"train": [], "heldout": tasks})
    return run


def full_run(root: Path, name: str = "r", *overrides: str, lift: float = 0.0) -> RunDir:
    """Five evaluations and two RL stages; later rewards and speed-ups grow with ``lift``."""
    run = start(root, name, *overrides)
    labels = ("cold_start", "single_turn", "rft", "value_pretraining", "agentic")
    for number, label in enumerate(labels):
        gain = 1 + lift * number
        run.write_evaluation(
            label,
            [
                episode("a", correct(2.0 * gain, 1.5 * gain, 3.0), variant="fused"),
                episode("b", correct(0.8 * gain, 0.5 * gain, 1.0), variant="naive"),
                episode("c", WRONG if number < 3 else correct(1.2, 0.9, 2.0), variant="naive"),
                episode("c", None, drop_reason="sandbox-lost"),
            ],
        )
    for stage in ("single_turn", "agentic"):
        for step in range(12):
            rewards = [
                3.0 if (step + k) % 12 < 3 + step / 2 else (-1.0, 1.0, 2.0)[k % 3] for k in range(8)
            ]
            items = [episode("a", correct(1.5, 1.1, r, reused=step > 5)) for r in rewards]
            run.write_trajectories(stage, step, items)
            metrics = {
                "critic/explained_variance": None if step == 4 else 1 - 2 / (step + 1),
                "actor/entropy": 0.4 - 0.01 * step,
                "actor/kl3": 1e-3 * step,
                "actor/clip_fraction": 0.02,
                "mismatch/kl3": 2e-5 * (step % 3),
                "actor/lr": 1e-4,
            }
            run.step(stage, step, metrics)
    run.step("rft", 0, {"filter/kept": 20.0, "supervised/loss_last": 0.25})
    return run


def by_comment(source: str, files: Mapping[str, str]) -> str | None:
    """A classifier for the episodes above."""
    text = files["kernels/kernel.cpp"].removeprefix("//").strip()
    return text if source and text else None
