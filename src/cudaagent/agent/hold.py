"""A shared hold on the timing lease that the gateway may set aside.

An agent's command computes, so it holds the timing lease shared. When that very command asks the
gateway for a verdict, the judge needs the lease exclusively, while the command only waits for the
answer: the gateway sets the hold aside for as long as it serves, and takes it again before it
answers. Runs on the trusted side; the thread that runs commands and the gateway's thread share one
``LeaseHold``.

Invariant: while a request is served nobody holds on behalf of this workspace, so a request can
never wait for the command that made it; a new command starts only when no request is being served.

Not covered: a command that computes holds the lease until it ends, since a sandbox cannot be
frozen; ``sandbox.command_s`` bounds how long timing may have to wait for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from cudaagent.errors import InfrastructureError
from cudaagent.lease import TimingLease


class LeaseHold:
    """Hold ``lease`` shared while a command runs; without a lease nothing is held."""

    def __init__(self, lease: TimingLease | None = None, *, timeout_s: float = 600.0) -> None:
        self._lease = lease
        self._timeout_s = timeout_s
        self._state = threading.Condition()
        self._stack: contextlib.ExitStack | None = None
        self._active = False
        self._pauses = 0

    @property
    def held(self) -> bool:
        """Whether the lease is held at this moment."""
        return self._stack is not None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Hold the lease for the length of a command.

        Raises:
            InfrastructureError: the lease, or the request before, was not done in time.
        """
        deadline = time.monotonic() + self._timeout_s
        with self._state:
            idle = self._state.wait_for(lambda: self._pauses == 0, deadline - time.monotonic())
            if not idle:
                raise InfrastructureError(
                    f"the gateway still serves an earlier request after {self._timeout_s:.0f} s"
                )
            self._acquire()
            self._active = True
        try:
            yield
        finally:
            with self._state:
                self._active = False
                self._release()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Set the hold aside; it is taken again at the end if its command still runs.

        Raises:
            InfrastructureError: the lease could not be taken again in time.
        """
        with self._state:
            self._pauses += 1
            self._release()
        try:
            yield
        finally:
            with self._state:
                self._pauses -= 1
                if self._active and self._pauses == 0:
                    self._acquire()
                self._state.notify_all()

    def _acquire(self) -> None:
        if self._lease is None or self._stack is not None:
            return
        stack = contextlib.ExitStack()
        stack.enter_context(self._lease.shared(self._timeout_s))
        self._stack = stack

    def _release(self) -> None:
        if self._stack is not None:
            stack, self._stack = self._stack, None
            stack.close()
