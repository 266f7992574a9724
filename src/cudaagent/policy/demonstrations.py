"""What the cold start imitates: the teacher's conversations, with plausible tool results between.

Plain text, without torch, so that a pool of processes makes it. Every variant of a task occurs
equally often, so that imitation prefers none. Not covered: recovery from failure. A failed build or
verification is shown now and then, but the teacher goes on as if all were well.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context

from cudaagent.agent.feedback import compile_text, verify_text
from cudaagent.judge.verdict import Verdict, failed
from cudaagent.policy.teacher import conversation, solve, variants
from cudaagent.synthesis.compose import Composition, draw, render
from cudaagent.toolchain.compiler import CompileResult

_TROUBLE = 0.1
"""Share of observations that report a failure or a warning."""
_CHUNK = 200
_FAILURES = (
    ("wrong-values", "verify", "the outputs differ from the reference"),
    ("load-failed", "load", "the extension cannot be loaded"),
    ("wrong-shape", "verify", "an output has another shape than the reference"),
    ("runtime-error", "verify", "forward raised an exception"),
    ("crashed", "verify", "the candidate's process died"),
    ("timeout", "verify", "a call took longer than limits.call_s"),
)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One conversation: task, assistant turns, and the tool results between them."""

    source: str
    variant: str
    turns: tuple[str, ...]
    observations: tuple[str, ...]


def split(seed: int, train: int, heldout: int) -> tuple[list[Composition], list[Composition]]:
    """The first compositions of a draw on either side of the split, at most so many."""
    sides: tuple[list[Composition], list[Composition]] = ([], [])
    wanted = (train, heldout)
    for composition in draw(seed):
        side = int(composition.heldout)
        if len(sides[side]) < wanted[side]:
            sides[side].append(composition)
        if all(len(s) >= w for s, w in zip(sides, wanted, strict=True)):
            break
    return sides


def demonstrate(
    compositions: Sequence[Composition], seed: int, processes: int = 1
) -> list[Demonstration]:
    """Every variant of every composition once; the same arguments, the same texts."""
    chunks = [
        (compositions[first : first + _CHUNK], seed + first)
        for first in range(0, len(compositions), _CHUNK)
    ]
    if processes <= 1 or len(chunks) <= 1:
        made = map(_demonstrate_chunk, chunks)
        return [item for chunk in made for item in chunk]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return [item for chunk in pool.map(_demonstrate_chunk, chunks) for item in chunk]


def observe_build(source: str, variant: str, rng: random.Random) -> str:
    """What the tools answer to the first turn."""
    lines = [
        f"[Write] wrote {path} ({len(text.splitlines())} lines)"
        for path, text in solve(source, variant).files.items()
    ]
    seconds = round(rng.choice((rng.uniform(0.0, 0.2), rng.uniform(0.8, 6.0))), 1)
    result = CompileResult(b"", "", None, "", seconds)
    if rng.random() < _TROUBLE:
        line, column = rng.randint(8, 60), rng.randint(3, 60)
        error = f"kernels/kernel.cpp:{line}:{column}: error: expected ';' before '}}' token"
        result = CompileResult(None, "", "build-failed", error, seconds)
    return "\n".join([*lines, f"[Bash] {compile_text(result)}"])


def observe_verification(rng: random.Random) -> str:
    """What the tools answer to the second turn."""
    errors = [10 ** rng.uniform(-8.0, -5.0) for _ in range(2)]
    verdict = Verdict(True, error_candidate=errors[0], error_baseline=errors[1])
    if rng.random() < _TROUBLE:
        verdict = failed(*rng.choice(_FAILURES))
    elif rng.random() < _TROUBLE:
        verdict = verdict.with_warning(rng.choice(("reused", "mutated-input", "short-pass")))
    return f"[Bash] {verify_text(verdict)}"


def _demonstrate_chunk(job: tuple[Sequence[Composition], int]) -> list[Demonstration]:
    compositions, seed = job
    rng = random.Random(seed)
    made: list[Demonstration] = []
    for composition in compositions:
        source = render(composition).source
        for variant in variants(source):
            made.append(
                Demonstration(
                    source,
                    variant,
                    tuple(conversation(source, variant)),
                    (observe_build(source, variant, rng), observe_verification(rng)),
                )
            )
    return made


def tokenizer_texts(demonstrations: Sequence[Demonstration], count: int = 2000) -> list[str]:
    """Texts of ``count`` demonstrations spread over all, to fit a tokenizer to."""
    step = max(1, len(demonstrations) // count)
    texts: list[str] = []
    for item in islice(demonstrations, 0, None, step):
        texts += [item.source, *item.turns, *item.observations]
    return texts
