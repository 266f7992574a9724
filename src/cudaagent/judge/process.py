"""Trusted side of a runner: requests with deadlines, stop, read its memory, kill.

Runs in the judge's process, which imports no torch. A runner's answers are validated JSON or raw
bytes; what it prints is drained by a thread and kept up to a cap, so that printing never blocks
it. Every wait has a deadline whose settings key is in the exception.

Not covered: a candidate's kernel threads cannot be caught between two instructions: what runs in
the microseconds between "done" and the stop is timed as part of the pass.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from cudaagent.errors import InfrastructureError
from cudaagent.judge.wire import Channel, ChannelClosed, ChannelForged, ChannelTimeout

_GRACE_S = 2.0
_STOP_S = 5.0
_CPUCLOCK_SCHED = 2
"""clock_getcpuclockid(3): the clock of process P is ``~P << 3 | 2``."""


class RunnerTimeout(Exception):
    """The runner did not answer in time; ``key`` is the limit that fired."""

    def __init__(self, key: str, seconds: float, what: str) -> None:
        super().__init__(f"{what} took longer than {seconds:g} s ({key})")
        self.key = key
        self.seconds = seconds


class RunnerDied(Exception):
    """The runner ended by itself."""

    def __init__(self, code: int | None, number: int | None) -> None:
        self.code = code
        self.signal = number
        super().__init__(self.describe())

    def describe(self) -> str:
        if self.signal is not None:
            with contextlib.suppress(ValueError):
                return f"signal {signal.Signals(self.signal).name}"
            return f"signal {self.signal}"
        return f"exit status {self.code}" if self.code is not None else "an unknown end"


_SUMMARY_CHARS = 400


class RunnerError(Exception):
    """Somebody's code in the runner raised; an ordinary answer."""

    def __init__(self, stage: str, kind: str, text: str, memory: bool) -> None:
        super().__init__(text)
        self.stage = stage
        self.kind = kind
        self.text = text
        self.memory = memory

    @property
    def summary(self) -> str:
        """``Kind: message``, the first line of the message if it has several, cut."""
        begins = re.compile(rf"(?:[\w.]*\.)?{re.escape(self.kind)}(?::|$)")
        lines = self.text.strip().splitlines() or [self.kind]
        line = next((line for line in reversed(lines) if begins.match(line)), lines[-1]).strip()
        return line if len(line) <= _SUMMARY_CHARS else f"{line[:_SUMMARY_CHARS]}..."


class RunnerForged(Exception):
    """The runner's answer is none that our runner gives."""


class UnreadableMemory(Exception):
    """An address that the runner reported cannot be read."""


