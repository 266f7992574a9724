"""Kernel text of the teacher: one C++ file and one ``model_new.py`` for a program and a variant.

The style is one and the same everywhere, because a small language model learns it by heart:
pointers ``x``, ``y``, ``z``, ``out`` taken from tensors ``xt``, ``yt``, ``zt``, ``ot``; loops
``i`` over rows and ``j`` over columns; one statement on ``v`` for each pointwise operator. Column
loops go in strips of 128, so the sizes that are summed over columns are multiples of 128.

Pure text; runs in any process. Not covered: tensors that are not contiguous, sizes that are not
multiples of 8.
"""

from __future__ import annotations

from dataclasses import dataclass

from cudaagent.policy.teacher_literal import literal_body
from cudaagent.policy.teacher_source import REDUCTIONS, Program
from cudaagent.policy.teacher_text import Style, Writer

ROW_VARIANTS = ("literal", "fused", "fused-openmp")
STREAM_VARIANTS = (*ROW_VARIANTS, "fused-openmp-stream")
PRODUCT_VARIANTS = ("literal", "literal-openmp", "algebra", "algebra-openmp")


def variants_of(program: Program) -> tuple[str, ...]:
    """Names of the variants, from naive to well optimised; no two have the same text."""
    if program.core is not None:
        return PRODUCT_VARIANTS
    names = ROW_VARIANTS if program.rows in REDUCTIONS else STREAM_VARIANTS
    if kernel(program, "fused") == kernel(program, "literal"):
        return tuple(name for name in names if name != "fused")
    return names


def kernel(program: Program, variant: str) -> str:
    """Text of ``kernels/kernel.cpp``."""
    words = variant.split("-")
    style = Style(openmp="openmp" in words, stream="stream" in words)
    body = Writer(style)
    if words[0] == "literal":
        literal_body(body, program)
    elif program.core is None:
        _fused_body(body, program)
    else:
        _algebra_body(body, program)
    arguments = [f"TensorView {name}t" for name in tensor_names(program)]
    text = body.text()
    includes = ["<tvm/ffi/container/tensor.h>", "<tvm/ffi/function.h>"]
    includes += ["<immintrin.h>"] if style.stream else []
    includes += ["<algorithm>", "<cmath>", "<vector>"]
    pointers = [
        f"  const float* {name} = static_cast<const float*>({name}t.data_ptr());"
        for name in tensor_names(program)
    ]
    return "\n".join(
        [
            *(f"#include {name}" for name in includes),
            "",
            "using tvm::ffi::TensorView;",
            "",
            *body.helpers,
            f"void forward({', '.join(arguments)}, TensorView ot) {{",
            *pointers,
            "  float* out = static_cast<float*>(ot.data_ptr());",
            *text,
            "}",
            "",
            "TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward, forward);",
            "",
        ]
    )


def tensor_names(program: Program) -> tuple[str, ...]:
    """Tensors that the kernel takes: the inputs, and the weight as ``w``."""
    return (*program.inputs, "w") if program.linear else program.inputs


def model_new(program: Program) -> str:
    """Text of ``model_new.py``; the same for all variants of a task."""
    held = ", in_features, out_features" if program.linear else ""
    layer = (
        "        self.linear = nn.Linear(in_features, out_features, bias=False)\n"
        if program.linear
        else ""
    )
    inputs = ", ".join(program.inputs)
    passed = f"{inputs}, self.linear.weight" if program.linear else inputs
    return (
        "import torch\nimport torch.nn as nn\nimport cuda_extension\n\n\n"
        "class ModelNew(nn.Module):\n"
        f"    def __init__(self{held}):\n        super().__init__()\n{layer}\n"
        f"    def forward(self, {inputs}):\n"
        f"        out = {_output(program)}\n"
        f"        cuda_extension.forward({passed}, out)\n"
        "        return out\n"
    )


def _output(program: Program) -> str:
    if program.rows in REDUCTIONS:
        return "torch.empty(x.size(0))"
    if program.core in ("col_sum", "col_mean"):
        return "torch.empty(y.size(1))"
    if program.core in ("linear_sum", "linear_mean", "row_sum", "row_mean", "chain", "diagonal"):
        return "torch.empty(x.size(0))"
    if program.core == "outer":
        return "torch.empty(x.size(0), z.size(1))"
    if program.core == "expand":
        return f"torch.empty(x.size(0), {program.columns})"
    return "torch.empty_like(x)"


@dataclass(frozen=True, slots=True)
class _Element:
    """How the value ``v`` of row ``i`` and column ``j`` is made before the row operator."""

    lines: tuple[str, ...]


def _fused_body(w: Writer, program: Program) -> None:
    if program.rows is None:
        w.add("  int64_t n = xt.numel();")
        if w.style.stream:
            w.parallel("  ")
            w.add("  for (int64_t i = 0; i < n; i += 8) {", "    float r[8];")
            w.simd("    ")
            w.add("    for (int64_t j = 0; j < 8; ++j) {", "      float v = x[i + j];")
            w.add(*(f"      {line}" for line in program.pre), "      r[j] = v;", "    }")
            w.add("    _mm256_stream_ps(out + i, _mm256_loadu_ps(r));", "  }")
        else:
            w.flat("x", "out", program.pre)
        return
    w.add("  int64_t rows = xt.size(0), cols = xt.size(1);")
    element = _Element(("float v = x[i * cols + j];", *program.pre))
    _rows(w, program, element)


