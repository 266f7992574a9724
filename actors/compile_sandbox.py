"""A compile sandbox: one process that builds submissions inside the sandbox's isolation."""

from __future__ import annotations

from pathlib import Path

import ray

from cudaagent.config import Config
from cudaagent.lease import TimingLease
from cudaagent.toolchain.compiler import CompileResult
from cudaagent.toolchain.open import open_toolchain
from cudaagent.workspace.submission import Submission


class CompileSandbox:
    """Stateless but for the object cache on disk; safe to restart at any moment."""

    def __init__(self, config: Config, target: str, cache_dir: str) -> None:
        # The precompiled header is made beside other start-up work, not in the first build.
        self._toolchain = open_toolchain(
            target,
            cache_dir=Path(cache_dir),
            limits=config.limits,
            sandbox=config.sandbox,
            lease=TimingLease(),
        )
        self._toolchain.prepare()

    def ready(self) -> None:
        """Answers once the constructor has found a compiler."""

    def compile(self, submission: Submission) -> CompileResult:
        return self._toolchain.compile(submission)


class RemoteCompiler:
    """The ``Compiler`` protocol over compile sandbox actors, taken in turn."""

    def __init__(
        self, sandboxes: list[ray.actor.ActorHandle], first: int = 0, timeout_s: float = 900.0
    ) -> None:
        self._sandboxes = sandboxes
        self._next = first
        self._timeout_s = timeout_s

    def compile(self, submission: Submission) -> CompileResult:
        sandbox = self._sandboxes[self._next % len(self._sandboxes)]
        self._next += 1
        return ray.get(sandbox.compile.remote(submission), timeout=self._timeout_s)
