"""The judge of a target."""

from __future__ import annotations

from cudaagent.errors import UserError
from cudaagent.judge.cpu_judge import LocalJudge
from cudaagent.judge.settings import JudgeSettings, LimitSettings
from cudaagent.lease import TimingLease
from cudaagent.sandbox.settings import SandboxSettings


def open_judge(
    target: str,
    judge: JudgeSettings,
    limits: LimitSettings,
    sandbox: SandboxSettings,
    *,
    lease: TimingLease | None = None,
    seed: int | None = None,
) -> LocalJudge:
    """A judge on this machine; the caller closes it.

    Raises:
        UserError: this machine or version cannot serve ``target``.
    """
    if target != "cpu":
        raise UserError(f"target {target}: this machine has no judge for it; use --target cpu")
    return LocalJudge(judge, limits, sandbox, lease=lease, seed=seed)
