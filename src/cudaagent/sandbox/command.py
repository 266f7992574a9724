"""Run one confined command from a trusted process that may have many threads.

Runs in the trusted process. All its commands go through one launcher process (``launch``), which is
started at first use, so a command costs one small fork and not the start of an interpreter. The
launcher and every command end with the trusted process, however that ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cudaagent.errors import InfrastructureError
from cudaagent.sandbox.confine import Bind, ConfineLimits
from cudaagent.sandbox.mounts import python_paths
from cudaagent.sandbox.output import MiddleCut

TIMED_OUT = 124
"""Status of a command that ran out of time, as of timeout(1)."""
_START_S = 30.0
_END_S = 15.0
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended and what it printed, standard error included."""

    status: int
    """Exit status; 128 + n after signal n; 124 when the time was over."""
    output: str
    """At most the asked-for number of bytes, the middle cut."""
    seconds: float
    timed_out: bool


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """One command and what it may see and use."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    """As the command sees the files."""
    backend: str
    """``namespace`` or ``process``."""
    uid: int
    binds: tuple[Bind, ...] = ()
    hidden: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    limits: ConfineLimits = field(default_factory=ConfineLimits)
    tmp_bytes: int = 1 << 30
    python: bool = True
    """Show the interpreter and its packages."""


def run_command(
    spec: CommandSpec, *, timeout_s: float, output_bytes: int, stdin: bytes = b""
) -> CommandResult:
    """Run ``spec`` to its end; afterwards nothing that it started is left.

    Raises:
        InfrastructureError: the command could not be confined or the launcher died.
    """
    started = time.monotonic()
    read_end, write_end = os.pipe()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, os.fdopen(read_end, "rb", buffering=0) as output:
        try:
            stdin_fd = _as_file(stdin)
            try:
                _launcher().send(_encode(spec), (stdin_fd, write_end, theirs.fileno()))
            finally:
                os.close(stdin_fd)
        finally:
            os.close(write_end)
            theirs.close()
        return _attend(output.fileno(), ours, started, timeout_s, MiddleCut(output_bytes))


def _attend(
    output: int, reply: socket.socket, started: float, timeout_s: float, kept: MiddleCut
) -> CommandResult:
    reply.settimeout(_START_S)
    try:
        _receive(reply)
    except TimeoutError:
        raise InfrastructureError(f"sandbox: no command started within {_START_S:.0f} s") from None
    poller = select.poll()
    poller.register(output, select.POLLIN)
    poller.register(reply, select.POLLIN)
    os.set_blocking(output, False)
    deadline = time.monotonic() + timeout_s
    timed_out = False
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            if timed_out:
                raise InfrastructureError(f"sandbox: a command outlived its kill by {_END_S:.0f} s")
            timed_out = True
            deadline = time.monotonic() + _END_S
            reply.send(b"kill")
            reply.shutdown(socket.SHUT_WR)
            continue
        ready = {fd for fd, _ in poller.poll(left * 1000)}
        if output in ready and not _drain(output, kept):
            poller.unregister(output)
        if reply.fileno() in ready:
            message = _receive(reply)
            break
    _drain(output, kept)
    code, number = message["code"], message["signal"]
    status = TIMED_OUT if timed_out else code if code is not None else 128 + (number or 9)
    return CommandResult(status, kept.text(), time.monotonic() - started, timed_out)


def _drain(fd: int, kept: MiddleCut) -> bool:
    """Read what is there; False at the end of the stream."""
    for _ in range(64):
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        kept.add(data)
    return True


def _receive(reply: socket.socket) -> dict[str, int | None]:
    data = reply.recv(1 << 14)
    if not data:
        raise InfrastructureError("sandbox: the launcher died")
    message = json.loads(data)
    if "error" in message:
        raise InfrastructureError(message["error"])
    return message


def _as_file(data: bytes) -> int:
    if not data:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    fd = os.memfd_create("stdin", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as handle:
        handle.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _encode(spec: CommandSpec) -> bytes:
    shown = tuple(Bind(path) for path in python_paths()) if spec.python else ()
    return json.dumps(
        {
            "argv": list(spec.argv),
            "env": dict(spec.env),
            "cwd": spec.cwd,
            "backend": spec.backend,
            "uid": spec.uid,
            "binds": [(b.source, b.target, b.writable) for b in (*shown, *spec.binds)],
            "hidden": spec.hidden,
            "devices": spec.devices,
            "limits": asdict(spec.limits),
            "tmp_bytes": spec.tmp_bytes,
        }
    ).encode()


class _Launcher:
    """The trusted end of one launcher process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = str(Path(__file__).with_name("launch.py"))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", script, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", os.defpath)},
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, request: bytes, fds: Sequence[int]) -> None:
        try:
            with self._lock:
                socket.send_fds(self._control, [request], list(fds))
        except OSError as error:
            raise InfrastructureError(f"sandbox: launcher not reachable: {error}") from error

    def close(self) -> None:
        self._control.close()
        if self.owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)


_lock = threading.Lock()
_current: _Launcher | None = None


def _launcher() -> _Launcher:
    global _current
    with _lock:
        if _current is not None and _current.owner != os.getpid():
            _current = None  # inherited over a fork; it belongs to the parent
        if _current is not None and not _current.alive:
            _current.close()
            _current = None
        if _current is None:
            _current = _Launcher()
        return _current


@atexit.register
def _close_launcher() -> None:
    global _current
    if _current is not None and _current.owner == os.getpid():
        _current.close()
        _current = None
