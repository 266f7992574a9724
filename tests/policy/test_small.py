from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cudaagent.agent.parse import parse_calls
from cudaagent.agent.tools import SCHEMAS
from cudaagent.errors import UserError
from cudaagent.policy.base import GenerationRequest, Message
from cudaagent.policy.coldstart import (
    ColdStartSettings,
    batches,
    cold_start,
    encode,
    fit_tokenizer,
)
from cudaagent.policy.demonstrations import demonstrate, split
from cudaagent.policy.exactness import evaluate
from cudaagent.policy.hf import HFPolicy
from cudaagent.policy.seams import ChatSeams
from cudaagent.policy.small import SmallShape, chars_per_token, create_model, save, train_tokenizer
from cudaagent.policy.teacher import KERNEL_PATH, classify, solve
from cudaagent.synthesis.compose import render

ARTEFACT = Path(__file__).parents[2] / "checkpoints" / "quickstart"
TINY = SmallShape(
    hidden=32, layers=1, heads=2, kv_heads=1, head_size=16, intermediate=32, positions=2048
)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small products are faster on one thread, and tests share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def shown():
    train, _ = split(seed=5, train=40, heldout=1)
    return demonstrate(train, seed=0)


@pytest.fixture(scope="module")
def tokenizer(shown):
    return fit_tokenizer(shown, 768)[0]


def test_heldout_compositions_are_never_demonstrated(shown):
    train, heldout = split(seed=5, train=40, heldout=20)
    assert {c.names for c in train}.isdisjoint({c.names for c in heldout})
    assert {d.source for d in shown} == {render(c).source for c in train}


def test_demonstrations_are_the_teachers_in_every_variant(shown):
    for item in shown:
        files = {
            call.arguments["path"]: call.arguments["content"]
            for call in parse_calls(item.turns[0], SCHEMAS)
            if call.name == "Write"
        }
        assert classify(item.source, files) == item.variant
    assert len({(d.source, d.variant) for d in shown}) == len(shown)
    pooled = demonstrate(split(seed=5, train=40, heldout=1)[0], seed=0, processes=2)
    assert pooled == shown


def test_kernels_take_at_least_a_token_for_four_characters(shown, tokenizer):
    kernels = [solve(d.source, d.variant).files[KERNEL_PATH] for d in shown]
    assert chars_per_token(tokenizer, kernels) <= 4.0


def test_digits_are_tokens_of_their_own(tokenizer):
    text = "x = torch.clamp(x, -1.25, 1.25)\n    for (int i = 0; i < 4096; ++i) b128"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    for token in tokenizer.get_vocab():
        assert not any(c.isdigit() for c in token) or len(token) == 1


def test_any_text_survives_the_tokenizer(tokenizer):
    text = "größe 中文 \t\r\n\x00 trailing  "
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_encoding_equals_what_an_episode_would_hold(shown, tokenizer):
    seams = ChatSeams(tokenizer, "tiny")
    for item, encoded in zip(shown[:8], encode(tokenizer, shown[:8]), strict=True):
        ids, mask = [], []
        prompt = seams.start([Message("user", item.source)]).tolist()
        for turn, seen in zip(item.turns, (None, *item.observations), strict=True):
            context = prompt if seen is None else seams.observe(seen).tolist()
            action = [*tokenizer(turn, add_special_tokens=False).input_ids, seams.end_id]
            ids += context + action
            mask += [False] * len(context) + [True] * len(action)
        assert encoded.token_ids.tolist() == ids
        assert encoded.action.tolist() == mask


def test_batches_hold_every_conversation_once_an_epoch(shown, tokenizer):
    examples = encode(tokenizer, shown)
    stream = batches(examples, 4096, seed=1)
    wanted = sum(int(e.action.sum()) for e in examples)
    seen = rows = 0
    while rows < len(examples):
        ids, action = next(stream)
        assert ids.size <= 4096 or len(ids) == 1
        rows += len(ids)
        seen += int(action.sum())
    assert (rows, seen) == (len(examples), wanted)


