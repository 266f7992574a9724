from __future__ import annotations

import copy
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from cudaagent.errors import UserError
from cudaagent.lease import TimingLease
from cudaagent.policy.base import Generation, GenerationRequest, Message
from cudaagent.policy.hf import HFPolicy, load_checkpoint
from cudaagent.policy.small import SmallShape, create_model, save, train_tokenizer

TEXTS = [
    "void relu(tvm::ffi::TensorView x, TensorView out) {\n  for (int i = 0; i < 1024; ++i)\n",
    "import torch\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return x + 1\n",
]
SHAPE = SmallShape(
    vocab=320,
    hidden=32,
    layers=2,
    heads=2,
    kv_heads=1,
    head_size=16,
    intermediate=48,
    positions=512,
)
OTHER_TEMPLATE = (
    "<|pad|>{% for m in messages %}### {{ m['role'] }}\n{{ m['content'] | trim }}\n<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}### assistant\n{% endif %}"
)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small products are faster on one thread, and tests share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, vocab=SHAPE.vocab)


@pytest.fixture(scope="module")
def model(tokenizer):
    built = create_model(tokenizer, SHAPE, seed=3)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(4.0)  # far from uniform, so that a wrong mask or position shows
    return built


@pytest.fixture
def policy(model, tokenizer) -> HFPolicy:
    return HFPolicy(model, tokenizer)


def requests(policy: HFPolicy, count: int, new: int = 40) -> list[GenerationRequest]:
    texts = [TEXTS[i % 2][: 10 + 7 * i] for i in range(count)]
    return [
        GenerationRequest(policy.start([Message("user", text)]), new, seed=100 + i)
        for i, text in enumerate(texts)
    ]


def full_logprobs(policy: HFPolicy, request: GenerationRequest, made: Generation) -> np.ndarray:
    ids = np.concatenate([request.token_ids, made.token_ids]).astype(np.int64)
    with torch.no_grad():
        logits = policy.model(torch.from_numpy(ids)[None]).logits[0].float()
    logp = torch.log_softmax(logits, -1)[len(request.token_ids) - 1 : -1]
    return logp.gather(1, torch.from_numpy(ids[len(request.token_ids) :])[:, None])[:, 0].numpy()


def test_start_renders_the_template(policy, tokenizer):
    ids = policy.start([Message("system", "be fast"), Message("user", "go")])
    assert tokenizer.decode(ids) == "<|system|>be fast<|end|><|user|>go<|end|><|assistant|>"


@pytest.mark.parametrize("template", [None, OTHER_TEMPLATE])
def test_seams_rebuild_the_whole_conversation(model, tokenizer, template):
    """Prompt + turn + end + observation equals the template's own rendering, token for token."""
    own = copy.deepcopy(tokenizer)
    if template:
        own.chat_template = template
    policy = HFPolicy(model, own)
    turn, result = "void f() {}", "BUILD OK (1.8 s)\n\n  two  lines"
    messages = [Message("user", "x = 1"), Message("assistant", turn), Message("user", result)]
    plain = [{"role": m.role, "content": m.content} for m in messages]
    whole = own.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    end = own.convert_tokens_to_ids("<|end|>")
    middle = own(turn + ("\n" if template else ""), add_special_tokens=False).input_ids
    ours = [*policy.start(messages[:1]), *middle, end, *policy.observe(result)]
    assert ours == own(whole, add_special_tokens=False).input_ids
    assert policy.observe(result)[0] != end


def test_no_chat_template_is_refused(model, tokenizer):
    bare = copy.deepcopy(tokenizer)
    bare.chat_template = None
    with pytest.raises(UserError, match="no chat template"):
        HFPolicy(model, bare)


def test_logprobs_are_those_of_a_full_forward_pass(policy):
    batch = requests(policy, 6)
    for request, made in zip(batch, policy.generate(batch), strict=True):
        assert len(made.token_ids) == len(made.logprobs) > 0
        np.testing.assert_allclose(made.logprobs, full_logprobs(policy, request, made), atol=1e-4)


