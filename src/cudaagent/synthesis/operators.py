"""The operators that tasks are composed of: names, source lines, constants and shapes.

Plain data: nothing here imports torch, so that many thousand tasks can be drawn in a second.
Every operator is one or two lines that rebind ``x``, which keeps task sources regular. Runs in any
process. Not covered: operators on integers, convolutions, attention, and whatever needs ``exp``,
which g++ does not vectorise without fast-math.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Family(StrEnum):
    """How an operator touches its operand, which decides where it may stand."""

    POINTWISE = "pointwise"
    """[R, C] -> [R, C] or [R] -> [R], element by element."""
    REDUCE = "reduce"
    """[R, C] -> [R]."""
    NORMALISE = "normalise"
    """[R, C] -> [R, C], row by row."""
    PRODUCT = "product"
    """A matrix product that algebra makes cheap."""


class Result(StrEnum):
    """What a product leaves for its epilogue."""

    MATRIX = "matrix"
    """Rows that differ: any epilogue."""
    FLAT = "flat"
    """A matrix whose rows repeat or depend on each other: pointwise epilogues only."""
    VECTOR = "vector"
    """One number a row: pointwise epilogues only."""


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One operator.

    ``lines`` may hold the fields ``{c}`` (a constant), ``{m}``, ``{k}``, ``{n}`` (sizes).
    """

    name: str
    family: Family
    lines: tuple[str, ...]
    constants: tuple[str, ...] = ()
    nonnegative: bool = False
    """Its results are never negative."""
    bounded: bool = False
    """Its results saturate, so it must not follow large values of one sign."""
    result: Result = Result.MATRIX
    inputs: tuple[str, ...] = ("x",)
    """Names of the tensors that ``forward`` takes."""
    shapes: tuple[tuple[str, ...], ...] = (("m", "n"),)
    """Shape of each input, in the names of the sizes."""
    sizes: tuple[tuple[int, int, int], ...] = ()
    """Choices of (m, k, n)."""
    draws: str = "randn"
    """How its inputs are drawn; ``rand`` where it would hardly change normal ones."""
    linear: bool = False
    """The model holds ``nn.Linear(k, n, bias=False)``."""


def _pointwise(
    name: str,
    line: str,
    constants: tuple[str, ...] = (),
    *,
    nonnegative: bool = False,
    bounded: bool = False,
) -> Operator:
    return Operator(
        name,
        Family.POINTWISE,
        (f"x = {line}",),
        constants,
        nonnegative=nonnegative,
        bounded=bounded,
    )


POINTWISE = (
    _pointwise("relu", "torch.relu(x)", nonnegative=True),
    _pointwise("leaky_relu", "F.leaky_relu(x, {c})", ("0.01", "0.1", "0.2")),
    _pointwise("clamp", "torch.clamp(x, -{c}, {c})", ("0.5", "1.0", "1.5"), bounded=True),
    _pointwise("abs", "torch.abs(x)", nonnegative=True),
    _pointwise("square", "torch.square(x)", nonnegative=True),
    _pointwise("scale", "x * {c}", ("0.25", "0.5", "1.5", "2.0", "3.0")),
    _pointwise("shift", "x + {c}", ("0.25", "0.5", "1.0", "1.5", "2.0")),
    _pointwise("softsign", "F.softsign(x)", bounded=True),
    _pointwise("hardswish", "F.hardswish(x)"),
)

REDUCE = (
    Operator("row_sum", Family.REDUCE, ("x = x.sum(dim=1)",)),
    Operator("row_mean", Family.REDUCE, ("x = x.mean(dim=1)",)),
    Operator("row_max", Family.REDUCE, ("x = x.amax(dim=1)",)),
    Operator("row_norm", Family.REDUCE, ("x = x.norm(dim=1)",), nonnegative=True),
)

NORMALISE = (
    Operator("layer_norm", Family.NORMALISE, ("x = F.layer_norm(x, ({n},))",), draws="rand"),
    Operator("rms_norm", Family.NORMALISE, ("x = F.rms_norm(x, ({n},), eps=1e-5)",), draws="rand"),
    Operator("normalize", Family.NORMALISE, ("x = F.normalize(x, dim=1)",)),
)

