"""The C++ compiler of this machine and everything about it that a cache key must hold.

Runs on the trusted side; starts the compiler only to ask what it is.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cudaagent.errors import InfrastructureError, UserError

COMPILE_FLAGS = (
    "-O3",
    "-march=native",
    "-fopenmp",
    "-std=c++17",
    "-fPIC",
    "-fvisibility=hidden",
)
"""Part of every cache key, as is all else that changes what a source compiles to."""
_ASK_S = 30.0


@dataclass(frozen=True, slots=True)
class Gxx:
    """A C++ compiler and the binding headers that it builds against."""

    path: str
    version: str
    """First line of ``--version``, the distribution's revision included."""
    digest: str
    """SHA-256 over compiler, resolved ``-march=native``, flags, C library and binding headers."""
    include: str
    """Directory of the binding's headers."""
    library_dir: str
    """Directory of ``libtvm_ffi.so``."""
    visible: tuple[str, ...]
    """Directories outside the system's own that a confined build must see."""


def find_cpu_compiler() -> Gxx:
    """The compiler for target ``cpu``; asked once in a process.

    Raises:
        UserError: there is no g++, or the binding package is not installed.
    """
    path = shutil.which("g++")
    if path is None:
        raise UserError("no C++ compiler: install g++ (Debian: apt-get install g++)")
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None or spec.origin is None:
        raise UserError("no TVM-FFI headers: install the package apache-tvm-ffi")
    return _describe(os.path.realpath(path), str(Path(spec.origin).parent))


@functools.cache
def _describe(path: str, binding: str) -> Gxx:
    version = _ask((path, "--version")).splitlines()[0]
    commands = _ask((path, *COMPILE_FLAGS, "-E", "-x", "c++", "/dev/null", "-###"))
    # The line that starts the compiler proper names what -march=native stands for on this machine.
    resolved = next((line for line in commands.splitlines() if "cc1plus" in line), commands)
    include = f"{binding}/include"
    state = hashlib.sha256()
    for part in (
        path,
        version,
        resolved,
        " ".join(COMPILE_FLAGS),
        " ".join(platform.libc_ver()),
        importlib.metadata.version("apache-tvm-ffi"),
        _signature(include),
    ):
        state.update(f"{len(part)}:{part}".encode())
    prefix = os.path.dirname(os.path.dirname(path))
    visible = (binding,) if prefix == "/usr" else (binding, prefix)
    return Gxx(path, version, state.hexdigest(), include, f"{binding}/lib", visible)


def _ask(argv: Sequence[str]) -> str:
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(f"{argv[0]} does not answer: {error}") from error
    if done.returncode:
        raise InfrastructureError(f"{' '.join(argv)} failed: {done.stderr.strip()[-500:]}")
    return done.stdout + done.stderr


def _signature(directory: str) -> str:
    """Digest over the files below ``directory``, the same on every machine that has them."""
    state = hashlib.sha256()
    for root, directories, files in os.walk(directory):
        directories.sort()
        for name in sorted(files):
            path = os.path.join(root, name)
            with open(path, "rb") as handle:
                content = hashlib.file_digest(handle, "sha256").hexdigest()
            state.update(f"{os.path.relpath(path, directory)}:{content}\n".encode())
    return state.hexdigest()
