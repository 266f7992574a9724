"""What a sandbox is to the agent's tools, and which one this machine has."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from cudaagent.errors import UserError
from cudaagent.sandbox.command import CommandResult
from cudaagent.sandbox.confine import best_backend
from cudaagent.sandbox.settings import SandboxSettings

__all__ = ["CommandResult", "Sandbox", "choose_backend", "open_sandbox"]

PROTECTED = ("SKILL.md", "model.py", "utils")
"""Entries of a workspace that its commands see read-only."""
_log = logging.getLogger(__name__)
_announced: set[str] = set()


class Sandbox(Protocol):
    """Runs the policy's commands on one workspace."""

    @property
    def isolation(self) -> str:
        """``namespace``, ``docker`` or ``process``."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> CommandResult:
        """Run a command in the workspace and wait for it; nothing of it is left afterwards.

        Args:
            cwd: relative to the workspace.
            timeout_s: default ``sandbox.command_s``.
            env: added to the sandbox's own small environment; the host's is never passed on.

        Raises:
            InfrastructureError: the sandbox failed; whatever the command does is a result.
        """
        ...

    def close(self) -> None:
        """End what is left and give the workspace back; may be called twice."""
        ...


def choose_backend(settings: SandboxSettings) -> str:
    """The isolation level that ``settings`` asks for: ``namespace`` or ``process``.

    The weak level is announced once in a process, through logging.

    Raises:
        UserError: this machine does not have what was asked for.
    """
    asked = settings.backend
    if asked == "docker":
        raise UserError(
            "sandbox.backend=docker is not there yet; use sandbox.backend=auto or namespace"
        )
    if asked not in ("auto", "namespace", "process"):
        raise UserError(f"sandbox.backend={asked}: use auto, namespace, docker or process")
    found = "process" if asked == "process" else best_backend()
    if asked == "namespace" and found != "namespace":
        raise UserError(
            "sandbox.backend=namespace: this machine allows neither root nor user namespaces; "
            "use sandbox.backend=process with trusted tasks and policies only"
        )
    if found == "process" and found not in _announced:
        _announced.add(found)
        _log.warning(
            "isolation is only 'process': untrusted code sees this machine's files, processes and "
            "network with your rights; use it for your own tasks and policies only"
        )
    return found


def open_sandbox(
    workspace: Path,
    settings: SandboxSettings,
    *,
    output_bytes: int = 64 << 10,
    protected: Sequence[str] = PROTECTED,
) -> Sandbox:
    """A sandbox whose commands work in ``workspace``, the only host directory they may write.

    Args:
        output_bytes: kept of what one command prints, the middle cut.
        protected: entries of the workspace that commands cannot change (level ``namespace``).

    Raises:
        UserError: no such directory, or the machine lacks the isolation asked for.
    """
    from cudaagent.sandbox.local import LocalSandbox

    if not workspace.is_dir():
        raise UserError(f"workspace {workspace} is not a directory")
    backend = choose_backend(settings)
    return LocalSandbox(
        workspace.resolve(), settings, backend, output_bytes=output_bytes, protected=protected
    )
