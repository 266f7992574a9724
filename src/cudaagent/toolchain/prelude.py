"""The precompiled header that halves the time of a build.

It holds the two binding headers that a kernel needs and what kernels commonly include beside them;
all of ``tvm_ffi.h`` would cost every build another 0.2 s. Built by the trusted side from the
toolchain's headers alone, once for a toolchain digest, and shown read-only to confined builds. A
build that finds it unusable reads the plain text beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from cudaagent.errors import InfrastructureError
from cudaagent.toolchain.gxx import COMPILE_FLAGS, Gxx

NAME = "prelude.h"
TEXT = """\
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <omp.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
"""
_BUILD_S = 300.0
_KEEP = 2


class Prelude:
    """The precompiled header of one toolchain below ``directory``."""

    def __init__(self, directory: Path, compiler: Gxx) -> None:
        self._root = directory
        self._compiler = compiler
        self._ready = directory / compiler.digest[:32]

    @property
    def directory(self) -> Path | None:
        """Where ``prelude.h`` and its compiled form lie; None when they are not built."""
        return self._ready if self._ready.is_dir() else None

    def build(self) -> None:
        """Build it unless it is there or another process is building it.

        Raises:
            InfrastructureError: the compiler rejects the binding's own headers.
        """
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _sole(self._root / "lock") as sole:
            if not sole or self._ready.is_dir():
                return
            for leftover in self._root.glob("*.tmp"):
                shutil.rmtree(leftover)
            work = self._root / f"{self._ready.name}.tmp"
            work.mkdir(mode=0o755)
            (work / NAME).write_text(TEXT)
            _compile(self._compiler, work)
            work.rename(self._ready)
            self._drop_old()

    def _drop_old(self) -> None:
        built = [path for path in self._root.iterdir() if path.is_dir()]
        for path in sorted(built, key=lambda p: p.stat().st_mtime)[:-_KEEP]:
            shutil.rmtree(path, ignore_errors=True)


def _compile(compiler: Gxx, work: Path) -> None:
    argv = [compiler.path, *COMPILE_FLAGS, f"-I{compiler.include}", "-x", "c++-header", NAME]
    try:
        done = subprocess.run(
            [*argv, "-o", f"{NAME}.gch"],
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_BUILD_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"precompiled header not built in {_BUILD_S:.0f} s") from error
    if done.returncode:
        raise InfrastructureError(f"precompiled header: {done.stderr.strip()[-500:]}")
    (work / f"{NAME}.gch").chmod(0o644)


@contextlib.contextmanager
def _sole(path: Path) -> Iterator[bool]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(fd)