def test_model_and_tokenizer_come_back_from_disk(tmp_path: Path, tokenizer):
    model = create_model(tokenizer, TINY, seed=0)
    before = {name: p.clone() for name, p in model.named_parameters()}
    save(tmp_path / "m", model, tokenizer)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert loaded.dtype == torch.bfloat16
    assert AutoTokenizer.from_pretrained(tmp_path / "m").chat_template == tokenizer.chat_template
    same = create_model(tokenizer, TINY, seed=0)
    assert all(torch.equal(p, before[name]) for name, p in same.named_parameters())


def test_an_interrupted_cold_start_goes_on_to_the_same_weights(tmp_path: Path):
    shape = SmallShape(**{**_fields(TINY), "positions": 400})
    settings = ColdStartSettings(
        seed=2, compositions=6, steps=6, batch_tokens=4096, evaluate_every=2, evaluate_tasks=1,
        warmup=2, shape=shape,
    )  # fmt: skip
    lines: list[str] = []
    cold_start(tmp_path / "whole", settings, device="cpu", say=lines.append)
    assert lines[-1].startswith("final: held-out exact 0/1")

    def interrupt(line: str) -> None:
        if line.startswith("step 4"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cold_start(tmp_path / "cut", settings, device="cpu", say=interrupt)
    assert not (tmp_path / "cut").exists()
    again: list[str] = []
    cold_start(tmp_path / "cut", settings, device="cpu", say=again.append)
    assert not any(line.startswith(("step 2", "step 4")) for line in again)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut", "whole"]


def test_a_directory_of_something_else_is_not_overwritten(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("keep me")
    with pytest.raises(UserError, match="choose another --out"):
        cold_start(tmp_path, ColdStartSettings())
    assert (tmp_path / "notes.txt").read_text() == "keep me"


def test_an_untrained_model_is_exact_on_nothing(tokenizer):
    _, heldout = split(seed=5, train=0, heldout=2)
    short = SmallShape(**{**_fields(TINY), "positions": 400})
    policy = HFPolicy(create_model(tokenizer, short, seed=0), tokenizer)
    result = evaluate(policy, heldout, seed=0)
    assert (result.tasks, result.exact, result.complete) == (2, 0, 0)


def _fields(shape: SmallShape) -> dict[str, int]:
    return {name: getattr(shape, name) for name in SmallShape.__dataclass_fields__}


def test_the_checkpoint_in_the_repository_writes_files_that_parse():
    size = sum(p.stat().st_size for p in ARTEFACT.iterdir())
    assert size <= 10 << 20
    policy = HFPolicy.load(ARTEFACT, device="cpu")
    _, heldout = split(seed=123, train=0, heldout=1)
    source = render(heldout[0]).source
    prompt = policy.start([Message("user", source)])
    made = policy.generate([GenerationRequest(prompt, 1500, seed=s) for s in range(4)])
    assert {g.finish_reason for g in made} == {"stop"}
    for generation in made:
        calls = parse_calls(generation.text, SCHEMAS)
        assert [c.name for c in calls] == ["Write", "Write", "Bash"]
        assert not any(c.error for c in calls)
    solved = [
        classify(
            source,
            {
                c.arguments["path"]: c.arguments["content"]
                for c in parse_calls(g.text, SCHEMAS)
                if c.name == "Write"
            },
        )
        for g in made
    ]
    assert sum(v is not None for v in solved) >= 3


def test_the_checkpoints_tokenizer_keeps_the_bound(shown):
    tokenizer = AutoTokenizer.from_pretrained(ARTEFACT)
    kernels = [solve(d.source, d.variant).files[KERNEL_PATH] for d in shown]
    assert chars_per_token(tokenizer, kernels) <= 4.0


def test_training_the_tokenizer_is_deterministic(shown):
    texts = [d.turns[0] for d in shown[:20]]
    first, second = (train_tokenizer(texts, 400).get_vocab() for _ in range(2))
    assert first == second