class RunnerRefused(Exception):
    """What the judge has seen of the runner breaks a rule; ``code`` is the contract's."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


RUNNER_FAULTS = (
    RunnerRefused,
    RunnerDied,
    RunnerError,
    RunnerForged,
    RunnerTimeout,
    UnreadableMemory,
)


@dataclass(frozen=True, slots=True)
class Deadline:
    """Seconds and the settings key that they come from."""

    seconds: float
    key: str

    def within(self, end: float, key: str) -> Deadline:
        """This deadline, or the one that ends at ``end`` (monotonic) when that is sooner."""
        remaining = max(0.0, end - time.monotonic())
        return Deadline(remaining, key) if remaining < self.seconds else self


class RunnerProcess:
    """One runner as the judge sees it."""

    def __init__(
        self,
        end: Callable[[int, float], tuple[int | None, int | None]],
        channel: Channel,
        pidfd: int,
        description: dict[str, Any],
        output: RunnerOutput,
    ) -> None:
        self._end = end
        self._channel = channel
        self._pidfd = pidfd
        self._output = output
        self._number = int(description["id"])
        self._supervisor = int(description["supervisor"])
        self._closed = False
        self._stopped: list[int] = []
        self._frozen = False
        self._helper: int | None = None
        self.pid = int(description["pid"])
        self.isolation = str(description["isolation"])
        self.scratch = str(description["scratch"])

    @property
    def output(self) -> str:
        """What it has printed, capped."""
        return self._output.text()

    def request(
        self, message: dict[str, Any], deadline: Deadline, *, fds: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            RunnerTimeout, RunnerDied, RunnerError, RunnerForged: see the classes.
        """
        self.send(message, fds)
        raw, answer = self.receive(deadline, f"the runner's {message['op']}")
        if raw is not None:
            raise RunnerForged("raw bytes where a message was due")
        return answer

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a request whose answer is received later; a stopped runner goes on."""
        if self._frozen:
            self.resume()
        try:
            self._channel.send(message, fds)
        except ChannelClosed:
            self._raise_died()

    def send_raw(self, data: bytes) -> None:
        """Send raw bytes."""
        try:
            self._channel.send_raw(data)
        except ChannelClosed:
            self._raise_died()

    def receive(self, deadline: Deadline, what: str) -> tuple[bytes | None, dict[str, Any]]:
        """The next answer: raw bytes, or a message."""
        try:
            frame = self._channel.receive(deadline.seconds, alive=self._pidfd)
        except ChannelTimeout:
            raise RunnerTimeout(deadline.key, deadline.seconds, what) from None
        except ChannelClosed:
            self._raise_died()
        except ChannelForged as error:
            raise RunnerForged(str(error)) from None
        for fd in frame.fds:
            os.close(fd)
        message = frame.message or {}
        error = message.get("error")
        if isinstance(error, dict):
            raise RunnerError(
                str(error.get("stage"))[:40],
                str(error.get("type"))[:80],
                str(error.get("text"))[-8000:],
                bool(error.get("memory")),
            )
        return frame.raw, message

    def read_into(self, address: int, buffer: memoryview | bytearray) -> None:
        """Read the runner's memory.

        Raises:
            UnreadableMemory: nothing readable lies there.
            InfrastructureError: this process may not read it.
        """
        view = memoryview(buffer).cast("B")
        size = len(view)
        if not size:
            return
        local = (ctypes.c_char * size).from_buffer(view)
        done = 0
        while done < size:
            here = _IoVec(ctypes.addressof(local) + done, size - done)
            there = _IoVec(address + done, size - done)
            count = _libc.process_vm_readv(
                self.pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0
            )
            if count <= 0:
                self._raise_unreadable(address + done)
            done += count

    def read(self, address: int, size: int) -> bytearray:
        """``size`` bytes of the runner's memory."""
        data = bytearray(size)
        self.read_into(address, data)
        return data

    def stop(self) -> int:
        """SIGSTOP the runner and whatever it has started; returns the clock when that was done.

        Only a runner with processes of its own pays for finding them.
        """
        self._frozen = True
        self._signal(signal.SIGSTOP)
        clock = time.perf_counter_ns()
        self._stopped = self._descendants()
        for pid in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        return time.perf_counter_ns() if self._stopped else clock

    def await_stop(self) -> None:
        """Wait until every thread of the runner has stopped."""
        deadline = time.monotonic() + _STOP_S
        while not all(state in "TtZX" for state in self._states()):
            if time.monotonic() > deadline:
                raise InfrastructureError(f"runner {self.pid} did not stop in {_STOP_S:.0f} s")
            time.sleep(0)

    def resume(self) -> None:
        """SIGCONT what ``stop`` stopped; requests do it by themselves."""
        self._frozen = False
        for pid in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._stopped = []
        self._signal(signal.SIGCONT)

    def queue_wait_ns(self) -> int:
        """Nanoseconds that the runner's threads have so far waited for a core."""
        total = 0
        for task in self._tasks(self.pid):
            with contextlib.suppress(OSError, IndexError):
                total += int(_read(f"/proc/{self.pid}/task/{task}/schedstat").split()[1])
        return total

    def cpu_ns(self) -> int:
        """Nanoseconds that the runner's threads, ended ones included, have so far computed."""
        try:
            return time.clock_gettime_ns((~self.pid << 3) | _CPUCLOCK_SCHED)
        except OSError:
            self._raise_died()

    def close(self, *, grace_s: float = 0.0) -> tuple[int | None, int | None]:
        """Kill the runner and wait until it is gone; may be called twice. (exit code, signal)"""
        if self._closed:
            return None, None
        self._closed = True
        try:
            return self._end(self._number, grace_s)
        finally:
            self._channel.close()
            os.close(self._pidfd)
            self._output.close()

    def _raise_died(self) -> NoReturn:
        raise RunnerDied(*self.close(grace_s=_GRACE_S)) from None

    def _raise_unreadable(self, address: int) -> None:
        error = ctypes.get_errno()
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if poll.poll(0):
            self._raise_died()
        if error == 1:
            raise InfrastructureError(
                "process_vm_readv is not permitted: run the judge as root, or allow ptrace of "
                "descendants (kernel.yama.ptrace_scope <= 1)"
            )
        raise UnreadableMemory(f"nothing readable at {address:#x}: {os.strerror(error)}")

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def _descendants(self) -> list[int]:
        """Processes that the runner has started, orphans included; not the sandbox's own two."""
        root = self._supervisor
        if self.isolation != "process":
            if self._helper is None:
                self._helper = next(iter(self._children(root)), None)
            root = self._helper if self._helper is not None else root
        found: list[int] = []
        frontier = self._children(root, single=True)
        while frontier:
            found += [pid for pid in frontier if pid != self.pid]
            frontier = [child for pid in frontier for child in self._children(pid)]
        return found

    def _children(self, pid: int, *, single: bool = False) -> list[int]:
        children: list[int] = []
        for task in [str(pid)] if single else self._tasks(pid):
            with contextlib.suppress(OSError):
                children += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
        return children

    def _states(self) -> list[str]:
        states: list[str] = []
        for task in self._tasks(self.pid):
            with contextlib.suppress(OSError):
                text = _read(f"/proc/{self.pid}/task/{task}/stat")
                states.append(text.rsplit(b")", 1)[1].split()[0].decode())
        return states

    @property
    def threads(self) -> int:
        """Threads of the runner."""
        return len(self._tasks(self.pid))

    @staticmethod
    def _tasks(pid: int) -> list[str]:
        try:
            return os.listdir(f"/proc/{pid}/task")
        except OSError:
            return []