def test_a_row_does_not_depend_on_its_neighbours(policy):
    batch = requests(policy, 5)
    together = policy.generate(batch)
    for request, expected in zip(batch, together, strict=True):
        alone = policy.generate([request])[0]
        np.testing.assert_array_equal(alone.token_ids, expected.token_ids)
    other_seed = policy.generate([replace(batch[0], seed=7)])[0]
    assert other_seed.token_ids.tolist() != together[0].token_ids.tolist()


def test_ends_at_end_of_turn_or_at_the_limit(model, tokenizer):
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    talker = copy.deepcopy(model)
    with torch.no_grad():
        talker.model.embed_tokens.weight[end] *= 2.0  # likelier, wherever it is likely at all
    policy = HFPolicy(talker, tokenizer)
    batch = [replace(r, max_new_tokens=200) for r in requests(policy, 12)]
    made = policy.generate(batch)
    reasons = {g.finish_reason for g in made}
    assert "stop" in reasons
    for generation in made:
        ids = generation.token_ids.tolist()
        if generation.finish_reason == "stop":
            assert ids.index(end) == len(ids) - 1
            assert "<|end|>" not in generation.text
        else:
            assert len(ids) == 200
    assert len(policy.generate([replace(batch[0], max_new_tokens=3)])[0].token_ids) <= 3


def test_a_prompt_that_fills_the_model_gets_nothing(policy):
    full = GenerationRequest(np.full(SHAPE.positions, 9, np.int32), 5, seed=0)
    nearly = GenerationRequest(np.full(SHAPE.positions - 2, 9, np.int32), 5, seed=0)
    made = policy.generate([full, nearly])
    assert (len(made[0].token_ids), made[0].finish_reason) == (0, "length")
    assert len(made[1].token_ids) <= 2


def test_second_turn_from_the_kept_cache_equals_a_fresh_one(model, tokenizer):
    talker = copy.deepcopy(model)
    talker.generation_config.eos_token_id = list(range(40))  # turns end often
    policy = HFPolicy(talker, tokenizer)
    batch = [replace(r, episode_id=f"e{i}") for i, r in enumerate(requests(policy, 8, new=60))]
    first = policy.generate(batch)
    second: list[GenerationRequest] = []
    for i, (request, made) in enumerate(zip(batch, first, strict=True)):
        if made.finish_reason == "stop":
            seen = policy.observe("BUILD OK (1.8 s)" * (1 + i % 3))
            ids = np.concatenate([request.token_ids, made.token_ids, seen]).astype(np.int32)
            second.append(replace(request, token_ids=ids, max_new_tokens=30))
    assert len(second) >= 2
    second.append(requests(policy, 1)[0])
    fresh = HFPolicy(talker, tokenizer).generate(second)
    for ours, theirs in zip(policy.generate(second), fresh, strict=True):
        np.testing.assert_array_equal(ours.token_ids, theirs.token_ids)
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-4)


def test_greedy_takes_the_likeliest_token(model, tokenizer):
    policy = HFPolicy(model, tokenizer, temperature=0.0)
    request = requests(policy, 1)[0]
    made = policy.generate([request])[0]
    ids = torch.from_numpy(np.concatenate([request.token_ids, made.token_ids]).astype(np.int64))
    with torch.no_grad():
        best = policy.model(ids[None]).logits[0].argmax(-1)[len(request.token_ids) - 1 : -1]
    assert best.tolist() == made.token_ids.tolist()


def test_temperature_one_draws_from_the_distribution(policy):
    """First tokens of many seeds follow the model's own probabilities."""
    request = requests(policy, 1, new=1)[0]
    made = policy.generate([replace(request, seed=s) for s in range(1500)])
    tokens = np.array([g.token_ids[0] for g in made])
    with torch.no_grad():
        logits = policy.model(torch.from_numpy(request.token_ids.astype(np.int64))[None]).logits
    expected = torch.softmax(logits[0, -1].float(), -1).numpy()
    top = int(expected.argmax())
    share, p = float((tokens == top).mean()), float(expected[top])
    assert abs(share - p) < 5 * (p * (1 - p) / 1500) ** 0.5 + 1e-3


