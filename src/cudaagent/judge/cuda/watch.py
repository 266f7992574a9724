"""Whether another context has work on the device, seen from the judge's own.

A short kernel takes its usual time by the host's clock while the judge is alone; while another
context has work it waits for that one's time slice to end (H200: 77 us become 2,444). Events
round the kernel show nothing, they run in the judge's own slice: 101 us beside a busy neighbour.

Not covered: work that is armed and waits for a word of memory. It shows only in the time of a
whole renewal, longer than a time slice.
"""

from __future__ import annotations

import ctypes
import statistics
import time

from cudaagent.judge.cuda.driver import call, synchronize
from cudaagent.judge.cuda.kernels import Kernels

_ROUNDS = 2000
_WARM, _SAMPLES = 10, 51
_TRIES = 3
_FACTOR = 4.0


class Probe:
    """The usual time is measured when the probe is made, so nobody may have work then."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._sink = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self._sink), ctypes.c_size_t(8))
        for _ in range(_WARM):
            self._us()
        self.usual_us = statistics.median(self._us() for _ in range(_SAMPLES))

    def alone(self) -> bool:
        """Whether no other context has work; one slow probe of several may be the host's."""
        return any(self._us() < _FACTOR * self.usual_us for _ in range(_TRIES))

    def close(self) -> None:
        """Give the probe's memory back."""
        call("cuMemFree_v2", self._sink)

    def _us(self) -> float:
        start = time.perf_counter_ns()
        self._kernels.single("work", ctypes.c_uint64(_ROUNDS), self._sink)
        synchronize()
        return (time.perf_counter_ns() - start) / 1000
