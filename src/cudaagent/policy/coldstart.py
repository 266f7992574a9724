"""The cold start: a small model imitates the teacher until its files are exact.

A recipe, run by hand on a GPU (minutes) or, slowly, on a CPU; never inside a training run. It needs
torch, transformers, tokenizers and numpy alone. Compositions that the synthesiser holds out are not
trained on. All draws come from ``ColdStartSettings.seed``; on one machine and version of torch the
result is the same up to the order of floating-point sums on a GPU. An interrupted run goes on from
its last evaluation.

Shapes: B rows, L tokens of the longest row rounded up, N action tokens of a batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from cudaagent.errors import UserError
from cudaagent.files import atomic_path
from cudaagent.policy.demonstrations import (
    Demonstration,
    demonstrate,
    split,
    tokenizer_texts,
)
from cudaagent.policy.exactness import Exactness, evaluate
from cudaagent.policy.hf import HFPolicy
from cudaagent.policy.small import (
    MAX_CHARS_PER_TOKEN,
    SmallShape,
    chars_per_token,
    create_model,
    save,
    train_tokenizer,
)
from cudaagent.policy.teacher import KERNEL_PATH, solve
from cudaagent.synthesis.compose import Composition

_ROUND = 64


@dataclass(frozen=True, slots=True)
class ColdStartSettings:
    """The defaults made the checkpoint of the quickstart."""

    seed: int = 0
    """Decides tasks, weights, order and evaluation draws."""
    compositions: int = 20000
    """Training compositions; each is shown in all its variants."""
    steps: int = 8000
    """Optimizer steps."""
    batch_tokens: int = 32768
    """Tokens of one step, padding included."""
    lr: float = 4e-3
    """Peak learning rate; linear warm-up, then a cosine down to zero."""
    warmup: int = 200
    """Steps of warm-up."""
    weight_decay: float = 0.1
    """AdamW, on matrices."""
    evaluate_every: int = 2000
    """Steps between evaluations, after each of which the state is saved."""
    evaluate_tasks: int = 400
    """Held-out compositions in an evaluation, one conversation each."""
    vocab: int = 768
    """Largest vocabulary; it shrinks until kernels have at most four characters a token."""
    shape: SmallShape = field(default_factory=SmallShape)
    """Sizes of the model; its ``vocab`` follows the tokenizer."""

    @classmethod
    def for_device(cls, device: str, seed: int) -> ColdStartSettings:
        """The defaults on a GPU; on a CPU what fits into about an hour on two cores.

        The short recipe is less exact: 60 of 100 held-out tasks after 5000 of its steps.
        """
        if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
            return cls(seed=seed)
        return cls(
            seed=seed,
            compositions=5000,
            steps=8000,
            batch_tokens=4096,
            evaluate_every=1000,
            evaluate_tasks=48,
        )


@dataclass(frozen=True, slots=True)
class Encoded:
    """Ids [T] of a conversation and the mask [T] of its action tokens."""

    token_ids: NDArray[np.int16]
    action: NDArray[np.bool_]


def cold_start(
    out: Path,
    settings: ColdStartSettings,
    *,
    device: str = "auto",
    say: Callable[[str], None] = print,
) -> Exactness:
    """Make the checkpoint ``out``; returns its held-out exactness.

    Raises:
        UserError: ``out`` exists and is not a Hugging Face directory.
    """
    if out.exists() and any(out.iterdir()) and not (out / "config.json").is_file():
        raise UserError(f"{out} holds something else than a checkpoint; choose another --out")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    train, heldout = split(settings.seed, settings.compositions, settings.evaluate_tasks)
    shown = demonstrate(train, settings.seed, processes=os.cpu_count() or 1)
    tokenizer, density = fit_tokenizer(shown, settings.vocab)
    examples = encode(tokenizer, shown)
    lengths = [len(example.token_ids) for example in examples]
    actions = sum(int(example.action.sum()) for example in examples)
    say(
        f"{len(train)} compositions, {len(shown)} conversations of {np.mean(lengths):.0f} tokens "
        f"(longest {max(lengths)}), {actions / sum(lengths):.0%} action tokens; vocabulary "
        f"{len(tokenizer)}, {density:.2f} characters a token on kernels"
    )
    shape = dataclasses.replace(settings.shape, vocab=len(tokenizer))
    model: Any = create_model(tokenizer, shape, settings.seed)
    model.to(device)
    say(f"{sum(p.numel() for p in model.parameters()):,} parameters on {device}")
    state = out.with_name(f".{out.name}.state")
    _train(model, tokenizer, examples, heldout, settings, state, say)
    _round_to_bfloat16(model)
    result = evaluate(HFPolicy(model, tokenizer, max_rows=256), heldout, settings.seed + 1)
    say(f"final: {result}")
    save(out, model.to("cpu"), tokenizer)
    shutil.rmtree(state, ignore_errors=True)
    return result


def fit_tokenizer(shown: Sequence[Demonstration], vocab: int) -> tuple[Any, float]:
    """The largest tokenizer that stays below four characters a token, and its average."""
    texts = tokenizer_texts(shown)
    kernels = [
        solve(d.source, d.variant).files[KERNEL_PATH] for d in shown[:: len(shown) // 500 + 1]
    ]
    while True:
        tokenizer = train_tokenizer(texts, vocab)
        density = chars_per_token(tokenizer, kernels)
        if density <= MAX_CHARS_PER_TOKEN - 0.1 or vocab <= 300:
            return tokenizer, density
        vocab -= 16


def encode(tokenizer: Any, shown: Sequence[Demonstration]) -> list[Encoded]:
    """Conversations as the episode would hold them: prompt, turns with their end, observations."""
    end = tokenizer.eos_token
    texts = [
        f"<|user|>{d.source}{end}<|assistant|>{d.turns[0]}{end}"
        + "".join(
            f"<|user|>{observation}{end}<|assistant|>{turn}{end}"
            for observation, turn in zip(d.observations, d.turns[1:], strict=True)
        )
        for d in shown
    ]
    user, assistant = tokenizer.convert_tokens_to_ids(["<|user|>", "<|assistant|>"])
    encoded: list[Encoded] = []
    for first in range(0, len(texts), 4096):
        batch = tokenizer(texts[first : first + 4096], add_special_tokens=False).input_ids
        for ids in batch:
            array = np.asarray(ids, dtype=np.int16)
            is_mark = (array == user) | (array == assistant)
            last = np.maximum.accumulate(np.where(is_mark, np.arange(len(array)), 0))
            encoded.append(Encoded(array, (array[last] == assistant) & ~is_mark))
    return encoded


def batches(
    examples: Sequence[Encoded], batch_tokens: int, seed: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """Endless (ids [B, L], action mask [B, L]); rows of like length, padded on the right."""
    lengths = np.asarray([len(example.token_ids) for example in examples])
    epoch = 0
    while True:
        rng = np.random.default_rng((seed, epoch))
        # Noise on the key mixes the order within a length and keeps padding small.
        order = np.argsort(lengths + rng.uniform(0, _ROUND, len(lengths)), kind="stable")
        cuts: list[NDArray[np.int64]] = []
        first = 0
        while first < len(order):
            last = first
            width = 0
            while last < len(order):
                wider = max(width, -(-int(lengths[order[last]]) // _ROUND) * _ROUND)
                if last > first and wider * (last + 1 - first) > batch_tokens:
                    break
                width, last = wider, last + 1
            cuts.append(order[first:last])
            first = last
        for index in rng.permutation(len(cuts)):
            yield _pad([examples[i] for i in cuts[index]])
        epoch += 1


def _pad(rows: Sequence[Encoded]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    width = -(-max(len(row.token_ids) for row in rows) // _ROUND) * _ROUND
    ids = np.zeros((len(rows), width), dtype=np.int64)
    action = np.zeros((len(rows), width), dtype=np.bool_)
    for index, row in enumerate(rows):
        ids[index, : len(row.token_ids)] = row.token_ids
        action[index, : len(row.token_ids)] = row.action
    return ids, action


def _loss(model: Any, ids_BL: torch.Tensor, action_BL: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the action tokens; padding on the right needs no mask."""
    with _autocast(ids_BL.device):
        hidden = model.model(input_ids=ids_BL, use_cache=False).last_hidden_state
        chosen = action_BL[:, 1:]
        logits_NV = model.lm_head(hidden[:, :-1][chosen])
    return torch.nn.functional.cross_entropy(logits_NV.float(), ids_BL[:, 1:][chosen])


