"""Drawing, rendering, the held-out split and the filter."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from cudaagent.errors import UserError
from cudaagent.judge.verdict import Baseline, Failure
from cudaagent.policy.teacher import variants
from cudaagent.synthesis.compose import Composition, draw, render, split_heldout
from cudaagent.synthesis.operators import NORMALISE, POINTWISE, PRODUCTS, REDUCE
from cudaagent.synthesis.settings import SynthesisSettings
from cudaagent.synthesis.synthesize import candidates, keep
from cudaagent.tasks.task import Task, check_source


@pytest.fixture(scope="module")
def drawn() -> list[Composition]:
    return list(islice(draw(0), 3000))


def test_the_same_seed_draws_the_same_tasks(drawn: list[Composition]) -> None:
    again = list(islice(draw(0), 500))
    assert [render(c) for c in again] == [render(c) for c in drawn[:500]]
    other = list(islice(draw(1), 500))
    assert [render(c).id for c in other] != [render(c).id for c in again]


def test_all_operators_and_levels_are_drawn_without_repetition(drawn: list[Composition]) -> None:
    names = {name for c in drawn for name in c.names}
    assert names == {o.name for o in POINTWISE + REDUCE + NORMALISE + PRODUCTS}
    assert {len(c.applied) for c in drawn} == {1, 2, 3}
    assert len({render(c).source for c in drawn}) == len(drawn)
    products = sum(c.product is not None for c in drawn)
    assert products > len(drawn) / 2
    assert max(len(c.applied) for c in islice(draw(0, max_operators=2), 300)) == 2


def test_rendered_tasks_are_short_and_the_teacher_solves_them(drawn: list[Composition]) -> None:
    for composition in drawn[:300]:
        task = render(composition)
        check_source(task)
        assert len(task.source) <= 900
        assert task.ops == composition.names
        assert task.level == len(task.ops)
        assert len(variants(task.source)) >= 3


def test_heldout_operator_sequences_never_occur_in_training(drawn: list[Composition]) -> None:
    train, heldout = split_heldout(drawn)
    assert len(train) + len(heldout) == len(drawn)
    assert not {c.names for c in train} & {c.names for c in heldout}
    assert 0.05 < len(heldout) / len(drawn) < 0.35
    other_train, other_heldout = split_heldout(islice(draw(9), 3000))
    assert not {c.names for c in other_train} & {c.names for c in heldout}
    assert not {c.names for c in other_heldout} & {c.names for c in train}


def test_outputs_vary_with_the_inputs() -> None:
    """Every output differs from one input to the next by its own scale, never by rounding only."""
    torch.manual_seed(0)
    for composition in islice(draw(5), 60):
        small = Composition(composition.applied, (128, 128, 128))
        namespace: dict[str, object] = {}
        exec(render(small).source, namespace)
        model = namespace["Model"](*namespace["get_init_inputs"]())  # type: ignore[operator]
        with torch.no_grad():
            outputs = torch.stack([model(*namespace["get_inputs"]()) for _ in range(6)])  # type: ignore[operator]
        sigma = (outputs - outputs.mean(dim=0)).square().mean().sqrt()
        assert outputs.isfinite().all(), small.names
        assert sigma > 1e-4 * outputs.square().mean().sqrt(), small.names


def test_candidates_are_more_than_asked_for_and_spread() -> None:
    settings = SynthesisSettings(train=24, heldout=12)
    train, heldout = candidates(settings)
    assert candidates(settings) == (train, heldout)
    assert len(train) > 24
    assert len(heldout) > 12
    assert not {t.ops for t in train} & {t.ops for t in heldout}
    assert len({t.ops for t in heldout}) == len(heldout)
    assert {t.level for t in train[:24]} == {1, 2, 3}
    assert len({t.source for t in train + heldout}) == len(train) + len(heldout)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UserError, match=r"synthesis\.max_operators=4"):
        candidates(SynthesisSettings(max_operators=4))
    with pytest.raises(UserError, match=r"synthesis\.heldout=100000"):
        candidates(SynthesisSettings(heldout=100_000))


@pytest.mark.parametrize(
    ("eager_ms", "compile_ms", "code", "kept"),
    [
        (2.0, 1.0, None, True),
        (1.0, 1.0, None, True),
        (0.9, 1.0, None, False),
        (100.1, 1.0, None, False),
        (2.0, None, None, False),
        (None, None, "task-constant", False),
    ],
)
def test_filter_by_baseline(
    eager_ms: float | None, compile_ms: float | None, code: str | None, kept: bool
) -> None:
    failure = Failure(code, "task", "all outputs are equal") if code else None
    baseline = Baseline("a", failure, eager_ms, compile_ms)
    assert keep(Task("a", ""), baseline, SynthesisSettings()) is kept


def test_filter_refuses_another_tasks_baseline() -> None:
    with pytest.raises(ValueError, match="baseline of b"):
        keep(Task("a", ""), Baseline("b", None, 2.0, 1.0), SynthesisSettings())
