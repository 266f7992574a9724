"""The launcher: a small process that starts confined commands for one trusted process.

Run as a script (``python -I -S launch.py FD``), so that it starts in milliseconds and has one
thread, which ``confined_fork`` needs. Requests come as JSON over the Unix socket FD, each with
three descriptors: standard input, output, and a reply socket of its own. On the reply socket it
sends ``{"pid": ...}`` or ``{"error": ...}``, and at the end ``{"code": ..., "signal": ...}``. The
command is killed when the reply socket is closed or says anything; the launcher ends, and
everything below it, when its own socket closes. It trusts its requests and runs no untrusted code
itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Any

if __name__ == "__main__":
    _here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, os.path.dirname(os.path.dirname(_here)))

from cudaagent.errors import InfrastructureError
from cudaagent.sandbox import confine

_REQUEST_BYTES = 1 << 17


@dataclass(slots=True)
class _Command:
    child: confine.ConfinedChild
    reply: socket.socket


def serve(control: socket.socket) -> None:
    """Serve requests until ``control`` is closed, then end every command."""
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    running: dict[int, _Command] = {}
    try:
        while True:
            for key, _ in selector.select():
                if key.fileobj is control:
                    command = _accept(control)
                    if command is _END:
                        return
                    if isinstance(command, _Command):
                        _watch(selector, running, command)
                elif key.fd in running:
                    _handle(selector, running, key.fd)
    finally:
        for command in {id(c): c for c in running.values()}.values():
            with contextlib.suppress(InfrastructureError):
                command.child.close()


_END = object()


def _watch(
    selector: selectors.BaseSelector, running: dict[int, _Command], command: _Command
) -> None:
    for fd in (command.child.fileno(), command.reply.fileno()):
        running[fd] = command
        selector.register(fd, selectors.EVENT_READ)


def _handle(selector: selectors.BaseSelector, running: dict[int, _Command], fd: int) -> None:
    command = running[fd]
    if fd == command.reply.fileno():
        # An unread message would turn the reply below into a connection reset.
        with contextlib.suppress(OSError):
            command.reply.recv(16)
        command.child.request_end()
        selector.unregister(fd)
        del running[fd]
        return
    status = command.child.wait(1.0)
    if status is None:
        return
    selector.unregister(fd)
    del running[fd]
    if command.reply.fileno() in running:
        selector.unregister(command.reply)
        del running[command.reply.fileno()]
    _send(command.reply, {"code": status.code, "signal": status.signal})
    command.child.close()
    command.reply.close()


def _accept(control: socket.socket) -> _Command | object | None:
    try:
        data, fds, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 3)
    except ConnectionError:
        return _END
    if not data:
        return _END
    stdin, output = fds[0], fds[1]
    reply = socket.socket(fileno=fds[2])
    try:
        request: dict[str, Any] = json.loads(data)
        child = _start(request, stdin, output)
    except (InfrastructureError, OSError, ValueError) as error:
        _send(reply, {"error": str(error)})
        reply.close()
        return None
    finally:
        os.close(stdin)
        os.close(output)
    _send(reply, {"pid": child.pid})
    return _Command(child, reply)


def _start(request: dict[str, Any], stdin: int, output: int) -> confine.ConfinedChild:
    argv: list[str] = request["argv"]
    environment: dict[str, str] = request["env"]

    def entry() -> None:
        os.dup2(stdin, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(stdin)
        os.close(output)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec keeps that
            signal.signal(number, signal.SIG_DFL)
        try:
            os.chdir(request["cwd"])
            os.execvpe(argv[0], argv, environment)
        except OSError as error:
            print(f"cannot run {argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
            raise SystemExit(127) from None

    binds = tuple(confine.Bind(*bind) for bind in request["binds"])
    return confine.confined_fork(
        entry,
        limits=confine.ConfineLimits(**request["limits"]),
        view=confine.View(
            binds=binds,
            hidden=tuple(request["hidden"]),
            devices=tuple(request["devices"]),
            interpreter=False,  # under -S this process does not know the environment's prefix
            tmp_bytes=request["tmp_bytes"],
        ),
        uid=request["uid"],
        keep_fds=(stdin, output),
        backend=request["backend"],
    )


def _send(reply: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        reply.send(json.dumps(message).encode())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
