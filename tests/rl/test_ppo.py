from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from cudaagent.agent.trajectory import ExitReason, Trajectory
from cudaagent.lease import TimingLease
from cudaagent.rl.optimization import TrainingDiverged
from cudaagent.rl.ppo import PPOLearner
from cudaagent.rl.settings import PPOSettings
from cudaagent.rl.value import ValueModel

FAST = PPOSettings(actor_lr=1e-3, critic_lr=1e-3, warmup_steps=2)


def make_learner(model: LlamaForCausalLM, settings: PPOSettings = FAST, **extra) -> PPOLearner:
    return PPOLearner(model, ValueModel.from_policy(model), settings, "cpu", **extra)


def weights(learner: PPOLearner) -> torch.Tensor:
    tensors = [*learner.actor.parameters(), *learner.critic.parameters()]
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@pytest.mark.parametrize("minis", [1, 3])
def test_micro_batches_do_not_change_the_update(make_model, make_trajectories, minis) -> None:
    items = make_trajectories(8)
    results = []
    for micro_tokens in (1, 100, 100_000):
        settings = dataclasses.replace(FAST, micro_tokens=micro_tokens, mini_batches=minis)
        learner = make_learner(make_model(), settings)
        metrics = learner.update(items)
        results.append((weights(learner), metrics))
    for other, metrics in results[1:]:
        # Adam's first steps are nearly sign(gradient): elements that vanish may differ in sign.
        assert float((other - results[0][0]).abs().mean()) < 1e-6
        for name in ("actor/loss", "critic/loss", "actor/grad_norm", "critic/explained_variance"):
            assert metrics[name] == pytest.approx(results[0][1][name], rel=1e-3, abs=1e-5)


def test_old_quantities_of_the_first_step_equal_a_separate_pass(
    make_model, make_trajectories
) -> None:
    """With one mini-batch the training forward doubles as the pass for the old log-probs."""
    items = make_trajectories(6)
    model = make_model()
    learner = make_learner(model, dataclasses.replace(FAST, epochs=2))
    with torch.no_grad():
        expected = []
        for item in items:
            ids = torch.from_numpy(item.token_ids).long()
            logp_TV = model(input_ids=ids[None]).logits[0].log_softmax(-1)
            at = np.flatnonzero(item.loss_mask)
            expected.append(logp_TV[at - 1, ids[at]] - torch.from_numpy(item.logprobs[at]))
    mismatch = float(-torch.cat(expected).mean())
    metrics = learner.update(items)
    assert metrics["mismatch/kl1"] == pytest.approx(mismatch, abs=1e-4)
    assert metrics["mismatch/kl3"] > 0
    # The second epoch sees moved weights against the same old log-probs.
    assert metrics["actor/kl3"] > 0
    assert metrics["actor/ratio_min"] < 1 < metrics["actor/ratio_max"]


def test_metrics_describe_the_batch(make_model, make_trajectories) -> None:
    items = [dataclasses.replace(item, reward=2.0) for item in make_trajectories(4)]
    items[0] = dataclasses.replace(items[0], exit_reason=ExitReason.CONTEXT_FULL)
    items[1] = dataclasses.replace(
        items[1], loss_mask=np.zeros_like(items[1].loss_mask), exit_reason=ExitReason.TURN_LIMIT
    )
    metrics = make_learner(make_model()).update(items)
    assert metrics["batch/zero_variance"] == 1.0
    assert metrics["batch/length_clipped_ratio"] == 0.25
    assert metrics["batch/turn_limited_ratio"] == 0.25
    assert metrics["batch/rows_without_actions"] == 1.0
    assert metrics["batch/reward_mean"] == 2.0
    assert metrics["critic/explained_variance"] == 0.0
    assert metrics["batch/tokens"] == sum(len(item.token_ids) for item in items)
    assert metrics["actor/clip_fraction"] == 0.0
    assert metrics["actor/ratio_max"] == 1.0
    assert all(np.isfinite(value) for value in metrics.values())
    varied = make_learner(make_model()).update(make_trajectories(6))
    assert varied["batch/zero_variance"] == 0.0
    assert set(varied) == set(metrics)


def test_batch_without_any_action_changes_nothing(make_model, make_trajectories) -> None:
    (item,) = make_trajectories(1)
    learner = make_learner(make_model())
    before = weights(learner)
    empty = dataclasses.replace(item, loss_mask=np.zeros_like(item.loss_mask))
    metrics = learner.update([empty])
    assert torch.equal(weights(learner), before)
    assert metrics["batch/rows_without_actions"] == 1.0


def test_resume_is_exact(make_model, make_trajectories) -> None:
    settings = dataclasses.replace(FAST, mini_batches=2, epochs=2)
    batches = [make_trajectories(6, seed) for seed in range(4)]
    whole = make_learner(make_model(), settings, seed=3)
    for batch in batches:
        last = whole.update(batch)
    first = make_learner(make_model(), settings, seed=3)
    for batch in batches[:2]:
        first.update(batch)
    state = first.state_dict()
    second = make_learner(make_model(1), settings)
    second.actor.load_state_dict(first.actor.state_dict())
    second.critic.load_state_dict(first.critic.state_dict())
    second.load_state_dict(state)
    for batch in batches[2:]:
        resumed = second.update(batch)
    assert torch.equal(weights(second), weights(whole))
    assert second.step == whole.step == 4
    for name in last:
        if not name.startswith("time/"):
            assert resumed[name] == last[name], name


