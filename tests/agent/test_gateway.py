"""The gateway over its real socket, from inside and outside a sandbox."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import pytest
from doubles import TextCompiler, TextJudge, bash, call, write

from cudaagent.agent.gateway import SOCKET_NAME, Gateway
from cudaagent.agent.hold import LeaseHold
from cudaagent.agent.parse import parse_calls
from cudaagent.agent.shell import Shell
from cudaagent.agent.tools import ToolBox
from cudaagent.lease import TimingLease
from cudaagent.sandbox.base import Sandbox
from cudaagent.tasks.task import Task
from cudaagent.workspace.submission import Submission

CLIENT = """\
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(".gateway")
s.sendall(json.dumps({"command": sys.argv[1]}).encode() + b"\\n")
answer = json.loads(s.makefile().readline())
print(answer["text"])
sys.exit(answer["status"])
"""


def talk(workspace: Path, data: bytes) -> bytes:
    """What the gateway answers to raw bytes, sent from outside the sandbox."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(workspace / SOCKET_NAME))
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        return client.makefile("rb").readline()


def ask(workspace: Path, command: str) -> tuple[int, str]:
    answer = json.loads(talk(workspace, json.dumps({"command": command}).encode() + b"\n"))
    assert set(answer) == {"status", "text"}
    return answer["status"], answer["text"]


def run(tools: ToolBox, text: str) -> str:
    (parsed,) = parse_calls(text, tools.schemas)
    return tools.run(parsed, timeout_s=60).result


def solve(workspace: Path, comment: str) -> Submission:
    (workspace / "model_new.py").write_text(f"class ModelNew: ...\n# {comment}\n")
    (workspace / "kernels/k.cpp").write_text("int a;\n")
    return Submission.from_dir(workspace)


def test_the_three_commands_answer_with_their_first_lines(
    workspace: Path, gateway: Gateway, compiler: TextCompiler, judge: TextJudge
) -> None:
    submission = solve(workspace, "reward 2")
    assert ask(workspace, "compile") == (0, "BUILD OK")
    assert gateway.build_of(submission) is not None
    status, text = ask(workspace, "verify")
    assert (status, text.splitlines()[0]) == (0, "VERIFY OK")
    status, text = ask(workspace, "profile")
    assert (status, text.splitlines()[0]) == (0, "PROFILE: reward 2")
    assert compiler.built == [submission.digest]
    assert [purpose for _, purpose in judge.asked] == ["verify", "profile"]


def test_failures_are_said_with_code_and_place(workspace: Path, gateway: Gateway) -> None:
    solve(workspace, "wrong")
    assert ask(workspace, "verify") == (
        1,
        "VERIFY FAILED: wrong-values\noutputs differ\nindex: [3, 4]\nexpected: 1",
    )
    assert ask(workspace, "profile")[1].startswith("PROFILE FAILED: wrong-values\n")
    (workspace / "kernels/k.cpp").write_text("error")
    assert ask(workspace, "compile") == (1, "BUILD FAILED\nkernels/k.cpp:1: error")
    assert ask(workspace, "verify")[1].startswith("VERIFY FAILED: build-failed\n")
    (workspace / "model_new.py").unlink()
    assert ask(workspace, "verify")[1].startswith("VERIFY FAILED: no-solution\n")
    assert gateway.fault is None
    assert gateway.best is None


def test_a_changed_file_is_built_again(
    workspace: Path, gateway: Gateway, compiler: TextCompiler
) -> None:
    first = solve(workspace, "reward 1")
    ask(workspace, "compile")
    second = solve(workspace, "reward 3")
    ask(workspace, "profile")
    ask(workspace, "verify")
    assert compiler.built == [first.digest, second.digest]
    assert gateway.build_of(first) is None


def test_the_best_verified_state_is_kept(workspace: Path, gateway: Gateway) -> None:
    for comment, command in (
        ("reward 1", "verify"),
        ("reward 2.5", "profile"),
        ("reward 2", "profile"),
        ("wrong", "profile"),
        ("reward 3", "compile"),
    ):
        solve(workspace, comment)
        ask(workspace, command)
    assert gateway.best is not None
    assert "reward 2.5" in (gateway.best.submission.model_new or "")


GARBAGE = [
    b"",
    b"\n",
    b"\xff\xfe\n",
    b"[]\n",
    b"null\n",
    b'{"command": 3}\n',
    b'{"command": "rm"}\n',
    b"[" * 4096,
    b"x" * 100_000,
    b'{"command": "compile"',
    b"{}\n" * 100,
]


@pytest.mark.parametrize("data", GARBAGE)
def test_garbage_is_answered_and_survived(
    workspace: Path, gateway: Gateway, compiler: TextCompiler, data: bytes
) -> None:
    try:
        answer = talk(workspace, data)
    except OSError:
        answer = b""  # it stopped reading: the rest is refused
    if answer:
        assert json.loads(answer)["status"] == 2
    assert compiler.built == []
    solve(workspace, "reward 1")
    assert ask(workspace, "compile")[0] == 0


def test_clients_that_hang_up_are_survived(workspace: Path, gateway: Gateway) -> None:
    solve(workspace, "reward 1")
    for data in (b"", b'{"command": "verify"}\n'):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(workspace / SOCKET_NAME))
            client.sendall(data)
    assert ask(workspace, "verify")[0] == 0


def test_a_link_in_place_of_a_source_is_not_followed(
    workspace: Path, gateway: Gateway, tmp_path: Path
) -> None:
    solve(workspace, "reward 1")
    (tmp_path / "secret.cpp").write_text("error: secret")
    (workspace / "kernels/s.cpp").symlink_to(tmp_path / "secret.cpp")
    assert ask(workspace, "compile") == (0, "BUILD OK")


