"""Slots written on the device, from pools in memory that no runner maps.

As ``ring.Pools.write``: for each tensor a random member of its pool, float tensors cut into four
pieces in random order with some elements exchanged, all decided by the slot's seed. The same seed
writes the same slot again. The values differ from those that ``ring.Pools`` makes of that seed:
an exchanged element is drawn by the device.

Not covered: noticing work of others meanwhile; the caller puts events round a whole renewal.
"""

from __future__ import annotations

import ctypes
import random

from cudaagent.judge.cuda.driver import call, to_device
from cudaagent.judge.cuda.kernels import Kernels
from cudaagent.judge.manifest import ITEM_BYTES
from cudaagent.judge.ring import Pools

_CHUNK = 2048
"""Elements of which one is exchanged; a block's share at a time, as in ``kernels.cu``."""
_ALIGN = 256
_Starts = ctypes.c_uint64 * 4


class _Pieces(ctypes.Structure):
    _fields_ = [("to_start", _Starts), ("from_start", _Starts)]


class DevicePools:
    """A copy of ``pools`` on the device, and the writing of slots from it."""

    def __init__(self, pools: Pools, kernels: Kernels) -> None:
        self._pools, self._kernels = pools, kernels
        sets = (pools.inputs, pools.params)
        sizes = [extent.nbytes for pool in sets for row in pool for extent in row]
        total = sum(-(-size // _ALIGN) * _ALIGN for size in sizes)
        memory = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(max(total, 1)))
        self._memory: int | None = memory.value
        at = memory.value
        self._addresses: list[list[list[int]]] = []
        for pool in sets:
            rows: list[list[int]] = []
            for row in pool:
                rows.append([])
                for extent in row:
                    rows[-1].append(at)
                    if extent.nbytes:
                        to_device(at, extent.tobytes())
                    at += -(-extent.nbytes // _ALIGN) * _ALIGN
            self._addresses.append(rows)

    def write(self, slot: int, seed: int) -> None:
        """Launch the writing of the slot at address ``slot`` with what ``seed`` decides."""
        rng = random.Random(seed)
        layout = self._pools.layout
        count = len(layout.inputs)
        for position, spec in enumerate(layout.specs):
            if not spec.nbytes:
                continue
            rows = self._addresses[0 if position < count else 1]
            column = position if position < count else position - count
            source = rows[rng.randrange(len(rows))][column]
            target = slot + layout.offsets[position]
            if self._pools.shuffle[position]:
                self._scramble(target, source, spec.nbytes, ITEM_BYTES[spec.dtype], rng)
            else:
                call(
                    "cuMemcpyDtoDAsync_v2",
                    ctypes.c_uint64(target),
                    ctypes.c_uint64(source),
                    ctypes.c_size_t(spec.nbytes),
                    None,
                )

    def close(self) -> None:
        """Give the memory back; may be called twice."""
        if self._memory is not None:
            memory, self._memory = self._memory, None
            call("cuMemFree_v2", ctypes.c_uint64(memory))

    def _scramble(
        self, target: int, source: int, nbytes: int, item: int, rng: random.Random
    ) -> None:
        size = nbytes // item
        to_starts, from_starts = piece_starts(size, rng)
        self._kernels.spread(
            f"renew_{item}",
            -(-size // _CHUNK),
            ctypes.c_uint64(target),
            ctypes.c_uint64(source),
            ctypes.c_uint64(size),
            _Pieces(_Starts(*to_starts), _Starts(*from_starts)),
            ctypes.c_uint64(rng.getrandbits(64)),
        )


def piece_starts(size: int, rng: random.Random) -> tuple[list[int], list[int]]:
    """Four pieces of ``size`` elements in random order: where each goes, and where it is from."""
    cuts = [0, *sorted(rng.randrange(size) for _ in range(3)), size]
    to_starts: list[int] = []
    from_starts: list[int] = []
    position = 0
    for piece in rng.sample(range(4), 4):
        to_starts.append(position)
        from_starts.append(cuts[piece])
        position += cuts[piece + 1] - cuts[piece]
    return to_starts, from_starts
