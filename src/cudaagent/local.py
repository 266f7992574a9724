"""Commands that need no cluster: a solution directory, this machine, one answer."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cudaagent.agent.feedback import compile_text, profile_text, verify_text
from cudaagent.config import Config, load_config
from cudaagent.errors import TaskError, UserError
from cudaagent.judge.cpu_judge import LocalJudge
from cudaagent.judge.open import open_judge
from cudaagent.judge.verdict import (
    SYSTEM_CODES,
    TASK_CODES,
    Baseline,
    Failure,
    Purpose,
    Verdict,
    failed,
)
from cudaagent.lease import TimingLease
from cudaagent.target import resolve_target
from cudaagent.tasks.suites import load_task
from cudaagent.tasks.task import Task
from cudaagent.toolchain.compiler import CompileResult
from cudaagent.toolchain.gxx import find_cpu_compiler
from cudaagent.toolchain.open import object_cache_dir, open_toolchain
from cudaagent.workspace.submission import Submission
from cudaagent.workspace.workspace import Workspace


def run(options: argparse.Namespace) -> int:
    """Run one local command; returns its exit status."""
    if options.command == "init-workspace":
        return _init_workspace(options)
    config = _config(options)
    target = _target(options, config)
    if options.command == "lint-task":
        return _lint(options, config, target)
    if not options.directory.is_dir():
        raise UserError(f"{options.directory} is not a directory")
    if options.command == "build":
        result = _build(Submission.from_dir(options.directory), config, target)
        fields = {"ok": result.ok, "failure": result.failure, "seconds": result.seconds,
                  "compiled": result.compiled, "reused": result.reused,
                  "diagnostics": result.diagnostics}  # fmt: skip
        print(json.dumps(fields) if options.json else compile_text(result))
        return 0
    return _judge(options, config, target)


def _init_workspace(options: argparse.Namespace) -> int:
    task = load_task(options.task)
    target = resolve_target(options.target)
    Workspace.create(task, options.directory, target)
    if options.json:
        print(json.dumps({"directory": str(options.directory), "target": target}))
    else:
        print(f"{options.directory}: read SKILL.md, then write kernels/ and model_new.py")
    return 0


def _config(options: argparse.Namespace) -> Config:
    overrides = list(options.overrides)
    for name in ("precision", "weights", "tolerance"):
        if (value := getattr(options, name, None)) is not None:
            overrides.append(f"judge.{name}={value}")
    return load_config(None, overrides)


def _target(options: argparse.Namespace, config: Config) -> str:
    requested = options.target if options.target != "auto" else config.target
    if options.device is not None:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", options.device):
            raise UserError(f"--device {options.device}: give cpu or cuda:N")
        kind = options.device.partition(":")[0]
        if requested not in ("auto", kind):
            raise UserError(f"--device {options.device} contradicts --target {requested}")
        requested = kind
    return resolve_target(requested)


def _build(submission: Submission, config: Config, target: str) -> CompileResult:
    toolchain = open_toolchain(
        target,
        cache_dir=object_cache_dir(),
        limits=config.limits,
        sandbox=config.sandbox,
        lease=TimingLease(),
    )
    return toolchain.compile(submission)


@contextlib.contextmanager
def _opened(config: Config, target: str) -> Iterator[LocalJudge]:
    judge = open_judge(target, config.judge, config.limits, config.sandbox, lease=TimingLease())
    try:
        yield judge
    finally:
        judge.close()


def _judge(options: argparse.Namespace, config: Config, target: str) -> int:
    directory: Path = options.directory
    if not (directory / "model.py").is_file():
        raise UserError(f"{directory} has no model.py; the task's source belongs there")
    submission = Submission.from_dir(directory)
    if submission.model_new is None:
        raise UserError(f"{directory} has no model_new.py; see cudaagent init-workspace")
    purpose: Purpose = options.command
    try:
        task = load_task(directory / "model.py")
    except TaskError as error:
        return _report(options, failed(error.code, "task", str(error)))
    build = _build(submission, config, target) if submission.sources else None
    with _opened(config, target) as judge:
        verdict = judge.judge(task, submission, build, purpose=purpose)
    return _report(options, verdict)


def _report(options: argparse.Namespace, verdict: Verdict) -> int:
    if options.json:
        print(verdict.to_json())
    elif verdict.failure is None or not (verdict.blames_task or verdict.blames_system):
        print(verify_text(verdict) if options.command == "verify" else profile_text(verdict))
    return _status(verdict.failure)


def _status(failure: Failure | None) -> int:
    """Exit status of what was found; what is no candidate's fault is also said on stderr."""
    code = "" if failure is None else failure.code
    if failure is None or code not in TASK_CODES | SYSTEM_CODES:
        return 0
    print(f"cudaagent: {code}: {' '.join(failure.message.split())}", file=sys.stderr)
    return 1 if code in SYSTEM_CODES else 2


def _lint(options: argparse.Namespace, config: Config, target: str) -> int:
    task: Task = load_task(options.task)
    find_cpu_compiler()  # torch.compile needs one too, and its own complaint helps nobody
    with _opened(config, target) as judge:
        baseline = judge.prepare(task)
    if options.json:
        print(json.dumps(_baseline_fields(baseline)))
    elif baseline.failure is None:
        print(f"{task.id}: eager {baseline.eager_ms:.3f} ms, torch.compile "
              f"{baseline.compile_ms:.3f} ms")  # fmt: skip
        for warning in baseline.warnings:
            print(f"warning {warning}")
    return _status(baseline.failure)


def _baseline_fields(baseline: Baseline) -> dict[str, Any]:
    failure = baseline.failure
    return {
        "task": baseline.task_id,
        "failure": None
        if failure is None
        else {"code": failure.code, "stage": failure.stage, "message": failure.message},
        "eager_ms": baseline.eager_ms,
        "compile_ms": baseline.compile_ms,
        "warnings": list(baseline.warnings),
    }
