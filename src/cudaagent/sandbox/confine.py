"""Run a function in a confined child of a small, single-threaded parent.

The parent (a fork server or the launcher) calls ``confined_fork``. With namespaces there are three
processes below it: a supervisor, PID 1 of the new namespaces, and the inner process, which alone
runs ``entry``. The first two run nothing but this file and hold none of the parent's descriptors.
PID 1 ends when the inner process ends, and the kernel then ends everything that the inner process
left behind; the supervisor dies with the parent and PID 1 with the supervisor, so nothing survives
a ``kill -9`` of the parent, and the inner process cannot switch that off.

The inner process has an unprivileged uid, no capability, ``no_new_privs``, resource limits and a
system call filter; with namespaces also its own mounts (see ``mounts``), a network without
interfaces, pids and IPC. Level ``process`` has the limits, the filter and a sweep of its
descendants only: it sees the host's files and processes as its user does and may use the network.

Standard library only; light to import. Not covered: a total over the memory of several processes
(limits are per process), and time, which is the caller's to watch.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import NoReturn

from cudaagent.errors import InfrastructureError
from cudaagent.sandbox import linux, mounts, seccomp
from cudaagent.sandbox.mounts import Bind, View

__all__ = [
    "Bind",
    "ConfineLimits",
    "ConfinedChild",
    "ExitStatus",
    "View",
    "best_backend",
    "confined_fork",
    "fresh_uid",
]

NOBODY = 65534
_FIRST_UID, _UIDS = 61184, 4000  # the range that systemd leaves to dynamic users
_START_S = 20.0
_SWEEP_S = 5.0
_UCRED = struct.Struct("3i")
_STATUS = struct.Struct("i")
_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWPID | linux.CLONE_NEWIPC


@dataclass(frozen=True, slots=True)
class ConfineLimits:
    """Resource limits of each confined process; None leaves one as it is."""

    address_space_bytes: int | None = None
    """RLIMIT_AS; a warm parent's own mappings count, see ``linux.mapped_bytes``."""
    data_bytes: int | None = None
    """RLIMIT_DATA."""
    processes: int | None = 256
    """RLIMIT_NPROC: processes and threads of the uid, so give each sandbox its own."""
    file_bytes: int | None = 1 << 30
    """RLIMIT_FSIZE."""
    open_files: int | None = 1024
    """RLIMIT_NOFILE."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How the inner process ended: exactly one of the two is set, or neither if it was lost."""

    code: int | None
    signal: int | None


@dataclass(slots=True)
class ConfinedChild:
    """A confined process; the parent that made it must ``close`` it."""

    pid: int
    """Host pid of the inner process."""
    isolation: str
    """``namespace`` or ``process``."""
    supervisor: int
    """Host pid of the direct child, which ends after everything below it has ended."""
    _channel: socket.socket
    _pidfd: int
    _supervisor_pidfd: int
    _status: ExitStatus | None = field(default=None)

    def fileno(self) -> int:
        """A descriptor that becomes readable when the child and all its descendants are gone."""
        return self._supervisor_pidfd

    def send_signal(self, number: int) -> None:
        """Signal the inner process alone; no effect when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def wait(self, timeout_s: float) -> ExitStatus | None:
        """The inner process's end, once nothing of it is left; None when the time is over."""
        if self._status is not None:
            return self._status
        ready, _, _ = select.select([self._supervisor_pidfd], [], [], max(0.0, timeout_s))
        if not ready:
            return None
        with contextlib.suppress(ChildProcessError):  # the parent may ignore SIGCHLD
            os.waitpid(self.supervisor, 0)
        self._status = _read_status(self._channel)
        return self._status

    def request_end(self) -> None:
        """Have the inner process and all its descendants killed, without waiting for it."""
        if self.isolation == "process":
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._supervisor_pidfd, signal.SIGTERM)
        else:
            self.send_signal(signal.SIGKILL)

    def kill(self, timeout_s: float = 10.0) -> ExitStatus:
        """End the inner process and all its descendants.

        Raises:
            InfrastructureError: something survived ``timeout_s``.
        """
        self.request_end()
        status = self.wait(timeout_s)
        if status is None:
            raise InfrastructureError(
                f"confined process {self.pid} still there {timeout_s:.0f} s after SIGKILL"
            )
        return status

    def close(self) -> None:
        """End everything and release the descriptors; may be called twice."""
        if self._channel.fileno() < 0:
            return
        try:
            self.kill()
        finally:
            self._channel.close()
            os.close(self._pidfd)
            os.close(self._supervisor_pidfd)


