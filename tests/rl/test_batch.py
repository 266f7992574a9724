from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from cudaagent.rl.batch import make_batch, plan_steps
from cudaagent.rl.forward import action_logprobs, action_values, check_actor
from cudaagent.rl.value import ValueModel

CPU = torch.device("cpu")


@pytest.mark.parametrize("budget", [1, 60, 10_000])
def test_every_action_is_in_exactly_one_micro_batch(make_trajectories, budget: int) -> None:
    items = make_trajectories(9)
    batch = make_batch(items)
    micros = list(batch.micro_batches(batch.rows, budget, CPU))
    assert len(micros) == batch.micro_batch_count(batch.rows, budget)
    seen = torch.cat([micro.action_A for micro in micros]).tolist()
    assert sorted(seen) == list(range(batch.actions))
    ids_N = np.concatenate([item.token_ids[item.loss_mask] for item in items])
    for micro in micros:
        rows, width = micro.token_ids_BT.shape
        assert rows == 1 or rows * width <= budget
        assert micro.target_A.tolist() == ids_N[micro.action_A.numpy()].tolist()
    assert sum(float(micro.share_A.sum()) for micro in micros) == pytest.approx(9.0, abs=1e-4)


def test_padded_rows_equal_each_row_alone(make_model, make_trajectories) -> None:
    model = make_model()
    critic = ValueModel.from_policy(model)
    torch.nn.init.normal_(critic.head.weight)
    items = make_trajectories(5)
    batch = make_batch(items)
    (micro,) = batch.micro_batches(batch.rows, 10_000, CPU)
    with torch.no_grad():
        logp_A = action_logprobs(model, micro).logp_A
        entropy_A = action_logprobs(model, micro).entropy_A
        value_A = action_values(critic, micro)
    logp_N = torch.empty(batch.actions)
    entropy_N = torch.empty(batch.actions)
    value_N = torch.empty(batch.actions)
    logp_N[micro.action_A], entropy_N[micro.action_A] = logp_A, entropy_A
    value_N[micro.action_A] = value_A
    start = 0
    for item in items:
        ids = torch.from_numpy(item.token_ids).long()
        with torch.no_grad():
            full_TV = model(input_ids=ids[None]).logits[0].log_softmax(-1)
            hidden_TH = critic.backbone(input_ids=ids[None]).last_hidden_state[0]
        at = np.flatnonzero(item.loss_mask)
        end = start + len(at)
        torch.testing.assert_close(logp_N[start:end], full_TV[at - 1, ids[at]], atol=1e-5, rtol=0)
        entropy = -(full_TV.exp() * full_TV).sum(-1)[at - 1]
        torch.testing.assert_close(entropy_N[start:end], entropy, atol=1e-5, rtol=0)
        values = critic.value(hidden_TH[at - 1]).detach()
        torch.testing.assert_close(value_N[start:end], values, atol=1e-5, rtol=0)
        start = end


def test_chunked_head_equals_whole_head(make_model, make_trajectories) -> None:
    model = make_model()
    batch = make_batch(make_trajectories(4))
    (micro,) = batch.micro_batches(batch.rows, 10_000, CPU)

    def gradients(elements: int) -> tuple[torch.Tensor, torch.Tensor]:
        model.zero_grad()
        result = action_logprobs(model, micro, entropy_grad=True, chunk_elements=elements)
        (result.logp_A.sum() + 0.3 * result.entropy_A.sum()).backward()
        return result.logp_A.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])

    whole, chunked = gradients(1 << 20), gradients(5 * 32)
    torch.testing.assert_close(chunked[0], whole[0])
    torch.testing.assert_close(chunked[1], whole[1], atol=1e-4, rtol=1e-4)


def test_steps_do_not_depend_on_order_of_arrival(make_trajectories) -> None:
    items = make_trajectories(10)
    forward, backward = make_batch(items), make_batch(items[::-1])

    def ids(batch) -> list[set[str]]:
        steps = plan_steps(batch, parts=3, seed=(7, 1))
        return [{batch.trajectories[row].id for row in step.rows} for step in steps]

    assert ids(forward) == ids(backward)
    assert sum(len(part) for part in ids(forward)) == 10
    assert ids(forward) != [
        {forward.trajectories[row].id for row in step.rows}
        for step in plan_steps(forward, parts=3, seed=(7, 2))
    ]


def test_rows_without_actions_take_no_part(make_trajectories) -> None:
    items = make_trajectories(3)
    none = np.zeros_like(items[1].loss_mask)
    items[1] = dataclasses.replace(items[1], loss_mask=none)
    batch = make_batch(items)
    assert batch.rows == [0, 2]
    (step,) = plan_steps(batch, parts=1, seed=(0,))
    assert step.rows == (0, 2)
    assert step.trajectories == 2
    assert [len(m.reward_B) for m in batch.micro_batches([0, 1, 2], 10_000, CPU)] == [2]


def test_malformed_trajectories_are_refused(make_trajectories) -> None:
    (item,) = make_trajectories(1)
    mask = item.loss_mask.copy()
    mask[0] = True
    bad = item.logprobs.copy()
    bad[item.loss_mask] = np.nan
    for broken, message in (
        (dataclasses.replace(item, loss_mask=mask), "first token"),
        (dataclasses.replace(item, logprobs=bad), "not finite"),
        (dataclasses.replace(item, logprobs=item.logprobs[1:]), "differ in length"),
        (dataclasses.replace(item, reward=None), "no reward"),
        (dataclasses.replace(item, reward=float("inf")), "reward is not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            make_batch([broken])
    assert make_batch([dataclasses.replace(item, reward=None)], need_reward=False).actions


def test_linear_head_is_recognised(make_model) -> None:
    check_actor(make_model())
