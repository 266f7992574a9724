"""Trusted side of the zygote: start it with a clean environment, ask it for confined runners.

Runs in the judge's process. The zygote's only input is a socket that nobody else holds; when it
closes, by ``close`` or by the judge's death, the zygote ends everything that it forked.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

from cudaagent.errors import InfrastructureError
from cudaagent.judge.process import RunnerOutput, RunnerProcess
from cudaagent.judge.wire import Channel, ChannelClosed, ChannelTimeout

_START_S = 120.0
_FORK_S = 60.0
_END_S = 30.0
_CLEAN = ("PATH", "LD_LIBRARY_PATH", "CXX", "CC", "LANG", "LC_ALL", "VIRTUAL_ENV")


class ZygoteProcess:
    """The warm parent, and the runners forked from it."""

    def __init__(self, *, threads: int, output_bytes: int, many_compiles: bool) -> None:
        """``many_compiles``: a runner will compile so often that precompiling headers pays."""
        self._output_bytes = output_bytes
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channel = Channel(ours)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-m", "cudaagent.judge.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=_environment(threads, many_compiles),
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            start_new_session=True,
        )
        theirs.close()
        self._torch = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ready(self) -> str:
        """Wait until torch is imported there; returns its version."""
        if not self._torch:
            answer, _ = self._receive(_START_S, "importing torch")
            self._torch = str(answer.get("torch"))
        return self._torch

    def fork(
        self, *, backend: str, memory_bytes: int, processes: int, file_bytes: int
    ) -> RunnerProcess:
        """Fork one confined runner.

        Raises:
            InfrastructureError: it could not be confined.
        """
        self.ready()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            request = {
                "op": "fork",
                "backend": backend,
                "memory_bytes": memory_bytes,
                "processes": processes,
                "file_bytes": file_bytes,
            }
            answer, fds = self._request(request, (theirs.fileno(), write_end), _FORK_S)
        except BaseException:
            ours.close()
            os.close(read_end)
            raise
        finally:
            theirs.close()
            os.close(write_end)
        output = RunnerOutput(read_end, self._output_bytes)
        return RunnerProcess(self.end, Channel(ours), fds[0], answer, output)

    def end(self, number: int, grace_s: float) -> tuple[int | None, int | None]:
        """End runner ``number`` and wait until nothing of it is left; (exit code, signal)."""
        answer, _ = self._request({"op": "end", "id": number, "grace_s": grace_s}, (), _END_S)
        return answer.get("code"), answer.get("signal")

    def close(self) -> None:
        """End the zygote and all its runners; may be called twice."""
        self._channel.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _request(
        self, message: dict[str, Any], fds: Sequence[int], timeout_s: float
    ) -> tuple[dict[str, Any], tuple[int, ...]]:
        with self._lock:
            try:
                self._channel.send(message, fds)
            except ChannelClosed:
                self._raise_dead(str(message["op"]))
            return self._receive(timeout_s, str(message["op"]))

    def _receive(self, timeout_s: float, what: str) -> tuple[dict[str, Any], tuple[int, ...]]:
        try:
            frame = self._channel.receive(timeout_s)
        except ChannelTimeout:
            raise InfrastructureError(
                f"the judge's zygote did not answer within {timeout_s:.0f} s ({what})"
            ) from None
        except ChannelClosed:
            self._raise_dead(what)
        answer = frame.message or {}
        if "error" in answer:
            raise InfrastructureError(f"{what}: {answer['error']}")
        return answer, frame.fds

    def _raise_dead(self, what: str) -> NoReturn:
        self._errors.seek(0)
        tail = self._errors.read()[-2000:].decode(errors="replace").strip()
        raise InfrastructureError(f"the judge's zygote died ({what}): {tail}") from None


def _environment(threads: int, many_compiles: bool) -> dict[str, str]:
    """The clean environment of the zygote and so of every runner."""
    kept = {name: os.environ[name] for name in _CLEAN if name in os.environ}
    kept.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    return kept | {
        "HOME": "/tmp",
        "USER": "nobody",
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "OPENBLAS_NUM_THREADS": "1",
        # Freed memory stays with the process, so a pass finds the pages of the pass before.
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
        "MALLOC_ARENA_MAX": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # Trust /proc/cpuinfo about vector instructions: trying them out takes four seconds.
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        # Precompiled headers take as long as three kernels and save two thirds of each.
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": str(int(many_compiles)),
        "TRITON_CACHE_DIR": "/tmp/triton",
    }
