"""Reward order and the physical floor."""

from __future__ import annotations

import pytest

from cudaagent.errors import UserError
from cudaagent.judge.decision import Decision, Round, decide
from cudaagent.judge.floor import Bandwidth, floor_ms, measure_bandwidth
from cudaagent.judge.reward import is_faster, milestone, reward_of


def _decision(candidate: float, eager: float, compiled: float) -> Decision:
    return decide([Round(candidate * (1 + i * 1e-6), eager, compiled) for i in range(8)])


def test_order_of_rewards() -> None:
    """Wrong, correct and slow, faster than eager, faster than both: strictly rising."""
    ordered = [
        reward_of(None),
        reward_of(_decision(2.0, 1.0, 1.0)),
        reward_of(_decision(0.7, 1.0, 0.5)),
        reward_of(_decision(0.3, 1.0, 0.5)),
    ]
    assert ordered == [-1.0, 1.0, 2.0, 3.0]
    assert ordered == sorted(set(ordered))


def test_faster_than_compiled_alone_is_not_enough() -> None:
    assert reward_of(_decision(1.0, 1.0, 2.0)) == 1.0


@pytest.mark.parametrize("variant", ["milestone", "speedup"])
def test_a_faster_candidate_never_earns_less(variant: str) -> None:
    rewards = [
        reward_of(_decision(candidate, 1.0, 0.8), variant=variant)
        for candidate in (4.0, 2.0, 1.0, 0.9, 0.8, 0.7, 0.4, 0.1)
    ]
    assert rewards == sorted(rewards)
    assert rewards[0] > reward_of(None, variant=variant) == -1.0


def test_raw_speedup_is_against_compiled() -> None:
    assert reward_of(_decision(0.5, 4.0, 1.0), variant="speedup") == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize("variant", ["milestone", "speedup"])
def test_launch_bound_tasks_earn_at_most_one(variant: str) -> None:
    assert reward_of(_decision(0.1, 1.0, 1.0), variant=variant, launch_bound=True) == 1.0
    assert reward_of(None, variant=variant, launch_bound=True) == -1.0


def test_unknown_variant_is_refused() -> None:
    with pytest.raises(UserError, match=r"judge\.reward"):
        reward_of(None, variant="best")


def test_the_line_is_strict_and_relative_to_the_baseline() -> None:
    assert is_faster(100.0, 94.0)
    assert not is_faster(100.0, 95.0)
    assert not is_faster(100.0, 96.0)
    assert not is_faster(1.0, 2.0)


def test_milestones() -> None:
    assert milestone(False, beats_eager=True, beats_compile=True) == -1.0
    assert milestone(True, beats_eager=False, beats_compile=True) == 1.0


def test_floor_counts_bytes_at_the_level_where_they_can_lie() -> None:
    bandwidth = Bandwidth(memory=1e9, cache=1e11, cache_bytes=1 << 20)
    small = floor_ms(1000, 1000, bandwidth, slots=4, calls=4)
    assert small == pytest.approx(2000 / 1e11 * 1e3)
    large = floor_ms(1 << 20, 0, bandwidth, slots=4, calls=1)
    assert large == pytest.approx(1e3 * ((3 << 18) / 1e9 + (1 << 18) / 1e11))
    assert floor_ms(1 << 20, 0, bandwidth, slots=1, calls=1) < large
    assert floor_ms(0, 0, bandwidth, slots=4, calls=4) == 0.0


def test_measured_bandwidth_is_an_upper_bound_of_a_copy() -> None:
    bandwidth = measure_bandwidth(1)
    assert 0 < bandwidth.memory <= bandwidth.cache
    assert bandwidth.cache_bytes > 0
