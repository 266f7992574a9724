"""The gateway: through it the workspace's clients ask for builds and verdicts.

Runs on the trusted side, in a thread of the process that runs the episode. It listens on the Unix
socket ``.gateway`` in the workspace, reads one JSON line ``{"command": "compile" | "verify" |
"profile"}`` a connection and answers with one JSON line ``{"status": int, "text": str}``. Nothing
but that text goes back.

Invariants: one request at a time; a request is about the files as they lie in the workspace when
it is served; whatever a client sends costs at most a few KiB and a few seconds. While it serves,
the timing lease of the command that asked is set aside (``LeaseHold``).

Not covered: an agent can keep its own gateway busy, which costs only its own time.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cudaagent.agent.feedback import compile_text, profile_text, verify_text
from cudaagent.agent.hold import LeaseHold
from cudaagent.agent.judging import Snapshot, judge_submission
from cudaagent.errors import InfrastructureError, UserError
from cudaagent.judge.verdict import Judge, Verdict
from cudaagent.tasks.task import Task
from cudaagent.toolchain.compiler import Compiler, CompileResult
from cudaagent.workspace.submission import Submission

SOCKET_NAME = ".gateway"
_LINE_BYTES = 4096
_IO_S = 5.0
_BACKLOG = 16

STATUS_OK, STATUS_FAILED, STATUS_USAGE, STATUS_FAULT = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure of the task or the system that a request met; it ends the episode."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client prints, and its exit status."""

    status: int
    text: str


class Gateway:
    """Serve one workspace until ``close``."""

    def __init__(
        self,
        workspace: Path,
        task: Task,
        compiler: Compiler,
        judge: Judge,
        *,
        hold: LeaseHold | None = None,
    ) -> None:
        self._workspace = workspace
        self._task = task
        self._compiler = compiler
        self._judge = judge
        self._hold = hold or LeaseHold()
        self._builds: dict[str, CompileResult] = {}
        self._snapshots: list[Snapshot] = []
        self._fault: Fault | None = None
        self._crash: Exception | None = None
        self._closing = threading.Event()
        self._wake_read, self._wake_write = socket.socketpair()
        self._listener = _listen(workspace)
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def fault(self) -> Fault | None:
        """The first failure of task or system that a request met."""
        if self._crash is not None:
            raise self._crash
        return self._fault

    @property
    def best(self) -> Snapshot | None:
        """The best state that a tool call found correct; the later one among equals."""
        best: Snapshot | None = None
        for snapshot in self._snapshots:
            if best is None or snapshot.rank >= best.rank:
                best = snapshot
        return best

    def build_of(self, submission: Submission) -> CompileResult | None:
        """The last build made for a tool call, if it was of exactly this submission."""
        return self._builds.get(submission.digest)

    def close(self, timeout_s: float = 600.0) -> None:
        """Stop serving; waits for the request being served.

        Raises:
            InfrastructureError: the request did not end within ``timeout_s``.
        """
        if self._closing.is_set() and not self._thread.is_alive():
            return
        self._closing.set()
        with contextlib.suppress(OSError):
            self._wake_write.send(b"x")
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise InfrastructureError(
                f"the gateway's last request did not end within {timeout_s:.0f} s"
            )
        for handle in (self._listener, self._wake_read, self._wake_write):
            handle.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while not self._closing.is_set():
                selector.select()
                if self._closing.is_set():
                    return
                try:
                    connection, _ = self._listener.accept()
                except BlockingIOError:
                    continue
                except OSError as error:
                    self._crash = error
                    return
                # A client that hangs up is nobody's error.
                with connection, contextlib.suppress(OSError):
                    self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        """Serve one connection."""
        line = _read_line(connection)
        try:
            with self._hold.paused():
                answer = self.answer(line)
        except InfrastructureError as error:
            answer = self._failed_with(Fault("infrastructure", str(error)))
        except Exception as error:
            # A fault of our own must reach the episode, whose thread reads it from `fault`.
            self._crash = error
            answer = Answer(STATUS_FAULT, "the gateway failed")
        reply = json.dumps({"status": answer.status, "text": answer.text}) + "\n"
        connection.settimeout(_IO_S)
        connection.sendall(reply.encode())

    def answer(self, line: bytes) -> Answer:
        """Serve one request line."""
        command = _command(line)
        if command not in ("compile", "verify", "profile"):
            return Answer(
                STATUS_USAGE, 'send one line: {"command": "compile" | "verify" | "profile"}'
            )
        try:
            submission = Submission.from_dir(self._workspace)
        except UserError as error:
            return Answer(STATUS_FAILED, str(error))
        if command == "compile":
            return self._compile(submission)
        build = self.build_of(submission)
        purpose = "verify" if command == "verify" else "profile"
        judged = judge_submission(
            self._compiler, self._judge, self._task, submission, purpose=purpose, build=build
        )
        if judged.build is not None:
            self._builds = {submission.digest: judged.build}
        return self._report(submission, judged.verdict, command)

    def _compile(self, submission: Submission) -> Answer:
        result = self._compiler.compile(submission)
        self._builds = {submission.digest: result}
        return Answer(STATUS_OK if result.ok else STATUS_FAILED, compile_text(result))

    def _report(self, submission: Submission, verdict: Verdict, command: str) -> Answer:
        failure = verdict.failure
        if failure is not None and (verdict.blames_system or verdict.blames_task):
            return self._failed_with(Fault(failure.code, failure.message))
        if verdict.correct:
            self._snapshots.append(Snapshot(submission, verdict))
        text = verify_text(verdict) if command == "verify" else profile_text(verdict)
        return Answer(STATUS_OK if verdict.correct else STATUS_FAILED, text)

    def _failed_with(self, fault: Fault) -> Answer:
        self._fault = self._fault or fault
        return Answer(STATUS_FAULT, f"not measured: {fault.code}: {fault.message}")


def _listen(workspace: Path) -> socket.socket:
    """Bind the socket; its name goes through a descriptor, since ``sun_path`` holds 107 bytes."""
    directory = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = f"/proc/self/fd/{directory}/{SOCKET_NAME}"
        listener.bind(path)
        # The sandbox's uid connects, which takes the right to write.
        os.chmod(path, 0o666)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        return listener
    finally:
        os.close(directory)


def _read_line(connection: socket.socket) -> bytes:
    """The first line, or what came of it within the limits of size and time."""
    deadline = time.monotonic() + _IO_S
    data = b""
    while b"\n" not in data and len(data) < _LINE_BYTES:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        connection.settimeout(left)
        try:
            piece = connection.recv(_LINE_BYTES)
        except TimeoutError:
            break
        if not piece:
            break
        data += piece
    return data.partition(b"\n")[0]


def _command(line: bytes) -> str | None:
    try:
        message: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    command = message.get("command") if isinstance(message, dict) else None
    return command if isinstance(command, str) else None
