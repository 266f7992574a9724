"""The few Linux system calls that Python does not wrap, through ctypes.

Runs in trusted processes and in the first instants of an untrusted one. Standard library only.
Every function raises ``OSError`` with the call's name on failure; nothing is retried.
"""

from __future__ import annotations

import ctypes
import os
import resource

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_MOUNT_ATTR_RDONLY = 1
_MOUNT_ATTR_NOSUID = 2
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

_CAPABILITY_VERSION_3 = 0x20080522
_SYSCALLS = {  # capset, pivot_root
    "x86_64": (126, 155),
    "aarch64": (91, 41),
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)
_libc.unshare.argtypes = (ctypes.c_int,)
_libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
_libc.syscall.restype = ctypes.c_long


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def machine() -> str:
    """The architecture's name, ``x86_64`` or ``aarch64`` where all of this works."""
    return os.uname().machine


def unshare(flags: int) -> None:
    """Put this process (for pid namespaces: its children) into new namespaces."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def mount(
    source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str = ""
) -> None:
    """mount(2)."""
    result = _libc.mount(
        source.encode() if source else None,
        target.encode(),
        kind.encode() if kind else None,
        flags,
        data.encode() if data else None,
    )
    _check(result, f"mount {target}")


def umount_detached(target: str) -> None:
    """Detach the mount at ``target`` and everything below it."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def set_read_only(path: str) -> None:
    """Make the mount at ``path`` and all mounts below it read-only and without setuid.

    Before Linux 5.12 only the mount itself.
    """
    attr = _MountAttr(_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_long(_AT_FDCWD),
        ctypes.c_char_p(path.encode()),
        ctypes.c_long(_AT_RECURSIVE),
        ctypes.byref(attr),
        ctypes.c_size_t(ctypes.sizeof(attr)),
    )
    if result and ctypes.get_errno() == 38:  # ENOSYS
        mount(None, path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)
        return
    _check(result, f"mount_setattr {path}")


def pivot_root_here() -> None:
    """Make the current directory, a mount point, the root and forget the old one."""
    _, number = _numbers()
    result = _libc.syscall(ctypes.c_long(number), ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    _check(result, "pivot_root")
    umount_detached(".")
    os.chdir("/")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send ``signal_number`` to this process when the parent thread ends."""
    prctl(_PR_SET_PDEATHSIG, signal_number)


def set_no_new_privileges() -> None:
    """No exec of this process or its children ever gains a privilege."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def set_dumpable() -> None:
    """Let this process read its own /proc entries again after a change of uid."""
    prctl(_PR_SET_DUMPABLE, 1)


def become_subreaper() -> None:
    """Orphans among this process's descendants become its children."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def drop_bounding_set() -> None:
    """Remove every capability from the bounding set."""
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
            return


def drop_capabilities() -> None:
    """Empty the effective, permitted and inheritable sets."""
    number, _ = _numbers()
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    _check(_libc.syscall(ctypes.c_long(number), header, data), "capset")


def prctl(option: int, value: int, pointer: int = 0) -> None:
    """prctl(2) with at most two arguments."""
    _check(_libc.prctl(option, value, pointer, 0, 0), f"prctl({option})")


def limit(kind: int, value: int) -> None:
    """Set both limits of ``kind`` to ``value``, or to the present hard limit if that is lower."""
    _, hard = resource.getrlimit(kind)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (bound, bound))


def mapped_bytes() -> int:
    """Address space of this process, in bytes."""
    with open("/proc/self/statm") as handle:
        return int(handle.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _numbers() -> tuple[int, int]:
    try:
        return _SYSCALLS[machine()]
    except KeyError:
        raise OSError(f"no system call numbers for {machine()}") from None


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
