"""The least time that a call can take: the bytes it must move over the fastest path they can take.

Runs in the judge's process. Operations never count, since algebra may remove them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes a second: main memory and last-level cache, both upper bounds; cache size in bytes."""

    memory: float
    cache: float
    cache_bytes: int


def measure_bandwidth(threads: int) -> Bandwidth:
    """Upper bounds for this machine; takes a fraction of a second, under the timing lease."""
    raise NotImplementedError


def floor_ms(
    input_bytes: int, output_bytes: int, bandwidth: Bandwidth, *, slots: int, calls: int
) -> float:
    """Least milliseconds a call.

    ``input_bytes``: of inputs and weights of which every element was seen to matter, a call;
    ``slots``: slots of the ring; ``calls``: calls of a pass, whose outputs are all kept.
    """
    raise NotImplementedError
