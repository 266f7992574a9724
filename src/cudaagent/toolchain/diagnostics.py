"""What the agent reads when a build fails: the compiler's own text and a hint that helps.

Pure functions on the trusted side.
"""

from __future__ import annotations

import re

from cudaagent.sandbox.output import cut_middle

_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"fatal error: (?:torch|ATen|c10|pybind11)/\S+: No such file",
        "there are no torch headers here; take tvm::ffi::TensorView arguments and include "
        "<tvm/ffi/container/tensor.h> and <tvm/ffi/function.h>",
    ),
    (
        r"fatal error: cuda\S*: No such file",
        "target cpu has no CUDA; write C++ with OpenMP and vector intrinsics",
    ),
    (
        r"fatal error: \S+: No such file",
        'own headers lie in kernels/ and are included as "name.h"',
    ),
    (
        r"expected constructor, destructor, or type conversion[^\n]*\n[^\n]*TVM_FFI_DLL|"
        r"TVM_FFI_DLL_EXPORT_TYPED_FUNC.{0,3} (?:was not declared|does not name)|"
        r"'tvm' has not been declared|'tvm' was not declared",
        "TensorView and TVM_FFI_DLL_EXPORT_TYPED_FUNC need #include <tvm/ffi/container/tensor.h> "
        "and #include <tvm/ffi/function.h>",
    ),
    (
        r"TensorView.{0,3} has no member named",
        "TensorView has data_ptr(), numel(), ndim(), size(i), stride(i), shape(), strides(), "
        "dtype() and IsContiguous()",
    ),
    (
        r"invalid conversion from 'void\*'",
        "data_ptr() is void*: static_cast<const float*>(x.data_ptr())",
    ),
    (
        r"'(?:_mm\d*_\w+|__m\d+\w*)' (?:was not declared|does not name)",
        "#include <immintrin.h>",
    ),
    (
        r"target specific option mismatch|inlining failed in call to 'always_inline'",
        "this processor lacks that instruction set; guard it with #ifdef __AVX512F__ and the like",
    ),
    (r"'omp_\w+' was not declared", "#include <omp.h>"),
    (
        r"'(?:std::)?(?:sqrtf?|expf?|logf?|tanhf?|powf?|fabsf?|erff?|floorf?|fmaxf?|fminf?)'.{0,40}"
        r"(?:was not declared|is not a member)",
        "#include <cmath>",
    ),
    (r"invalid controlling predicate|invalid increment expression|break statement used with OpenMP",
     "an OpenMP loop is `for (int64_t i = a; i < b; i += c)` without break"),
    (
        r"undefined reference to",
        "a function is declared and called, but no file in kernels/ defines it (compare name, "
        "arguments and namespace)",
    ),
    (
        r"multiple definition of",
        "two files define the same function; make it static or inline",
    ),
    (
        r"virtual memory exhausted|out of memory|Killed signal terminated program",
        "the compiler ran out of memory; make templates and unrolled code smaller",
    ),
)  # fmt: skip
_NOT_ITS_FAULT = re.compile(
    r"internal compiler error|No space left|Killed signal|virtual memory exhausted|out of memory|"
    r"Resource temporarily unavailable|Cannot allocate"
)


def is_repeatable(text: str) -> bool:
    """Whether the same sources would fail the same way again, so that the failure may be kept."""
    return _NOT_ITS_FAULT.search(text) is None


def explain(text: str, limit: int) -> str:
    """Compiler output with hints after it, at most about ``limit`` bytes, the middle cut."""
    plain = text.replace("\u2018", "'").replace("\u2019", "'")
    hints = [hint for pattern, hint in _HINTS if re.search(pattern, plain)][:3]
    lines = [f"hint: {hint}" for hint in hints]
    return "\n".join([cut_middle(plain.strip(), limit), *lines]).strip()
