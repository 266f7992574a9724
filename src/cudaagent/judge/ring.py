"""The ring: shared memory whose slots the judge renews before every pass.

Runs in the judge's process; runners map the same memory (a memfd sealed against changes of size),
so the addresses stay and only the values change. A slot is written from *pools* of values that
the task gave: for each tensor a random member of its pool, float tensors cut into pieces in
random order with some elements exchanged and all scaled by a factor near one, buffers mixed from
two members, integers with their rows moved about, all decided by a secret seed; no float need
occur twice. Some slots take their
values from a variant on which narrow arithmetic shows. The same seed writes the same slot again,
which is how the reference computes expected values afterwards without trusting the ring, which a
runner may have written to.

Not covered: integers, booleans and 16-bit floats keep the values of their pool, if not the places.
Pieces in another order keep every element's own domain but not relations between elements; where
the task does not bear that, the pool is all there is.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudaagent.judge.floor import last_level_cache_bytes
from cudaagent.judge.manifest import ITEM_BYTES, SlotLayout, TensorSpec

Bytes = NDArray[np.uint8]

_WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_FLOATS: dict[str, Any] = {"float32": np.float32, "float64": np.float64}
_SHRINK = 0.05
"""Towards zero, by at most so much: keeps what lies in [0, 1], is positive, or is a mask."""
_VARIANT_SHARE = 0.25
_BLOCKS = 64
_FEW = 16
_EXCHANGED = 2048
"""One element in so many is exchanged, at least one."""
_PAGE = 4096
_GRAIN = 64 << 20
MAX_SLOTS = 256
_SERIAL_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class PassShape:
    """How many slots the ring has and how many calls a pass makes; no slot is visited twice."""

    slots: int
    calls: int
    shorter: bool
    """Memory did not allow the ring that was wanted."""


def pass_shape(layout: SlotLayout, wanted_calls: int, max_bytes: int) -> PassShape:
    """Slots for ``wanted_calls``: more than twice the last-level cache, and some to spare."""
    stride = slot_stride(layout)
    for_cache = 2 * last_level_cache_bytes() // layout.slot_bytes + 1
    wanted = max(for_cache, wanted_calls + max(1, wanted_calls // 4), 2)
    slots = max(1, min(wanted, max_bytes // stride, MAX_SLOTS))
    calls = max(1, min(wanted_calls, slots - 1 if slots > 1 else 1))
    return PassShape(slots, calls, slots < wanted)


def slot_stride(layout: SlotLayout) -> int:
    """Bytes from one slot to the next."""
    return -(-layout.slot_bytes // _PAGE) * _PAGE


@dataclass(frozen=True, slots=True)
class Pools:
    """Values to fill slots from: raw extents, ``inputs[set][tensor]`` and ``params``."""

    layout: SlotLayout
    inputs: tuple[tuple[Bytes, ...], ...]
    params: tuple[tuple[Bytes, ...], ...]
    shuffle: tuple[bool, ...]
    """For each tensor of the layout: whether its pieces may change places."""
    blend: tuple[bool, ...] = ()
    """For each tensor of the layout: whether two members may be mixed; empty: none."""
    rows: tuple[bool, ...] = ()
    """For each tensor of the layout: whether whole rows may change places, together with those of
    other such tensors that have as many; empty: none."""
    variant: Pools | None = None
    """Other values, for one slot in four."""

    def is_variant(self, seed: int) -> bool:
        """Whether ``seed`` takes its values from the variant."""
        return self.variant is not None and random.Random(seed).random() < _VARIANT_SHARE

    def write(self, slot: Bytes, seed: int) -> None:
        """Fill a slot with the values that ``seed`` decides."""
        pools = self.variant if self.variant is not None and self.is_variant(seed) else self
        pools._write(slot, random.Random(~seed))

    def _write(self, slot: Bytes, rng: random.Random) -> None:
        count = len(self.layout.inputs)
        secret = rng.getrandbits(63)
        for position, spec in enumerate(self.layout.specs):
            if not spec.nbytes:
                continue
            pool = self.inputs if position < count else self.params
            column = position if position < count else position - count
            source = pool[rng.randrange(len(pool))][column]
            target = self._part(slot, position)
            if self.shuffle[position]:
                _scramble(target, source, spec.dtype, rng)
            elif self.blend and self.blend[position]:
                other = pool[rng.randrange(len(pool))][column]
                _mix(target, source, other, _FLOATS[spec.dtype], rng.random())
            elif self.rows and self.rows[position]:
                _move_rows(target, source, spec, secret)
            else:
                target[:] = source

    def write_exactly(self, slot: Bytes, inputs: Sequence[Bytes], params: Sequence[Bytes]) -> None:
        """Fill a slot with given values."""
        for position, source in enumerate((*inputs, *params)):
            self._part(slot, position)[:] = source

    def inputs_of(self, slot: Bytes) -> list[Bytes]:
        """Views of a slot's inputs."""
        return [self._part(slot, i) for i in range(len(self.layout.inputs))]

    def _part(self, slot: Bytes, position: int) -> Bytes:
        start = self.layout.offsets[position]
        return slot[start : start + self.layout.specs[position].nbytes]


