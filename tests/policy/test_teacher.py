"""The teacher's kernels compute what torch computes, and its turns follow the agreement."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm_ffi
from tvm_ffi import libinfo

from cudaagent.policy.base import GenerationRequest, Message
from cudaagent.policy.teacher import (
    KERNEL_PATH,
    MODEL_PATH,
    Solution,
    TeacherPolicy,
    classify,
    conversation,
    find_source,
    solve,
    variants,
)
from cudaagent.policy.teacher_source import UnknownTask
from cudaagent.synthesis.compose import Applied, Composition, draw, render
from cudaagent.synthesis.operators import NORMALISE, POINTWISE, PRODUCTS, REDUCE, Operator, Result
from cudaagent.tasks.task import Task

OPERATORS = {o.name: o for o in POINTWISE + REDUCE + NORMALISE + PRODUCTS}
CHAINS = (
    "relu leaky_relu clamp",
    "abs scale shift",
    "square softsign hardswish",
    *(f"leaky_relu {o.name} scale" for o in REDUCE + NORMALISE),
    *(f"{o.name}" for o in PRODUCTS),
    *(f"relu {o.name} shift" for o in PRODUCTS),
    *(f"{o.name} {row}" for o, row in zip(
        [o for o in PRODUCTS if o.result is Result.MATRIX],
        ("row_max", "layer_norm", "rms_norm", "row_norm"),
        strict=True,
    )),
)  # fmt: skip
ROUNDING = 4.5 * 2.0**-18
"""The judge's precision line where the baseline rounds less."""


@dataclass(frozen=True, slots=True)
class Case:
    """One variant of one task and the number of its kernel in the library."""

    task: Task
    solution: Solution
    number: int


def _composition(names: str) -> Composition:
    operators: list[Operator] = [OPERATORS[name] for name in names.split()]
    applied = tuple(Applied(o, o.constants[0] if o.constants else "") for o in operators)
    return Composition(applied, (128, 256, 384))


def _cases() -> list[Case]:
    cases: list[Case] = []
    for names in CHAINS:
        task = render(_composition(names))
        for variant in variants(task.source):
            cases.append(Case(task, solve(task.source, variant), len(cases)))
    return cases


