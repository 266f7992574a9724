"""Values of a slot: decided by the seed, in the domain of what the task gave, and not its own."""

from __future__ import annotations

import numpy as np

from cudaagent.judge.manifest import TensorSpec, slot_layout
from cudaagent.judge.ring import Pools, slot_stride

COUNT = 1 << 14
FLOATS = TensorSpec("float32", (COUNT,), (1,))
LAYOUT = slot_layout((FLOATS,), (FLOATS,))


def pools(rng: np.random.Generator, *, variant: Pools | None = None, low: float = 0.0) -> Pools:
    def members(count: int) -> tuple[tuple[np.ndarray, ...], ...]:
        return tuple(
            ((low + rng.random(COUNT, np.float32)).astype(np.float32).view(np.uint8),)
            for _ in range(count)
        )

    return Pools(LAYOUT, members(4), members(3), (True, False), (False, True), variant=variant)


def written(of: Pools, seed: int) -> tuple[np.ndarray, np.ndarray]:
    slot = np.zeros(slot_stride(LAYOUT), np.uint8)[: LAYOUT.slot_bytes]
    of.write(slot, seed)
    first, second = (
        slot[start : start + FLOATS.nbytes].view(np.float32).copy() for start in LAYOUT.offsets
    )
    return first, second


def test_a_seed_decides_a_slot() -> None:
    of = pools(np.random.default_rng(0))
    for one, same, other in zip(written(of, 7), written(of, 7), written(of, 8), strict=True):
        assert np.array_equal(one, same)
        assert not np.array_equal(one, other)


def test_values_are_new_and_keep_their_domain() -> None:
    of = pools(np.random.default_rng(1))
    known = {position: set() for position in (0, 1)}
    for members, position in ((of.inputs, 0), (of.params, 1)):
        for (member,) in members:
            known[position] |= set(member.view(np.float32).tolist())
    fresh = 0
    for seed in range(8):
        for position, values in enumerate(written(of, seed)):
            assert values.min() >= 0.0
            assert values.max() <= 1.0
            fresh += len(set(values.tolist()) - known[position]) > 0.9 * COUNT
    # A mixture of a member with itself is that member: one buffer in three.
    assert fresh >= 8 + 2


def test_rows_of_integers_move_together() -> None:
    rng = np.random.default_rng(3)
    wide, narrow = TensorSpec("int64", (100, 3), (3, 1)), TensorSpec("int32", (100,), (1,))
    layout = slot_layout((wide, narrow), ())
    rows = np.arange(100, dtype=np.int32)
    rng.shuffle(rows)
    pair = (np.repeat(rows.astype(np.int64), 3).view(np.uint8), rows.view(np.uint8))
    of = Pools(layout, (pair,), (), (False, False), rows=(True, True))
    orders = []
    for seed in range(4):
        slot = np.zeros(slot_stride(layout), np.uint8)[: layout.slot_bytes]
        of.write(slot, seed)
        first, second = of.inputs_of(slot)
        table = first.view(np.int64).reshape(100, 3)
        assert np.array_equal(table, np.repeat(second.view(np.int32), 3).reshape(100, 3))
        assert sorted(second.view(np.int32)) == list(range(100))
        orders.append(tuple(second.view(np.int32)))
    assert len(set(orders)) == 4


def test_some_seeds_take_the_variant() -> None:
    rng = np.random.default_rng(2)
    of = pools(rng, variant=pools(rng, low=-2.0))
    seeds = range(200)
    negative = [bool((written(of, seed)[0] < 0).all()) for seed in seeds]
    assert negative == [of.is_variant(seed) for seed in seeds]
    assert 0.1 < sum(negative) / len(negative) < 0.4
