"""The naive variants: every operator of the task as a pass of its own, products in full.

Pure text; runs in any process.
"""

from __future__ import annotations

from collections.abc import Sequence

from cudaagent.policy.teacher_source import REDUCTIONS, Program
from cudaagent.policy.teacher_text import Writer

_FACTORS = {
    "diag_left": "i == j ? y[i] : 0.0f",
    "diag_right": "i == j ? y[i] : 0.0f",
    "prefix": "j <= i ? 1.0f : 0.0f",
    "center": "(i == j ? 1.0f : 0.0f) - 1.0f / m",
    "repeat": "1.0f",
    "outer": "{x}[i] * y[j]",
    "expand": "y[i]",
}
"""Element (i, j) of the dense factor that the task multiplies by."""


def literal_body(w: Writer, program: Program) -> None:
    """Write the body of ``forward`` as the task's source says it."""
    reduces = program.rows in REDUCTIONS
    if program.core is None:
        source = _pointwise_passes(w, "x", "xt.numel()", program.pre, into_out=not reduces)
        if program.rows is None:
            return
        w.add("  int64_t rows = xt.size(0), cols = xt.size(1);")
        _row_pass(w, program, source)
        return
    source = _pointwise_passes(w, "x", "xt.numel()", program.pre, into_out=False)
    if program.core in ("linear_sum", "linear_mean", "diagonal"):
        _transposed_product(w, program, source)
    else:
        _product(w, program, source)
    if program.rows is None:
        if program.mid:
            w.add("  int64_t size = ot.numel();")
        _in_place(w, "out", "size", program.mid)
        return
    _in_place(w, "c", "rows * cols", program.mid)
    _row_pass(w, program, "c")


def _pointwise_passes(
    w: Writer, source: str, count: str, statements: Sequence[str], *, into_out: bool
) -> str:
    """One pass for each statement; returns the name of what holds the result."""
    if not statements:
        return source
    w.add(f"  int64_t count = {count};")
    target = "out"
    if not into_out:
        w.add("  std::vector<float> a(count);")
        target = "a"
    for statement in statements:
        _pass(w, source, target, "count", statement)
        source = target
    return source


def _in_place(w: Writer, name: str, count: str, statements: Sequence[str]) -> None:
    for statement in statements:
        _pass(w, name, name, count, statement)


def _pass(w: Writer, source: str, target: str, count: str, statement: str) -> None:
    w.parallel("  ")
    w.open("  ", "i", count)
    w.add(f"    float v = {source}[i];", f"    {statement}", f"    {target}[i] = v;", "  }")


def _row_pass(w: Writer, program: Program, source: str) -> None:
    assert program.rows is not None
    load = (f"float v = {source}[i * cols + j];",)
    w.parallel("  ")
    w.open("  ", "i", "rows")
    if program.rows in REDUCTIONS:
        w.reduce("    ", program.rows, load, ())
        w.add("  }")
        _in_place(w, "out", "rows", program.post)
    else:
        w.normalise("    ", program.rows, load, ())
        w.add("  }")
        _in_place(w, "out", "rows * cols", program.post)


def _helper(w: Writer, *, transposed: bool) -> None:
    """``matmul``: c = a b, or c = a b^T where the rows of b are given."""
    sizes = "int64_t m, int64_t k, int64_t n"
    head = f"static void matmul(const float* a, const float* b, float* c, {sizes}) {{"
    inner = Writer(w.style)
    inner.parallel("  ")
    inner.open("  ", "i", "m")
    if transposed:
        inner.open("    ", "j", "n")
        inner.add("      float s = 0.0f;")
        inner.simd("      ", " reduction(+ : s)")
        inner.add("      for (int64_t p = 0; p < k; ++p) s += a[i * k + p] * b[j * k + p];")
        inner.add("      c[i * n + j] = s;", "    }")
    else:
        inner.add("    for (int64_t j = 0; j < n; ++j) c[i * n + j] = 0.0f;")
        inner.open("    ", "p", "k")
        inner.add("      float v = a[i * k + p];")
        inner.simd("      ")
        inner.add(
            "      for (int64_t j = 0; j < n; ++j) c[i * n + j] += v * b[p * n + j];", "    }"
        )
    w.helpers.extend([head, *inner.text(), "  }", "}", ""])


