"""Token ids at the seams of a conversation, derived from the tokenizer's own chat template.

Runs in whatever process generates. Nothing about a template is assumed but that it is a function of
the messages: the text between two assistant turns is found by rendering a conversation whose
assistant turn is a sentinel. Not covered: templates that rewrite earlier turns when a later message
arrives (they would need re-tokenisation, which we never do), and special tokens spelt out inside an
observation, which the tokenizer reads as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray

from cudaagent.errors import UserError
from cudaagent.policy.base import Message

_SENTINEL = "zqSentinelqz"


class ChatSeams:
    """Prompts and observations as ids; ``end_id`` is what the template puts behind a turn."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        """Examine the template of ``tokenizer``; ``name`` is the checkpoint, for messages.

        Raises:
            UserError: no chat template, or one without an end-of-turn token.
        """
        self._tokenizer = tokenizer
        self._name = name
        if not tokenizer.chat_template:
            raise UserError(f"checkpoint {name}: the tokenizer has no chat template")
        added = {i for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        self._special = added | set(tokenizer.all_special_ids)
        tail = self._tail("observation")
        first = self._end_at(tail)
        if first is None and tokenizer.eos_token_id is None:
            raise UserError(f"checkpoint {name}: the chat template has no end-of-turn token")
        self.end_id: int = tokenizer.eos_token_id if first is None else tail[first]

    def start(self, messages: Sequence[Message]) -> NDArray[np.int32]:
        """Ids of the prompt, ending where the assistant's first turn begins."""
        return np.asarray(self._encode(self._render(messages)).input_ids, dtype=np.int32)

    def observe(self, text: str) -> NDArray[np.int32]:
        """Ids behind a sampled end-of-turn token up to where the next assistant turn begins."""
        tail = self._tail(text)
        end = self._end_at(tail)
        return np.asarray(tail if end is None else tail[end + 1 :], dtype=np.int32)

    def _tail(self, text: str) -> list[int]:
        rendered = self._render(
            [Message("user", "task"), Message("assistant", _SENTINEL), Message("user", text)]
        )
        at = rendered.find(_SENTINEL)
        if at < 0:
            raise UserError(f"checkpoint {self._name}: the chat template drops assistant turns")
        end = at + len(_SENTINEL)
        encoded = self._encode(rendered, offsets=True)
        spans: list[tuple[int, int]] = encoded.offset_mapping
        first = next((i for i, (begin, _) in enumerate(spans) if begin >= end), len(spans))
        return list(encoded.input_ids[first:])

    def _end_at(self, tail: Sequence[int]) -> int | None:
        """Index of the end-of-turn token: the first special one, behind white space at most."""
        for index, token in enumerate(tail):
            if token in self._special:
                return index
            if self._tokenizer.decode([token]).strip():
                return None
        return None

    def _render(self, messages: Sequence[Message]) -> str:
        plain = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self._tokenizer.apply_chat_template(
                plain, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise UserError(f"checkpoint {self._name}: chat template: {error}") from error

    def _encode(self, text: str, *, offsets: bool = False) -> Any:
        return self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=offsets)
