"""The inner loop of the comparison: one pass over two arrays, chunk by chunk, in float64.

Runs in the judge's own process. The largest temporary is one chunk, which stays in the cache. No
BLAS: its threads would spin beside the runners that are being timed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 16


def chunks(size: int) -> Iterator[slice]:
    """Slices that cover ``size`` elements."""
    for start in range(0, size, CHUNK):
        yield slice(start, min(start + CHUNK, size))


@dataclass(slots=True)
class Errors:
    """What has been seen of a leaf so far; ``rank`` orders the elements worth reporting."""

    squares: float = 0.0
    largest: float = 0.0
    elements: int = 0
    wrong: int = 0
    nonfinite: int = 0
    rank: tuple[int, float] = (-1, 0.0)
    at: int = 0
    allowed: float = 0.0

    def offer(self, severity: int, size: float, at: int, allowed: float) -> None:
        """``severity``: 0 within the allowance, 1 beyond it, 2 a non-finite mismatch."""
        if (severity, size) > self.rank:
            self.rank, self.at, self.allowed = (severity, size), at, allowed


def measure_errors(
    got: NDArray[Any], want: NDArray[Any], allowance: tuple[float, float, float]
) -> Errors:
    """Errors of a flat float array; an element may be off by max(a + b |want|, c)."""
    base, slope, least = allowance
    smallest = max(base, least)
    error_buffer = np.empty(min(CHUNK, got.size))
    worst = Errors()
    for part in chunks(got.size):
        error = error_buffer[: part.stop - part.start]
        with np.errstate(invalid="ignore", over="ignore"):
            np.subtract(got[part], want[part], out=error, dtype=np.float64)
            squares = float(np.einsum("i,i->", error, error))
        worst.elements += error.size
        if not math.isfinite(squares):
            squares = _mask_nonfinite(got[part], want[part], error, worst, part.start)
        worst.squares += squares
        high, low = float(error.max()), float(error.min())
        largest = max(high, -low)
        worst.largest = max(worst.largest, largest)
        if largest > smallest:
            _count_wrong(want[part], error, allowance, worst, part.start)
        elif (0, largest) > worst.rank:
            # The common case: no element can be beyond an allowance that is nowhere smaller.
            at = int(error.argmax() if high >= -low else error.argmin())
            allowed = max(base + slope * abs(float(want[part.start + at])), least)
            worst.offer(0, largest, part.start + at, allowed)
    return worst


def _count_wrong(
    want: NDArray[Any],
    error: NDArray[np.float64],
    allowance: tuple[float, float, float],
    worst: Errors,
    start: int,
) -> None:
    base, slope, least = allowance
    size = np.abs(error)
    with np.errstate(invalid="ignore"):
        allowed = np.maximum(base + slope * np.abs(want.astype(np.float64)), least)
    beyond = size > allowed
    count = int(beyond.sum())
    worst.wrong += count
    ranked = np.where(beyond, size, -1.0) if count else size
    at = int(ranked.argmax())
    worst.offer(1 if count else 0, float(size[at]), start + at, float(allowed[at]))


def _mask_nonfinite(
    got: NDArray[Any], want: NDArray[Any], error: NDArray[np.float64], worst: Errors, start: int
) -> float:
    """Count mismatches, zero the errors of non-finite elements, and return the sum of squares."""
    both = np.isfinite(got) & np.isfinite(want)
    same = both | (got == want) | (np.isnan(got) & np.isnan(want))
    error[~both] = 0.0
    worst.elements -= int((~both).sum())
    mismatches = int((~same).sum())
    if mismatches:
        worst.nonfinite += mismatches
        worst.wrong += mismatches
        worst.offer(2, 0.0, start + int((~same).argmax()), 0.0)
    with np.errstate(over="ignore"):
        return float(np.einsum("i,i->", error, error))