def _data(source: str) -> str:
    return "a.data()" if source == "a" else source


def _transposed_product(w: Writer, program: Program, source: str) -> None:
    _helper(w, transposed=True)
    right = "w" if program.linear else "y"
    w.add(f"  int64_t m = xt.size(0), k = xt.size(1), n = {right}t.size(0);")
    w.add("  std::vector<float> c(m * n);")
    w.add(f"  matmul({_data(source)}, {right}, c.data(), m, k, n);")
    if program.core == "diagonal":
        w.add("  for (int64_t i = 0; i < m; ++i) out[i] = c[i * n + i];")
    else:
        _sum_rows(w, "s / n" if program.core == "linear_mean" else "s", "c[i * n + j]")


def _sum_rows(w: Writer, value: str, term: str) -> None:
    w.parallel("  ")
    w.open("  ", "i", "m")
    w.sum("    ", "n", (f"s += {term};",))
    w.add(f"    out[i] = {value};", "  }")


_SIZES = {
    "outer": "m = xt.size(0), k = yt.size(0), n = zt.size(1)",
    "expand": "m = xt.size(0), k = xt.size(1), n = ot.size(1)",
    "diag_right": "m = xt.size(0), k = xt.size(1), n = xt.size(1)",
    "diag_left": "m = xt.size(0), k = xt.size(0), n = xt.size(1)",
    "prefix": "m = xt.size(0), k = xt.size(0), n = xt.size(1)",
    "center": "m = xt.size(0), k = xt.size(0), n = xt.size(1)",
    "repeat": "m = xt.size(0), k = xt.size(0), n = xt.size(1)",
}
_DENSE_RIGHT = frozenset({"expand", "diag_right"})


def _product(w: Writer, program: Program, source: str) -> None:
    _helper(w, transposed=False)
    core = program.core
    assert core is not None
    if core in _SIZES:
        _dense_product(w, program, source)
        return
    w.add("  int64_t m = xt.size(0), k = xt.size(1), n = yt.size(1);")
    w.add("  std::vector<float> c(m * n);")
    w.add(f"  matmul({_data(source)}, y, c.data(), m, k, n);")
    if core == "chain":
        _sum_rows(w, "s", "c[i * n + j] * z[j]")
    elif core in ("row_sum", "row_mean"):
        _sum_rows(w, "s / n" if core == "row_mean" else "s", "c[i * n + j]")
    else:
        w.parallel("  ")
        w.open("  ", "j", "n")
        w.add("    float s = 0.0f;")
        w.add("    for (int64_t i = 0; i < m; ++i) s += c[i * n + j];")
        w.add(f"    out[j] = {'s / m' if core == 'col_mean' else 's'};", "  }")


def _dense_product(w: Writer, program: Program, source: str) -> None:
    """Build the structured factor as a dense matrix ``d`` and multiply by it."""
    assert program.core is not None
    w.add(f"  int64_t {_SIZES[program.core]};")
    factor = _FACTORS[program.core].format(x=source)
    if program.core in _DENSE_RIGHT:
        rows, cols, left, right = "k", "n", _data(source), "d.data()"
    else:
        rows, cols, left, right = "m", "k", "d.data()", _data(source)
    if program.core == "outer":
        right = "z"
    w.add(f"  std::vector<float> d({rows} * {cols});")
    w.open("  ", "i", rows)
    w.add(f"    for (int64_t j = 0; j < {cols}; ++j) d[i * {cols} + j] = {factor};", "  }")
    target = "out"
    if program.rows is not None:
        w.add("  int64_t rows = m, cols = n;", "  std::vector<float> c(rows * cols);")
        target = "c.data()"
    w.add(f"  matmul({left}, {right}, {target}, m, k, n);")
