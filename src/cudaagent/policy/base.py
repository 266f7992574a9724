"""What a policy is: token ids in, token ids with their log-probabilities out.

Text is never re-tokenised on the way to the learner: an episode keeps the ids that the policy
returned and appends only ids that the same policy rendered from observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Continue ``token_ids`` by at most ``max_new_tokens``; ``seed`` alone decides the draw."""

    token_ids: NDArray[np.int32]
    max_new_tokens: int
    seed: int
    episode_id: str = ""


@dataclass(frozen=True, slots=True)
class Generation:
    """What the policy wrote: ids [N], log-probabilities [N] of the sampling distribution, text.

    ``token_ids`` ends with the end-of-turn token when ``finish_reason`` is ``stop``.
    """

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    text: str
    finish_reason: FinishReason
    policy_version: int = 0


class Policy(Protocol):
    """Answers a batch of conversations."""

    def start(self, messages: Sequence[Message]) -> NDArray[np.int32]:
        """Ids of the prompt, ending where the assistant's first turn begins."""
        ...

    def observe(self, text: str) -> NDArray[np.int32]:
        """Ids between the end of an assistant turn and the start of the next one.

        Renders ``text`` (tool results) as a user message; the end-of-turn token that the policy
        sampled is not repeated.
        """
        ...

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One generation for each request, in order."""
        ...