CASES = _cases()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All kernels in one library; one exported function for each number of tensors.

    The export macro costs more to compile than a kernel, so there are three of them.
    """
    folder = tmp_path_factory.mktemp("kernels")
    includes = [
        "tvm/ffi/container/tensor.h", "tvm/ffi/function.h", "immintrin.h", "algorithm", "cmath",
        "vector",
    ]  # fmt: skip
    parts = [f"#include <{name}>" for name in includes]
    switches: dict[int, list[str]] = {2: [], 3: [], 4: []}
    for case in CASES:
        body = re.sub(r"#include.*\n|TVM_FFI_DLL.*\n", "", case.solution.files[KERNEL_PATH])
        parts.append(f"namespace k{case.number} {{\n{body}\n}}")
        head = re.search(r"void forward\((.*)\) \{", body)
        assert head is not None
        names = [part.split()[1] for part in head.group(1).split(", ")]
        call = f"if (number == {case.number}) k{case.number}::forward({', '.join(names)});"
        switches[len(names)].append(call.replace("wt", "yt"))
    for count, names in ((2, "xt ot"), (3, "xt yt ot"), (4, "xt yt zt ot")):
        tensors = ", ".join(f"tvm::ffi::TensorView {name}" for name in names.split())
        parts.append(f"void run{count}(int64_t number, {tensors}) {{")
        parts += [f"  {line}" for line in switches[count]]
        parts.append(f"}}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(run{count}, run{count});")
    source = folder / "all.cpp"
    source.write_text("\n".join(parts))
    built = folder / "all.so"
    runtime = Path(libinfo.find_libtvm_ffi())
    command = ["g++", "-O1", "-std=c++17", "-march=native", "-fopenmp", "-fPIC", "-shared"]
    command += [f"-I{path}" for path in libinfo.include_paths()]
    command += [str(source), "-o", str(built), f"-L{runtime.parent}", "-ltvm_ffi"]
    subprocess.run(command, check=True, timeout=300)
    return tvm_ffi.load_module(str(built))


def _identify(case: Case) -> str:
    return f"{'-'.join(case.task.ops)}-{case.solution.variant}"


@pytest.mark.parametrize("case", CASES, ids=_identify)
def test_kernels_compute_what_torch_computes(
    case: Case, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(*tensors: torch.Tensor) -> None:
        getattr(library, f"run{len(tensors)}")(case.number, *tensors)

    extension = types.ModuleType("cuda_extension")
    extension.forward = forward  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda_extension", extension)
    task: dict[str, Any] = {}
    exec(case.task.source, task)
    new: dict[str, Any] = {}
    exec(case.solution.files[MODEL_PATH], new)
    torch.manual_seed(case.number)
    model = task["Model"](*task["get_init_inputs"]())
    candidate = new["ModelNew"](*task["get_init_inputs"]())
    candidate.load_state_dict(model.state_dict(), strict=True)
    inputs = task["get_inputs"]()
    originals = [tensor.clone() for tensor in inputs]
    with torch.no_grad():
        found = candidate(*inputs)
        single = model(*inputs)
        torch.set_default_dtype(torch.float64)
        try:
            exact = model.double()(*[tensor.double() for tensor in inputs])
        finally:
            torch.set_default_dtype(torch.float32)
    assert found.shape == single.shape
    assert found.dtype == single.dtype
    assert all(torch.equal(a, b) for a, b in zip(inputs, originals, strict=True))
    error = (found - exact).square().mean().sqrt()
    baseline = (single - exact).square().mean().sqrt()
    assert error <= max(4.5 * baseline, ROUNDING * exact.square().mean().sqrt())


def test_variants_differ_in_text_and_are_recognised() -> None:
    for case in CASES:
        assert classify(case.task.source, case.solution.files) == case.solution.variant
    solution = CASES[0].solution
    changed = {**solution.files, KERNEL_PATH: solution.files[KERNEL_PATH] + "\n"}
    assert classify(CASES[0].task.source, changed) is None
    assert classify("x = 1", solution.files) is None


def test_kernels_stay_short() -> None:
    lengths = [len(case.solution.files[KERNEL_PATH]) for case in CASES]
    assert max(lengths) < 1900
    assert sum(lengths) / len(lengths) < 1200
    assert max(len(case.solution.files[MODEL_PATH]) for case in CASES) < 600


def test_conversation_follows_the_agreement() -> None:
    task = render(next(draw(0)))
    for variant in variants(task.source):
        solution = solve(task.source, variant)
        first, second, third = conversation(task.source, variant)
        assert first.splitlines()[0] == f"Plan: {variant.replace('-', ', ')}."
        written = dict(
            re.findall(
                r"<function=Write>\n<parameter=path>(.*?)</parameter>\n"
                r"<parameter=content>\n(.*?)</parameter>\n</function>",
                first,
                flags=re.DOTALL,
            )
        )
        assert written == solution.files
        assert list(written) == [KERNEL_PATH, MODEL_PATH]
        assert first.endswith(
            "<function=Bash>\n<parameter=command>bash utils/compile.sh</parameter>\n</function>"
        )
        assert re.findall(r"<parameter=command>(.*)</parameter>", second) == [
            "python3 utils/verification.py"
        ]
        assert third == "Done."


def _generate(ids: np.ndarray, seed: int, limit: int = 10_000) -> Any:
    return TeacherPolicy().generate([GenerationRequest(ids, limit, seed)])[0]


@pytest.mark.parametrize("prompt", ["{}", "Solve this.\n```python\n{}```\nGo.", "Task:\n\n{}\nGo."])
def test_policy_plays_three_turns_from_any_prompt(prompt: str) -> None:
    policy = TeacherPolicy()
    task = render(next(draw(3)))
    messages = [
        Message("system", "You write kernels."),
        Message("user", prompt.format(task.source)),
    ]
    ids = policy.start(messages)
    texts: list[str] = []
    for _ in range(3):
        turn = _generate(ids, seed=11)
        assert turn.finish_reason == "stop"
        assert len(turn.token_ids) == len(turn.logprobs)
        texts.append(turn.text)
        ids = np.concatenate([ids, turn.token_ids, policy.observe("BUILD OK")])
    assert texts in [conversation(task.source, v) for v in variants(task.source)]


def test_policy_draws_the_variant_by_seed_alone() -> None:
    task = render(next(draw(3)))
    ids = TeacherPolicy().start([Message("user", task.source)])
    plans = {seed: _generate(ids, seed).text for seed in range(40)}
    assert plans == {seed: _generate(ids, seed).text for seed in range(40)}
    assert len(set(plans.values())) == len(variants(task.source))
    turn = _generate(ids, 0)
    assert turn.logprobs.sum() == pytest.approx(-np.log(len(variants(task.source))))


def test_policy_stops_at_the_token_limit() -> None:
    ids = TeacherPolicy().start([Message("user", render(next(draw(3))).source)])
    turn = _generate(ids, 0, limit=50)
    assert turn.finish_reason == "length"
    assert len(turn.token_ids) == 50
    assert _generate(ids, 0).text.startswith(turn.text)


def test_a_task_outside_its_reach_gets_a_turn_without_a_call() -> None:
    source = render(next(draw(3))).source
    unknown = re.sub(
        r"        return x\n", "        x = torch.fft.fft(x)\n        return x\n", source
    )
    with pytest.raises(UnknownTask, match=r"torch\.fft\.fft"):
        variants(unknown)
    for text in (unknown, "Hello."):
        turn = _generate(TeacherPolicy().start([Message("user", text)]), 0)
        assert turn.finish_reason == "stop"
        assert "<function" not in turn.text
    with pytest.raises(UnknownTask, match="no variant fastest"):
        solve(source, "fastest")


def test_source_is_found_between_other_texts() -> None:
    sources = [render(c).source for c in islice(draw(2), 5)]
    for source in sources:
        around = (
            f"# Rules\n\nimport nothing\n- do this\n\n{source}\nThen build it.\n  return home\n"
        )
        found = find_source(around)
        assert found is not None
        assert variants(found) == variants(source)
        assert solve(found, "literal").files == solve(source, "literal").files
    assert find_source("no task here") is None