def _rows(w: Writer, program: Program, element: _Element) -> None:
    w.parallel("  ")
    w.add("  for (int64_t i = 0; i < rows; ++i) {")
    if program.rows is None:
        w.loop("    ", "j", "cols", (*element.lines, "out[i * cols + j] = v;"))
    elif program.rows in REDUCTIONS:
        w.reduce("    ", program.rows, element.lines, program.post)
    else:
        w.normalise("    ", program.rows, element.lines, program.post)
    w.add("  }")


def _algebra_body(w: Writer, program: Program) -> None:
    core = program.core
    if core in ("diag_left", "diag_right", "center", "outer"):
        _matrix(w, program)
    elif core in ("repeat", "prefix", "expand"):
        _repeated(w, program)
    elif core in ("col_sum", "col_mean"):
        w.add("  int64_t m = xt.size(0), k = xt.size(1), n = yt.size(1);")
        w.add("  std::vector<float> u(k, 0.0f), t(n, 0.0f);")
        w.columns("k", "m", ("float v = x[i * k + j];", *program.pre, "u[j] += v;"))
        value = "t[j] / m" if core == "col_mean" else "t[j]"
        w.columns(
            "n",
            "k",
            ("t[j] += u[i] * y[i * n + j];",),
            (f"float v = {value};", *program.mid, "out[j] = v;"),
        )
    elif core == "diagonal":
        w.add("  int64_t rows = xt.size(0), cols = xt.size(1);")
        _dot(w, program, "y[i * cols + j]", "s")
    else:
        _vector(w, program)


def _matrix(w: Writer, program: Program) -> None:
    load = ("float v = x[i * cols + j];", *program.pre)
    if program.core == "outer":
        w.add("  int64_t rows = xt.size(0), k = yt.size(0), cols = zt.size(1);")
        w.add("  std::vector<float> u(cols, 0.0f);")
        w.columns("cols", "k", ("u[j] += y[i] * z[i * cols + j];",))
        load = ("float v = x[i];", *program.pre, "v = v * u[j];")
    else:
        w.add("  int64_t rows = xt.size(0), cols = xt.size(1);")
        if program.core == "center":
            w.add("  std::vector<float> u(cols, 0.0f);")
            w.columns("cols", "rows", (*load, "u[j] += v;"))
            load = (*load, "v = v - u[j] / rows;")
        else:
            load = (*load, "v = v * y[i];" if program.core == "diag_left" else "v = v * y[j];")
    _rows(w, program, _Element((*load, *program.mid)))


def _repeated(w: Writer, program: Program) -> None:
    load = ("float v = x[i * cols + j];", *program.pre)
    if program.core == "expand":
        w.add("  int64_t rows = xt.size(0), k = xt.size(1), cols = ot.size(1);")
        w.parallel("  ")
        w.add("  for (int64_t i = 0; i < rows; ++i) {")
        load = ("float v = x[i * k + j];", *program.pre, "s += v * y[j];")
        w.sum("    ", "k", load)
        w.add("    float v = s;", *(f"    {line}" for line in program.mid))
        w.loop("    ", "j", "cols", ("out[i * cols + j] = v;",))
        w.add("  }")
        return
    w.add("  int64_t rows = xt.size(0), cols = xt.size(1);")
    w.add("  std::vector<float> u(cols, 0.0f);")
    if program.core == "prefix":
        store = ("v = u[j];", *program.mid, "out[i * cols + j] = v;")
        w.columns("cols", "rows", (*load, "u[j] += v;", *store))
        return
    w.columns("cols", "rows", (*load, "u[j] += v;"))
    _rows(w, program, _Element(("float v = u[j];", *program.mid)))


def _vector(w: Writer, program: Program) -> None:
    """Products whose result is one number a row: fold the right factor first."""
    if program.linear:
        w.add("  int64_t rows = xt.size(0), cols = xt.size(1), n = wt.size(0);")
        w.add("  std::vector<float> u(cols, 0.0f);")
        w.columns("cols", "n", ("u[j] += w[i * cols + j];",))
    else:
        w.add("  int64_t rows = xt.size(0), cols = xt.size(1), n = yt.size(1);")
        w.add("  std::vector<float> u(cols);")
        term = "y[i * n + j] * z[j]" if program.core == "chain" else "y[i * n + j]"
        w.parallel("  ")
        w.add("  for (int64_t i = 0; i < cols; ++i) {")
        w.sum("    ", "n", (f"t += {term};",), name="t")
        w.add("    u[i] = t;", "  }")
    mean = program.core in ("linear_mean", "row_mean")
    _dot(w, program, "u[j]", "t / n" if mean else "t", name="t")


def _dot(w: Writer, program: Program, factor: str, value: str, *, name: str = "s") -> None:
    w.parallel("  ")
    w.add("  for (int64_t i = 0; i < rows; ++i) {")
    load = ("float v = x[i * cols + j];", *program.pre, f"{name} += v * {factor};")
    w.sum("    ", "cols", load, name=name)
    w.add(f"    float v = {value};", *(f"    {line}" for line in program.mid))
    w.add("    out[i] = v;", "  }")
