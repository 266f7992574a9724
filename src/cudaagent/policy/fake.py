"""A deterministic policy for tests: replies by turn, or computed from prompt, turn and seed.

Byte-level ids; log-probabilities are one constant. Stateless, so any process that asks the same
gets the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cudaagent.policy import byte_level
from cudaagent.policy.base import Generation, GenerationRequest, Message

Script = Callable[[str, int, int], str]
"""(first user message, index of the turn, seed) -> the assistant's text."""

LAST_REPLY = "Done."
LOGPROB = -0.5


class FakePolicy:
    """Answer with ``replies[turn]``, or ``replies(prompt, turn, seed)``."""

    def __init__(self, replies: Sequence[str] | Script) -> None:
        self._replies = replies

    def start(self, messages: Sequence[Message]) -> NDArray[np.int32]:
        return byte_level.start(messages)

    def observe(self, text: str) -> NDArray[np.int32]:
        return byte_level.observe(text)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: GenerationRequest) -> Generation:
        turn = byte_level.turn_index(request.token_ids)
        if callable(self._replies):
            spoken = byte_level.messages(request.token_ids)
            prompt = next((m.content for m in spoken if m.role == "user"), "")
            text = self._replies(prompt, turn, request.seed)
        else:
            text = self._replies[turn] if turn < len(self._replies) else LAST_REPLY
        return byte_level.generation(text, request.max_new_tokens, logprob=LOGPROB)
