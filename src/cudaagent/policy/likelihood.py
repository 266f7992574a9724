"""How probable each of the teacher's variants is under a checkpoint: computed, not counted.

Runs in any process that may load the model. The probability of a variant is that of its first turn,
files and end of turn included, as the tokenizer writes it, at temperature 1. Not covered: other
tokenisations of the same text, which a sampler may draw too; they are rare enough to ignore.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from cudaagent.policy.base import Message
from cudaagent.policy.hf import load_checkpoint
from cudaagent.policy.seams import ChatSeams
from cudaagent.policy.teacher import conversation, variants


@dataclass(frozen=True, slots=True)
class VariantProbability:
    """One variant over the tasks that have it."""

    tasks: int
    mean: float
    """Mean probability; the means of all variants of one task add up to at most 1."""


def variant_probabilities(
    checkpoint: str | Path, task_sources: Sequence[str]
) -> dict[str, VariantProbability]:
    """Probability of every variant's first turn, given the prompt ``short`` of its task.

    Raises:
        UserError: the checkpoint cannot be read, or a task that the teacher does not know.
    """
    model, tokenizer = load_checkpoint(checkpoint)
    model.eval()
    seams = ChatSeams(tokenizer, str(checkpoint))
    found: dict[str, list[float]] = {}
    for source in task_sources:
        prompt = seams.start([Message("user", source)])
        for name in variants(source):
            turn = tokenizer(conversation(source, name)[0], add_special_tokens=False).input_ids
            logp = _logprob(model, prompt.tolist(), [*turn, seams.end_id])
            found.setdefault(name, []).append(math.exp(logp))
    return {
        name: VariantProbability(len(values), float(np.mean(values)))
        for name, values in sorted(found.items())
    }


@torch.no_grad()
def _logprob(model: torch.nn.Module, prompt: list[int], turn: list[int]) -> float:
    """Log-probability of ``turn`` after ``prompt``."""
    ids_BT = torch.tensor([[*prompt, *turn]])
    logits_TV = model(input_ids=ids_BT, use_cache=False).logits[0, len(prompt) - 1 : -1]
    logp_TV = logits_TV.float().log_softmax(-1)
    return float(logp_TV.gather(1, torch.tensor(turn).unsqueeze(1)).double().sum())
