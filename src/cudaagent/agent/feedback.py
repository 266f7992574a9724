"""What the workspace's clients print: build, verification and profile results in few words.

Runs on the trusted side; the texts go to the policy. The first line is short and stable, so that a
policy can learn it, and no measured time stands in what a build or a verification prints, so that
equal seeds give equal trajectories: ``BUILD OK``, ``BUILD FAILED``, ``VERIFY OK``,
``VERIFY FAILED: <code>``, ``PROFILE: ...``.
"""

from __future__ import annotations

import json
from typing import Any

from cudaagent.judge.verdict import Failure, Times, Verdict
from cudaagent.toolchain.compiler import CompileResult

_EVIDENCE_CHARS = 600
_MARGIN = 1.0 / 0.95
"""More than 5 % faster, as a speed-up."""

_WARNING_TEXT = {
    "launch-bound": "launch-bound: launching costs more than the work; the reward stays at most 1",
    "undecided-margin": "undecided-margin: too close to a 5 % line, so the lower reward is given",
    "baseline-slower-than-eager": "baseline-slower-than-eager: torch.compile loses to eager here",
    "mutated-input": "mutated-input: an input was written to",
    "nonstationary-clock": "nonstationary-clock: the device was throttled while timing",
    "mode-dependent": "mode-dependent: the model differs between train and eval; eval counts",
    "short-pass": "short-pass: timed passes were shorter than usual",
}


def compile_text(result: CompileResult) -> str:
    """The outcome of one build."""
    diagnostics = result.diagnostics.strip()
    if result.ok:
        lines = ["BUILD OK"]
        if diagnostics:
            lines.append(diagnostics)
        return "\n".join(lines)
    lines = ["BUILD FAILED"]
    if result.failure == "build-timeout":
        lines.append("build-timeout: the compiler took longer than limits.build_s")
    if result.failure == "no-solution":
        lines.append("no-solution: there is nothing to build; write sources into kernels/")
    if diagnostics:
        lines.append(diagnostics)
    return "\n".join(lines)


def verify_text(verdict: Verdict) -> str:
    """Whether the outputs are right; if not, what differs most and where."""
    if not verdict.correct:
        return _failed_text("VERIFY", verdict)
    lines = ["VERIFY OK"]
    if verdict.error_candidate is not None:
        error = f"error {verdict.error_candidate:.2g} of the output's spread"
        if verdict.error_baseline is not None:
            error += f" (PyTorch's own: {verdict.error_baseline:.2g})"
        lines.append(error)
    return "\n".join(lines + _warnings(verdict))


def profile_text(verdict: Verdict) -> str:
    """Times with their 95 % intervals, speed-ups, the reward and what would raise it."""
    if not verdict.correct:
        return _failed_text("PROFILE", verdict)
    if verdict.candidate_ms is None:
        return "\n".join(["PROFILE: correct, but not timed; run it again", *_warnings(verdict)])
    reward = "none" if verdict.reward is None else f"{verdict.reward:g}"
    lines = [f"PROFILE: reward {reward}"]
    rows = (
        ("yours", verdict.candidate_ms, None),
        ("eager", verdict.eager_ms, verdict.speedup_vs_eager),
        ("torch.compile", verdict.compile_ms, verdict.speedup_vs_compile),
    )
    lines += [_row(name, times, ratio) for name, times, ratio in rows if times is not None]
    if verdict.candidate_cold_ms is not None:
        lines.append(f"first call with new weights: {verdict.candidate_cold_ms:.4g} ms")
    return "\n".join([*lines, *_warnings(verdict), _advice(verdict)])


def _row(name: str, times: Times, ratio: float | None) -> str:
    text = f"{name}: {times.ms:.4g} ms [{times.low_ms:.4g}, {times.high_ms:.4g}]"
    return text if ratio is None else f"{text}, yours is {ratio:.2f}x as fast"


def _advice(verdict: Verdict) -> str:
    eager, compiled = verdict.speedup_vs_eager, verdict.speedup_vs_compile
    if "launch-bound" in verdict.warnings:
        return "next: finish; a launch-bound task cannot earn more"
    if eager is not None and eager <= _MARGIN:
        return "next: beat eager by more than 5 % (reward 2), then torch.compile (reward 3)"
    if compiled is not None and compiled <= _MARGIN:
        return "next: beat torch.compile by more than 5 % (reward 3)"
    return "next: faster than both; finish, or push on"


def _failed_text(kind: str, verdict: Verdict) -> str:
    failure = verdict.failure
    if failure is None:
        return f"{kind} FAILED: unknown\nthe judge gave no reason"
    lines = [f"{kind} FAILED: {failure.code}", failure.message.strip()]
    if verdict.blames_system:
        lines.append("this is not your fault; run it again")
    elif evidence := _evidence(failure):
        lines.append(evidence)
    return "\n".join(lines)


def _evidence(failure: Failure) -> str:
    """The evidence as ``key: value`` lines, capped; what the judge put first stays."""
    lines: list[str] = []
    room = _EVIDENCE_CHARS
    for key, value in failure.evidence.items():
        line = f"{key.replace('_', ' ')}: {_plain(value)}"
        if len(line) > room:
            break
        lines.append(line)
        room -= len(line) + 1
    return "\n".join(lines)


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str)


def _warnings(verdict: Verdict) -> list[str]:
    # Whether a verdict was made just now or before is no news to the agent, and would make two runs
    # of one seed differ.
    shown = (code for code in verdict.warnings if code != "reused")
    return [f"warning {_WARNING_TEXT.get(code, code)}" for code in shown]
