from __future__ import annotations

import math

import pytest
import torch

from cudaagent.rl.batch import make_batch
from cudaagent.rl.forward import action_logprobs
from cudaagent.rl.losses import (
    PolicyLossInputs,
    ValueLossInputs,
    importance_weight,
    policy_loss,
    value_loss,
)
from cudaagent.rl.settings import PPOSettings


def inputs(ratio: list[float], advantage: list[float], mismatch: list[float] | None = None):
    logp = torch.tensor(ratio, dtype=torch.float64).log().requires_grad_()
    old = torch.zeros_like(logp).detach()
    engine = old - torch.tensor(mismatch or [1.0] * len(ratio), dtype=torch.float64).log()
    return PolicyLossInputs(
        logp_A=logp,
        entropy_A=torch.zeros_like(old),
        old_logp_A=old,
        engine_logp_A=engine,
        advantage_A=torch.tensor(advantage, dtype=torch.float64),
        weight_A=torch.full_like(old, 1 / len(ratio)),
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "moves"),
    [
        (1.2, 1.0, 1.2, True),
        (1.3, 1.0, 1.28, False),
        (1.3, -1.0, -1.3, True),
        (0.7, 1.0, 0.7, True),
        (0.7, -1.0, -0.8, False),
        (0.85, -1.0, -0.85, True),
    ],
)
def test_asymmetric_clip(ratio: float, advantage: float, value: float, moves: bool) -> None:
    given = inputs([ratio], [advantage])
    result = policy_loss(given, PPOSettings())
    result.loss.backward()
    assert result.loss.item() == pytest.approx(-value)
    assert bool(given.logp_A.grad.abs() > 0) is moves
    assert bool(result.clipped_A) is not moves


def test_importance_weight_is_truncated_and_scales_the_gradient() -> None:
    given = inputs([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], mismatch=[0.5, 1.5, 40.0])
    result = policy_loss(given, PPOSettings(tis_cap=2.0))
    result.loss.backward()
    assert (-3 * given.logp_A.grad).tolist() == pytest.approx([0.5, 1.5, 2.0])
    assert result.truncated_A.tolist() == [False, False, True]
    far = importance_weight(torch.tensor([0.0]), torch.tensor([-500.0]), 1e30)
    assert torch.isfinite(far).all()


def test_kl_and_entropy_terms() -> None:
    given = inputs([1.1, 0.9], [0.0, 0.0])
    plain = policy_loss(given, PPOSettings())
    assert plain.loss.item() == 0.0
    with_kl = policy_loss(given, PPOSettings(kl_coef=0.5))
    expected = sum(r - 1 - math.log(r) for r in (1.1, 0.9)) / 2
    assert with_kl.loss.item() == pytest.approx(0.5 * expected)
    entropy = PolicyLossInputs(
        given.logp_A,
        torch.tensor([1.0, 3.0], dtype=torch.float64),
        given.old_logp_A,
        given.engine_logp_A,
        given.advantage_A,
        given.weight_A,
    )
    assert policy_loss(entropy, PPOSettings(entropy_coef=0.1)).loss.item() == pytest.approx(-0.2)


def test_value_loss_and_its_clip() -> None:
    value_A = torch.tensor([1.0, 0.0], requires_grad=True)
    given = ValueLossInputs(
        value_A, torch.tensor([0.0, 0.0]), torch.tensor([3.0, 1.0]), torch.tensor([0.5, 0.5])
    )
    assert value_loss(given).item() == pytest.approx(0.5 * (0.5 * 4 + 0.5 * 1))
    assert value_loss(given, clip=0.5).item() == pytest.approx(0.5 * (0.5 * 6.25 + 0.5 * 1))


def test_gradient_of_the_whole_loss_against_finite_differences(
    make_model, make_trajectories
) -> None:
    """Along random directions in weight space, with clipping, weights, KL and entropy active."""
    model = make_model().double()
    parameters = list(model.parameters())
    batch = make_batch(make_trajectories(3))
    (micro,) = batch.micro_batches(batch.rows, 10_000, torch.device("cpu"))
    settings = PPOSettings(kl_coef=0.1, entropy_coef=0.05)
    torch.manual_seed(1)
    advantage_A = torch.randn(len(micro.action_A), dtype=torch.float64)
    with torch.no_grad():
        logp_A = action_logprobs(model, micro).logp_A
    old_A = logp_A + 0.2 * torch.randn_like(logp_A)

    def loss() -> torch.Tensor:
        now = action_logprobs(model, micro, entropy_grad=True)
        given = PolicyLossInputs(
            now.logp_A,
            now.entropy_A,
            old_A,
            micro.engine_logp_A.double(),
            advantage_A,
            micro.share_A.double() / 3,
        )
        return policy_loss(given, settings).loss

    loss().backward()
    gradient = [parameter.grad.clone() for parameter in parameters]
    for seed in range(3):
        torch.manual_seed(seed)
        direction = [torch.randn_like(parameter) for parameter in parameters]
        slope = float(sum((g * d).sum() for g, d in zip(gradient, direction, strict=True)))
        values = []
        epsilon = 2e-4
        for sign in (1, -1):
            with torch.no_grad():
                for parameter, step in zip(parameters, direction, strict=True):
                    parameter.add_(step, alpha=sign * epsilon)
                values.append(float(loss()))
                for parameter, step in zip(parameters, direction, strict=True):
                    parameter.add_(step, alpha=-sign * epsilon)
        assert (values[0] - values[1]) / (2 * epsilon) == pytest.approx(slope, rel=2e-2, abs=1e-3)