class RunnerOutput:
    """Drains what a runner prints; keeps the first and the last half of the cap."""

    def __init__(self, fd: int, cap: int) -> None:
        self._fd = fd
        self._half = max(512, cap // 2)
        self._head = b""
        self._tail = b""
        self._cut = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, daemon=True, name="runner-output")
        self._thread.start()

    def text(self) -> str:
        with self._lock:
            middle = f"\n[{self._cut} bytes cut]\n".encode() if self._cut else b""
            return (self._head + middle + self._tail).decode(errors="replace")

    def close(self) -> None:
        """Wait for the end of the pipe, which comes when the last writer is gone."""
        self._thread.join(_GRACE_S)

    def _drain(self) -> None:
        try:
            while data := os.read(self._fd, 1 << 16):
                with self._lock:
                    room = self._half - len(self._head)
                    self._head += data[:room] if room > 0 else b""
                    tail = self._tail + (data[room:] if room > 0 else data)
                    self._cut += max(0, len(tail) - self._half)
                    self._tail = tail[-self._half :]
        finally:
            os.close(self._fd)


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t
_libc.process_vm_readv.argtypes = (
    ctypes.c_int,
    ctypes.POINTER(_IoVec),
    ctypes.c_ulong,
    ctypes.POINTER(_IoVec),
    ctypes.c_ulong,
    ctypes.c_ulong,
)


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)
