from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cudaagent.rl.advantages import gae, gae_flat, returns_flat, suffix_sums, whiten


def plain_loop(
    reward_B: Tensor, value_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float
) -> Tensor:
    """One row and one action at a time, from the last action back."""
    advantage_BT = torch.zeros_like(value_BT, dtype=torch.float64)
    for row in range(value_BT.shape[0]):
        later_value, later_advantage, reward = 0.0, 0.0, float(reward_B[row])
        for t in reversed(range(value_BT.shape[1])):
            if not mask_BT[row, t]:
                continue
            value = float(value_BT[row, t])
            delta = reward + gamma * later_value - value
            later_advantage = delta + gamma * lam * later_advantage
            advantage_BT[row, t] = later_advantage
            later_value, reward = value, 0.0
    return advantage_BT


@pytest.mark.parametrize("seed", range(12))
def test_scan_equals_plain_loop_on_random_masks(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = int(torch.randint(1, 7, (), generator=generator))
    tokens = int(torch.randint(1, 200, (), generator=generator))
    lam = (0.0, 0.5, 0.95, 1.0)[seed % 4]
    gamma = (1.0, 0.99, 0.9)[seed % 3]
    density = (0.02, 0.3, 1.0)[seed % 3]
    value_BT = torch.randn(rows, tokens, generator=generator)
    mask_BT = torch.rand(rows, tokens, generator=generator) < density
    reward_B = torch.randn(rows, generator=generator)
    result = gae(reward_B, value_BT, mask_BT, gamma=gamma, lam=lam, critic_lam=0.7)
    expected_BT = plain_loop(reward_B, value_BT, mask_BT, gamma, lam)
    critic_BT = plain_loop(reward_B, value_BT, mask_BT, gamma, 0.7)
    torch.testing.assert_close(result.advantage_BT.double(), expected_BT, atol=1e-4, rtol=1e-4)
    target_BT = torch.where(mask_BT, critic_BT + value_BT.double(), 0.0)
    torch.testing.assert_close(result.target_BT.double(), target_BT, atol=1e-4, rtol=1e-4)
    assert result.empty_rows == int((mask_BT.sum(1) == 0).sum())
    assert not result.advantage_BT[~mask_BT].any()


@pytest.mark.parametrize("lam", [0.95, 1.0])
def test_long_rows_keep_float32_precision(lam: float) -> None:
    torch.manual_seed(0)
    value_BT = torch.rand(2, 6000)
    mask_BT = torch.rand(2, 6000) < 0.7
    reward_B = torch.tensor([3.0, -1.0])
    result = gae(reward_B, value_BT, mask_BT, lam=lam)
    expected_BT = plain_loop(reward_B, value_BT, mask_BT, 1.0, lam)
    torch.testing.assert_close(result.advantage_BT.double(), expected_BT, atol=1e-4, rtol=1e-4)


def test_rows_without_actions_give_zeros_and_are_counted() -> None:
    mask_BT = torch.tensor([[False, False], [False, True], [False, False]])
    result = gae(torch.ones(3), torch.full((3, 2), 0.5), mask_BT)
    assert result.empty_rows == 2
    assert result.advantage_BT.tolist() == [[0.0, 0.0], [0.0, 0.5], [0.0, 0.0]]
    nothing = gae(torch.ones(2), torch.ones(2, 5), torch.zeros(2, 5, dtype=torch.bool))
    assert not nothing.advantage_BT.any()
    assert nothing.empty_rows == 2


def test_length_of_tool_output_does_not_matter() -> None:
    def first_advantage(gap: int) -> float:
        mask = torch.zeros(1, gap + 8, dtype=torch.bool)
        mask[0, :4] = True
        mask[0, -4:] = True
        value = torch.where(mask, torch.linspace(0, 1, gap + 8), 77.0)
        value[mask] = torch.linspace(0.1, 0.8, 8)
        return float(gae(torch.tensor([2.0]), value, mask).advantage_BT[0, 0])

    assert first_advantage(1) == pytest.approx(first_advantage(500), abs=1e-6)


def test_lambda_one_is_the_return_minus_the_value() -> None:
    value_N = torch.randn(9)
    row_N = torch.tensor([0, 0, 0, 2, 2, 2, 2, 2, 3])
    reward_M = torch.tensor([1.0, 5.0, -1.0, 3.0])
    flat = gae_flat(reward_M, value_N, row_N, gamma=1.0, lam=1.0)
    torch.testing.assert_close(flat.advantage_N, reward_M[row_N] - value_N)
    torch.testing.assert_close(flat.target_N, reward_M[row_N])


def test_returns_are_discounted_by_the_actions_that_follow() -> None:
    returns = returns_flat(torch.tensor([4.0, 1.0]), torch.tensor([0, 0, 0, 1]), gamma=0.5)
    assert returns.tolist() == [1.0, 2.0, 4.0, 1.0]


def test_decay_outside_the_unit_interval_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.5"):
        suffix_sums(torch.ones(3), torch.zeros(3, dtype=torch.long), 1.5)


def test_whitening() -> None:
    advantage_N = torch.randn(1000) * 3 + 5
    result = whiten(advantage_N)
    assert float(result.advantage_N.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(result.advantage_N.std(correction=0)) == pytest.approx(1.0, abs=1e-5)
    assert result.mean == pytest.approx(float(advantage_N.mean()), abs=1e-4)
    assert not whiten(torch.full((7,), 0.1)).advantage_N.abs().gt(1e-6).any()
    assert whiten(torch.zeros(0)).advantage_N.numel() == 0
