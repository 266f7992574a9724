from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from cudaagent.agent.trajectory import Trajectory
from cudaagent.rl.settings import ValuePretrainingSettings
from cudaagent.rl.value import ValueModel
from cudaagent.rl.value_pretraining import pretrain_value


def predictable(make_trajectories, count: int) -> list[Trajectory]:
    """The outcome is decided by the first token."""
    items = make_trajectories(count, longest=24)
    return [
        dataclasses.replace(item, reward=3.0 if item.token_ids[0] % 2 else -1.0) for item in items
    ]


FAST = ValuePretrainingSettings(
    epochs=60, lr=3e-3, batch=16, holdout=0.25, stop_explained_variance=0.8, patience=60
)


@pytest.mark.parametrize("lam", [0.95, 1.0])
def test_held_out_outcomes_become_explained(make_model, make_trajectories, lam: float) -> None:
    critic = ValueModel.from_policy(make_model())
    seen = []
    report = pretrain_value(
        critic,
        predictable(make_trajectories, 160),
        dataclasses.replace(FAST, lam=lam),
        on_epoch=seen.append,
    )
    assert report.explained_variance > 0.5
    assert report.stop_reason == "reached"
    assert report.history[0].explained_variance == pytest.approx(0.0, abs=1e-6)
    assert list(report.history) == seen
    assert report.history[-1].epoch == report.best_epoch < 60
    assert (report.train, report.heldout) == (120, 40)


def test_best_weights_are_kept_when_nothing_is_learnt(make_model, make_trajectories) -> None:
    """Rewards without a cause: held-out variance cannot be explained, patience ends it."""
    critic = ValueModel.from_policy(make_model())
    settings = dataclasses.replace(FAST, lr=1e-2, patience=2)
    before = {name: tensor.clone() for name, tensor in critic.state_dict().items()}
    report = pretrain_value(critic, make_trajectories(16), settings)
    assert report.stop_reason == "patience"
    assert report.history[-1].epoch == report.best_epoch + 2
    best = max(report.history, key=lambda record: record.explained_variance)
    assert report.explained_variance == best.explained_variance
    if report.best_epoch == 0:
        for name, tensor in critic.state_dict().items():
            assert torch.equal(tensor, before[name])


def test_same_seed_same_critic_whatever_the_order(make_model, make_trajectories) -> None:
    items = predictable(make_trajectories, 24)
    settings = dataclasses.replace(FAST, epochs=2)
    heads = []
    for order in (items, items[::-1]):
        critic = ValueModel.from_policy(make_model())
        report = pretrain_value(critic, order, settings, seed=5)
        heads.append((report.history[1].loss, critic.head.weight.detach().clone()))
    assert heads[0][0] == pytest.approx(heads[1][0], rel=1e-4)
    torch.testing.assert_close(heads[0][1], heads[1][1], atol=1e-3, rtol=1e-2)


def test_too_few_trajectories_are_refused(make_model, make_trajectories) -> None:
    critic = ValueModel.from_policy(make_model())
    with pytest.raises(ValueError, match="collect more"):
        pretrain_value(critic, make_trajectories(1), FAST)


def test_critic_directory_round_trip(make_model, tmp_path) -> None:
    critic = ValueModel.from_policy(make_model())
    torch.nn.init.normal_(critic.head.weight)
    critic.save(tmp_path / "critic")
    again = ValueModel.load(tmp_path / "critic")
    for name, tensor in critic.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    ids = torch.from_numpy(np.arange(6))[None]
    with torch.no_grad():
        ours = critic.value(critic.backbone(input_ids=ids).last_hidden_state[0])
        theirs = again.value(again.backbone(input_ids=ids).last_hidden_state[0])
    assert torch.equal(ours, theirs)


def test_an_untouched_head_starts_at_the_mean_outcome_and_a_trained_one_stays(
    make_model, make_trajectories
) -> None:
    critic = ValueModel.from_policy(make_model())
    return_N = torch.tensor([3.0, -1.0, 1.0])
    critic.centre(return_N, torch.tensor([1.0, 1.0, 2.0]))
    assert critic.head.bias.item() == pytest.approx(1.0)
    critic.centre(10 * return_N, torch.ones(3))
    assert critic.head.bias.item() == pytest.approx(1.0)
