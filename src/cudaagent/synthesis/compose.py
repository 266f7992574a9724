"""Compositions of one to three operators, drawn by seed and rendered as tasks.

A composition is an optional pointwise prologue, one core and epilogues. Which operators stand in
it decides whether it is held out, never its constants or shapes: two tasks with the same operators
in the same order lie on the same side of the split. Runs in any process, without torch.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cudaagent.synthesis.operators import (
    NORMALISE,
    POINTWISE,
    PRODUCTS,
    REDUCE,
    ROW_SIZES,
    Family,
    Operator,
    Result,
)
from cudaagent.tasks.task import Task

SUITE = "synthesised"
_HELDOUT_OF = 6
_GIVE_UP_AFTER = 20_000
_FOR_SIGNED = frozenset({"relu", "abs", "leaky_relu"})
"""Without effect on values that are never negative."""
_KEEP_SIGN = frozenset({"scale", "shift", "softsign", "hardswish", "clamp"})


@dataclass(frozen=True, slots=True)
class Applied:
    """An operator with its constant, empty where it takes none."""

    operator: Operator
    constant: str = ""


@dataclass(frozen=True, slots=True)
class Composition:
    """Operators in the order in which they are applied, and the sizes (m, k, n)."""

    applied: tuple[Applied, ...]
    sizes: tuple[int, int, int]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operators; what the held-out split looks at."""
        return tuple(item.operator.name for item in self.applied)

    @property
    def product(self) -> Operator | None:
        """The product in it, if any."""
        for item in self.applied:
            if item.operator.family is Family.PRODUCT:
                return item.operator
        return None

    @property
    def core(self) -> str:
        """Name of the product or row operator, ``pointwise`` where there is neither."""
        core = _core([item.operator for item in self.applied])
        return core.name if core else "pointwise"

    @property
    def heldout(self) -> bool:
        """Whether it belongs to evaluation."""
        state = hashlib.sha256("/".join(self.names).encode()).digest()
        return state[0] % _HELDOUT_OF == 0


def render(composition: Composition) -> Task:
    """The composition as a task in the KernelBench convention."""
    product = composition.product
    core = _core([item.operator for item in composition.applied])
    draws = core.draws if core else "randn"
    sizes = dict(zip("mkn", composition.sizes, strict=True))
    inputs = product.inputs if product else ("x",)
    shapes = product.shapes if product else (("m", "n"),)
    linear = product is not None and product.linear
    body = [
        line.format(c=item.constant, **sizes)
        for item in composition.applied
        for line in item.operator.lines
    ]
    tensors = [f"torch.{draws}({', '.join(str(sizes[s]) for s in shape)})" for shape in shapes]
    held = ", in_features, out_features" if linear else ""
    layer = (
        "\n        self.linear = nn.Linear(in_features, out_features, bias=False)" if linear else ""
    )
    init = f"{sizes['k']}, {sizes['n']}" if linear else ""
    source = (
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
        "class Model(nn.Module):\n"
        f"    def __init__(self{held}):\n        super().__init__(){layer}\n\n"
        f"    def forward(self, {', '.join(inputs)}):\n"
        + "".join(f"        {line}\n" for line in body)
        + "        return x\n\n\n"
        f"def get_inputs():\n    return [{', '.join(tensors)}]\n\n\n"
        f"def get_init_inputs():\n    return [{init}]\n"
    )
    digest = hashlib.sha256(source.encode()).hexdigest()
    return Task(
        id=f"{'-'.join(composition.names)}-{digest[:8]}",
        source=source,
        suite=SUITE,
        level=len(composition.applied),
        ops=composition.names,
    )


def draw(seed: int, *, max_operators: int = 3) -> Iterator[Composition]:
    """Distinct compositions; the same seed gives the same ones in the same order.

    Ends when the space of compositions is as good as exhausted.
    """
    rng = random.Random(seed)
    seen: set[Composition] = set()
    misses = 0
    while misses < _GIVE_UP_AFTER:
        composition = _draw_one(rng, max_operators)
        if composition is None or composition in seen:
            misses += 1
            continue
        misses = 0
        seen.add(composition)
        yield composition


def split_heldout(
    compositions: Iterable[Composition],
) -> tuple[list[Composition], list[Composition]]:
    """(training, held out); no sequence of operators occurs in both."""
    train: list[Composition] = []
    heldout: list[Composition] = []
    for composition in compositions:
        (heldout if composition.heldout else train).append(composition)
    return train, heldout


def _draw_one(rng: random.Random, max_operators: int) -> Composition | None:
    count = rng.randint(1, max_operators)
    kind = rng.choices(("product", "rows", "pointwise"), weights=(6, 3, 1))[0]
    if kind == "product":
        core = rng.choice(PRODUCTS)
        sizes = rng.choice(core.sizes)
    else:
        core = rng.choice(REDUCE + NORMALISE) if kind == "rows" else rng.choice(POINTWISE)
        sizes = rng.choice(ROW_SIZES)
    operators = [core]
    if count > 1 and rng.random() < 0.5:
        operators.insert(0, rng.choice(POINTWISE))
    while len(operators) < count:
        rows = core.family is Family.PRODUCT and core.result is Result.MATRIX
        if rows and operators[-1] is core and rng.random() < 0.4:
            operators.append(rng.choice(REDUCE + NORMALISE))
        else:
            operators.append(rng.choice(POINTWISE))
    if not _sound(operators):
        return None
    applied = tuple(Applied(o, rng.choice(o.constants) if o.constants else "") for o in operators)
    return Composition(applied, sizes)


def _sound(operators: list[Operator]) -> bool:
    """Whether the task is slow enough to be timed, its outputs vary with its inputs, and no
    operator is without effect."""
    first = operators[0]
    if first.family is Family.REDUCE or (len(operators) == 1 and first.family is Family.POINTWISE):
        return False
    before: Operator | None = None
    core = _core(operators)
    positive = lifted = core is not None and core.draws == "rand"
    """Never negative; the mean is far from zero in units of the spread."""
    for operator in operators:
        if operator is before:
            return False
        if (operator.bounded and lifted) or (positive and operator.name in _FOR_SIGNED):
            return False
        if operator.name == "clamp" and before is not None and before.name == "normalize":
            return False
        positive, lifted = _after(operator, positive, lifted)
        before = operator
    return True


def _core(operators: Iterable[Operator]) -> Operator | None:
    return next((o for o in operators if o.family is not Family.POINTWISE), None)


def _after(operator: Operator, positive: bool, lifted: bool) -> tuple[bool, bool]:
    """Whether values are (never negative, lifted) after ``operator``."""
    if operator.family is Family.POINTWISE:
        now = operator.nonnegative or (positive and operator.name in _KEEP_SIGN)
        return now, lifted or (now and operator.name == "shift")
    if operator.family is Family.NORMALISE:
        return (
            (positive, positive) if operator.name in ("normalize", "rms_norm") else (False, False)
        )
    if operator.name in ("row_max", "row_norm"):
        return True, True
    if operator.family is Family.REDUCE:
        return positive, positive or lifted
    return False, operator.result is not Result.MATRIX and (positive or lifted)
