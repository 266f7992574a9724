"""Bash for the agent: commands in a sandbox, with a working directory that persists.

Runs on the trusted side; the commands run inside the sandbox. Only the directory outlives a
command: no variable, no process. The directory is told by the command's own shell, so it is the
agent's word; it is used for nothing but the next command's ``cd`` inside the same sandbox.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from cudaagent.agent.hold import LeaseHold
from cudaagent.sandbox.base import Sandbox

_SCRIPT = r"""IFS= read -r -d '' __command
exec </dev/null
trap "printf '\n%s%s' '$1' \"\$PWD\"" EXIT
cd -- "$2" 2>/dev/null || { echo "(directory $2 is gone; working in $PWD)"; }
set --
eval "$__command"
"""
_PATH_CHARS = 4096
_CLIENTS = "utils/"
_SERVICE_S = 600.0
"""Added for a command that calls the gateway's clients: it waits for its turn on the device."""


@dataclass(frozen=True, slots=True)
class ShellOutcome:
    """What the policy is told; ``ok`` is False when the command did not run to its end."""

    text: str
    ok: bool


class Shell:
    """Runs one command after another in ``sandbox``, holding the timing lease meanwhile."""

    def __init__(self, sandbox: Sandbox, hold: LeaseHold, *, command_s: float) -> None:
        self._sandbox = sandbox
        self._hold = hold
        self._command_s = command_s
        self._directory = "."

    def run(self, command: str, timeout_s: float) -> ShellOutcome:
        """Run ``command`` for at most ``timeout_s`` and at most ``sandbox.command_s`` seconds.

        Raises:
            InfrastructureError: the sandbox is lost.
        """
        if "\0" in command or not command.strip():
            return ShellOutcome("the command is empty or holds a NUL", ok=False)
        service_s = _SERVICE_S if _CLIENTS in command else 0.0
        limit_s = max(0.1, min(timeout_s, self._command_s + service_s))
        mark = secrets.token_hex(16)
        with self._hold.active():
            result = self._sandbox.run(
                ["bash", "-c", _SCRIPT, "bash", mark, self._directory],
                timeout_s=limit_s,
                stdin=command.encode("utf-8", errors="replace"),
            )
        output, found, directory = result.output.rpartition(f"\n{mark}")
        if not found:
            output = result.output
        elif 0 < len(directory) <= _PATH_CHARS and "\0" not in directory:
            self._directory = directory
        output = output.strip("\n")
        if result.timed_out:
            message = f"stopped: it ran longer than its {limit_s:.0f} s"
            return ShellOutcome(f"{output}\n{message}".lstrip("\n"), ok=False)
        if result.status != 0:
            output = f"{output}\nexit status {result.status}".lstrip("\n")
        return ShellOutcome(output or "(no output)", ok=True)