class Ring:
    """The shared memory of one judge; replaced by a larger one when a task needs it."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="ring")
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._view: Bytes = np.empty(0, np.uint8)
        self.generation = 0
        """Changes whenever the memory is another."""

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def size(self) -> int:
        return int(self._view.size)

    def ensure(self, size: int) -> None:
        """Make the ring at least ``size`` bytes; runners must map it again when that changed it."""
        if size <= self.size:
            return
        self._release()
        size = -(-size // _GRAIN) * _GRAIN
        self._fd = os.memfd_create("cudaagent-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, seals)
        self._map = mmap.mmap(self._fd, size)
        self._view = np.frombuffer(self._map, np.uint8)
        self.generation += 1

    def slot(self, layout: SlotLayout, index: int) -> Bytes:
        """The bytes of one slot."""
        start = index * slot_stride(layout)
        return self._view[start : start + layout.slot_bytes]

    def renew(self, pools: Pools, seeds: Sequence[int], order: Sequence[int]) -> None:
        """Write all slots anew, slot i from ``seeds[i]``.

        Slots of ``order``, which the pass will visit, come first and in that order, so that all
        arms find them equally far down in the caches; the runner is stopped meanwhile.
        """
        visited = set(order)
        rest = [i for i in range(len(seeds)) if i not in visited]

        def write(index: int) -> None:
            pools.write(self.slot(pools.layout, index), seeds[index])

        indices = [*order, *rest]
        if len(seeds) * pools.layout.slot_bytes < _SERIAL_BYTES:
            for index in indices:
                write(index)
        else:
            list(self._threads.map(write, indices))

    def close(self) -> None:
        """Give the memory back; may be called twice."""
        self._threads.shutdown()
        self._release()

    def _release(self) -> None:
        self._view = np.empty(0, np.uint8)
        if self._map is not None:
            # Views that somebody still holds keep the memory until they go.
            self._map = None
            os.close(self._fd)
            self._fd = -1


def strided(data: Bytes, spec: TensorSpec) -> NDArray[Any]:
    """A tensor's elements as words of its item size, in the shape and strides of ``spec``."""
    size = ITEM_BYTES[spec.dtype]
    words = data.view(_WORDS[size])
    if not words.size:
        return np.empty(spec.shape, words.dtype)
    strides = tuple(step * size for step in spec.stride)
    return np.lib.stride_tricks.as_strided(words, spec.shape, strides)


def blendable(spec: TensorSpec) -> bool:
    """Whether ``Pools.blend`` can be true of a tensor."""
    return spec.dtype in _FLOATS and spec.numel > 1


def _mix(target: Bytes, one: Bytes, other: Bytes, dtype: Any, weight: float) -> None:
    to, share = target.view(dtype), dtype(weight)
    np.multiply(one.view(dtype), share, out=to)
    to += other.view(dtype) * (dtype(1) - share)


def _move_rows(target: Bytes, source: Bytes, spec: TensorSpec, seed: int) -> None:
    """Contiguous rows cut into blocks, in an order that seed and number of rows decide."""
    count = spec.shape[0]
    rng = random.Random(f"{seed}:{count}")
    cuts = [0, *sorted(rng.sample(range(1, count), min(count - 1, _BLOCKS - 1))), count]
    row = int(source.size) // count
    position = 0
    for block in rng.sample(range(len(cuts) - 1), len(cuts) - 1):
        first, last = cuts[block] * row, cuts[block + 1] * row
        target[position : position + last - first] = source[first:last]
        position += last - first


def _scramble(target: Bytes, source: Bytes, dtype: str, rng: random.Random) -> None:
    words = _FLOATS.get(dtype) or _WORDS[ITEM_BYTES[dtype]]
    to, of = target.view(words), source.view(words)
    factor = words(1.0 - _SHRINK * rng.random()) if dtype in _FLOATS else None
    size = int(of.size)
    cuts = [0, *sorted(rng.randrange(size) for _ in range(3)), size]
    position = 0
    for piece in rng.sample(range(4), 4):
        first, last = cuts[piece], cuts[piece + 1]
        place = to[position : position + last - first]
        if factor is None:
            place[:] = of[first:last]
        else:
            np.multiply(of[first:last], factor, out=place)
        position += last - first
    exchanged = size // _EXCHANGED
    if exchanged <= _FEW:
        for _ in range(max(1, exchanged)):
            to[rng.randrange(size)] = of[rng.randrange(size)]
    else:
        picks = np.random.Generator(np.random.PCG64(rng.getrandbits(63)))
        to[picks.integers(0, size, exchanged)] = of[picks.integers(0, size, exchanged)]
