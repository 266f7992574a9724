"""One forward pass of a causal language model, whatever its family and its names for arguments.

Runs in the process that generates. Shapes: B rows, N tokens of the pass, T columns of the cache, V
vocabulary. Not covered: models with recurrent state, whose cache cannot be cut at a token.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers.cache_utils import Cache

from cudaagent.errors import UserError

_LAYER_KINDS = frozenset({"full_attention", "sliding_attention"})
# These take a ready attention mask as it stands; other families derive more from the padding.
_READY_MASK_FAMILIES = frozenset({"llama", "qwen2", "qwen3"})


class CausalModel:
    """One forward pass, whatever the family of the model and its names for arguments."""

    def __init__(self, model: Any) -> None:
        """Find out what ``model`` takes.

        Raises:
            UserError: its layers keep recurrent state or attend in chunks.
        """
        self._model = model
        config = model.config
        self.layers: int = config.num_hidden_layers
        self.positions: int = getattr(config, "max_position_embeddings", None) or (1 << 30)
        names = inspect.signature(model.forward).parameters
        self._cache = "cache" if "cache" in names else "past_key_values"
        self._keeps = "logits_to_keep" in names
        self._position_ids = "position_ids" in names
        kinds = set(getattr(config, "layer_types", None) or ())
        if getattr(model, "_is_stateful", False) or not kinds <= _LAYER_KINDS:
            raise UserError(
                f"a model of type {config.model_type} keeps more than keys and values; "
                "serve it and use openai:MODEL@BASE_URL"
            )
        ready = config.model_type in _READY_MASK_FAMILIES and kinds <= {"full_attention"}
        self._ready_mask = ready and model.config._attn_implementation == "sdpa"

    @property
    def device(self) -> torch.device:
        return self._model.device

    def prompt(self, ids_BN: torch.Tensor, last_B: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Float32 logits [B, V] at column ``last`` of prompts that are padded on the right.

        Such padding needs no mask: nothing looks to its right.
        """
        count = ids_BN.shape[1]
        options: dict[str, Any] = {self._cache: cache}
        if self._position_ids:
            options["position_ids"] = torch.arange(count, device=self.device).expand_as(ids_BN)
        columns, chosen = torch.unique(last_B, return_inverse=True)
        if self._keeps:
            options["logits_to_keep"] = columns
        logits = self._model(input_ids=ids_BN, use_cache=True, **options).logits
        rows = torch.arange(len(ids_BN), device=self.device)
        return logits[rows, chosen if self._keeps else last_B].float()

    def advance(
        self, ids_BN: torch.Tensor, valid_BT: torch.Tensor, pos_BN: torch.Tensor, cache: Cache
    ) -> torch.Tensor:
        """Float32 logits [B, V] behind the last column; ``valid`` marks the unpadded columns."""
        mask = valid_BT[:, None, None] if self._ready_mask and ids_BN.shape[1] == 1 else valid_BT
        options: dict[str, Any] = {self._cache: cache}
        if self._keeps:
            options["logits_to_keep"] = 1
        if self._position_ids:
            options["position_ids"] = pos_BN
        out = self._model(input_ids=ids_BN, attention_mask=mask, use_cache=True, **options)
        return out.logits[:, -1].float()
