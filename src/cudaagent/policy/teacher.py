"""The scripted teacher: correct kernels for the synthesiser's operators, from naive to fast.

It demonstrates for the cold start, drives the loop in tests, and knows how fast a task can be made.
Which variant it writes is drawn by the request's seed, so imitating it leaves speed to be found.
Runs in any process without torch. Not covered: tasks outside its operators get one turn that says
so and calls no tool.
"""

from __future__ import annotations

import ast
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cudaagent.policy.base import Generation, GenerationRequest, Message
from cudaagent.policy.teacher_kernels import kernel, model_new, variants_of
from cudaagent.policy.teacher_source import UnknownTask, read_program

KERNEL_PATH = "kernels/kernel.cpp"
MODEL_PATH = "model_new.py"

_END = 256
_ROLES = {"system": 257, "user": 258, "assistant": 259}


@dataclass(frozen=True, slots=True)
class Solution:
    """One way to solve a task: the plan line and the files, path to text."""

    variant: str
    plan: str
    files: dict[str, str]


def variants(task_source: str) -> list[str]:
    """Names of the teacher's variants for a task, from naive to well optimised.

    Raises:
        UnknownTask: the task holds an operator that the teacher does not know.
    """
    return list(variants_of(read_program(task_source)))


def solve(task_source: str, variant: str) -> Solution:
    """Write one variant.

    Raises:
        UnknownTask: see ``variants``; also when the task has no such variant.
    """
    program = read_program(task_source)
    if variant not in variants_of(program):
        raise UnknownTask(f"no variant {variant}; this task has {', '.join(variants_of(program))}")
    files = {KERNEL_PATH: kernel(program, variant), MODEL_PATH: model_new(program)}
    return Solution(variant, f"Plan: {variant.replace('-', ', ')}.", files)


def classify(task_source: str, files: Mapping[str, str]) -> str | None:
    """The variant whose files these are, character by character; None if none of them."""
    try:
        names = variants(task_source)
    except UnknownTask:
        return None
    return next((n for n in names if solve(task_source, n).files == dict(files)), None)


def conversation(task_source: str, variant: str) -> list[str]:
    """The three assistant turns: write and build, verify, done."""
    solution = solve(task_source, variant)
    writes = "".join(
        f"<function=Write>\n<parameter=path>{path}</parameter>\n"
        f"<parameter=content>\n{text}</parameter>\n</function>\n"
        for path, text in solution.files.items()
    )
    return [
        f"{solution.plan}\n{writes}{_bash('bash utils/compile.sh')}",
        _bash("python3 utils/verification.py"),
        "Done.",
    ]


def find_source(text: str) -> str | None:
    """The last piece of ``text`` that is Python with a class ``Model``."""
    if _is_task(text):
        return text
    fenced = re.findall(r"^```[a-zA-Z]*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    for block in reversed(fenced):
        if _is_task(block):
            return block
    lines = text.splitlines(keepends=True)
    models = [i for i, line in enumerate(lines) if re.match(r"class Model\b", line)]
    for model in reversed(models):
        starts = [i for i in range(model + 1) if re.match(r"(import|from|class) ", lines[i])]
        ends = [i for i in range(model, len(lines)) if re.match(r"\s+return ", lines[i])]
        for start in starts:
            for end in reversed(ends):
                block = "".join(lines[start : end + 1])
                if _is_task(block):
                    return block
    return None


class TeacherPolicy:
    """The teacher as a ``Policy``: ids are UTF-8 bytes and four marks; it holds no state.

    Log-probabilities are those of the draw of the variant, all of it on the first token.
    """

    def start(self, messages: Sequence[Message]) -> NDArray[np.int32]:
        """Ids of the prompt, ending with the assistant's mark."""
        ids: list[int] = []
        for message in messages:
            ids += [_ROLES[message.role], *message.content.encode(), _END]
        return np.asarray([*ids, _ROLES["assistant"]], dtype=np.int32)

    def observe(self, text: str) -> NDArray[np.int32]:
        """Ids of a user message and the assistant's mark."""
        ids = [_ROLES["user"], *text.encode(), _END, _ROLES["assistant"]]
        return np.asarray(ids, dtype=np.int32)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """The next turn of each conversation."""
        return [_answer(request) for request in requests]


def _answer(request: GenerationRequest) -> Generation:
    marks = np.flatnonzero(request.token_ids == _ROLES["assistant"])
    turn = len(marks)
    prompt = _decode(request.token_ids[: marks[0]] if turn else request.token_ids)
    logprob = 0.0
    source = next((s for part in reversed(prompt) if (s := find_source(part))), None)
    try:
        if source is None:
            raise UnknownTask("the prompt holds no class Model")
        names = variants(source)
        if turn <= 1:
            text = conversation(source, random.Random(request.seed).choice(names))[0]
            logprob = -math.log(len(names))
        else:
            text = conversation(source, names[0])[min(turn, 3) - 1]
    except UnknownTask as error:
        text = f"I cannot write a kernel for this task: {error}."
    ids = np.asarray([*text.encode(), _END], dtype=np.int32)
    cut = ids[: request.max_new_tokens]
    logprobs = np.zeros(len(cut), dtype=np.float32)
    logprobs[:1] = logprob
    if len(cut) < len(ids):
        shown = bytes(cut.astype(np.uint8)).decode(errors="replace")
        return Generation(cut, logprobs, shown, "length")
    return Generation(ids, logprobs, text, "stop")


def _decode(ids: NDArray[np.int32]) -> list[str]:
    """The messages of a prompt as text."""
    parts = np.split(ids, np.flatnonzero(ids >= _END))
    texts = [bytes(p[p < _END].astype(np.uint8)).decode(errors="replace") for p in parts]
    return [text for text in texts if text]


def _is_task(text: str) -> bool:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.ClassDef) and node.name == "Model" for node in tree.body)


def _bash(command: str) -> str:
    return f"<function=Bash>\n<parameter=command>{command}</parameter>\n</function>"
