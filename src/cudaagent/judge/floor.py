"""The least time that a call can take: the bytes it must move over the fastest path they can take.

Runs in the judge's process, under the timing lease where it measures. Operations never count,
since algebra may remove them. The bounds are generous on purpose: a call below them is measured
again with every call checked, and only then called impossible.

Not covered: the GPU's memory; inputs that a task reads only in part (the caller counts what it saw
matter).
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_HEADROOM = 2.0
_CACHE_BYTES_PER_CYCLE = 64.0
_FASTEST_CLOCK_HZ = 6.0e9
_LARGE_CACHE = 256 << 20
_BUFFER_BYTES = 64 << 20
_REPEATS = 5
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes a second: main memory and caches, both upper bounds; last-level cache in bytes."""

    memory: float
    cache: float
    cache_bytes: int


def measure_bandwidth(threads: int) -> Bandwidth:
    """Upper bounds for this machine; takes a fraction of a second, under the timing lease.

    Memory: the fastest of several parallel reads, doubled. Caches: a line a cycle
    and thread at a clock that no processor has.
    """
    buffers = [np.ones(_BUFFER_BYTES, dtype=np.uint8) for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_REPEATS):
            start = time.perf_counter()
            list(pool.map(np.max, buffers))
            best = max(best, threads * _BUFFER_BYTES / (time.perf_counter() - start))
    cache = threads * _CACHE_BYTES_PER_CYCLE * _FASTEST_CLOCK_HZ
    return Bandwidth(min(best * _HEADROOM, cache), cache, last_level_cache_bytes())


def last_level_cache_bytes() -> int:
    """Size of the last-level cache; a large guess where the machine does not say."""
    sizes: list[int] = []
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = entry.read_text().strip()
        unit = _UNITS.get(text[-1:], 0)
        if unit and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * unit)
    if sizes:
        return max(sizes)
    reported = os.sysconf("SC_LEVEL3_CACHE_SIZE") if os.name == "posix" else 0
    return reported if reported > 0 else _LARGE_CACHE


def floor_ms(
    input_bytes: int, output_bytes: int, bandwidth: Bandwidth, *, slots: int, calls: int
) -> float:
    """Least milliseconds a call.

    ``input_bytes``: of inputs and weights of which every element was seen to matter, a call;
    ``slots``: slots of the ring; ``calls``: calls of a pass, whose outputs are all kept. Bytes that
    fit into the last-level cache together may come from it; beyond that, one cacheful may.
    """
    return 1e3 * (
        _seconds(input_bytes, slots, bandwidth) + _seconds(output_bytes, calls, bandwidth)
    )


def _seconds(bytes_a_call: int, copies: int, bandwidth: Bandwidth) -> float:
    total = bytes_a_call * max(copies, 1)
    cached = min(bandwidth.cache_bytes, total) / total if total else 0.0
    fast = bytes_a_call * cached
    return fast / bandwidth.cache + (bytes_a_call - fast) / bandwidth.memory