def test_weights_of_the_learner_replace_ours(tokenizer):
    policy = HFPolicy(create_model(tokenizer, SHAPE, seed=1), tokenizer)
    other = create_model(tokenizer, SHAPE, seed=2)
    batch = requests(policy, 3)
    state = {name: p.detach().numpy() for name, p in other.named_parameters()}
    policy.load_weights(state, version=4)
    expected = HFPolicy(other, tokenizer).generate(batch)
    for ours, theirs in zip(policy.generate(batch), expected, strict=True):
        assert ours.policy_version == 4
        np.testing.assert_array_equal(ours.token_ids, theirs.token_ids)
    state.pop("model.norm.weight")
    with pytest.raises(ValueError, match=r"missing \['model.norm.weight'\]"):
        policy.load_weights(state, version=5)
    assert policy.policy_version == 4


def test_generation_waits_for_who_times(policy, model, tokenizer, tmp_path: Path):
    lease = TimingLease(directory=tmp_path)
    leased = HFPolicy(model, tokenizer, lease=lease)
    batch = requests(policy, 2)
    made = leased.generate(batch)
    assert made[0].token_ids.tolist() == policy.generate(batch)[0].token_ids.tolist()
    done = threading.Event()
    with lease.exclusive():
        worker = threading.Thread(target=lambda: (leased.generate(batch), done.set()), daemon=True)
        worker.start()
        assert not done.wait(0.5)
    assert done.wait(30)


@pytest.fixture
def checkpoint(tmp_path: Path, model, tokenizer) -> Path:
    directory = tmp_path / "small"
    save(directory, model, tokenizer)
    return directory


def test_a_saved_checkpoint_loads_and_generates(checkpoint: Path):
    policy = HFPolicy.load(checkpoint, device="cpu")
    made = policy.generate(requests(policy, 2))
    assert all(len(g.token_ids) for g in made)
    assert policy.model.dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("config.json", None, "no config.json"),
        ("config.json", "{", "not a valid JSON"),
        ("tokenizer.json", "{}", "checkpoint"),
        ("model.safetensors", "xx", "checkpoint"),
    ],
)
def test_an_unreadable_checkpoint_is_one_clear_line(
    checkpoint: Path, name: str, content: str | None, expected: str
):
    if content is None:
        (checkpoint / name).unlink()
    else:
        (checkpoint / name).write_text(content)
    with pytest.raises(UserError) as caught:
        HFPolicy.load(checkpoint, device="cpu")
    message = str(caught.value)
    assert message.startswith(f"checkpoint {checkpoint}: ")
    assert expected in message
    assert "\n" not in message


def test_a_missing_checkpoint_is_a_user_error(tmp_path: Path):
    with pytest.raises(UserError, match=r"checkpoint .*absent"):
        load_checkpoint(tmp_path / "absent")


def test_other_families_are_sampled_the_same_way(tokenizer):
    """A model with learned positions and one with a sliding window and grouped heads."""
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    torch.manual_seed(0)
    gpt2 = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=320,
            n_positions=256,
            n_embd=32,
            n_layer=2,
            n_head=2,
            initializer_range=0.3,
            bos_token_id=end,
            eos_token_id=end,
        )
    )
    mistral = MistralForCausalLM(
        MistralConfig(
            vocab_size=320,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=48,
            sliding_window=8,
            max_position_embeddings=256,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=end,
        )
    )
    for other in (gpt2, mistral):
        policy = HFPolicy(other, tokenizer)
        batch = requests(policy, 4)
        for request, made in zip(batch, policy.generate(batch), strict=True):
            expected = full_logprobs(policy, request, made)
            np.testing.assert_allclose(made.logprobs, expected, atol=1e-4)


def test_a_model_with_recurrent_state_is_refused(tokenizer):
    config = MambaConfig(vocab_size=320, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(UserError, match="type mamba keeps more than keys and values"):
        HFPolicy(MambaForCausalLM(config), tokenizer)