def test_state_of_another_model_is_refused(make_model, make_trajectories) -> None:
    learner = make_learner(make_model())
    learner.update(make_trajectories(2))
    state = learner.state_dict()
    with pytest.raises(ValueError, match="version"):
        learner.load_state_dict({**state, "version": 99})
    critic_state = {**state, "actor_optimizer": state["critic_optimizer"]}
    with pytest.raises(ValueError, match="another model"):
        learner.load_state_dict(critic_state)


def test_non_finite_gradients_are_skipped_counted_and_finally_fatal(
    make_model, make_trajectories
) -> None:
    model = make_model()
    learner = make_learner(model, dataclasses.replace(FAST, max_skipped_steps=2))
    items = make_trajectories(4)
    broken = model.model.layers[0].mlp.up_proj.weight
    with torch.no_grad():
        kept = broken[0, 0].clone()
        broken[0, 0] = float("nan")
    others = [p.detach().clone() for p in model.parameters() if p is not broken]
    for count in (1, 2):
        assert learner.update(items)["actor/skipped_steps"] == count
    for before, parameter in zip(
        others, (p for p in model.parameters() if p is not broken), strict=True
    ):
        assert torch.equal(before, parameter)
    with pytest.raises(TrainingDiverged, match="actor"):
        learner.update(items)
    with torch.no_grad():
        broken[0, 0] = kept
    metrics = learner.update(items)
    assert metrics["actor/skipped_steps"] == 3
    assert metrics["actor/grad_norm"] > 0


def test_learning_rate_warms_up_then_stays(make_model, make_trajectories) -> None:
    learner = make_learner(make_model(), dataclasses.replace(FAST, warmup_steps=4))
    rates = [learner.actor_optimizer.lr]
    for _ in range(5):
        rates.append(learner.update(make_trajectories(2))["actor/lr"])
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_micro_batches_wait_for_the_timing_lease(make_model, make_trajectories, tmp_path) -> None:
    lease = TimingLease(directory=tmp_path)
    free: list[bool] = []

    def progress(phase: str, done: int, total: int) -> None:
        # Between micro-batches the lease must be free for who wants to time.
        with TimingLease(directory=tmp_path).exclusive(timeout_s=0.0):
            free.append(True)

    settings = dataclasses.replace(FAST, micro_tokens=40)
    learner = make_learner(make_model(), settings, lease=lease, progress=progress)
    items = make_trajectories(6)
    worker = threading.Thread(target=learner.update, args=(items,))
    with TimingLease(directory=tmp_path).exclusive(timeout_s=5.0):
        worker.start()
        worker.join(0.5)
        assert worker.is_alive()
        assert not free
    worker.join(60.0)
    assert not worker.is_alive()
    assert len(free) > 4


def rollouts(model: LlamaForCausalLM, step: int, count: int = 64) -> list[Trajectory]:
    """Two actions with an observation between them; each should repeat the prompt's token."""
    generator = torch.Generator().manual_seed(step)
    prompt = torch.randint(0, 8, (count, 1), generator=generator)
    ids, logps = prompt, torch.zeros(count, 1)
    with torch.no_grad():
        for action in range(2):
            logp_BV = model(input_ids=ids).logits[:, -1].log_softmax(-1)
            token = torch.multinomial(logp_BV.exp(), 1, generator=generator)
            ids = torch.cat([ids, token], 1)
            logps = torch.cat([logps, logp_BV.gather(1, token)], 1)
            if action == 0:
                ids = torch.cat([ids, torch.full((count, 3), 9)], 1)
                logps = torch.cat([logps, torch.zeros(count, 3)], 1)
    mask = np.array([False, True, False, False, False, True])
    hits = (ids[:, mask] == prompt).float().sum(1)
    return [
        Trajectory(
            id=f"{step}-{row}",
            task_id="copy",
            stage="single_turn",
            step=step,
            seed=row,
            policy_version=step,
            token_ids=ids[row].numpy().astype(np.int32),
            loss_mask=mask,
            logprobs=logps[row].numpy(),
            turns=(),
            exit_reason=ExitReason.SUBMITTED,
            reward=float(hits[row]) - 1.0,
        )
        for row in range(count)
    ]


def test_reward_rises_on_a_copying_task(make_model) -> None:
    model = make_model(vocab=12)
    settings = PPOSettings(
        actor_lr=3e-3, critic_lr=6e-3, mini_batches=2, epochs=2, entropy_coef=0.01
    )
    learner = make_learner(model, settings)
    rewards = []
    for step in range(30):
        metrics = learner.update(rollouts(model, step))
        rewards.append(metrics["batch/reward_mean"])
        assert metrics["mismatch/kl3"] < 1e-5
    assert np.mean(rewards[:3]) < -0.6
    assert np.mean(rewards[-3:]) > 0.5
    assert metrics["critic/explained_variance"] <= 1.0