def fresh_uid(backend: str = "namespace", *paths: str) -> int:
    """A uid for one sandbox: as root an unprivileged one of its own, else the caller's.

    Level ``process`` keeps root where the other uid could not reach the interpreter or ``paths``;
    namespaces show what is bound, whatever lies above it on the host.
    """
    if os.getuid() != 0:
        return os.getuid()
    if backend == "process" and not all(map(_reachable, (*mounts.python_paths(), *paths))):
        return 0
    return _FIRST_UID + secrets.randbelow(_UIDS)


def _reachable(path: str) -> bool:
    """Whether a stranger may enter ``path`` and everything above it."""
    while path != "/":
        if not os.stat(path).st_mode & stat.S_IXOTH:
            return False
        path = os.path.dirname(path)
    return True


def confined_fork(
    entry: Callable[[], None],
    *,
    limits: ConfineLimits,
    view: View | None = None,
    uid: int = NOBODY,
    cwd: str = "/",
    keep_fds: tuple[int, ...] = (),
    backend: str = "auto",
) -> ConfinedChild:
    """Fork a child that is confined before it calls ``entry``, and return when it is.

    The caller has one thread. The child keeps descriptors 0 to 2 and ``keep_fds``; every other
    descriptor that an inherited object still names is closed. It exits with 0 when ``entry``
    returns, with 1 after an exception (printed to its standard error), or as ``SystemExit`` says.

    Args:
        uid: user and group of the inner process when the parent is root.
        cwd: working directory, as the child sees the files.
        backend: ``namespace``, ``process``, or ``auto``: the best that ``best_backend`` found.

    Raises:
        InfrastructureError: the child could not be confined; nothing has run.
    """
    isolation = best_backend() if backend == "auto" else backend
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    inner = _Inner(entry, limits, uid, cwd, keep_fds, theirs, isolation)
    supervisor = os.fork()
    if supervisor == 0:
        ours.close()
        _supervise(inner, view or View())
    theirs.close()
    try:
        pid = _await_ready(ours)
        child = ConfinedChild(
            pid, isolation, supervisor, ours, os.pidfd_open(pid), os.pidfd_open(supervisor)
        )
        ours.send(b"G")  # only now may it run and end, and its pid be used again
        return child
    except BaseException:
        ours.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(supervisor, 0)
        raise


@cache
def best_backend() -> str:
    """The strongest level that works on this machine: ``namespace``, else ``process``.

    Tried once, in a process of its own.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = (
        f"import sys; sys.path.insert(0, {root!r})\n"
        "from cudaagent.sandbox.confine import probe_namespaces\n"
        "sys.exit(probe_namespaces())"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=2 * _START_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "process"
    return "namespace" if done.returncode == 0 else "process"


def probe_namespaces() -> int:
    """0 when a process can be confined with namespaces here; for ``best_backend``'s process."""
    try:
        child = confined_fork(
            lambda: None, limits=ConfineLimits(), uid=fresh_uid(), backend="namespace"
        )
    except InfrastructureError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        status = child.wait(_START_S)
        return 0 if status is not None and status.code == 0 else 1
    finally:
        child.close()


@dataclass(frozen=True, slots=True)
class _Inner:
    entry: Callable[[], None]
    limits: ConfineLimits
    uid: int
    cwd: str
    keep_fds: tuple[int, ...]
    channel: socket.socket
    isolation: str


def _await_ready(channel: socket.socket) -> int:
    deadline = time.monotonic() + _START_S
    while True:
        channel.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data, ancillary, _, _ = channel.recvmsg(4096, socket.CMSG_SPACE(_UCRED.size))
        except TimeoutError:
            raise InfrastructureError(
                f"sandbox: no confined process within {_START_S:.0f} s"
            ) from None
        if data[:1] == b"R":
            for level, kind, value in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                    return _UCRED.unpack(value[: _UCRED.size])[0]
            raise InfrastructureError("sandbox: the kernel sent no credentials")
        reason = data[1:].decode(errors="replace") if data else "its supervisor died"
        raise InfrastructureError(f"sandbox: {reason}")


def _read_status(channel: socket.socket) -> ExitStatus:
    channel.settimeout(0)
    data = b""
    for _ in range(2):  # an end that comes before the "go" was read shows first as a reset
        with contextlib.suppress(ConnectionError, BlockingIOError):
            data = channel.recv(4096)
            break
    if data[:1] != b"S":
        return ExitStatus(None, None)
    code = os.waitstatus_to_exitcode(_STATUS.unpack(data[1:])[0])
    return ExitStatus(code, None) if code >= 0 else ExitStatus(None, -code)


