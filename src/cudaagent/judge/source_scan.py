"""Scans the C++ and CUDA sources of a submission for what has no place in a kernel.

Advice with clear messages: the text says early what the sandbox, the symbol table and the zones
enforce later. Comments and literals are removed by a tokeniser that knows line continuations, raw
strings and digraphs. Names that mean other things too (``write``, ``bind``) are refused only where
they are called and the file does not define them. Not covered: names that the preprocessor pastes
together.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from cudaagent.judge.verdict import Failure
from cudaagent.workspace.submission import Submission


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MAX_TOTAL_BYTES = 1 << 20
SUFFIXES = (
    ".cpp",
    ".cc",
    ".cxx",
    ".cu",
    ".cuh",
    ".h",
    ".hpp",
    ".hh",
    ".inl",
    ".inc",
    ".md",
    ".txt",
)

STANDARD_HEADERS = _words(
    "algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv "
    "chrono cinttypes climits cmath compare complex concepts condition_variable cstdarg cstddef "
    "cstdint cstdio cstdlib cstring ctime deque exception execution forward_list functional "
    "future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list map "
    "memory memory_resource mutex new numbers numeric optional ostream queue random ranges ratio "
    "semaphore set shared_mutex span sstream stack stdexcept stop_token streambuf string "
    "string_view thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility "
    "valarray variant vector version assert.h ctype.h errno.h fenv.h float.h inttypes.h limits.h "
    "math.h memory.h stdarg.h stdbool.h stddef.h stdint.h stdio.h stdlib.h string.h time.h "
    "stdalign.h stdatomic.h"
)
COMPILER_HEADERS = _words(
    "omp.h immintrin.h x86intrin.h emmintrin.h xmmintrin.h pmmintrin.h tmmintrin.h smmintrin.h "
    "nmmintrin.h wmmintrin.h avxintrin.h avx2intrin.h fmaintrin.h f16cintrin.h mmintrin.h "
    "arm_neon.h arm_sve.h arm_acle.h"
)
CUDA_HEADERS = _words(
    "cuda.h cuda_runtime.h cuda_runtime_api.h cuda_fp16.h cuda_bf16.h cuda_fp8.h cuda_pipeline.h "
    "cuda_awbarrier.h cublas_v2.h cublasLt.h cudnn.h cooperative_groups.h mma.h math_constants.h "
    "device_launch_parameters.h device_functions.h vector_types.h vector_functions.h "
    "cooperative_groups/reduce.h cooperative_groups/memcpy_async.h cooperative_groups/scan.h"
)
LIBRARY_PREFIXES = ("tvm/ffi/", "dlpack/", "cub/", "thrust/", "cutlass/", "cute/", "cuda/", "nv/")
TORCH_PREFIXES = ("torch/", "ATen/", "c10/")
BINDING_HEADERS = _words("binding_registry.h ../binding_registry.h")

ALWAYS = _words(
    "popen vfork execl execle execlp execv execve execveat execvp execvpe fexecve dlopen dlsym "
    "dlmopen dlvsym dl_iterate_phdr ptrace process_vm_readv process_vm_writev mprotect "
    "pkey_mprotect mremap posix_spawn posix_spawnp prctl unshare setns memfd_create shm_open "
    "__open_2 __open64_2 __openat_2 __openat64_2 dprintf vdprintf timer_create timer_settime "
    "mq_notify sigqueue pthread_sigqueue fopen fopen64 freopen fdopen mkstemp secure_getenv "
    "setenv unsetenv putenv clearenv environ "
    "__environ sigaction sigprocmask perf_event_open pidfd_open pidfd_getfd userfaultfd _r_debug "
    "link_map __libc_dlopen_mode cudaIpcGetMemHandle cudaIpcOpenMemHandle cuIpcGetMemHandle "
    "cuIpcOpenMemHandle cudaDeviceReset cudaDeviceSetLimit cudaCtxResetPersistingL2Cache "
    "cudaProfilerStart cudaProfilerStop getauxval __builtin_ia32_rdpkru basic_ofstream "
    "basic_ifstream ofstream ifstream fstream filebuf"
)
CALLED = _words(
    "system fork clone clone3 kill tgkill raise signal socket connect bind listen accept send "
    "sendto sendmsg recv recvfrom recvmsg open open64 openat creat read write pread pwrite exit "
    "_exit _Exit quick_exit at_quick_exit atexit syscall mmap mmap64 munmap remove rename unlink "
    "chmod chown getenv setjmp longjmp siglongjmp sigsetjmp dup dup2 pipe fcntl ioctl waitpid "
    "setrlimit setpriority sched_setaffinity sched_setscheduler pthread_create pthread_kill "
    "pthread_setaffinity_np"
)
_IN_STD = _words(
    "system exit _Exit quick_exit at_quick_exit atexit raise signal rename getenv longjmp"
)
_BEFORE_CALL = _words(
    "return else do case throw co_return co_await co_yield goto new delete not and or"
)
_TORCH_NAMES = _words(
    "Tensor empty empty_like empty_strided zeros zeros_like ones ones_like full full_like "
    "TensorOptions ScalarType IntArrayRef ArrayRef OptionalTensorRef Device DeviceType "
    "DeviceGuard cuda kFloat kFloat32 kFloat64 kDouble kHalf kFloat16 kBFloat16 kInt kInt32 kLong "
    "kInt64 kShort kChar kByte kBool kCUDA kCPU Half BFloat16 Layout MemoryFormat Dtype dtype "
    "device layout Library optional python getCurrentCUDAStream opmath_type acc_type nullopt "
    "indexing"
)
_ASM = _words("asm __asm__ __asm")
_ASM_REFUSED = re.compile(
    r"\b(syscall|sysenter|svc|call|callq|jmp|jmpq|hlt|rdtscp?|rdpmc|clflush(opt)?)\b|\bint\s*\$?\s*(0x)?[0-9a-f]"
    r"|\.(byte|short|word|long|quad|octa|ascii|string|incbin|include|section|globl|global|symver|pushsection|text|data)\b"
)
_MAX_ASSEMBLY = 2000
_ASM_PLAIN = 'inline assembly is asm("..." : ...) with its text in plain string literals'
_ATTRIBUTES = _words("constructor destructor ifunc init_priority weakref")
_PRAGMAS = _words(
    "omp once unroll nounroll ivdep STDC GCC clang nv_diag_suppress nv_diag_default message"
)
_GCC_PRAGMAS = _words("ivdep unroll diagnostic optimize target push_options pop_options")

_TOKEN = re.compile(
    r"""
    (?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^\s()\\]{0,16})\((?s:.*?)(?:\)(?P=delimiter)"|\Z))
  | (?P<comment>//[^\n]*|/\*(?s:.*?)(?:\*/|\Z))
  | (?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*(?:"|$))
  | (?P<number>\.?\d(?:[eEpP][+-]|'[0-9A-Za-z_]|[0-9A-Za-z_.])*)
  | (?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')
  | (?P<name>[^\W\d]\w*)
  | (?P<newline>\n)
  | (?P<space>[^\S\n]+)
  | (?P<punctuation>::|->|\#\#|%:%:|%:|.)
    """,
    re.VERBOSE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """``kind``: name, string, number, punctuation or newline."""

    kind: str
    text: str
    line: int


class _Finding(Exception):
    def __init__(self, code: str, line: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.line = line


def scan_sources(submission: Submission) -> Failure | None:
    """Scan ``kernels/**``: includes, system calls, inline assembly, ATen operators.

    Returns:
        None, or ``forbidden-operator`` or ``static-check`` with file, line and what to do.
    """
    if sum(len(data) for _, data in submission.sources) > MAX_TOTAL_BYTES:
        text = f"kernels/ holds more than {MAX_TOTAL_BYTES >> 20} MiB of sources"
        return Failure("static-check", "static", text)
    paths = {path for path, _ in submission.sources}
    torch_binding = any(path.endswith("_binding.cpp") for path in paths)
    for path, data in submission.sources:
        try:
            _scan_file(path, data, paths, torch_binding)
        except _Finding as finding:
            return Failure(
                finding.code,
                "static",
                f"{path}, line {finding.line}: {finding}",
                {"file": path, "line": finding.line},
            )
    return None


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a C++ source without comments and spaces; literals keep their text."""
    joined, starts = _join_lines(text)
    position, seen, line = 0, 0, 1
    for match in _TOKEN.finditer(joined):
        while position + 1 < len(starts) and starts[position + 1][0] <= match.start():
            position += 1
            seen, line = starts[position]
        line += joined.count("\n", seen, match.start())
        seen = match.start()
        kind = match.lastgroup or "punctuation"
        if kind in ("comment", "space"):
            continue
        if kind in ("raw", "delimiter", "char"):
            kind = "string"
        yield Token(kind, match.group(), line)


def _join_lines(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Remove line continuations; (offset, line) of every piece that follows one."""
    pieces = re.split(r"\\[ \t]*\r?\n", text)
    starts = [(0, 1)]
    offset, line = 0, 1
    for piece in pieces[:-1]:
        offset += len(piece)
        line += piece.count("\n") + 1
        starts.append((offset, line))
    return "".join(pieces), starts


def _scan_file(path: str, data: bytes, paths: Collection[str], torch_binding: bool) -> None:
    if not path.endswith(SUFFIXES):
        raise _Finding("static-check", 1, f"kernels/ holds sources only ({', '.join(SUFFIXES)})")
    if b"\0" in data or data.startswith((b"\x7fELF", b"!<arch>")):
        raise _Finding("static-check", 1, "the file is binary; kernels/ holds sources only")
    if path.endswith((".md", ".txt")):
        return
    found = list(tokens(data.decode("utf-8", errors="replace")))
    _check_operators(found, torch_binding)
    for line in _directives(found):
        _check_directive(line, path, paths, torch_binding)
    _check_names(found)


def _directives(found: Sequence[Token]) -> Iterator[list[Token]]:
    """Preprocessor lines, without the ``#``."""
    start = True
    current: list[Token] | None = None
    for token in found:
        if token.kind == "newline":
            if current:
                yield current
            start, current = True, None
        elif current is not None:
            current.append(token)
        elif start and token.text in ("#", "%:"):
            current = []
        else:
            start = False
    if current:
        yield current


def _check_directive(
    line: Sequence[Token], path: str, paths: Collection[str], torch_binding: bool
) -> None:
    name, number = line[0].text, line[0].line
    if name in ("include", "include_next", "import", "embed"):
        if name != "include":
            raise _Finding("static-check", number, f"#{name} is not allowed; write #include")
        _check_include(line[1:], number, path, paths, torch_binding)
    elif name == "pragma" and len(line) > 1:
        kind = line[1].text
        bad = kind not in _PRAGMAS
        if kind in ("GCC", "clang") and len(line) > 2:
            bad = line[2].text not in _GCC_PRAGMAS | {"loop"}
        if bad:
            raise _Finding("static-check", number, f"#pragma {kind} is not allowed here")


def _check_include(
    rest: Sequence[Token], number: int, path: str, paths: Collection[str], torch_binding: bool
) -> None:
    if rest and rest[0].kind == "string" and rest[0].text.startswith('"'):
        header, quoted = rest[0].text.strip('"'), True
    elif rest and rest[0].text == "<":
        header, quoted = "".join(token.text for token in rest[1:]).rpartition(">")[0], False
    else:
        raise _Finding("static-check", number, "write the header's name in the #include itself")
    if torch_binding and (header in BINDING_HEADERS or header.startswith(TORCH_PREFIXES)):
        return
    if header.startswith("/") or ".." in header.split("/") or "\\" in header:
        raise _Finding(
            "static-check",
            number,
            f"#include {header}: absolute paths and .. are not "
            "allowed; own headers lie in kernels/",
        )
    if quoted:
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(path), header))
        if beside in paths or f"kernels/{header}" in paths:
            return
    if header in STANDARD_HEADERS | COMPILER_HEADERS | CUDA_HEADERS:
        return
    if header.startswith(LIBRARY_PREFIXES):
        return
    if header.startswith(TORCH_PREFIXES) or header == "pybind11/pybind11.h":
        raise _Finding(
            "static-check",
            number,
            f"#include <{header}>: torch's headers are not available "
            "here; take tvm::ffi::TensorView arguments (#include <tvm/ffi/tvm_ffi.h>) and "
            "allocate outputs in model_new.py",
        )
    where = " and not in kernels/" if quoted else ""
    raise _Finding(
        "static-check",
        number,
        f"#include {header} is not on the list{where}: the C++ standard "
        "library (without files and signals), tvm/ffi/*, dlpack/*, omp.h, immintrin.h, CUDA's "
        "headers and own headers in kernels/ are",
    )


def _check_operators(found: Sequence[Token], torch_binding: bool) -> None:
    """``at::name`` and ``torch::name`` beyond allocation, metadata and checks."""
    for first, second, third in zip(found, found[1:], found[2:], strict=False):
        if first.text not in ("at", "torch", "aten") or second.text != "::" or third.kind != "name":
            continue
        if torch_binding and third.text in _TORCH_NAMES:
            continue
        raise _Finding(
            "forbidden-operator",
            first.line,
            f"{first.text}::{third.text}: ATen must not compute; write the loop or kernel yourself",
        )


def _check_names(found: Sequence[Token]) -> None:
    significant = [token for token in found if token.kind != "newline"]
    own = {
        token.text
        for before, token, after in zip(significant, significant[1:], significant[2:], strict=False)
        if token.text in CALLED and after.text == "(" and _declares(before)
    }
    for position, token in enumerate(significant):
        if token.kind != "name":
            continue
        if token.text in ALWAYS:
            raise _Finding("static-check", token.line, _why(token.text))
        if token.text in CALLED and token.text not in own and _is_called(significant, position):
            raise _Finding("static-check", token.line, _why(token.text))
        if token.text in _ASM:
            _check_assembly(significant, position)
        if token.text in ("_Pragma", "__pragma"):
            raise _Finding(
                "static-check", token.line, f"{token.text} is not allowed; write #pragma"
            )
        if token.text.strip("_") in _ATTRIBUTES and _in_attribute(significant, position):
            raise _Finding(
                "static-check",
                token.line,
                f"attribute {token.text} runs code at load time; "
                "a kernel's work belongs in its function",
            )


def _why(name: str) -> str:
    return (
        f"{name}: kernels compute and do nothing else; no processes, signals, sockets, files, "
        "environment, loading of libraries or changes of memory protection"
    )


def _declares(before: Token) -> bool:
    """Whether a name after this token is being declared: a type's end precedes it."""
    if before.kind == "name":
        return before.text not in _BEFORE_CALL
    return before.text in ("*", "&", ">")


def _is_called(found: Sequence[Token], position: int) -> bool:
    after = found[position + 1].text if position + 1 < len(found) else ""
    before = found[position - 1] if position else None
    if before is not None and before.text in (".", "->"):
        return False
    if before is not None and before.text == "::":
        qualifier = found[position - 2] if position > 1 else None
        if (
            qualifier is not None
            and qualifier.kind == "name"
            and qualifier.text not in _BEFORE_CALL
        ):
            return qualifier.text == "std" and found[position].text in _IN_STD
        return True
    # An address taken is as good as a call.
    return after == "(" or (before is not None and before.text == "&" and after in (";", ")", ","))


def _check_assembly(found: Sequence[Token], position: int) -> None:
    opening = next(
        (t for t in found[position + 1 :] if t.text not in ("volatile", "__volatile__", "inline")),
        None,
    )
    if opening is None or opening.text != "(":
        raise _Finding("static-check", found[position].line, _ASM_PLAIN)
    depth, text, template = 0, "", True
    for token in found[position + 1 : position + 1 + _MAX_ASSEMBLY]:
        if token.text == "(":
            depth += 1
        elif token.text == ")":
            depth -= 1
            if depth == 0:
                break
        elif token.kind == "string":
            if re.search(r"\\[^nt\\\"]", token.text) or not token.text.startswith('"'):
                raise _Finding("static-check", token.line, _ASM_PLAIN)
            # The compiler joins neighbours, so a word may begin in one and end in the next.
            text += token.text.strip('"')
        elif template and depth == 1 and token.text not in (":", "::"):
            raise _Finding("static-check", token.line, _ASM_PLAIN)
        elif depth == 1:
            template = False
            text += " "
        elif depth == 0 and token.text in (";", "{"):
            break
    else:
        raise _Finding(
            "static-check", found[position].line, "inline assembly is too long or never ends"
        )
    match = _ASM_REFUSED.search(text)
    if match is not None:
        raise _Finding(
            "static-check",
            found[position].line,
            f"inline assembly with {match.group()!r} is not "
            "allowed; compute with intrinsics or plain C++",
        )


def _in_attribute(found: Sequence[Token], position: int) -> bool:
    nearby = [token.text for token in found[max(0, position - 6) : position]]
    return "__attribute__" in nearby or "gnu" in nearby or nearby[-2:] == ["[", "["]
