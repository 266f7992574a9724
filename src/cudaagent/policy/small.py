"""A language model small enough to train on two CPU cores, with a tokenizer of its own.

Llama architecture and byte-level BPE, saved as an ordinary Hugging Face directory that transformers
and vLLM load. The tokenizer is fitted to kernels, but bounded: at most four characters a token on
average, digits one by one, so that a file is written and not recalled in a few tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from cudaagent.files import atomic_path
from cudaagent.policy.quiet import quiet_transformers

MAX_CHARS_PER_TOKEN = 4.0
END = "<|end|>"
PAD = "<|pad|>"
ROLES = ("system", "user", "assistant")
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '" + END + "' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
# One digit, a line break with its indentation, the rest of a line up to a digit.
_PIECES = r"[0-9]|\n[ ]*|[^\n0-9]+"


@dataclass(frozen=True, slots=True)
class SmallShape:
    """Sizes of the model; the defaults are those of the quickstart's checkpoint."""

    vocab: int = 768
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 1
    head_size: int = 32
    intermediate: int = 384
    positions: int = 8192


def train_tokenizer(texts: Sequence[str], vocab: int = SmallShape.vocab) -> PreTrainedTokenizerFast:
    """Fit a byte-level BPE tokenizer with a chat template to ``texts``; no chance is involved."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    special = [PAD, END, *(f"<|{role}|>" for role in ROLES)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=12,
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=special[2:],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def chars_per_token(tokenizer: Any, texts: Iterable[str]) -> float:
    """Characters over tokens, over all ``texts`` together."""
    chars = tokens = 0
    for text in texts:
        chars += len(text)
        tokens += len(tokenizer(text, add_special_tokens=False).input_ids)
    return chars / max(tokens, 1)


def create_model(tokenizer: Any, shape: SmallShape, seed: int) -> LlamaForCausalLM:
    """A Llama with random weights from ``seed``; its embeddings are tied."""
    config = LlamaConfig(
        vocab_size=max(shape.vocab, len(tokenizer)),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        intermediate_size=shape.intermediate,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def save(directory: Path, model: Any, tokenizer: Any) -> None:
    """Write an ordinary Hugging Face directory in bfloat16, whole or not at all."""
    with atomic_path(directory) as temporary, quiet_transformers():
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