@pytest.mark.parametrize("code", ["infrastructure", "task-random"])
def test_failures_of_task_and_system_are_faults(
    workspace: Path, gateway: Gateway, judge: TextJudge, code: str
) -> None:
    solve(workspace, f"code {code}")
    status, text = ask(workspace, "verify")
    assert status == 3
    assert code in text
    assert gateway.fault is not None
    assert gateway.fault.code == code
    assert len(judge.asked) == (2 if code == "infrastructure" else 1)


def test_a_passing_failure_of_the_system_is_tried_again(
    workspace: Path, gateway: Gateway, compiler: TextCompiler
) -> None:
    solve(workspace, "reward 1")
    compiler.broken = 1
    assert ask(workspace, "verify")[0] == 0
    assert gateway.fault is None
    solve(workspace, "reward 2")
    compiler.broken = 2
    assert ask(workspace, "verify")[0] == 3
    assert gateway.fault is not None


def test_a_fault_of_our_own_reaches_the_episode(
    workspace: Path, gateway: Gateway, judge: TextJudge
) -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    judge.inside = broken
    solve(workspace, "reward 1")
    assert ask(workspace, "verify") == (3, "the gateway failed")
    with pytest.raises(RuntimeError, match="a bug"):
        _ = gateway.fault


def test_it_works_from_inside_the_sandbox(
    workspace: Path, tools: ToolBox, gateway: Gateway
) -> None:
    run(tools, write("ask.py", CLIENT))
    run(tools, write("model_new.py", "class ModelNew: ...\n# reward 2\n"))
    run(tools, write("kernels/k.cpp", "int a;\n"))
    assert run(tools, bash("python3 ask.py compile && python3 ask.py profile")).startswith(
        "BUILD OK\nPROFILE: reward 2\n"
    )
    run(tools, call("Edit", path="model_new.py", old="reward 2", new="wrong"))
    assert run(tools, bash("python3 ask.py verify")).endswith("\nexit status 1")


def test_a_path_longer_than_a_sockets_name_may_be(
    tmp_path: Path, task: Task, compiler: TextCompiler, judge: TextJudge
) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with Gateway(deep, task, compiler, judge):
        descriptor = os.open(deep, os.O_RDONLY)
        try:
            status, _ = ask(Path(f"/proc/self/fd/{descriptor}"), "compile")
        finally:
            os.close(descriptor)
    assert status == 0


def test_a_command_lends_its_hold_to_the_judge_it_waits_for(
    workspace: Path,
    sandbox: Sandbox,
    task: Task,
    compiler: TextCompiler,
    judge: TextJudge,
    tmp_path: Path,
) -> None:
    """Judging takes the lease exclusively; without the hand-over this waits for ever."""
    lease = TimingLease("test", directory=tmp_path / "lease")
    hold = LeaseHold(lease, timeout_s=30)
    held: list[bool] = []

    def time_it() -> None:
        with lease.exclusive(timeout_s=20):
            held.append(hold.held)

    judge.inside = time_it
    tools = ToolBox(workspace, Shell(sandbox, hold, command_s=60))
    try:
        with Gateway(workspace, task, compiler, judge, hold=hold):
            run(tools, write("ask.py", CLIENT))
            run(tools, write("model_new.py", "class ModelNew: ...\n# reward 2\n"))
            text = run(tools, bash("python3 ask.py verify; python3 ask.py profile"))
    finally:
        tools.close()
    assert text.startswith("VERIFY OK\n")
    assert "PROFILE: reward 2" in text
    assert held == [False, False]
    assert not hold.held
    with lease.exclusive(timeout_s=0.1):
        pass


def test_the_hold_is_taken_again_while_the_command_still_runs(tmp_path: Path) -> None:
    hold = LeaseHold(TimingLease("test", directory=tmp_path / "lease"), timeout_s=30)
    with hold.active():
        with hold.paused():
            assert not hold.held
        assert hold.held
    assert not hold.held
    with hold.paused():
        pass
    assert not hold.held


def test_a_command_starts_only_when_no_request_is_served(tmp_path: Path) -> None:
    """An abandoned request may still want to time; the next command must not stand in its way."""
    hold = LeaseHold(TimingLease("test", directory=tmp_path / "lease"), timeout_s=30)
    order: list[str] = []
    entered = threading.Event()
    release = threading.Event()

    def serve() -> None:
        with hold.paused():
            entered.set()
            release.wait(20)
            order.append("served")

    server = threading.Thread(target=serve)
    server.start()
    entered.wait(20)
    threading.Timer(0.05, release.set).start()
    with hold.active():
        order.append("command")
    server.join(20)
    assert order == ["served", "command"]


def test_closing_waits_for_the_request_and_ends_the_thread(
    workspace: Path, task: Task, compiler: TextCompiler, judge: TextJudge
) -> None:
    solve(workspace, "reward 1")
    entered = threading.Event()
    release = threading.Event()

    def wait() -> None:
        entered.set()
        release.wait(20)

    judge.inside = wait
    threads = threading.active_count()
    descriptors = len(os.listdir("/proc/self/fd"))
    gateway = Gateway(workspace, task, compiler, judge)
    answers: list[tuple[int, str]] = []
    client = threading.Thread(target=lambda: answers.append(ask(workspace, "verify")))
    client.start()
    entered.wait(20)
    threading.Timer(0.05, release.set).start()
    gateway.close()
    client.join(20)
    gateway.close()
    assert answers[0][0] == 0
    assert threading.active_count() <= threads + 1
    assert len(os.listdir("/proc/self/fd")) == descriptors