_PRODUCT_SIZES = (
    (640, 640, 640),
    (768, 640, 640),
    (640, 768, 768),
    (512, 768, 1024),
    (1024, 512, 768),
    (768, 1024, 512),
)
_LEFT_SIZES = ((640, 0, 640), (640, 0, 768), (640, 0, 1024), (768, 0, 512), (768, 0, 768))
"""Left factor [m, m], right factor [m, n]."""
_RIGHT_SIZES = ((640, 0, 640), (768, 0, 640), (1024, 0, 640), (512, 0, 768), (768, 0, 768))
"""Left factor [m, n], right factor [n, n]."""
_XY = ("x", "y")
_XYZ = ("x", "y", "z")


def _product(
    name: str,
    lines: tuple[str, ...],
    result: Result,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    sizes: tuple[tuple[int, int, int], ...] = _PRODUCT_SIZES,
    *,
    draws: str = "randn",
    linear: bool = False,
) -> Operator:
    return Operator(
        name,
        Family.PRODUCT,
        lines,
        result=result,
        inputs=inputs,
        shapes=tuple(tuple(shape) for shape in shapes),
        sizes=sizes,
        draws=draws,
        linear=linear,
    )


PRODUCTS = (
    _product("diag_left", ("x = torch.diag(y) @ x",), Result.MATRIX, _XY, ("mn", "m"), _LEFT_SIZES),
    _product(
        "diag_right", ("x = x @ torch.diag(y)",), Result.MATRIX, _XY, ("mn", "n"), _RIGHT_SIZES
    ),
    _product(
        "linear_sum",
        ("x = self.linear(x)", "x = x.sum(dim=1)"),
        Result.VECTOR,
        ("x",),
        ("mk",),
        linear=True,
    ),
    _product(
        "linear_mean",
        ("x = self.linear(x)", "x = x.mean(dim=1)"),
        Result.VECTOR,
        ("x",),
        ("mk",),
        linear=True,
    ),
    _product("matmul_row_sum", ("x = x @ y", "x = x.sum(dim=1)"), Result.VECTOR, _XY, ("mk", "kn")),
    _product(
        "matmul_row_mean", ("x = x @ y", "x = x.mean(dim=1)"), Result.VECTOR, _XY, ("mk", "kn")
    ),
    _product("matmul_col_sum", ("x = x @ y", "x = x.sum(dim=0)"), Result.VECTOR, _XY, ("mk", "kn")),
    _product(
        "matmul_col_mean", ("x = x @ y", "x = x.mean(dim=0)"), Result.VECTOR, _XY, ("mk", "kn")
    ),
    _product("chain", ("x = x @ y @ z",), Result.VECTOR, _XYZ, ("mk", "kn", "n")),
    _product("outer_matmul", ("x = torch.outer(x, y) @ z",), Result.MATRIX, _XYZ, ("m", "k", "kn")),
    _product("diagonal", ("x = torch.diagonal(x @ y.T)",), Result.VECTOR, _XY, ("mk", "mk")),
    _product(
        "prefix_sum",
        ("x = torch.tril(torch.ones({m}, {m})) @ x",),
        Result.FLAT,
        ("x",),
        ("mn",),
        _LEFT_SIZES,
    ),
    _product(
        "center",
        ("x = (torch.eye({m}) - 1 / {m}) @ x",),
        Result.MATRIX,
        ("x",),
        ("mn",),
        _LEFT_SIZES,
        draws="rand",
    ),
    _product(
        "repeat_sum", ("x = torch.ones({m}, {m}) @ x",), Result.FLAT, ("x",), ("mn",), _LEFT_SIZES
    ),
    _product("expand", ("x = x @ y.unsqueeze(1).expand({k}, {n})",), Result.FLAT, _XY, ("mk", "k")),
)

ROW_SIZES = ((1024, 0, 4096), (2048, 0, 2048), (4096, 0, 1024))
"""(m, -, n) of tasks without a product."""
