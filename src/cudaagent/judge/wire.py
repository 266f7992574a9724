"""Frames between the judge and its runners: one JSON object or raw bytes, with descriptors.

Used on both sides of a Unix stream socket. The judge's side trusts nothing of what it reads: sizes
are capped, JSON is parsed and never evaluated, and who expects one kind of frame refuses the other.

Not covered: what a frame's content means; see ``process`` and ``manifest``.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_BYTES = 8 << 20
MAX_FDS = 8

_HEADER = struct.Struct("<IB")
_JSON, _RAW = 0, 1


class ChannelClosed(Exception):
    """The other side is gone."""


class ChannelTimeout(Exception):
    """Nothing arrived before the deadline."""


class ChannelForged(Exception):
    """The other side sent something that the protocol does not know."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What arrived; whoever receives it owns ``fds``."""

    raw: bytes | None
    message: dict[str, Any] | None
    fds: tuple[int, ...] = ()


class Channel:
    """One end of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setblocking(True)

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send one JSON object.

        Raises:
            ChannelClosed: nobody listens.
        """
        self._send(_JSON, json.dumps(message).encode(), fds)

    def send_raw(self, data: bytes) -> None:
        """Send raw bytes."""
        self._send(_RAW, data, ())

    def receive(self, timeout_s: float | None = None, *, alive: int | None = None) -> Frame:
        """The next frame.

        Args:
            timeout_s: None waits for ever (the runner's side).
            alive: a pidfd; when it becomes readable and nothing is left to read, the channel
                counts as closed although a descendant may still hold the other end.

        Raises:
            ChannelClosed, ChannelTimeout, ChannelForged: see the classes.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        header, fds = self._first(deadline, alive)
        length, kind = _HEADER.unpack(header)
        if length > MAX_BYTES or kind not in (_JSON, _RAW):
            _close(fds)
            raise ChannelForged(f"frame of kind {kind} with {length} bytes")
        data = self._exactly(length, deadline, alive)
        if kind == _RAW:
            return Frame(data, None, tuple(fds))
        try:
            message = json.loads(data)
        except (ValueError, RecursionError) as error:
            _close(fds)
            raise ChannelForged(f"not JSON: {error}") from None
        if not isinstance(message, dict):
            _close(fds)
            raise ChannelForged("a message is a JSON object")
        return Frame(None, message, tuple(fds))  # pyright: ignore[reportUnknownArgumentType]

    def _send(self, kind: int, data: bytes, fds: Sequence[int]) -> None:
        view = memoryview(_HEADER.pack(len(data), kind) + data)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sent = self._sock.sendmsg([view], rights)
            if sent < len(view):
                self._sock.sendall(view[sent:])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed(str(error)) from None

    def _first(self, deadline: float | None, alive: int | None) -> tuple[bytes, list[int]]:
        self._wait(deadline, alive)
        fds = array.array("i")
        try:
            data, ancillary, _, _ = self._sock.recvmsg(
                _HEADER.size, socket.CMSG_SPACE(MAX_FDS * fds.itemsize)
            )
        except ConnectionResetError:
            raise ChannelClosed("connection reset") from None
        for level, kind, value in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(value[: len(value) - len(value) % fds.itemsize])
        if not data:
            raise ChannelClosed("end of stream")
        if len(data) < _HEADER.size:
            data += self._exactly(_HEADER.size - len(data), deadline, alive)
        return data, list(fds)

    def _exactly(self, size: int, deadline: float | None, alive: int | None) -> bytes:
        parts: list[bytes] = []
        while size:
            self._wait(deadline, alive)
            try:
                part = self._sock.recv(min(size, 1 << 20))
            except ConnectionResetError:
                raise ChannelClosed("connection reset") from None
            if not part:
                raise ChannelClosed("end of stream")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _wait(self, deadline: float | None, alive: int | None) -> None:
        if deadline is None:
            return
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        if alive is not None:
            poll.register(alive, select.POLLIN)
        remaining = max(0.0, deadline - time.monotonic())
        ready = [fd for fd, _ in poll.poll(remaining * 1000)]
        if not ready:
            raise ChannelTimeout
        if self._sock.fileno() not in ready:
            raise ChannelClosed("the process ended")


def memory_file(name: str, data: bytes) -> int:
    """A sealed, read-only memory file that holds ``data``; the caller closes it."""
    import fcntl

    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def read_memory_file(fd: int) -> bytes:
    """All bytes of a file made by ``memory_file``; closes it."""
    try:
        size = os.fstat(fd).st_size
        return os.pread(fd, size, 0) if size < 1 << 30 else _read_long(fd, size)
    finally:
        os.close(fd)


def _read_long(fd: int, size: int) -> bytes:
    parts: list[bytes] = []
    done = 0
    while done < size:
        parts.append(os.pread(fd, 1 << 29, done))
        done += len(parts[-1])
    return b"".join(parts)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