def _supervise(inner: _Inner, view: View) -> NoReturn:
    """Body of the direct child; never returns."""
    parent = os.getppid()
    try:
        _reset_signals()
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.setsid()
        if inner.isolation == "namespace":
            _unshare()
            first = os.fork()
            if first == 0:
                _be_first(inner, view)
            _close_all_but()
            os.waitpid(first, 0)
        else:
            _supervise_weakly(inner)
        os._exit(0)
    except BaseException as error:
        _report_and_exit(inner.channel, error)


def _unshare() -> None:
    uid, gid = os.getuid(), os.getgid()
    try:
        linux.unshare(_NAMESPACES)
    except PermissionError:
        linux.unshare(_NAMESPACES | linux.CLONE_NEWUSER)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as handle:
                handle.write(text)


def _be_first(inner: _Inner, view: View) -> NoReturn:
    """Body of PID 1 in the new namespaces; never returns."""
    try:
        # A supervisor that died before this line shows as EPIPE when the inner process reports.
        linux.die_with_parent(signal.SIGKILL)
        mounts.enter(view)
        pid = os.fork()
        if pid == 0:
            _be_inner(inner)
        _close_all_but(inner.channel.fileno())
        while True:
            ended, status = os.waitpid(-1, 0)
            if ended == pid:
                break
        inner.channel.send(b"S" + _STATUS.pack(status))
        os._exit(0)
    except BaseException as error:
        _report_and_exit(inner.channel, error)


def _supervise_weakly(inner: _Inner) -> None:
    watched = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    linux.become_subreaper()
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
        linux.die_with_parent(signal.SIGKILL)
        os.setsid()
        _be_inner(inner)
    _close_all_but(inner.channel.fileno())
    status = 0
    while True:
        if signal.sigwait(watched) == signal.SIGTERM:
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            break
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        _reap_orphans(pid)
    inner.channel.send(b"S" + _STATUS.pack(status))
    _sweep()


def _reap_orphans(spare: int) -> None:
    for child in _children():
        if child != spare:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)


def _sweep() -> None:
    """Kill all descendants; each round's orphans become our children (subreaper)."""
    deadline = time.monotonic() + _SWEEP_S
    while time.monotonic() < deadline:
        children = _children()
        for child in children:
            os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as handle:
        return [int(word) for word in handle.read().split()]


def _be_inner(inner: _Inner) -> NoReturn:
    """Body of the inner process; never returns."""
    try:
        _confine(inner)
        inner.channel.send(b"R")
        if inner.channel.recv(1) != b"G":
            os._exit(1)
        _close_all_but(*inner.keep_fds)
    except BaseException as error:
        _report_and_exit(inner.channel, error)
    code = 1
    try:
        inner.entry()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


def _confine(inner: _Inner) -> None:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as handle:
        handle.write("1000")
    limits = inner.limits
    linux.limit(resource.RLIMIT_CORE, 0)
    for kind, value in (
        (resource.RLIMIT_AS, limits.address_space_bytes),
        (resource.RLIMIT_DATA, limits.data_bytes),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_NPROC, limits.processes),
    ):
        if value is not None:
            linux.limit(kind, value)
    if inner.isolation == "namespace":
        linux.drop_bounding_set()
    if os.getuid() == 0:
        with contextlib.suppress(PermissionError):  # a container without CAP_SETUID
            os.setgroups([])
            os.setresgid(inner.uid, inner.uid, inner.uid)
            os.setresuid(inner.uid, inner.uid, inner.uid)
    linux.drop_capabilities()
    linux.set_no_new_privileges()
    linux.set_dumpable()
    if inner.isolation == "process":
        linux.die_with_parent(signal.SIGKILL)  # a change of uid clears it
    os.umask(0o022)
    os.chdir(inner.cwd)
    seccomp.install()


def _reset_signals() -> None:
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _close_all_but(*keep: int) -> None:
    lowest = 3
    for fd in sorted({fd for fd in keep if fd > 2}):
        os.closerange(lowest, fd)
        lowest = fd + 1
    os.closerange(lowest, 1 << 20 if lowest < 1 << 20 else lowest)


def _report_and_exit(channel: socket.socket, error: BaseException) -> NoReturn:
    with contextlib.suppress(OSError):
        channel.send(b"E" + f"{type(error).__name__}: {error}".encode()[:4000])
    os._exit(1)
