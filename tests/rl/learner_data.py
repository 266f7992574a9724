"""A tiny causal model and made-up trajectories."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cudaagent.agent.trajectory import ExitReason, Trajectory

VOCAB = 32

MakeModel = Callable[..., LlamaForCausalLM]
MakeTrajectories = Callable[..., list[Trajectory]]


def build_model(seed: int = 0, *, vocab: int = VOCAB, hidden: int = 32) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def build_trajectories(
    count: int, seed: int = 0, *, longest: int = 40, vocab: int = VOCAB
) -> list[Trajectory]:
    """Random tokens, two action spans each, rewards among the milestones."""
    rng = np.random.default_rng(seed)
    items: list[Trajectory] = []
    for index in range(count):
        length = int(rng.integers(8, longest))
        mask = rng.random(length) < 0.5
        mask[0], mask[length // 2] = False, True
        logprobs = np.where(mask, rng.normal(-3.5, 0.3, length), 0.0)
        items.append(
            Trajectory(
                id=f"{seed}-{index}",
                task_id="task",
                stage="agentic",
                step=0,
                seed=seed,
                policy_version=0,
                token_ids=rng.integers(0, vocab, length).astype(np.int32),
                loss_mask=mask,
                logprobs=logprobs.astype(np.float32),
                turns=(),
                exit_reason=ExitReason.SUBMITTED,
                reward=float(rng.choice([-1.0, 1.0, 2.0, 3.0])),
            )
        )
    return items
