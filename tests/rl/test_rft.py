from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from cudaagent.agent.trajectory import ToolCall, Trajectory, Turn
from cudaagent.rl.batch import make_batch
from cudaagent.rl.forward import action_logprobs
from cudaagent.rl.rft import Rejection, filter_trajectories, fit_supervised, longest_repeat
from cudaagent.rl.settings import RFTSettings

COMPILE = ToolCall("Bash", {"command": "bash utils/compile.sh"}, "BUILD FAILED", True)
VERIFY = ToolCall("Bash", {"command": "python3 utils/verification.py"}, "VERIFY OK", True)


def with_calls(item: Trajectory, *turns: tuple[ToolCall, ...], reward=3.0) -> Trajectory:
    made = tuple(Turn(index, index + 1, calls) for index, calls in enumerate(turns))
    return dataclasses.replace(item, turns=made, reward=reward)


def test_each_rejection_has_one_reason_and_a_count(make_trajectories) -> None:
    items = make_trajectories(8)
    bad_schema = dataclasses.replace(COMPILE, ok=False, schema_error=True)
    given = [
        with_calls(items[0], (COMPILE, VERIFY)),
        with_calls(items[1], (COMPILE,), reward=-1.0),
        with_calls(items[2], (bad_schema,)),
        with_calls(items[3], (COMPILE, COMPILE), (COMPILE,), (COMPILE,)),
        with_calls(items[4], (COMPILE, COMPILE), (COMPILE,), (VERIFY,), (COMPILE,)),
        with_calls(items[5], (COMPILE,), reward=None),
        dataclasses.replace(items[6], reward=1.0, loss_mask=np.zeros_like(items[6].loss_mask)),
        with_calls(items[7], (bad_schema,), reward=0.0),
    ]
    report = filter_trajectories(given, RFTSettings(max_repeats=3))
    assert [item.id for item in report.kept] == [items[0].id, items[4].id]
    assert report.counts == {
        Rejection.DROPPED: 1,
        Rejection.REWARD: 2,
        Rejection.NO_ACTIONS: 1,
        Rejection.SCHEMA: 1,
        Rejection.LOOP: 1,
    }


def test_repeats_need_the_same_arguments_in_a_row(make_trajectories) -> None:
    (item,) = make_trajectories(1)
    other = dataclasses.replace(COMPILE, arguments={"command": "ls"})
    assert longest_repeat(item) == 0
    assert longest_repeat(with_calls(item, (COMPILE, other, COMPILE), (COMPILE,))) == 2


def test_fit_lowers_the_loss_of_action_tokens(make_model, make_trajectories) -> None:
    model = make_model()
    items = make_trajectories(8)
    settings = RFTSettings(epochs=12, lr=5e-3, batch=4, micro_tokens=100)
    seen = []
    history = fit_supervised(model, items, settings, seed=1, on_step=seen.append)
    assert history == seen
    assert [record.step for record in history] == list(range(1, 25))
    assert history[-1].epoch == 11
    assert sum(r.action_tokens for r in history[:2]) == sum(i.loss_mask.sum() for i in items)
    assert history[-1].loss < 0.5 * history[0].loss


def test_loss_is_the_mean_of_trajectory_means_over_actions_alone(
    make_model, make_trajectories
) -> None:
    model = make_model()
    items = make_trajectories(3)
    batch = make_batch(items)
    means = []
    with torch.no_grad():
        for row in range(3):
            (micro,) = batch.micro_batches([row], 10_000, torch.device("cpu"))
            means.append(float(-action_logprobs(model, micro).logp_A.mean()))
    changed = [
        dataclasses.replace(
            item,
            token_ids=np.append(item.token_ids, np.int32(5)).astype(np.int32),
            loss_mask=np.append(item.loss_mask, False),
            logprobs=np.append(item.logprobs, np.float32(0)),
        )
        for item in items
    ]
    (record,) = fit_supervised(model, changed, RFTSettings(lr=0.0, batch=8))
    assert record.loss == pytest.approx(np.mean(means), rel=1e-5)
