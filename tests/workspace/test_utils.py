"""The workspace's clients against a gateway socket, and without one; inside a sandbox too."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cudaagent.sandbox.base import open_sandbox
from cudaagent.sandbox.settings import SandboxSettings
from cudaagent.tasks.task import Task
from cudaagent.workspace.workspace import Workspace

COMMANDS = [
    (["bash", "utils/compile.sh"], "compile", "build"),
    (["python3", "utils/compile.py"], "compile", "build"),
    (["python3", "utils/verification.py"], "verify", "verify"),
    (["python3", "utils/profiling.py"], "profile", "profile"),
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Workspace.create(Task("t", "x = 1\n"), tmp_path / "ws", "cpu").directory


@pytest.fixture
def requests(directory: Path) -> Iterator[list[Any]]:
    """A gateway that answers with status 7; the list fills with the requests."""
    received: list[Any] = []
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(directory, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{here}/.gateway")
        os.close(here)
        (directory / ".gateway").chmod(0o666)
        listener.listen()

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                with connection, connection.makefile("rb") as lines:
                    line = lines.readline()
                    if line == b"stop\n":
                        return
                    received.append(json.loads(line))
                    answer = {"status": 7, "text": "BUILD FAILED\nkernels/ä.cpp:1: no\n"}
                    connection.sendall(json.dumps(answer).encode() + b"\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield received
        with socket.socket(socket.AF_UNIX) as last:
            here = os.open(directory, os.O_RDONLY)
            last.connect(f"/proc/self/fd/{here}/.gateway")
            os.close(here)
            last.sendall(b"stop\n")
        thread.join(10)


@pytest.mark.parametrize(("argv", "command", "local"), COMMANDS)
def test_question_and_answer(
    directory: Path, requests: list[Any], argv: list[str], command: str, local: str
) -> None:
    done = subprocess.run(
        argv, cwd=directory, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == "BUILD FAILED\nkernels/ä.cpp:1: no\n"
    assert requests == [{"command": command}]


@pytest.mark.parametrize(("argv", "command", "local"), COMMANDS)
def test_without_a_gateway(directory: Path, argv: list[str], command: str, local: str) -> None:
    done = subprocess.run(
        argv, cwd=directory, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert f"run `cudaagent {local} .` here instead" in done.stderr
    assert done.stdout == ""


def test_from_inside_a_sandbox(directory: Path, requests: list[Any]) -> None:
    sandbox = open_sandbox(directory, SandboxSettings())
    try:
        result = sandbox.run(["bash", "utils/compile.sh"])
        assert (result.status, result.output.splitlines()[0]) == (7, "BUILD FAILED")
        assert sandbox.run(["python3", "verification.py"], cwd="utils").status == 7
    finally:
        sandbox.close()
    assert requests == [{"command": "compile"}, {"command": "verify"}]


def test_clients_need_the_standard_library_only(directory: Path) -> None:
    for script in (directory / "utils").glob("*.py"):
        code = f"import sys; sys.argv = [{str(script)!r}]; exec(open({str(script)!r}).read())"
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", f"__file__ = {str(script)!r}\n{code}"],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode in (0, 2), done.stderr