def _autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    if device.type == "cuda":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return contextlib.nullcontext()


def _train(
    model: Any,
    tokenizer: Any,
    examples: Sequence[Encoded],
    heldout: Sequence[Composition],
    settings: ColdStartSettings,
    state: Path,
    say: Callable[[str], None],
) -> None:
    device = model.device
    optimizer = _optimizer(model, settings)
    done = _resume(state, model, optimizer, settings)
    stream = batches(examples, settings.batch_tokens, settings.seed)
    for _ in range(done):
        next(stream)
    average = 0.0
    model.train()
    bar = tqdm(range(done, settings.steps), initial=done, total=settings.steps, mininterval=2.0)
    for step in bar:
        ids, action = (torch.from_numpy(a).to(device, non_blocking=True) for a in next(stream))
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * _schedule(step, settings)
        loss = _loss(model, ids, action)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step + 1 == settings.steps:
            average = loss.item()
            bar.set_postfix(loss=f"{average:.4f}")
        if (step + 1) % settings.evaluate_every == 0 and step + 1 < settings.steps:
            _keep(state, model, optimizer, settings, step + 1)
            policy = HFPolicy(model, tokenizer, max_rows=256)
            say(f"step {step + 1}, loss {average:.4f}: {evaluate(policy, heldout, settings.seed)}")
            model.train()
    say(f"last loss {average:.4f}")


def _optimizer(model: Any, settings: ColdStartSettings) -> torch.optim.AdamW:
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    fused = model.device.type == "cuda"
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.95), fused=fused)


def _schedule(step: int, settings: ColdStartSettings) -> float:
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    progress = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def _keep(
    state: Path,
    model: Any,
    optimizer: torch.optim.Optimizer,
    settings: ColdStartSettings,
    step: int,
) -> None:
    with atomic_path(state / "state.pt") as temporary:
        content = {
            "settings": repr(settings),
            "step": step,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        torch.save(content, temporary)


def _resume(
    state: Path, model: Any, optimizer: torch.optim.Optimizer, settings: ColdStartSettings
) -> int:
    """The step to go on from; a state of other settings is left alone and replaced later."""
    path = state / "state.pt"
    if not path.is_file():
        return 0
    content = torch.load(path, map_location=model.device, weights_only=True)
    if content["settings"] != repr(settings):
        return 0
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    return int(content["step"])


def _round_to_bfloat16(model: Any) -> None:
    """Measure what is saved, not what was trained."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
