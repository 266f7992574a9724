"""The warm parent of all runners: imports torch once and forks confined children.

A program of its own, started by the judge with a clean environment: ``python -I -m
cudaagent.judge.zygote FD``. Invariants: one thread; torch is imported and no operator is ever run
(a child of a parent that has run one parallel operator hangs in its first); no secret is in
memory; the only input is the judge's socket. It ends, with everything it forked, when that socket
closes or the judge is no longer its parent.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

import torch

from cudaagent.errors import InfrastructureError
from cudaagent.judge import runner
from cudaagent.judge.wire import Channel, ChannelClosed, Frame
from cudaagent.sandbox import linux
from cudaagent.sandbox.confine import ConfinedChild, ConfineLimits, confined_fork, fresh_uid

_WARM = ("torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.cpp_builder", "tvm_ffi")
"""Imported once here, which takes seconds off the first compile of every runner."""

_PARENT_CHECK_MS = 1000


@dataclass(slots=True)
class _Child:
    confined: ConfinedChild
    scratch: str | None
    """Directory on the host to remove afterwards; None where /tmp is private."""


class Zygote:
    """Forks runners on request and ends them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._children: dict[int, _Child] = {}
        self._count = 0

    def serve(self) -> None:
        """Answer requests until the judge goes away."""
        parent = os.getppid()
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        self._channel.send({"ready": True, "torch": str(torch.__version__), "pid": os.getpid()})
        try:
            while True:
                if not poll.poll(_PARENT_CHECK_MS):
                    if os.getppid() != parent:
                        return
                    continue
                self._answer(self._channel.receive())
        except ChannelClosed:
            return
        finally:
            for child in list(self._children.values()):
                with contextlib.suppress(InfrastructureError):  # it dies with this process
                    _end(child, 0.0)

    def _answer(self, frame: Frame) -> None:
        assert frame.message is not None
        try:
            if frame.message["op"] == "fork":
                self._fork(frame.message, frame.fds)
            else:
                self._end(frame.message)
        except (InfrastructureError, OSError) as error:
            self._channel.send({"error": str(error)})

    def _fork(self, message: dict[str, Any], fds: tuple[int, ...]) -> None:
        backend: str = message["backend"]
        uid = fresh_uid(backend)
        scratch = None
        if backend != "namespace":
            scratch = tempfile.mkdtemp(prefix="cudaagent-runner-")
            if os.getuid() == 0:
                os.chown(scratch, uid, uid)
        limits = ConfineLimits(
            address_space_bytes=linux.mapped_bytes() + int(message["memory_bytes"]),
            processes=int(message["processes"]),
            file_bytes=int(message["file_bytes"]),
        )
        try:
            confined = confined_fork(
                lambda: _run(fds, scratch or "/tmp"),
                limits=limits, uid=uid, keep_fds=fds, backend=backend,
            )  # fmt: skip
        except BaseException:
            _remove(scratch)
            raise
        finally:
            for fd in fds:
                os.close(fd)
        self._count += 1
        self._children[self._count] = _Child(confined, scratch)
        pidfd = os.pidfd_open(confined.pid)
        try:
            self._channel.send(
                {
                    "id": self._count,
                    "pid": confined.pid,
                    "supervisor": confined.supervisor,
                    "isolation": confined.isolation,
                    "scratch": scratch or "/tmp",
                },
                [pidfd],
            )
        finally:
            os.close(pidfd)

    def _end(self, message: dict[str, Any]) -> None:
        child = self._children.pop(int(message["id"]), None)
        if child is None:
            self._channel.send({"code": None, "signal": None})
            return
        code, number = _end(child, float(message["grace_s"]))
        self._channel.send({"code": code, "signal": number})


def _run(fds: tuple[int, ...], scratch: str) -> None:
    """Body of a runner, already confined: its channel is ``fds[0]``, its output ``fds[1]``."""
    os.dup2(fds[1], 1)
    os.dup2(fds[1], 2)
    os.close(fds[1])
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    faulthandler.enable(2)
    os.environ.update(HOME=scratch, TMPDIR=scratch, TORCHINDUCTOR_CACHE_DIR=f"{scratch}/inductor")
    tempfile.tempdir = None
    runner.serve(Channel(socket.socket(fileno=fds[0])))


def _end(child: _Child, grace_s: float) -> tuple[int | None, int | None]:
    """Wait ``grace_s`` for an end of its own, then kill; returns how it ended."""
    try:
        if grace_s > 0:
            child.confined.wait(grace_s)
        status = child.confined.kill()
        child.confined.close()
    finally:
        _remove(child.scratch)
    return status.code, status.signal


def _remove(scratch: str | None) -> None:
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def main() -> None:
    """Serve the judge at the descriptor that the command line names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _WARM:
        importlib.import_module(name)
    # A child's collector must not walk, and so copy, what all children share.
    gc.collect()
    gc.freeze()
    Zygote(Channel(socket.socket(fileno=int(sys.argv[1])))).serve()


if __name__ == "__main__":
    main()
