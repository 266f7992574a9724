"""Measures how exactly a policy reproduces the teacher on tasks it was not trained on.

Runs in any process that can generate; needs neither compiler nor judge, since a file that equals
the teacher's, character by character, is as good as the teacher's.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cudaagent.agent.parse import Parameter, ToolSchema, parse_calls
from cudaagent.policy.base import GenerationRequest, Message, Policy
from cudaagent.policy.demonstrations import observe_build, observe_verification
from cudaagent.policy.teacher import classify, conversation, variants
from cudaagent.synthesis.compose import Composition, render

_TURN_TOKENS = 1500
_TOOLS = {
    "Write": ToolSchema("Write", "", (Parameter("path", ""), Parameter("content", ""))),
    "Bash": ToolSchema("Bash", "", (Parameter("command", ""),)),
}


@dataclass(frozen=True, slots=True)
class Exactness:
    """How well held-out conversations are reproduced at temperature 1."""

    tasks: int
    exact: int
    """First turns whose files are one of the teacher's variants, character by character."""
    complete: int
    """Of these, conversations whose later turns are the teacher's too."""
    variants: dict[str, int]
    """Exact ones by variant."""
    expected: dict[str, float]
    """The same, had the variants of each task been drawn uniformly."""

    @property
    def share(self) -> float:
        return self.exact / max(self.tasks, 1)

    def __str__(self) -> str:
        parts = [
            f"{name} {count} ({self.expected.get(name, 0.0):.0f} if uniform)"
            for name, count in sorted(self.variants.items())
        ]
        return (
            f"held-out exact {self.exact}/{self.tasks} = {self.share:.1%}, "
            f"whole conversation {self.complete}; " + ", ".join(parts)
        )


@dataclass(slots=True)
class _Talk:
    """One conversation in progress."""

    source: str
    context: NDArray[np.int32]
    variant: str = ""


def evaluate(policy: Policy, heldout: Sequence[Composition], seed: int) -> Exactness:
    """Hold one conversation on each composition and compare it with the teacher's."""
    rng = random.Random(seed)
    sources = [render(composition).source for composition in heldout]
    talks = [_Talk(source, policy.start([Message("user", source)])) for source in sources]
    exact: list[_Talk] = []
    for talk, text in zip(talks, _answer(policy, talks, rng), strict=True):
        if variant := _variant(talk.source, text):
            talk.variant = variant
            exact.append(talk)
    alive = exact
    for turn in (1, 2):
        for talk in alive:
            build = observe_build(talk.source, talk.variant, rng)
            seen = build if turn == 1 else observe_verification(rng)
            talk.context = np.concatenate([talk.context, policy.observe(seen)])
        texts = _answer(policy, alive, rng)
        alive = [
            talk
            for talk, text in zip(alive, texts, strict=True)
            if text == conversation(talk.source, talk.variant)[turn]
        ]
    expected: dict[str, float] = {}
    for talk in exact:
        names = variants(talk.source)
        for name in names:
            expected[name] = expected.get(name, 0.0) + 1 / len(names)
    found = dict(Counter(talk.variant for talk in exact))
    return Exactness(len(talks), len(exact), len(alive), found, expected)


def _answer(policy: Policy, talks: Sequence[_Talk], rng: random.Random) -> list[str]:
    """The next turn of every conversation, which is appended to its context."""
    made = policy.generate(
        [GenerationRequest(talk.context, _TURN_TOKENS, rng.getrandbits(48)) for talk in talks]
    )
    for talk, generation in zip(talks, made, strict=True):
        talk.context = np.concatenate([talk.context, generation.token_ids])
    return [generation.text for generation in made]


def _variant(source: str, text: str) -> str | None:
    files = {
        call.arguments["path"]: call.arguments["content"]
        for call in parse_calls(text, _TOOLS)
        if call.error is None and call.name == "Write"
    }
    return classify(source, files)
