"""Conversations as bytes: the ids of policies that have no tokenizer (fake, replay, endpoint).

Ids 0-255 are UTF-8 bytes; four more mark who speaks. Text can never produce a marker, and a
conversation can be read back from its ids without loss, so such policies need no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cudaagent.policy.base import FinishReason, Generation, Message

SYSTEM, USER, ASSISTANT, END = 256, 257, 258, 259
VOCABULARY = 260

_ROLE: dict[int, Literal["system", "user", "assistant"]] = {
    SYSTEM: "system",
    USER: "user",
    ASSISTANT: "assistant",
}
_MARK = {role: mark for mark, role in _ROLE.items()}


def encode(text: str) -> NDArray[np.int32]:
    """Bytes of ``text``; a lone surrogate becomes a question mark."""
    data = text.encode("utf-8", errors="replace")
    return np.frombuffer(data, dtype=np.uint8).astype(np.int32)


def decode(token_ids: NDArray[np.int32]) -> str:
    """Text of the bytes among ``token_ids``; markers are left out."""
    plain = token_ids[token_ids < SYSTEM]
    return plain.astype(np.uint8).tobytes().decode("utf-8", errors="replace")


def start(messages: Sequence[Message]) -> NDArray[np.int32]:
    """Ids of a prompt, ending where the assistant begins."""
    parts: list[NDArray[np.int32]] = []
    for message in messages:
        parts += [_mark(_MARK[message.role]), encode(message.content)]
        if message.role == "assistant":
            parts.append(_mark(END))
    return np.concatenate([*parts, _mark(ASSISTANT)])


def observe(text: str) -> NDArray[np.int32]:
    """Ids of a user message after an assistant turn."""
    return np.concatenate([_mark(USER), encode(text), _mark(ASSISTANT)])


def messages(token_ids: NDArray[np.int32]) -> list[Message]:
    """The messages of a conversation; the assistant turn that is to come is not among them."""
    marks = np.flatnonzero((token_ids >= SYSTEM) & (token_ids < END))
    ends = [*marks[1:], len(token_ids)]
    found = [
        Message(_ROLE[int(token_ids[mark])], decode(token_ids[mark + 1 : end]))
        for mark, end in zip(marks, ends, strict=True)
    ]
    return found[:-1]


def turn_index(token_ids: NDArray[np.int32]) -> int:
    """How many assistant turns the conversation already has."""
    return int(np.count_nonzero(token_ids == ASSISTANT)) - 1


def generation(
    text: str, max_new_tokens: int, *, logprob: float = 0.0, cut: bool = False
) -> Generation:
    """``text`` as a generation; cut where ``max_new_tokens`` ends, or already by its author."""
    body = encode(text)
    finish: FinishReason = "stop"
    if cut or len(body) >= max_new_tokens:
        body, finish = body[:max_new_tokens], "length"
    else:
        body = np.concatenate([body, _mark(END)])
    logprobs = np.full(len(body), logprob, dtype=np.float32)
    return Generation(body, logprobs, decode(body), finish)


def _mark(mark: int) -> NDArray[np.int32]:
    return np.array([mark], dtype=np.int32)
