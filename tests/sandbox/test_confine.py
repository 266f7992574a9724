"""``confined_fork`` from a parent of one thread: identity, descriptors, limits, ends.

Each case runs in an interpreter of its own, since this one may have threads.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from cudaagent.sandbox.confine import best_backend
from cudaagent.sandbox.output import MiddleCut, cut_middle

needs_namespaces = pytest.mark.skipif(
    best_backend() != "namespace", reason="this machine allows no namespaces"
)
LEVELS = ["process", pytest.param("namespace", marks=needs_namespaces)]
PROLOGUE = """
import os, signal, sys, time
from cudaagent.errors import InfrastructureError
from cudaagent.sandbox.confine import *
def start(entry, **options):
    options.setdefault("limits", ConfineLimits())
    return confined_fork(entry, backend=sys.argv[1], uid=fresh_uid(), **options)
"""


def run(level: str, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + textwrap.dedent(code), level],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("level", LEVELS)
def test_ends_are_reported(level: str) -> None:
    output = run(
        level,
        """
        def broken():
            sys.stderr = open(os.devnull, "w")
            raise ValueError("x")
        for entry in (lambda: None, lambda: sys.exit(7), broken, lambda: os.kill(os.getpid(), 11)):
            child = start(entry)
            status = child.wait(20)
            print(status.code, status.signal)
            child.close()
        """,
    )
    assert output.split("\n")[:4] == ["0 None", "7 None", "1 None", "None 11"]


@pytest.mark.parametrize("level", LEVELS)
def test_kill_leaves_no_descendant(level: str) -> None:
    output = run(
        level,
        """
        def entry():
            for _ in range(3):
                if os.fork() == 0:
                    os.setsid()
                    time.sleep(300)
            os.write(ready, b"x")
            time.sleep(300)
        seen, ready = os.pipe()
        child = start(entry, keep_fds=(ready,))
        os.read(seen, 1)
        print(child.wait(0.05))
        print(child.kill().signal)
        child.close()
        os.close(ready)
        print(os.read(seen, 1))  # the end of the pipe: nobody holds it any more
        """,
    )
    assert output == "None\n9\nb''\n"


@pytest.mark.parametrize("level", LEVELS)
def test_only_named_descriptors_are_kept(level: str) -> None:
    output = run(
        level,
        """
        secret = os.open("/etc/hostname", os.O_RDONLY)
        kept = os.open("/etc/hostname", os.O_RDONLY)
        def entry():
            held = []
            for fd in range(3, 64):
                try:
                    os.fstat(fd)
                except OSError:
                    continue
                held.append(fd)
            sys.exit(10 if held == [kept] else 1)
        child = start(entry, keep_fds=(kept,))
        print(child.wait(20).code)
        child.close()
        """,
    )
    assert output == "10\n"


@pytest.mark.parametrize("level", LEVELS)
def test_limits_hold_inside(level: str) -> None:
    output = run(
        level,
        """
        from cudaagent.sandbox import linux
        def entry():
            try:
                bytearray(512 << 20)
            except MemoryError:
                print("bounded", flush=True)
        limits = ConfineLimits(address_space_bytes=linux.mapped_bytes() + (128 << 20))
        child = start(entry, limits=limits)
        child.wait(20)
        child.close()
        """,
    )
    assert output == "bounded\n"


@needs_namespaces
def test_binds_and_hidden_paths(tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "file").write_text("text")
    (tmp_path / "shown" / "covered").mkdir()
    (tmp_path / "shown" / "covered" / "secret").write_text("secret")
    output = run(
        "namespace",
        f"""
        where = {str(tmp_path / "shown")!r}
        def entry():
            print(open("/seen/file").read(), os.listdir("/seen/covered"), os.getcwd(), flush=True)
            print(os.path.exists(where), os.access("/seen/file", os.W_OK), flush=True)
        view = View(binds=(Bind(where, "/seen"),), hidden=("/seen/covered",))
        child = start(entry, view=view, cwd="/seen")
        child.wait(20)
        child.close()
        """,
    )
    assert output == "text [] /seen\nFalse False\n"


@needs_namespaces
def test_failure_to_confine_is_reported_and_nothing_runs() -> None:
    output = run(
        "namespace",
        """
        try:
            start(lambda: print("ran", flush=True), view=View(binds=(Bind("/no/such/path"),)))
        except InfrastructureError as error:
            print("no such path" in str(error).lower() or "/no/such/path" in str(error))
        """,
    )
    assert output == "True\n"


@needs_namespaces
def test_child_dies_with_a_killed_parent_even_when_it_resists(tmp_path: Path) -> None:
    code = """
    import ctypes
    def entry():
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # give up the signal for the parent's death
        for number in (1, 2, 15):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(300)
    child = start(entry)
    print(child.pid, flush=True)
    time.sleep(300)
    """
    with subprocess.Popen(
        [sys.executable, "-c", PROLOGUE + textwrap.dedent(code), "namespace"],
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        inner = int(parent.stdout.readline())
        os.kill(inner, 0)
        parent.kill()
        parent.wait(10)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{inner}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{inner}").exists()


def test_nobody_inside_can_undo_a_stop() -> None:
    output = run(
        "process",
        """
        import ctypes, errno, fcntl, threading
        libc = ctypes.CDLL(None, use_errno=True)
        def refused(call):
            try:
                return call() == -1 and ctypes.get_errno() == errno.EPERM
            except PermissionError:
                return True
        def entry():
            event = (ctypes.c_long * 8)(0, int(signal.SIGCONT))
            number = ctypes.c_int()
            read_end, _ = os.pipe()
            print(
                refused(lambda: os.kill(os.getpid(), signal.SIGCONT)),
                refused(lambda: signal.pthread_kill(threading.get_ident(), signal.SIGCONT)),
                refused(lambda: libc.timer_create(1, event, ctypes.byref(number))),
                refused(lambda: fcntl.fcntl(read_end, fcntl.F_SETOWN, os.getpid())),
                refused(lambda: fcntl.fcntl(read_end, fcntl.F_SETSIG, int(signal.SIGCONT))),
                refused(lambda: libc.prctl(1, int(signal.SIGCONT), 0, 0, 0)),
                refused(lambda: libc.syscall(56, int(signal.SIGCONT), 0, 0, 0, 0)),
                os.kill(os.getpid(), 0) is None,
                fcntl.fcntl(read_end, fcntl.F_GETFD) >= 0,
                flush=True,
            )
        child = start(entry)
        print(child.wait(20))
        child.close()
        """,
    )
    if "x86_64" in os.uname().machine:
        assert output.splitlines()[0].split() == ["True"] * 9


def test_middle_cut() -> None:
    assert cut_middle("short", 100) == "short"
    kept = MiddleCut(90)
    for number in range(1000):
        kept.add(f"{number:03d} ".encode())
    text = kept.text()
    assert text.startswith("000 001 ")
    assert text.endswith("998 999 ")
    assert "[... 3910 bytes cut ...]" in text
