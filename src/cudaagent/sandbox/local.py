"""The sandbox on this machine: each command in namespaces of its own, or, weakly, as a process.

Runs in the trusted process. Level ``namespace``: the workspace is /workspace, writable; system
directories and the interpreter are visible read-only; /tmp is private to the command; there is no
network and nothing survives a command. Level ``process``: limits and a sweep of the descendants.

As root the workspace's files are given to an unprivileged uid of this sandbox's own (see
``confine.fresh_uid``) for its life and back to their owner at the end; otherwise the caller's uid
works in it. Not covered: a total over several processes' memory, disk space of the workspace (one
file is limited), and, at level ``process`` as root, the number of processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cudaagent.errors import InfrastructureError
from cudaagent.sandbox.command import CommandResult, CommandSpec, run_command
from cudaagent.sandbox.confine import Bind, ConfineLimits, fresh_uid
from cudaagent.sandbox.settings import SandboxSettings

WORKSPACE = "/workspace"
"""Where a command sees its workspace (level ``namespace``)."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LocalSandbox:
    """Commands on one workspace; see ``base.Sandbox``."""

    def __init__(
        self,
        workspace: Path,
        settings: SandboxSettings,
        backend: str,
        *,
        output_bytes: int,
        protected: Sequence[str],
    ) -> None:
        self.workspace = workspace
        self._settings = settings
        self._backend = backend
        self._output_bytes = output_bytes
        self._uid = fresh_uid(backend, os.path.dirname(workspace))
        self._closed = False
        self._home = WORKSPACE if backend == "namespace" else str(workspace)
        info = workspace.stat()
        self._owner = (info.st_uid, info.st_gid)
        self._binds = (
            Bind(str(workspace), WORKSPACE, writable=True),
            *(
                Bind(str(workspace / name), f"{WORKSPACE}/{name}")
                for name in protected
                if (workspace / name).exists() and not (workspace / name).is_symlink()
            ),
        )
        self._give(self._uid, self._uid)

    @property
    def isolation(self) -> str:
        """``namespace`` or ``process``."""
        return self._backend

    @property
    def home(self) -> str:
        """The workspace's path as commands see it."""
        return self._home

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> CommandResult:
        """See ``base.Sandbox``."""
        if self._closed:
            raise InfrastructureError("sandbox: closed")
        settings = self._settings
        spec = CommandSpec(
            argv=argv,
            env={**self._environment(), **(env or {})},
            cwd=os.path.join(self._home, cwd),
            backend=self._backend,
            uid=self._uid,
            binds=self._binds,
            limits=ConfineLimits(
                data_bytes=settings.memory_bytes,
                processes=settings.processes,
                file_bytes=settings.file_bytes,
            ),
        )
        limit_s = settings.command_s if timeout_s is None else timeout_s
        return run_command(spec, timeout_s=limit_s, output_bytes=self._output_bytes, stdin=stdin)

    def close(self) -> None:
        """See ``base.Sandbox``."""
        if not self._closed:
            self._closed = True
            self._give(*self._owner)

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{sys.prefix}/bin:{SYSTEM_PATH}",
            "HOME": "/tmp",
            "TMPDIR": "/tmp",
            "USER": "agent",
            "LOGNAME": "agent",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def _give(self, uid: int, gid: int) -> None:
        if os.getuid() != 0:
            return
        for path in _walk(str(self.workspace)):
            os.chown(path, uid, gid, follow_symlinks=False)


def _walk(root: str) -> Iterator[str]:
    yield root
    for directory, directories, files in os.walk(root, followlinks=False):
        for name in (*directories, *files):
            yield os.path.join(directory, name)
