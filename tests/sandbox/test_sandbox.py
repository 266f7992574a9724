"""The sandbox against what a hostile command would try. Real processes, both levels."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudaagent.errors import InfrastructureError, UserError
from cudaagent.sandbox import base
from cudaagent.sandbox.base import Sandbox, choose_backend, open_sandbox
from cudaagent.sandbox.confine import best_backend
from cudaagent.sandbox.settings import SandboxSettings

needs_namespaces = pytest.mark.skipif(
    best_backend() != "namespace", reason="this machine allows no namespaces"
)
LEVELS = ["process", pytest.param("namespace", marks=needs_namespaces)]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "tool.py").write_text("print('tool')\n")
    (tmp_path / "model.py").write_text("task\n")
    return tmp_path


@pytest.fixture(params=LEVELS)
def sandbox(request: pytest.FixtureRequest, workspace: Path) -> Iterator[Sandbox]:
    settings = SandboxSettings(backend=request.param, processes=64, memory_bytes=1 << 30)
    opened = open_sandbox(workspace, settings, output_bytes=4096)
    yield opened
    opened.close()


@pytest.fixture
def strong(workspace: Path) -> Iterator[Sandbox]:
    opened = open_sandbox(workspace, SandboxSettings(backend="namespace"), output_bytes=4096)
    yield opened
    opened.close()


def bash(sandbox: Sandbox, script: str, timeout_s: float = 20.0) -> tuple[int, str]:
    result = sandbox.run(["bash", "-c", script], timeout_s=timeout_s)
    assert not result.timed_out, result.output
    return result.status, result.output


def processes_with(marker: str) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in line:
                found.append(int(entry.name))
    return found


def test_output_status_and_files(sandbox: Sandbox, workspace: Path) -> None:
    assert bash(sandbox, "echo out; echo err >&2; exit 3") == (3, "out\nerr\n")
    assert bash(sandbox, "kill -SEGV $$")[0] == 128 + 11
    assert sandbox.run(["cat"], stdin=b"hello").output == "hello"
    bash(sandbox, "mkdir kernels && echo text > kernels/a.cpp")
    assert (workspace / "kernels" / "a.cpp").read_text() == "text\n"
    assert sandbox.run(["pwd"], cwd="kernels").output.rstrip().endswith("/kernels")


def test_a_command_that_cannot_start_is_a_result(sandbox: Sandbox) -> None:
    assert sandbox.run(["no-such-program"]).status == 127
    missing = sandbox.run(["true"], cwd="nowhere")
    assert missing.status == 127
    assert "No such file" in missing.output


def test_host_environment_is_not_passed_on(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
    assert "SECRET_OF_THE_HOST" not in sandbox.run(["env"]).output
    assert "ADDED=1" in sandbox.run(["env"], env={"ADDED": "1"}).output


def test_endless_loop_is_ended(sandbox: Sandbox) -> None:
    result = sandbox.run(
        ["bash", "-c", "trap '' TERM; echo begun; while :; do :; done"], timeout_s=1.0
    )
    assert result.timed_out
    assert result.status == 124
    assert result.output == "begun\n"


def test_fork_bomb_is_bounded_and_gone(sandbox: Sandbox) -> None:
    script = """
import os, sys, time
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            time.sleep(300)
        made += 1
except OSError:
    pass
