"""The files that an untrusted process sees: an allow-list in a private mount namespace.

A new root on a tmpfs holds the system's own directories read-only, a minimal /dev, a fresh /proc,
private /tmp and /dev/shm, the interpreter, and the binds that the caller asks for. Whatever is not
named does not exist there: no home, no run directory, no repository.

Runs as PID 1 of the new namespaces, before any untrusted code. Not covered: the system directories
themselves (/usr, /etc, ...) are readable as far as their modes allow.
"""

from __future__ import annotations

import os
import site
import sys
from dataclasses import dataclass

from cudaagent.sandbox import linux

SYSTEM_DIRECTORIES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "nix")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_ROOT = "/proc"
"""Where the new root is put together: the one old mount that no bind comes from."""


@dataclass(frozen=True, slots=True)
class Bind:
    """A host path that is visible in the sandbox, at ``target`` (default: the same path)."""

    source: str
    target: str = ""
    writable: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """What an untrusted process sees of the host beyond the system directories."""

    binds: tuple[Bind, ...] = ()
    hidden: tuple[str, ...] = ()
    """Paths inside visible directories that are covered by an empty one."""
    devices: tuple[str, ...] = ()
    """Further device nodes, such as ``/dev/nvidia0``."""
    interpreter: bool = True
    """Show this interpreter's prefixes, its packages and this package."""
    tmp_bytes: int = 1 << 30
    """Size of the private /tmp."""
    shm_bytes: int = 64 << 20
    """Size of the private /dev/shm."""


def python_paths() -> tuple[str, ...]:
    """Directories that this interpreter needs to start and to import installed packages."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, package]
    paths += site.getsitepackages()
    if site.ENABLE_USER_SITE:
        paths.append(site.getusersitepackages())
    both = [p for path in paths for p in (os.path.abspath(path), os.path.realpath(path))]
    found = sorted({p for p in both if os.path.isdir(p) and p != "/"})
    return tuple(p for p in found if not any(p.startswith(f"{q}/") for q in found))


def enter(view: View) -> None:
    """Build the view and make it the root of this process; needs a private mount namespace.

    Raises:
        OSError: a mount was refused or a path is missing.
    """
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", _ROOT, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=4m")
    for name in SYSTEM_DIRECTORIES:
        _bind_system(name)
    _build_dev(view)
    if os.path.isdir("/sys/devices/system"):
        _bind(Bind("/sys/devices/system"))
    _private_tmpfs("/tmp", view.tmp_bytes)
    _private_tmpfs("/var/tmp", 64 << 20)
    paths = python_paths() if view.interpreter else ()
    binds = [Bind(path) for path in paths if not _covered(path)] + list(view.binds)
    for bind in sorted(binds, key=lambda b: (b.target or b.source).count("/")):
        _bind(bind)
    for path in view.hidden:
        if os.path.isdir(_ROOT + path):
            linux.mount("tmpfs", _ROOT + path, "tmpfs", linux.MS_RDONLY, "mode=755,size=4k")
    _mount_proc()
    linux.mount(None, _ROOT, None, linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY)
    os.chdir(_ROOT)
    linux.pivot_root_here()


def _covered(path: str) -> bool:
    top = path.split("/", 2)[1]
    return top in SYSTEM_DIRECTORIES and not os.path.islink(f"/{top}")


def _bind_system(name: str) -> None:
    path = f"/{name}"
    if os.path.islink(path):
        os.symlink(os.readlink(path), _ROOT + path)
    elif os.path.isdir(path):
        _bind(Bind(path))


def _bind(bind: Bind) -> None:
    source = os.path.realpath(bind.source)
    target = _ROOT + (bind.target or bind.source)
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        _touch(target)
    linux.mount(source, target, None, linux.MS_BIND | linux.MS_REC)
    if not bind.writable:
        linux.set_read_only(target)


def _touch(path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))


def _private_tmpfs(path: str, size_bytes: int) -> None:
    os.makedirs(_ROOT + path, exist_ok=True)
    flags = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("tmpfs", _ROOT + path, "tmpfs", flags, f"mode=1777,size={size_bytes}")


def _build_dev(view: View) -> None:
    os.makedirs(_ROOT + "/dev")
    for path in (*(f"/dev/{name}" for name in _DEVICES), *view.devices):
        if os.path.exists(path):
            _touch(_ROOT + path)
            linux.mount(path, _ROOT + path, None, linux.MS_BIND)
    for name, destination in _DEVICE_LINKS.items():
        os.symlink(destination, f"{_ROOT}/dev/{name}")
    _private_tmpfs("/dev/shm", view.shm_bytes)


def _mount_proc() -> None:
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    os.makedirs(_ROOT + "/proc", exist_ok=True)
    try:
        linux.mount("proc", _ROOT + "/proc", "proc", flags, "hidepid=invisible")
    except OSError:  # before Linux 5.8 the option has numbers only
        linux.mount("proc", _ROOT + "/proc", "proc", flags, "hidepid=2")
