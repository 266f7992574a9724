"""Decisions: intervals that cover, few flips, no lucky upgrade; simulated with fixed seeds."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from numpy.random import Generator

from cudaagent.judge.decision import (
    Decision,
    Ratio,
    Round,
    Side,
    arm_times,
    confirm,
    decide,
    near_line,
    paired_ratio,
)


def _round(rng: Generator, eager: float, compiled: float, noise: float) -> Round:
    """Candidate takes 1; a disturbance common to all arms, and noise with heavy tails of each."""
    common = math.exp(0.05 * abs(rng.standard_t(2)))
    own = np.exp(noise * rng.standard_t(4, size=3) / math.sqrt(2))
    return Round(common * own[0], eager * common * own[1], compiled * common * own[2])


def _measure(rng: Generator, eager: float, compiled: float, noise: float) -> Decision:
    rounds: list[Round] = []
    while True:
        rounds.append(_round(rng, eager, compiled, noise))
        decision = decide(rounds)
        if decision.state != "more":
            return decision


def _judge(rng: Generator, eager: float, compiled: float, noise: float) -> Decision:
    decision = _measure(rng, eager, compiled, noise)
    if decision.needs_confirmation:
        decision = confirm(decision, _measure(rng, eager, compiled, noise))
    return decision


@pytest.mark.parametrize("rounds", [6, 9, 15])
def test_interval_covers_the_true_ratio(rounds: int) -> None:
    rng = np.random.default_rng(rounds)
    inside = 0
    trials = 400
    for _ in range(trials):
        sample = [_round(rng, 1.25, 1.0, 0.02) for _ in range(rounds)]
        ratio = paired_ratio([r.candidate_ms for r in sample], [r.eager_ms for r in sample])
        inside += ratio.low <= 0.8 <= ratio.high
    assert inside / trials > 0.92


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.03])
def test_no_lucky_upgrade(noise: float) -> None:
    """At the line and above it (true ratios 0.95 to 1.00) hardly any win, however noisy."""
    rng = np.random.default_rng(7)
    for true in (0.95, 0.96, 0.98, 1.0):
        wins = sum(_judge(rng, 1 / true, 1 / true, noise).beats_eager for _ in range(150))
        assert wins <= 2


def test_no_flips_beyond_one_percent_of_the_line() -> None:
    rng = np.random.default_rng(11)
    for true, faster in ((0.90, True), (0.92, True), (0.94, True), (0.96, False), (0.98, False)):
        results = [_judge(rng, 1 / true, 1 / true, 0.003) for _ in range(100)]
        assert sum(result.beats_eager is not faster for result in results) <= 1


def test_at_the_line_it_says_so() -> None:
    rng = np.random.default_rng(13)
    results = [_judge(rng, 1 / 0.95, 2.0, 0.01) for _ in range(60)]
    undecided = [result for result in results if result.state == "undecided"]
    assert len(undecided) > 40
    for result in undecided:
        assert not (result.beats_eager and result.beats_compile)
        assert result.warnings == ("undecided-margin",)


def test_slow_candidate_needs_no_more_than_the_fewest_rounds() -> None:
    rounds = [Round(2.0 + i / 100, 1.0, 1.0) for i in range(6)]
    decision = decide(rounds)
    assert decision.state == "decided"
    assert decision.vs_eager is Side.NOT_FASTER
    assert not decision.needs_confirmation


def test_five_rounds_never_decide() -> None:
    rounds = [Round(0.1, 1.0, 1.0)] * 5
    assert decide(rounds).state == "more"
    assert decide(rounds, max_rounds=5).state == "more"
    assert decide([*rounds, rounds[0]]).state == "decided"


def test_compiled_is_irrelevant_when_eager_is_not_beaten() -> None:
    decision = decide([Round(1.0, 1.0, c) for c in (0.5, 2.0, 0.9, 1.1, 3.0, 0.4)])
    assert decision.state == "decided"
    assert decision.vs_compile is Side.UNDECIDED


def test_beating_eager_alone_waits_for_compiled() -> None:
    noisy = [Round(0.5, 1.0, c) for c in (0.5, 0.6, 0.45, 0.55, 0.5, 0.62)]
    decision = decide(noisy)
    assert decision.vs_eager is Side.FASTER
    assert decision.state == "more"
    decision = decide(noisy, max_rounds=6)
    assert decision.state == "undecided"
    assert decision.beats_eager
    assert not decision.beats_compile


def test_cached_baseline_is_scaled_by_the_interleaved_eager() -> None:
    rounds = [Round(0.5 + i / 1000, 1.0) for i in range(8)]
    cached = Ratio(1.5, 1.4, 1.6, 20)
    decision = decide(rounds, cached_compile=cached)
    assert decision.compile is not None
    assert decision.compile.value == pytest.approx(decision.eager.value * 1.5)
    assert decision.beats_compile
    assert decide(rounds).state == "more"
    close = decide(rounds, cached_compile=Ratio(1.85, 1.8, 1.9, 20)).compile
    assert close is not None
    assert near_line(close)
    assert not near_line(decision.compile)


def test_confirmation_takes_back_a_win_and_never_gives_one() -> None:
    fast = decide([Round(0.5, 1.0, 1.0)] * 6)
    slow = decide([Round(1.0, 1.0, 1.0)] * 6)
    assert confirm(fast, fast).beats_compile
    taken = confirm(fast, slow)
    assert not taken.beats_eager
    assert taken.state == "undecided"
    assert taken.eager == slow.eager
    eager_only = decide([Round(0.5, 1.0, 0.5)] * 6)
    assert confirm(eager_only, fast).beats_eager
    assert not confirm(eager_only, fast).beats_compile


def test_one_disturbed_round_does_not_turn_a_decision() -> None:
    rounds = [Round(0.8 + i / 1000, 1.0, 1.0) for i in range(12)]
    rounds[4] = Round(3.0, 1.0, 1.0)
    decision = decide(rounds)
    assert decision.beats_eager
    assert decision.eager.value == pytest.approx(0.804, abs=0.01)


def test_interval_narrows_and_holds_the_estimate() -> None:
    rng = np.random.default_rng(3)
    sample = [_round(rng, 2.0, 2.0, 0.01) for _ in range(15)]
    ratios = [
        paired_ratio([r.candidate_ms for r in sample[:n]], [r.eager_ms for r in sample[:n]])
        for n in (2, 6, 15)
    ]
    assert ratios[0].high == math.inf
    for ratio in ratios:
        assert ratio.low <= ratio.value <= ratio.high
    for wide, narrow in pairwise(ratios):
        assert narrow.high - narrow.low < wide.high - wide.low


@pytest.mark.parametrize("times", [[], [1.0, -1.0], [1.0, math.nan], [0.0]])
def test_bad_times_are_refused(times: list[float]) -> None:
    with pytest.raises(ValueError, match=r"rounds|positive"):
        paired_ratio(times, [1.0] * len(times))


def test_times_of_an_arm() -> None:
    times = arm_times([3.0, 1.0, 2.0])
    assert (times.ms, times.low_ms, times.high_ms) == (2.0, 1.0, 3.0)
    times = arm_times([float(i) for i in range(1, 16)])
    assert (times.ms, times.low_ms, times.high_ms) == (8.0, 4.0, 12.0)
    with pytest.raises(ValueError, match="sample"):
        arm_times([])
