"""Comparison: tolerance, aggregate, precision, non-finite values, exact leaves, probes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from cudaagent.judge.compare import (
    Comparison,
    LeafLayout,
    Policy,
    Pool,
    Scale,
    check_layout,
    compare,
    disagreement,
    from_raw,
    measure_scale,
)
from cudaagent.judge.probes import exemption_failure, probe, task_failure

SCALED = Policy()
PAPER = Policy(tolerance="paper", precision="paper")
Outputs = list[list[NDArray[np.float64]]]


def _kind(
    shape: tuple[int, ...] = (40, 50),
    inputs: int = 6,
    noise: float = 1e-7,
    offset: float = 0.0,
    spread: float = 1.0,
) -> tuple[Outputs, list[list[NDArray[np.float32]]], Scale]:
    rng = np.random.default_rng(1)
    reference = [[offset + spread * rng.standard_normal(shape)] for _ in range(inputs)]
    baseline = [[(r + noise * rng.standard_normal(shape)).astype(np.float32)] for (r,) in reference]
    return reference, baseline, measure_scale(reference, baseline)


def _obvious(
    actual: NDArray[np.float32], expected: NDArray[np.float64], scale: Scale
) -> Comparison:
    """The same rules by plain NumPy, as one would write them down."""
    leaf = scale.leaves[0]
    error = actual.astype(np.float64) - expected
    allowed = np.maximum(1e-2 * (leaf.sigma + np.abs(expected)), 8 * leaf.baseline_largest)
    wrong = np.abs(error) > allowed
    result = compare([actual], [expected], scale, SCALED).leaves[0]
    assert result.wrong == int(wrong.sum())
    assert math.isclose(result.squared_error, float((error**2).sum()), rel_tol=1e-9)
    assert math.isclose(result.largest_error, float(np.abs(error).max()), rel_tol=1e-12)
    if wrong.any():
        at = np.unravel_index(np.where(wrong, np.abs(error), -1).argmax(), error.shape)
        assert result.index == tuple(int(i) for i in at)
        assert math.isclose(result.allowed, float(allowed[at]))
    return Comparison("input 0", (result,))


def test_scale_matches_its_definition() -> None:
    reference, baseline, scale = _kind(offset=3.0)
    stack = np.stack([r[0] for r in reference])
    sigma = np.sqrt(((stack - stack.mean(axis=0)) ** 2).mean())
    errors = np.stack([b[0] for b in baseline]).astype(np.float64) - stack
    leaf = scale.leaves[0]
    assert math.isclose(leaf.sigma, sigma, rel_tol=1e-12)
    assert math.isclose(leaf.output_rms, np.sqrt((stack**2).mean()), rel_tol=1e-12)
    assert math.isclose(leaf.baseline_largest, np.abs(errors).max(), rel_tol=1e-12)
    assert math.isclose(leaf.baseline_rms, np.sqrt((errors**2).mean()), rel_tol=1e-12)


def test_scale_over_several_chunks() -> None:
    reference, _, scale = _kind(shape=(300, 1000))
    stack = np.stack([r[0] for r in reference])
    sigma = np.sqrt(((stack - stack.mean(axis=0)) ** 2).mean())
    assert math.isclose(scale.leaves[0].sigma, sigma, rel_tol=1e-12)


def test_scale_refuses_few_inputs() -> None:
    reference, baseline, _ = _kind()
    with pytest.raises(ValueError, match="6 inputs"):
        measure_scale(reference[:5], baseline[:5])


def test_constant_offset_does_not_widen_the_tolerance() -> None:
    _, _, near = _kind()
    _, _, far = _kind(offset=1000.0)
    assert math.isclose(near.leaves[0].sigma, far.leaves[0].sigma, rel_tol=1e-3)


@pytest.mark.parametrize("seed", range(8))
def test_comparison_agrees_with_the_obvious_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    reference, _, scale = _kind(shape=(int(rng.integers(1, 400)), int(rng.integers(1, 500))))
    expected = reference[0][0]
    error = rng.standard_normal(expected.shape) * 10.0 ** rng.uniform(-6, 0)
    error *= rng.random(expected.shape) < 0.1
    _obvious((expected + error).astype(np.float32), expected, scale)


def test_one_wrong_element_is_found_and_named() -> None:
    reference, baseline, scale = _kind(shape=(500, 300))
    actual = baseline[2][0].copy()
    actual[431, 17] += 0.5
    failure = compare([actual], reference[2], scale, SCALED, label="input 2").failure()
    assert failure is not None
    assert failure.code == "wrong-values"
    assert failure.message.startswith("input 2: output[431, 17] is ")
    assert "1 of 150000" in failure.message
    assert failure.evidence["index"] == [431, 17]
    json.dumps(failure.evidence, allow_nan=False)


def test_honest_rounding_passes_all_rules() -> None:
    reference, baseline, scale = _kind()
    pool = Pool(scale, SCALED)
    for actual, expected in zip(baseline, reference, strict=True):
        comparison = compare(actual, expected, scale, SCALED)
        assert comparison.failure() is None
        pool.add(comparison)
    assert pool.failure() is None
    assert pool.precision_failure() is None
    assert pool.error < 1e-6


def test_aggregate_refuses_what_single_elements_forgive() -> None:
    """Large values hide a missing term that varies with the input."""
    reference, _, scale = _kind(offset=1000.0)
    pool = Pool(scale, SCALED)
    for (expected,) in reference:
        comparison = compare([np.full(expected.shape, 1000.0)], [expected], scale, SCALED)
        assert comparison.failure() is None
        pool.add(comparison)
    failure = pool.failure()
    assert failure is not None
    assert failure.code == "wrong-values"
    assert pool.error == pytest.approx(1.0, abs=0.2)


def test_paper_tolerance_is_plain_allclose() -> None:
    reference, _, scale = _kind(spread=1e-3)
    zeros = [np.zeros((40, 50), dtype=np.float32)]
    assert compare(zeros, reference[0], scale, PAPER).failure() is None
    assert compare(zeros, reference[0], scale, SCALED).failure() is not None
    off = [reference[0][0] + 0.0101]
    assert compare(off, reference[0], scale, PAPER).failure() is not None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_must_match_exactly(value: float) -> None:
    reference, baseline, _ = _kind()
    for outputs in (reference, baseline):
        for output in outputs:
            output[0][3, 4] = value
    scale = measure_scale(reference, baseline)
    assert math.isfinite(scale.leaves[0].sigma)
    assert compare(baseline[0], reference[0], scale, SCALED).failure() is None
    for wrong in (1.0, np.nan, np.inf, -np.inf):
        if wrong == value or (np.isnan(wrong) and np.isnan(value)):
            continue
        actual = baseline[0][0].copy()
        actual[3, 4] = wrong
        failure = compare([actual], reference[0], scale, SCALED).failure()
        assert failure is not None
        assert failure.code == "non-finite"
        assert failure.evidence["index"] == [3, 4]
        json.dumps(failure.evidence, allow_nan=False)


def test_nan_where_the_reference_is_finite_is_found_among_wrong_values() -> None:
    reference, baseline, scale = _kind()
    actual = baseline[0][0] * 2
    actual[7, 7] = np.nan
    failure = compare([actual], reference[0], scale, SCALED).failure()
    assert failure is not None
    assert failure.code == "non-finite"
    assert failure.evidence["index"] == [7, 7]


def test_pieces_are_named_by_their_place_in_the_whole() -> None:
    reference, baseline, scale = _kind()
    piece = slice(1010, 1700)
    expected = reference[0][0].reshape(-1)[piece]
    actual = baseline[0][0].reshape(-1)[piece].copy()
    actual[5] += 1
    failure = compare([actual], [expected], scale, SCALED, offsets=[1010]).failure()
    assert failure is not None
    assert failure.evidence["index"] == [20, 15]


def test_integers_are_exact_but_for_what_baselines_dispute() -> None:
    layouts = [LeafLayout("output", "int64", (3, 4))]
    reference = [np.arange(12).reshape(3, 4)]
    eager = [reference[0].copy()]
    eager[0][2, 3] += 1
    scale = measure_scale([reference] * 6, [eager] * 6, layouts=layouts)
    exempt = disagreement(reference, eager)
    assert compare(eager, reference, scale, SCALED, exempt=exempt).failure() is None
    failure = compare(eager, reference, scale, SCALED).failure()
    assert failure is not None
    assert failure.evidence["index"] == [2, 3]
    other = [eager[0].copy()]
    other[0][0, 1] = 99
    assert compare(other, reference, scale, SCALED, exempt=exempt).failure() is not None
    too_many = exemption_failure([exempt] * 6, scale)
    assert too_many is not None
    assert too_many.code == "task-inseparable"


def test_precision_separates_narrow_arithmetic_from_reordering() -> None:
    """bf16 operands cost far more than 4.5 times the baseline; another order of sums does not."""
    rng = np.random.default_rng(3)
    reference: Outputs = []
    baseline, reordered, narrow = [], [], []
    for _ in range(6):
        a = rng.standard_normal((64, 256)).astype(np.float32)
        b = rng.standard_normal((256, 64)).astype(np.float32)
        reference.append([a.astype(np.float64) @ b.astype(np.float64)])
        baseline.append([a @ b])
        reordered.append([sum(a[:, k : k + 1] * b[k : k + 1] for k in range(256))])
        narrow.append([_bf16(a) @ _bf16(b)])
    scale = measure_scale(reference, baseline)
    for outputs, code in ((reordered, None), (narrow, "precision")):
        pool = Pool(scale, SCALED)
        for actual, expected in zip(outputs, reference, strict=True):
            comparison = compare(actual, expected, scale, SCALED)
            assert comparison.failure() is None
            pool.add(comparison)
        failure = pool.precision_failure()
        assert (failure and failure.code) == code
        assert pool.failure() is None
        relaxed = Pool(scale, PAPER)
        relaxed.add(compare(outputs[0], reference[0], scale, PAPER))
        assert relaxed.precision_failure() is None


def _bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    words = values.view(np.uint32)
    return ((words + 0x7FFF + ((words >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def test_half_precision_tasks_have_their_own_floor() -> None:
    rng = np.random.default_rng(5)
    reference = [[rng.standard_normal((64, 64))] for _ in range(6)]
    exact = [[r.astype(np.float32)] for (r,) in reference]
    for dtype, error, refused in (
        ("float16", 1e-3, False),
        ("float32", 1e-3, True),
        ("bfloat16", 8e-3, False),
    ):
        layouts = [LeafLayout("output", dtype, (64, 64))]
        scale = measure_scale(reference, exact, layouts=layouts)
        pool = Pool(scale, SCALED)
        for (expected,) in reference:
            pool.add(
                compare(
                    [expected + error * rng.standard_normal(expected.shape)],
                    [expected],
                    scale,
                    SCALED,
                )
            )
        assert (pool.precision_failure() is not None) is refused


def test_raw_bytes_become_arrays() -> None:
    values = np.array([[1.5, -2.0], [0.25, 3.0]], dtype=np.float32)
    words = (values.view(np.uint32) >> 16).astype(np.uint16)
    layout = LeafLayout("output", "bfloat16", (2, 2))
    assert np.array_equal(from_raw(words.tobytes(), layout), values)
    assert np.array_equal(
        from_raw(values.tobytes(), LeafLayout("output", "float32", (2, 2))), values
    )
    with pytest.raises(ValueError, match="reshape"):
        from_raw(b"\0" * 12, LeafLayout("output", "float32", (2, 2)))


@pytest.mark.parametrize(
    ("actual", "code"),
    [
        ([], "wrong-structure"),
        ([LeafLayout("output[0]", "float32", (2,))], "wrong-structure"),
        ([LeafLayout("output", "float32", (2, 1))], "wrong-shape"),
        ([LeafLayout("output", "float64", (2,))], "wrong-dtype"),
        ([LeafLayout("output", "float32", (2,))], None),
    ],
)
def test_layouts(actual: list[LeafLayout], code: str | None) -> None:
    failure = check_layout(actual, [LeafLayout("output", "float32", (2,))])
    assert (failure and failure.code) == code


def test_empty_and_scalar_leaves() -> None:
    reference = [[np.float64(i) * np.ones(()), np.ones((0, 3))] for i in range(6)]
    baseline = [[r.astype(np.float32), e.astype(np.float32)] for r, e in reference]
    scale = measure_scale(reference, baseline)
    assert compare(baseline[1], reference[1], scale, SCALED).failure() is None
    failure = compare(baseline[1], reference[2], scale, SCALED).failure()
    assert failure is not None
    assert "output[0] is 1, expected 2" in failure.message


def test_separable_task_passes_all_probes() -> None:
    reference, _, scale = _kind(offset=5.0)
    result = probe(reference, scale, SCALED, extra={"the input": [[r * 1.5] for (r,) in reference]})
    assert result.passed == ()
    assert min(result.scores.values()) > 0.9
    assert task_failure([result]) is None


def test_constant_task_is_named() -> None:
    reference = [[np.ones((3, 3))]] * 6
    scale = measure_scale(reference, reference)
    failure = task_failure([probe(reference, scale, SCALED)])
    assert failure is not None
    assert failure.code == "task-constant"


def test_task_whose_noise_is_its_signal_is_inseparable() -> None:
    """Mean of many random values: what varies is as small as the baseline's own rounding."""
    reference, _, scale = _kind(offset=1.0, spread=1e-7, noise=1e-7)
    result = probe(reference, scale, SCALED)
    failure = task_failure([result])
    assert failure is not None
    assert failure.code == "task-inseparable"
    good = probe(*_kind()[::2], SCALED)
    assert task_failure([result, good]) is None


def test_identity_is_a_probe_that_can_pass() -> None:
    """ReLU of non-negative inputs: returning the input is right, so the task must be refused."""
    reference, _, scale = _kind()
    result = probe(reference, scale, SCALED, extra={"the input itself": reference})
    failure = task_failure([result])
    assert failure is not None
    assert failure.code == "task-inseparable"
    assert "the input itself" in failure.message


def test_paper_tolerance_lets_zeros_pass_on_small_outputs() -> None:
    reference, _, scale = _kind(spread=1e-3)
    assert any(name.startswith("zeros") for name in probe(reference, scale, PAPER).passed)