print('made', made)
"""
    status, output = bash(sandbox, f"python3 -I -S - bomb-marker <<'END'\n{script}\nEND")
    made = int(output.split()[-1])
    assert status == 0
    if sandbox.isolation == "namespace" and os.getuid() == 0:
        assert 0 < made < 64  # an ordinary user's other processes count too; root is exempt
    assert processes_with("bomb-marker") == []


def test_daemon_is_gone_after_the_command(sandbox: Sandbox, workspace: Path) -> None:
    marker = "4711.25"
    status, _ = bash(sandbox, f"setsid nohup sleep {marker} >/dev/null 2>&1 & disown; exit 0")
    assert status == 0
    assert processes_with(marker) == []


def test_giant_output_keeps_head_and_end(sandbox: Sandbox) -> None:
    script = "echo HEAD; head -c 20000000 /dev/zero | tr '\\0' x; echo; echo END"
    _, output = bash(sandbox, script)
    assert len(output) < 4096 + 100
    assert output.startswith("HEAD\n")
    assert output.endswith("\nEND\n")
    assert "bytes cut" in output


def test_memory_and_file_size_are_limited(workspace: Path) -> None:
    settings = SandboxSettings(memory_bytes=256 << 20, file_bytes=1 << 20)
    sandbox = open_sandbox(workspace, settings)
    try:
        status, output = bash(sandbox, "python3 -I -S -c 'b = bytearray(1 << 30)'")
        assert status == 1
        assert "MemoryError" in output
        status, _ = bash(sandbox, "head -c 3000000 /dev/zero > big")
        assert status == 128 + 25  # SIGXFSZ
        assert (workspace / "big").stat().st_size == 1 << 20
    finally:
        sandbox.close()


def test_many_commands_at_once(sandbox: Sandbox) -> None:
    outputs: dict[int, str] = {}

    def work(number: int) -> None:
        outputs[number] = sandbox.run(["bash", "-c", f"echo {number}"]).output

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outputs == {number: f"{number}\n" for number in range(12)}


def test_closed_sandbox_runs_nothing(sandbox: Sandbox) -> None:
    sandbox.close()
    sandbox.close()
    with pytest.raises(InfrastructureError, match="closed"):
        sandbox.run(["true"])


def test_owner_of_the_files_is_given_back(workspace: Path) -> None:
    before = workspace.stat().st_uid
    sandbox = open_sandbox(workspace, SandboxSettings())
    bash(sandbox, "mkdir made; echo x > made/file; ln -s /etc/passwd made/link")
    sandbox.close()
    assert (workspace / "made" / "file").stat().st_uid == before
    assert Path("/etc/passwd").stat().st_uid == 0


@needs_namespaces
def test_no_network(strong: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        status, output = bash(strong, f"exec 3<>/dev/tcp/127.0.0.1/{port}")
    assert status != 0
    assert "unreachable" in output
    assert bash(strong, "tail -n +3 /proc/net/route; wc -l < /proc/net/dev")[1] == "3\n"


@needs_namespaces
def test_only_the_workspace_is_writable(strong: Sandbox, tmp_path: Path) -> None:
    outside = tmp_path.parent / "outside.txt"
    outside.write_text("host")
    for target in ("/usr/x", "/etc/x", "/x", "/dev/x", "/proc/sys/kernel/hostname"):
        status, _ = bash(strong, f"echo x > {target}")
        assert status != 0, target
    assert bash(strong, f"cat {outside}")[0] != 0
    assert bash(strong, f"ls {Path.cwd()}/tests {Path.home()}")[0] != 0
    assert bash(strong, "echo mine > /tmp/x && cat /tmp/x")[1] == "mine\n"
    assert bash(strong, "ls /tmp")[1] == ""


@needs_namespaces
def test_protected_entries_cannot_be_changed(strong: Sandbox, workspace: Path) -> None:
    for attempt in ("echo x > model.py", "rm -f model.py", "mv utils other", "echo x > utils/a"):
        assert bash(strong, attempt)[0] != 0, attempt
    assert (workspace / "model.py").read_text() == "task\n"
    assert sorted(p.name for p in (workspace / "utils").iterdir()) == ["tool.py"]
    assert bash(strong, "python3 utils/tool.py")[1] == "tool\n"


@needs_namespaces
def test_host_processes_are_out_of_reach(strong: Sandbox) -> None:
    pids = bash(strong, "ls -d /proc/[0-9]*")[1].split()
    assert len(pids) < 5
    assert bash(strong, f"kill -0 {os.getpid()}")[0] != 0
    assert bash(strong, "kill -KILL -1; echo alive")[1].endswith("alive\n")
    with subprocess.Popen(["sleep", "60"]) as bystander:
        bash(strong, f"kill -KILL {bystander.pid}; kill -KILL 1")
        assert bystander.poll() is None
        bystander.kill()


@needs_namespaces
def test_no_privilege_is_left(strong: Sandbox) -> None:
    status = dict(
        line.split(":\t", 1)
        for line in bash(strong, "cat /proc/self/status")[1].splitlines()
        if ":\t" in line
    )
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        if name != "CapBnd" or os.getuid() == 0:
            assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert bash(strong, "unshare --user true")[0] != 0
    assert bash(strong, "mount -t tmpfs none /tmp")[0] != 0


@needs_namespaces
@pytest.mark.parametrize("end", ["exit", "kill -9"])
def test_nothing_outlives_the_trusted_process(workspace: Path, end: str) -> None:
    marker = f"{os.getpid()}.{len(end)}"
    script = f"""
import os, signal, sys, threading, time
from pathlib import Path
from cudaagent.sandbox.base import open_sandbox
from cudaagent.sandbox.settings import SandboxSettings
sandbox = open_sandbox(Path({str(workspace)!r}), SandboxSettings())
run = lambda: sandbox.run(["bash", "-c", "touch begun; setsid sleep {marker} & sleep {marker}"])
threading.Thread(target=run, daemon=True).start()
while not Path({str(workspace)!r}, "begun").exists():
    time.sleep(0.01)
{"os._exit(0)" if end == "exit" else "os.kill(os.getpid(), signal.SIGKILL)"}
"""
    subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert (workspace / "begun").exists()
    deadline = time.monotonic() + 10
    while processes_with(marker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_with(marker) == []


def test_backend_that_is_not_there() -> None:
    with pytest.raises(UserError, match="docker is not there yet"):
        choose_backend(SandboxSettings(backend="docker"))
    with pytest.raises(UserError, match="auto, namespace"):
        choose_backend(SandboxSettings(backend="jail"))
    with pytest.raises(UserError, match="not a directory"):
        open_sandbox(Path("/no/such/place"), SandboxSettings())


def test_weak_level_is_announced_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_announced", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert choose_backend(SandboxSettings(backend="process")) == "process"
    assert len([r for r in caplog.records if "isolation is only 'process'" in r.message]) == 1
