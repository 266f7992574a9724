"""Log-probabilities and values of the action tokens, without logits anywhere else.

Runs in the learner's process. The head is applied to the hidden states of the action tokens only,
in chunks of bounded size that are recomputed in the backward pass, so the memory of the vocabulary
does not grow with the trajectory. Models run in evaluation mode: dropout would make the ratio
between two passes of the same weights differ from 1. Temperature is 1.

Shape suffixes as in ``batch``; H hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from cudaagent.errors import UserError
from cudaagent.rl.batch import MicroBatch
from cudaagent.rl.value import ValueModel

CHUNK_ELEMENTS = 1 << 24
"""Logits of one chunk of the head: 64 MiB in float32."""


@dataclass(frozen=True, slots=True)
class ActionLogProbs:
    """Of each action token; ``entropy_A`` is that of the whole distribution, in nats."""

    logp_A: Tensor
    entropy_A: Tensor


def action_logprobs(
    actor: PreTrainedModel,
    micro: MicroBatch,
    *,
    entropy_grad: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> ActionLogProbs:
    """Log-probability of each action token under ``actor``."""
    hidden_AH = _hidden(actor.base_model, micro)
    head = actor.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        raise UserError(f"{type(actor).__name__} has no linear output head")
    rows = max(1, chunk_elements // head.out_features)
    chunks = list(zip(hidden_AH.split(rows), micro.target_A.split(rows), strict=True))
    if len(chunks) == 1:
        pieces = [_head(head, *chunks[0], entropy_grad)]
    else:
        pieces = [
            checkpoint(_head, head, hidden, target, entropy_grad, use_reentrant=False)
            for hidden, target in chunks
        ]
    logp = [piece[0] for piece in pieces]
    entropy = [piece[1] for piece in pieces]
    return ActionLogProbs(torch.cat(logp), torch.cat(entropy))


def action_values(critic: ValueModel, micro: MicroBatch) -> Tensor:
    """Value of the state before each action token, float32 [A]."""
    return critic.value(_hidden(critic.backbone, micro))


def check_actor(actor: PreTrainedModel) -> None:
    """Refuse models whose logits are more than a linear head on the last hidden state.

    Raises:
        UserError: the architecture caps or scales its logits, or has no linear head.
    """
    ids_BT = torch.arange(4, device=actor.device).unsqueeze(0) % int(actor.config.vocab_size)
    head = actor.get_output_embeddings()
    with torch.no_grad():
        full = actor(input_ids=ids_BT, use_cache=False).logits
        hidden = actor.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
        ours = head(hidden) if isinstance(head, torch.nn.Linear) else None
    if ours is None or not torch.allclose(full.float(), ours.float(), rtol=1e-2, atol=1e-2):
        raise UserError(
            f"{type(actor).__name__} post-processes its logits; the learner supports models whose "
            "logits are a linear head on the last hidden state"
        )


def _hidden(backbone: torch.nn.Module, micro: MicroBatch) -> Tensor:
    hidden_BTH = backbone(input_ids=micro.token_ids_BT, use_cache=False).last_hidden_state
    index_A = micro.row_A * hidden_BTH.shape[1] + micro.position_A
    return hidden_BTH.flatten(0, 1).index_select(0, index_A)


def _head(
    head: torch.nn.Module, hidden_AH: Tensor, target_A: Tensor, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    logits_AV = head(hidden_AH)
    if logits_AV.dtype in (torch.bfloat16, torch.float16):
        logits_AV = logits_AV.float()
    logp_AV = logits_AV.log_softmax(-1)
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        entropy_A = -(logp_AV.exp() * logp_AV).sum(-1)
    return logp_AV.gather(1, target_A.unsqueeze(1)).squeeze(1), entropy_A
