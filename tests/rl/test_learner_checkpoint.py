from __future__ import annotations

import json

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from cudaagent.errors import UserError
from cudaagent.rl.checkpoint import load_checkpoint, save_checkpoint
from cudaagent.rl.ppo import PPOLearner
from cudaagent.rl.settings import PPOSettings
from cudaagent.rl.value import ValueModel

FAST = PPOSettings(actor_lr=1e-3, critic_lr=1e-3, mini_batches=2)


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{index}": index for index in range(32)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), unk_token="w0"
    )


def learner_of(model, critic) -> PPOLearner:
    return PPOLearner(model, critic, FAST, "cpu", seed=2)


def test_training_continues_exactly_from_disk(make_model, make_trajectories, tmp_path) -> None:
    model = make_model()
    learner = learner_of(model, ValueModel.from_policy(model))
    learner.update(make_trajectories(5, 0))
    save_checkpoint(
        tmp_path / "step-1",
        learner.actor,
        tokenizer(),
        learner.critic,
        learner.state_dict(),
        trainer_state={"stage": "agentic"},
    )
    expected = learner.update(make_trajectories(5, 1))
    found = load_checkpoint(tmp_path / "step-1")
    assert found.trainer_state == {"format": 1, "stage": "agentic", "step": 1}
    assert found.critic is not None
    assert found.learner_state is not None
    again = learner_of(found.actor, found.critic)
    again.load_state_dict(found.learner_state)
    actual = again.update(make_trajectories(5, 1))
    for name, value in expected.items():
        if not name.startswith("time/"):
            assert actual[name] == value, name
    for mine, theirs in zip(
        [*learner.actor.parameters(), *learner.critic.parameters()],
        [*again.actor.parameters(), *again.critic.parameters()],
        strict=True,
    ):
        assert torch.equal(mine, theirs)


def test_plain_transformers_loads_it(make_model, tmp_path) -> None:
    source, target = tmp_path / "tokenizer", tmp_path / "checkpoint"
    tokenizer().save_pretrained(source)
    (source / "model.safetensors").write_bytes(b"not to be copied")
    model = make_model().bfloat16()
    save_checkpoint(target, model, source)
    again = AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    assert again.dtype == torch.bfloat16
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    assert AutoTokenizer.from_pretrained(target)("w3 w4".split(), is_split_into_words=True)
    found = load_checkpoint(target)
    assert found.actor.dtype == torch.float32
    assert found.critic is None
    assert found.learner_state is None


def test_saving_again_replaces_and_leaves_no_debris(make_model, tmp_path) -> None:
    target = tmp_path / "latest"
    save_checkpoint(target, make_model(0), None, trainer_state={"step": 1})
    save_checkpoint(target, make_model(1), None, trainer_state={"step": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]
    found = load_checkpoint(target)
    assert found.trainer_state["step"] == 2
    assert torch.equal(found.actor.lm_head.weight, make_model(1).lm_head.weight)


def test_failed_save_keeps_the_old_checkpoint(make_model, tmp_path) -> None:
    target = tmp_path / "latest"
    save_checkpoint(target, make_model(0), None)
    with pytest.raises(TypeError):
        save_checkpoint(target, make_model(1), None, trainer_state={"step": object()})
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]
    assert torch.equal(load_checkpoint(target).actor.lm_head.weight, make_model(0).lm_head.weight)


def test_unreadable_checkpoints_are_user_errors(make_model, tmp_path) -> None:
    target = tmp_path / "checkpoint"
    model = make_model()
    with pytest.raises(UserError, match="does not exist"):
        load_checkpoint(target)

    def fresh() -> None:
        save_checkpoint(target, model, None, ValueModel.from_policy(model), {"step": 1})

    fresh()
    weights = target / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="not readable"):
        load_checkpoint(target)
    fresh()
    weights.unlink()
    with pytest.raises(UserError, match="not readable"):
        load_checkpoint(target)
    fresh()
    (target / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json"):
        load_checkpoint(target)
    fresh()
    (target / "config.json").write_text("{")
    with pytest.raises(UserError, match="not readable"):
        load_checkpoint(target)
    fresh()
    (target / "critic" / "value_head.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match="value head"):
        load_checkpoint(target)
    fresh()
    (target / "optimizer.pt").write_bytes(b"x" * 50)
    with pytest.raises(UserError, match="learner state"):
        load_checkpoint(target)
    fresh()
    (target / "trainer_state.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(UserError, match="format 2"):
        load_checkpoint(target)
    fresh()
    (target / "trainer_state.json").write_text("[")
    with pytest.raises(UserError, match="not readable"):
        load_checkpoint(target)


def test_missing_weights_are_not_invented(make_model, tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    target = tmp_path / "checkpoint"
    save_checkpoint(target, make_model(), None)
    state = load_file(target / "model.safetensors")
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="lacks 1 weights"):
        load_checkpoint(target)


def test_hostile_learner_state_runs_no_code(make_model, tmp_path) -> None:
    target = tmp_path / "checkpoint"
    save_checkpoint(target, make_model(), None)

    class Hostile:
        def __reduce__(self):
            return (open, (str(tmp_path / "made-by-pickle"), "w"))

    torch.save({"step": Hostile()}, target / "optimizer.pt")
    with pytest.raises(UserError, match="learner state"):
        load_checkpoint(target)
    assert not (tmp_path / "made-by-pickle").exists()
