"""The static check: honest texts pass, hostile ones are refused with the right code and a line."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from honest_python import HONEST
from hostile_python import HOSTILE

from cudaagent.judge.library_scan import read_imports
from cudaagent.judge.source_scan import tokens
from cudaagent.judge.static_check import (
    check_model_new,
    check_submission,
    scan_library,
    scan_sources,
)
from cudaagent.workspace.submission import Submission

SOLUTIONS = Path(__file__).parent / "solutions"

LIGHT = """
#include <cmath>
#include <tvm/ffi/tvm_ffi.h>

void scale(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  const float* a = static_cast<const float*>(x.data_ptr());
  float* b = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) b[i] = std::exp(a[i]);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, scale);
"""


@pytest.mark.parametrize("name", HONEST)
def test_honest_python_is_accepted(name: str) -> None:
    assert check_model_new(HONEST[name]) is None


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_python_is_refused(name: str) -> None:
    code, source = HOSTILE[name]
    failure = check_model_new(source)
    assert failure is not None
    assert failure.code == code
    assert failure.stage == "static"
    assert re.match(r"model_new\.py, line \d+: .{15}", failure.message)


def test_a_refusal_names_line_and_remedy() -> None:
    code, source = HOSTILE["method"]
    failure = check_model_new(source)
    assert failure is not None
    assert failure.code == code
    assert failure.evidence["line"] == source.splitlines().index("        return x.sum(dim=-1)") + 1
    assert "cuda_extension" in failure.message


def test_entangled_file_is_refused_not_walked_for_ever() -> None:
    functions = "\n".join(
        f"def f{i}(a, b):\n    return f{i + 1}(a, [b]) or f{i + 1}([a], b)" for i in range(40)
    )
    source = functions + "\ndef f40(a, b):\n    return a\n" + HONEST["plain"]
    failure = check_model_new(source.replace("return out", "f0(x, 1)\n        return out"))
    assert failure is None or failure.code == "static-check"


def test_missing_model_is_no_solution() -> None:
    failure = check_submission(Submission.from_mapping({"kernels/kernel.cpp": LIGHT.encode()}))
    assert failure is not None
    assert failure.code == "no-solution"


def _sources(text: str | bytes, path: str = "kernels/kernel.cpp", **others: str) -> Submission:
    data = text if isinstance(text, bytes) else text.encode()
    files = {path: data, **{f"kernels/{name}": body.encode() for name, body in others.items()}}
    return Submission.from_mapping(files)


HONEST_SOURCES = {
    "light": LIGHT,
    "comments and strings": LIGHT + '// system("x"); #include <torch/extension.h>\n'
    '/* asm volatile("syscall") */ const char* s = "fork() // at::relu";\n'
    'const char* r = R"x(dlopen("a") #include <sys/ptrace.h>)x";\n'
    "char c = '\"'; long n = 1'000;\n",
    "headers": "#include <omp.h>\n#include <immintrin.h>\n#  include <vector>\n#include <cstdint>\n"
    "#include <dlpack/dlpack.h>\n#pragma omp parallel for\n#pragma once\n#pragma GCC ivdep\n"
    + LIGHT,
    "own functions of common names": LIGHT
    + "static inline float read(const float* p) { return *p; }\n"
    "struct Sink { void write(float v) { value = v; } float value; };\n"
    "void remove(float* p) { *p = read(p); Sink s; s.write(1.f); remove(p); }\n",
    "standard namespace": "#include <functional>\n#include <algorithm>\n"
    + LIGHT
    + "auto f = std::bind(scale, std::placeholders::_1, std::placeholders::_2);\n"
    "template <class V> void drop(V& v) {\n"
    "  v.erase(std::remove(v.begin(), v.end(), 0), v.end());\n}\n",
    "macros": LIGHT + "#define EXPORT(name) \\\n  TVM_FFI_DLL_EXPORT_TYPED_FUNC(name##_f, name)\n",
    "assembly": LIGHT + 'void pause_() { __asm__ volatile("pause" ::: "memory"); }\n',
    "errors": LIGHT + '#include <stdexcept>\nvoid g() { throw std::runtime_error("bad"); }\n',
    "member named exit": LIGHT
    + "struct S { int exit; int kill() { return exit; } int signal = 0; };\n",
}


@pytest.mark.parametrize("name", HONEST_SOURCES)
def test_honest_sources_are_accepted(name: str) -> None:
    assert scan_sources(_sources(HONEST_SOURCES[name])) is None


def test_own_headers_and_folders_are_accepted() -> None:
    submission = Submission.from_mapping(
        {
            "kernels/a/kernel.cpp": b'#include "util.h"\n#include "common.h"\n' + LIGHT.encode(),
            "kernels/a/util.h": b"#pragma once\ninline int one() { return 1; }\n",
            "kernels/common.h": b"#pragma once\n",
            "kernels/README.md": b"system(\n",
        }
    )
    assert scan_sources(submission) is None


def test_torch_binding_may_include_torch_and_allocate_only() -> None:
    honest = (
        '#include <torch/types.h>\n#include "../binding_registry.h"\n'
        "torch::Tensor f(torch::Tensor x) { return torch::empty_like(x); }\n"
    )
    assert scan_sources(_sources(honest, "kernels/scale_binding.cpp")) is None
    failure = scan_sources(
        _sources(
            honest + "auto g(at::Tensor x) { return at::relu(x); }\n", "kernels/scale_binding.cpp"
        )
    )
    assert failure is not None
    assert failure.code == "forbidden-operator"


HOSTILE_SOURCES = {
    "torch header": "#include <torch/extension.h>\n",
    "aten header": '#include "ATen/ATen.h"\n',
    "system header": "#include <sys/ptrace.h>\n",
    "absolute include": '#include "/etc/passwd"\n',
    "parent include": '#include "../model.h"\n',
    "missing header": '#include "missing.h"\n',
    "files": "#include <fstream>\n",
    "macro include": "#define H <unistd.h>\n#include H\n",
    "continued include": "#inc\\\nlude <dlfcn.h>\n",
    "digraph include": "%:include <dlfcn.h>\n",
    "include after a comment": "/* a */ #include <unistd.h>\n",
    "include_next": "#include_next <vector>\n",
    "system call": 'void f() { system("id"); }\n',
    "global qualifier": 'void f() { ::system("id"); }\n',
    "std qualifier": 'void f() { std::system("id"); }\n',
    "fork": "int f() { return fork(); }\n",
    "split name": "int f() { return fo\\\nrk(); }\n",
    "exit": "struct A { A() { _Exit(0); } } a;\n",
    "address of exit": "auto f = &exit;\n",
    "dlopen": 'void* f() { return dlopen("x", 1); }\n',
    "name in a macro": "#define CALL dlsym\n",
    "mprotect": "int f(void* p) { return mprotect(p, 1, 7); }\n",
    "after a tricky literal": 'const char* a = "\\""; int f() { return vfork(); }\n',
    "after a raw literal": 'const char* a = R"(//)"; int f() { return vfork(); }\n',
    "assembly syscall": 'void f() { asm volatile("syscall"); }\n',
    "assembly in pieces": 'void f() { __asm__("sys" "call"); }\n',
    "assembly incbin": '__asm__(".incbin \\"/etc/passwd\\"");\n',
    "assembly bytes": 'void f() { asm(".byte 0x0f, 0x05"); }\n',
    "assembly int": 'void f() { asm("int $0x80"); }\n',
    "constructor": "__attribute__((constructor)) void f() {}\n",
    "pragma": "#pragma redefine_extname sin system\n",
    "pragma operator": '_Pragma("weak system")\n',
    "getenv": '#include <cstdlib>\nauto f() { return std::getenv("PATH"); }\n',
}


@pytest.mark.parametrize("name", HOSTILE_SOURCES)
def test_hostile_sources_are_refused(name: str) -> None:
    text = HOSTILE_SOURCES[name]
    failure = scan_sources(_sources(LIGHT + text))
    assert failure is not None
    assert failure.code == "static-check"
    assert failure.message.startswith("kernels/kernel.cpp, line ")
    assert failure.evidence["line"] > LIGHT.count("\n")


def test_aten_operator_in_light_binding_is_a_forbidden_operator() -> None:
    failure = scan_sources(
        _sources("#include <torch/all.h>\nauto f(at::Tensor x) { return at::relu(x); }\n")
    )
    assert failure is not None
    assert failure.code == "forbidden-operator"


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("kernels/prebuilt.so", b"\x7fELF"),
        ("kernels/kernel.cpp", b"\x7fELF\x02\x01\0"),
        ("kernels/blob.h", b"int a;\0"),
        ("kernels/run.sh", b"echo"),
    ],
)
def test_binaries_and_other_files_are_refused(path: str, data: bytes) -> None:
    failure = scan_sources(_sources(data, path))
    assert failure is not None
    assert failure.code == "static-check"


def test_tokens_keep_their_lines_through_continuations_and_comments() -> None:
    text = 'int a; /* x\n y */ int \\\nb;\n// c \\\nstill comment\nint d; R"(\n)" e'
    lines = {token.text: token.line for token in tokens(text) if token.kind == "name"}
    assert lines == {"int": 6, "a": 1, "b": 3, "d": 6, "e": 7}


def _build(tmp_path: Path, source: str) -> bytes:
    compiler = shutil.which("g++")
    assert compiler is not None
    (tmp_path / "a.cpp").write_text(source)
    command = [compiler, "-shared", "-fPIC", "-O0", "a.cpp", "-o", "a.so"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    return (tmp_path / "a.so").read_bytes()


def test_library_with_honest_imports_passes(tmp_path: Path) -> None:
    library = _build(
        tmp_path,
        "#include <cmath>\n#include <cstring>\n#include <stdexcept>\n#include <string>\n"
        'extern "C" double f(double x, char* p) { std::memcpy(p, &x, 8); '
        'if (x < 0) throw std::runtime_error(std::string("bad") + p); return std::sin(x); }\n',
    )
    assert "sin" in {name.partition("@")[0] for name in read_imports(library).symbols}
    assert scan_library(library) is None


@pytest.mark.parametrize(
    ("name", "declaration"),
    [
        ("system", 'extern "C" int system(const char*); int f() { return system("id"); }'),
        ("_Exit", 'extern "C" void _Exit(int); struct A { A() { _Exit(0); } } a;'),
        (
            "fork",
            '#define P(a, b) a##b\nextern "C" int P(fo, rk)(); int f() { return P(fo, rk)(); }',
        ),
        (
            "dlsym",
            'extern "C" void* dlsym(void*, const char*); void* f() { return dlsym(0, "x"); }',
        ),
        ("ptrace", 'extern "C" long ptrace(int, ...); long f() { return ptrace(0); }'),
        (
            "mprotect",
            'extern "C" int mprotect(void*, long, int); void* f() { return (void*)mprotect; }',
        ),
        ("basic_ofstream", '#include <fstream>\nvoid f() { std::ofstream("x") << 1; }'),
    ],
)
def test_library_with_forbidden_import_is_refused(
    tmp_path: Path, name: str, declaration: str
) -> None:
    failure = scan_library(_build(tmp_path, declaration + "\n"))
    assert failure is not None
    assert failure.code == "static-check"
    assert name in failure.message


def test_library_with_torch_operator_is_a_forbidden_operator(tmp_path: Path) -> None:
    source = (
        "namespace at { struct Tensor; namespace _ops {\n"
        "struct relu { static void call(const Tensor&); };\n"
        "struct empty_like { static void call(const Tensor&); }; } }\n"
        "void f(const at::Tensor& x) { at::_ops::%s::call(x); }\n"
    )
    failure = scan_library(_build(tmp_path, source % "relu"))
    assert failure is not None
    assert failure.code == "forbidden-operator"
    assert "relu" in failure.message
    assert scan_library(_build(tmp_path, source % "empty_like")) is None


@pytest.mark.parametrize("cut", [0, 3, 16, 63, 200, -64, -1000])
def test_damaged_library_is_refused(tmp_path: Path, cut: int) -> None:
    library = _build(tmp_path, "int f() { return 1; }\n")
    failure = scan_library(library[:cut])
    assert failure is not None
    assert failure.code == "static-check"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("fast", None),
        ("slow", None),
        ("wrong", None),
        ("does_not_compile", None),
        ("hangs", None),
        ("exits_unseen", None),
        ("calls_torch_relu", "forbidden-operator"),
        ("exits_at_import", "static-check"),
        ("exits_in_initialiser", "static-check"),
    ],
)
def test_example_solutions(name: str, code: str | None) -> None:
    failure = check_submission(Submission.from_dir(SOLUTIONS / name))
    assert (failure and failure.code) == code
