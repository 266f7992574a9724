"""Reads a task's source: which operators its ``forward`` applies, in order, to which tensors.

The text is parsed, never run. Only the synthesiser's way of writing an operator is understood;
anything else is an ``UnknownTask``. Runs in any process; imports neither torch nor the synthesiser,
so that the teacher sees what a language model sees.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from cudaagent.errors import UserError

_C = r"(\d+(?:\.\d+)?)"
_POINTWISE: tuple[tuple[str, str, str], ...] = (
    ("relu", r"torch\.relu\(x\)", "v = 0.5f * (v + std::fabs(v));"),
    ("leaky_relu", rf"F\.leaky_relu\(x, {_C}\)", "v = std::max(v, {0}f * v);"),
    (
        "clamp",
        rf"torch\.clamp\(x, -{_C}, {_C}\)",
        "v = 0.5f * (std::fabs(v + {0}f) - std::fabs(v - {1}f));",
    ),
    ("abs", r"torch\.abs\(x\)", "v = std::fabs(v);"),
    ("square", r"torch\.square\(x\)", "v = v * v;"),
    ("scale", rf"x \* {_C}", "v = v * {0}f;"),
    ("shift", rf"x \+ {_C}", "v = v + {0}f;"),
    ("softsign", r"F\.softsign\(x\)", "v = v / (1.0f + std::fabs(v));"),
    (
        "hardswish",
        r"F\.hardswish\(x\)",
        "v = v * (std::fabs(v + 3.0f) - std::fabs(v - 3.0f) + 6.0f) / 12.0f;",
    ),
)
"""Name, Python expression, C++ statement. Selects with a constant arm are written with ``fabs``:
g++ turns ``v > 0 ? v : 0`` into a branch as soon as arithmetic follows, and vectorises nothing."""

_ROWS = (
    ("sum", r"x\.sum\(dim=1\)"),
    ("mean", r"x\.mean\(dim=1\)"),
    ("max", r"x\.amax\(dim=1\)"),
    ("norm", r"x\.norm\(dim=1\)"),
    ("layer_norm", r"F\.layer_norm\(x, \(\d+,\)\)"),
    ("rms_norm", r"F\.rms_norm\(x, \(\d+,\), eps=1e-05\)"),
    ("normalize", r"F\.normalize\(x, dim=1\)"),
)
REDUCTIONS = frozenset({"sum", "mean", "max", "norm"})

_CORES = (
    ("diag_left", r"torch\.diag\(y\) @ x", r""),
    ("diag_right", r"x @ torch\.diag\(y\)", r""),
    ("linear_sum", r"self\.linear\(x\)", r"x\.sum\(dim=1\)"),
    ("linear_mean", r"self\.linear\(x\)", r"x\.mean\(dim=1\)"),
    ("row_sum", r"x @ y", r"x\.sum\(dim=1\)"),
    ("row_mean", r"x @ y", r"x\.mean\(dim=1\)"),
    ("col_sum", r"x @ y", r"x\.sum\(dim=0\)"),
    ("col_mean", r"x @ y", r"x\.mean\(dim=0\)"),
    ("chain", r"x @ y @ z", r""),
    ("outer", r"torch\.outer\(x, y\) @ z", r""),
    ("diagonal", r"torch\.diagonal\(x @ y\.T\)", r""),
    ("prefix", r"torch\.tril\(torch\.ones\(\d+, \d+\)\) @ x", r""),
    ("center", r"\(torch\.eye\(\d+\) - 1 / \d+\) @ x", r""),
    ("repeat", r"torch\.ones\(\d+, \d+\) @ x", r""),
    ("expand", r"x @ y\.unsqueeze\(1\)\.expand\(\d+, (\d+)\)", r""),
)


class UnknownTask(UserError):
    """The teacher does not know an operator of this task."""


@dataclass(frozen=True, slots=True)
class Program:
    """What ``forward`` does: ``pre`` pointwise, ``core``, ``mid`` pointwise, ``rows``, ``post``.

    Pointwise parts are C++ statements on ``v``. Without a core ``mid`` is empty; without a row
    operator ``post`` is.
    """

    inputs: tuple[str, ...]
    pre: tuple[str, ...]
    core: str | None
    mid: tuple[str, ...]
    rows: str | None
    post: tuple[str, ...]
    columns: str = ""
    """Columns of an expanded factor, as the source gives them."""

    @property
    def linear(self) -> bool:
        """Whether the model holds ``self.linear``."""
        return self.core in ("linear_sum", "linear_mean")


def read_program(source: str) -> Program:
    """Parse a task's source.

    Raises:
        UnknownTask: not Python, no ``Model.forward``, or an operator outside the teacher's reach.
    """
    inputs, lines = _forward(source)
    pre: list[str] = []
    mid: list[str] = []
    post: list[str] = []
    core: str | None = None
    rows: str | None = None
    columns = ""
    index = 0
    while index < len(lines):
        found = _core(lines, index) if core is None and rows is None else None
        if found is not None:
            core, columns, used = found
            index += used
            continue
        statement = _pointwise(lines[index])
        if statement is not None:
            (post if rows else mid if core else pre).append(statement)
        elif rows is None and (name := _row(lines[index])) is not None:
            rows = name
        else:
            raise UnknownTask(f"the teacher knows no kernel for `{lines[index]}`")
        index += 1
    return Program(inputs, tuple(pre), core, tuple(mid), rows, tuple(post), columns)


def _forward(source: str) -> tuple[tuple[str, ...], list[str]]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise UnknownTask(f"the task's source is not Python: {error}") from error
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "forward":
                    inputs = tuple(a.arg for a in item.args.args[1:])
                    lines = [ast.unparse(statement) for statement in item.body]
                    if not lines or lines[-1] != "return x":
                        raise UnknownTask("the teacher knows only forwards that end in `return x`")
                    return inputs, [line.removeprefix("x = ") for line in lines[:-1]]
    raise UnknownTask("the task's source has no class Model with a forward")


def _pointwise(line: str) -> str | None:
    for _, pattern, statement in _POINTWISE:
        if match := re.fullmatch(pattern, line):
            return statement.format(*(_decimal(group) for group in match.groups()))
    return None


def _row(line: str) -> str | None:
    return next((name for name, pattern in _ROWS if re.fullmatch(pattern, line)), None)


def _core(lines: list[str], index: int) -> tuple[str, str, int] | None:
    for name, first, second in _CORES:
        match = re.fullmatch(first, lines[index])
        if match is None:
            continue
        columns = match.group(1) if match.groups() else ""
        if not second:
            return name, columns, 1
        if index + 1 < len(lines) and re.fullmatch(second, lines[index + 1]):
            return name, columns, 2
    return None


def _decimal(text: str) -> str:
    return text if "." in text else f"{text}.0"
