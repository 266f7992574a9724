"""A system call filter for untrusted processes, as raw BPF through prctl.

Refuses (EPERM) what neither a compiler nor PyTorch needs and what reaches other processes or
widens the kernel's surface: tracing, foreign memory, mounts, namespaces, modules, BPF, keys, perf,
io_uring; and all ways to SIGCONT, since who is stopped must stay so. Runs in the untrusted process
just before its code. Not covered: calls that are allowed on purpose (files, threads, memory); the
filter is a second wall behind the namespaces.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from cudaagent.sandbox import linux

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_ABSENT = 0x00050000 | errno.ENOSYS

_OFFSET_NUMBER = 0
_OFFSET_ARCH = 4
_OFFSET_ARGUMENT_0 = 16
_ARGUMENT_BYTES = 8
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_EXIT_SIGNAL = 0xFF  # of clone(2)'s flags
_SIGCONT = 18
_PIDFD_SEND = 424

_NAMESPACE_FLAGS = 0x7E020000  # every CLONE_NEW* that clone(2) takes
_X32 = 0x40000000
_CLONE3 = 435

# The same numbers everywhere: open_tree, move_mount, fsopen, fsconfig, fsmount, fspick,
# pidfd_getfd, process_madvise, mount_setattr, io_uring_setup/enter/register.
_COMMON = (428, 429, 430, 431, 432, 433, 438, 440, 442, 425, 426, 427)

_ByArgument = tuple[tuple[int, int, tuple[int, ...]], ...]
"""(call, number of the argument, refused values)"""
_OWNER_OR_SIGNAL = (8, 10, 15)
"""fcntl's F_SETOWN, F_SETSIG, F_SETOWN_EX: a signal from the kernel when a file is ready."""


def _signals(
    kill: int, tkill: int, tgkill: int, queue: int, tgqueue: int, fcntl: int, prctl: int
) -> _ByArgument:
    """What is refused by argument, with an architecture's numbers."""
    sends = ((kill, 1), (tkill, 1), (tgkill, 2), (queue, 1), (tgqueue, 2), (_PIDFD_SEND, 1))
    # prctl's second argument is the signal of PR_SET_PDEATHSIG.
    return (
        *((number, argument, (_SIGCONT,)) for number, argument in (*sends, (prctl, 1))),
        (fcntl, 1, _OWNER_OR_SIGNAL),
    )


_ARCHITECTURES: dict[str, tuple[int, int, tuple[int, ...], _ByArgument]] = {
    # audit architecture, clone, refused: ptrace, process_vm_readv/writev, mount, umount2,
    # pivot_root, chroot, unshare, setns, kexec_load, kexec_file_load, bpf, add_key, request_key,
    # keyctl, perf_event_open, init_module, finit_module, delete_module, userfaultfd,
    # open_by_handle_at, name_to_handle_at, swapon, swapoff, reboot, kcmp, acct, quotactl,
    # timer_create, mq_notify
    "x86_64": (
        0xC000003E,
        56,
        (
            *(101, 310, 311, 165, 166, 155, 161, 272, 308, 246, 320, 321, 248, 249, 250),
            *(298, 175, 313, 176, 323, 304, 303, 167, 168, 169, 312, 163, 179, 222, 244),
        ),
        _signals(62, 200, 234, 129, 297, 72, 157),
    ),
    "aarch64": (
        0xC00000B7,
        220,
        (
            *(117, 270, 271, 40, 39, 41, 51, 97, 268, 104, 294, 280, 217, 218, 219),
            *(241, 105, 273, 106, 282, 265, 264, 224, 225, 142, 272, 89, 60, 107, 184),
        ),
        _signals(129, 130, 131, 138, 240, 25, 167),
    ),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install() -> bool:
    """Install the filter for this process and its children; needs ``no_new_privs``.

    Returns False where the architecture has no table or the kernel no seccomp.
    """
    table = _ARCHITECTURES.get(linux.machine())
    if table is None:
        return False
    code = _assemble(*table)
    program = _Program(len(code) // 8, code)
    try:
        linux.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(program))
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOSYS):
            return False
        raise
    return True


def _assemble(
    architecture: int,
    clone: int,
    refused: tuple[int, ...],
    by_argument: _ByArgument,
) -> bytes:
    instructions: list[bytes] = []

    def emit(code: int, value: int, if_true: int = 0, if_false: int = 0) -> None:
        instructions.append(struct.pack("=HBBI", code, if_true, if_false, value))

    emit(_LOAD, _OFFSET_ARCH)
    emit(_EQUAL, architecture, 1, 0)
    emit(_RETURN, _REFUSE)
    emit(_LOAD, _OFFSET_NUMBER)
    emit(_AT_LEAST, _X32, 0, 1)
    emit(_RETURN, _ABSENT)
    emit(_EQUAL, _CLONE3, 0, 1)
    emit(_RETURN, _ABSENT)  # its flags lie in memory; libc then falls back to clone
    for number in (*refused, *_COMMON):
        emit(_EQUAL, number, 0, 1)
        emit(_RETURN, _REFUSE)
    for number, argument, values in by_argument:
        emit(_EQUAL, number, 0, 2 + 2 * len(values))
        emit(_LOAD, _OFFSET_ARGUMENT_0 + _ARGUMENT_BYTES * argument)
        for value in values:
            emit(_EQUAL, value, 0, 1)
            emit(_RETURN, _REFUSE)
        emit(_RETURN, _ALLOW)
    emit(_EQUAL, clone, 0, 6)
    emit(_LOAD, _OFFSET_ARGUMENT_0)
    emit(_ANY_BIT, _NAMESPACE_FLAGS, 0, 1)
    emit(_RETURN, _REFUSE)
    emit(_AND, _EXIT_SIGNAL)
    emit(_EQUAL, _SIGCONT, 0, 1)
    emit(_RETURN, _REFUSE)
    emit(_RETURN, _ALLOW)
    return b"".join(instructions)
