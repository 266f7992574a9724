"""Which toolchain serves a target on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from cudaagent.errors import UserError
from cudaagent.judge.settings import LimitSettings
from cudaagent.lease import TimingLease
from cudaagent.sandbox.settings import SandboxSettings
from cudaagent.toolchain.compiler import Compiler


def object_cache_dir() -> Path:
    """Where objects are kept: below the home directory, or where that takes no files, in TMPDIR."""
    home = Path.home() / ".cache" / "cudaagent" / "objects"
    with contextlib.suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
        if os.access(home, os.W_OK | os.X_OK):
            return home
    return Path(tempfile.gettempdir()) / f"cudaagent-objects-{os.getuid()}"


def open_toolchain(
    target: str,
    *,
    cache_dir: Path,
    limits: LimitSettings,
    sandbox: SandboxSettings,
    lease: TimingLease | None = None,
) -> Compiler:
    """The compiler for ``target``.

    Raises:
        UserError: the target is unknown or absent here, or its compiler is not installed.
    """
    if target == "cpu":
        from cudaagent.toolchain.cpu import CpuToolchain

        return CpuToolchain(cache_dir, limits, sandbox, lease)
    if target == "cuda":
        if shutil.which("nvidia-smi") is None:
            raise UserError("target cuda: no GPU on this machine; use --target cpu")
        raise UserError("target cuda: not served by this version yet; use --target cpu")
    raise UserError(f"target {target} is neither cuda nor cpu")
