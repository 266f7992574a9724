"""The CPU toolchain with the real compiler: caching, isolation, diagnostics.

Most sources are plain C functions, which compile in milliseconds; the binding is covered by the
skill's example in tests/workspace.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from cudaagent.errors import UserError
from cudaagent.judge.settings import LimitSettings
from cudaagent.lease import TimingLease
from cudaagent.sandbox.confine import best_backend
from cudaagent.sandbox.settings import SandboxSettings
from cudaagent.toolchain.compiler import CompileResult
from cudaagent.toolchain.cpu import CpuToolchain
from cudaagent.toolchain.open import open_toolchain
from cudaagent.workspace.submission import Submission

EXPORT = '#define EXPORT extern "C" __attribute__((visibility("default")))\n'


def toolchain(tmp_path: Path, build_s: float = 300.0, backend: str = "auto") -> CpuToolchain:
    limits = LimitSettings(build_s=build_s)
    return CpuToolchain(tmp_path / "cache", limits, SandboxSettings(backend=backend))


def submission(**files: str) -> Submission:
    """``name_ext="text"`` is the file ``kernels/name.ext``."""
    named = {f"kernels/{name.replace('_', '.')}": text.encode() for name, text in files.items()}
    return Submission.from_mapping(named)


def function(name: str, value: int | str, include: str = "") -> str:
    return f"{include}{EXPORT}EXPORT int {name}() {{ return {value}; }}\n"


def call(result: CompileResult, name: str, tmp_path: Path) -> int:
    assert result.library is not None, result.diagnostics
    path = tmp_path / f"{result.digest}.so"
    if not path.exists():  # a mapped library is never written to again
        path.write_bytes(result.library)
    return getattr(ctypes.CDLL(str(path)), name)()


def compiled(result: CompileResult) -> list[str]:
    return [Path(path).name for path in result.compiled]


@pytest.mark.parametrize("backend", [best_backend(), "process"])
def test_builds_and_sees_changes(tmp_path: Path, backend: str) -> None:
    compiler = toolchain(tmp_path, backend=backend)
    first = compiler.compile(submission(k_cpp=function("value", 1)))
    second = compiler.compile(submission(k_cpp=function("value", 2)))
    assert (call(first, "value", tmp_path), call(second, "value", tmp_path)) == (1, 2)
    assert first.digest != second.digest
    assert compiled(first) == ["k.cpp"]


def test_identical_submission_starts_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("g++")
    wrapper = tmp_path / "prefix" / "bin" / "g++"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(f'#!/bin/sh\n[ -e "$(dirname "$0")/off" ] && exit 9\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    one = submission(a_cpp=function("a", 1), b_cpp=function("b", 2))
    first = toolchain(tmp_path).compile(one)
    assert first.ok, first.diagnostics
    (wrapper.parent / "off").touch()
    again = toolchain(tmp_path).compile(one)
    assert again.library == first.library
    assert again.compiled == ()
    assert again.reused == ("kernels/a.cpp", "kernels/b.cpp")
    assert not toolchain(tmp_path).compile(submission(a_cpp=function("a", 3))).ok


def test_an_edit_compiles_one_file_of_four(tmp_path: Path) -> None:
    compiler = toolchain(tmp_path)
    files = {f"f{i}_cpp": function(f"f{i}", i) for i in range(4)}
    assert len(compiler.compile(submission(**files)).compiled) == 4
    files["f2_cpp"] = function("f2", 22)
    result = compiler.compile(submission(**files))
    assert compiled(result) == ["f2.cpp"]
    assert len(result.reused) == 3
    assert call(result, "f2", tmp_path) == 22
    files["f4_cpp"] = function("f4", 4)
    assert compiled(compiler.compile(submission(**files))) == ["f4.cpp"]


def test_a_changed_header_recompiles_who_includes_it(tmp_path: Path) -> None:
    compiler = toolchain(tmp_path)
    files = {
        "a_cpp": function("a", "VALUE", '#include "outer.h"\n'),
        "b_cpp": function("b", 1),
        "outer_h": '#include "inner.h"\n',
        "inner_h": "#define VALUE 5\n",
    }
    assert call(compiler.compile(submission(**files)), "a", tmp_path) == 5
    files["inner_h"] = "#define VALUE 6\n"
    changed = compiler.compile(submission(**files))
    assert compiled(changed) == ["a.cpp"]
    assert call(changed, "a", tmp_path) == 6
    files["inner_h"] = "#define VALUE 5\n"
    assert compiled(compiler.compile(submission(**files))) == []


def test_a_new_header_that_shadows_is_seen(tmp_path: Path) -> None:
    compiler = toolchain(tmp_path)
    files = {
        "kernels/sub/a.cpp": function("a", "VALUE", '#include "v.h"\n').encode(),
        "kernels/v.h": b"#define VALUE 1\n",
    }
    assert call(compiler.compile(Submission.from_mapping(files)), "a", tmp_path) == 1
    files["kernels/sub/v.h"] = b"#define VALUE 2\n"
    assert call(compiler.compile(Submission.from_mapping(files)), "a", tmp_path) == 2


def test_data_that_no_dependency_list_names_is_seen(tmp_path: Path) -> None:
    compiler = toolchain(tmp_path)
    source = (
        EXPORT + 'asm(".section .rodata\\nblob: .incbin \\"kernels/d.bin\\"\\n.text");\n'
        'extern "C" const char blob[] __attribute__((visibility("hidden")));\n'
        "EXPORT int value() { return blob[0]; }\n"
    )
    for data in ("A", "B"):
        result = compiler.compile(submission(k_cpp=source, d_bin=data))
        assert call(result, "value", tmp_path) == ord(data)


def test_equal_names_in_different_directories(tmp_path: Path) -> None:
    files = {
        "kernels/x/k.cpp": function("x", 1).encode(),
        "kernels/y/k.cpp": function("y", 2).encode(),
    }
    result = toolchain(tmp_path).compile(Submission.from_mapping(files))
    assert (call(result, "x", tmp_path), call(result, "y", tmp_path)) == (1, 2)


def test_concurrent_builds_with_clashing_names(tmp_path: Path) -> None:
    shared = toolchain(tmp_path)
    results: dict[int, CompileResult] = {}

    def work(number: int) -> None:
        compiler = shared if number % 2 else toolchain(tmp_path)
        results[number] = compiler.compile(submission(kernel_cpp=function("value", number)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    got = {number: call(result, "value", tmp_path) for number, result in results.items()}
    assert got == {number: number for number in range(8)}


def test_killed_mid_build_and_built_again(tmp_path: Path) -> None:
    slow = "#include <iostream>\n" + EXPORT + 'EXPORT int value() { std::cerr << ""; return 7; }\n'
    script = f"""
from pathlib import Path
from cudaagent.judge.settings import LimitSettings
from cudaagent.sandbox.settings import SandboxSettings
from cudaagent.toolchain.cpu import CpuToolchain
from cudaagent.workspace.submission import Submission
tools = CpuToolchain(Path({str(tmp_path / "cache")!r}), LimitSettings(), SandboxSettings())
print("begin", flush=True)
tools.compile(Submission.from_mapping({{"kernels/k.cpp": {slow.encode()!r}}}))
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        leftovers = list(Path(tempfile.gettempdir()).glob(f"cudaagent-build-{process.pid}-*"))
        deadline = time.monotonic() + 30
        while not leftovers and time.monotonic() < deadline:
            leftovers = list(Path(tempfile.gettempdir()).glob(f"cudaagent-build-{process.pid}-*"))
        process.send_signal(signal.SIGKILL)
    result = toolchain(tmp_path).compile(submission(k_cpp=slow))
    assert call(result, "value", tmp_path) == 7
    assert leftovers
    assert not any(path.exists() for path in leftovers)


def test_torn_cache_entries_are_rebuilt(tmp_path: Path) -> None:
    one = submission(k_cpp=function("value", 3))
    toolchain(tmp_path).compile(one)
    entries = [path for path in (tmp_path / "cache" / "cpu").glob("??/*") if path.is_file()]
    assert len(entries) == 3
    for path in entries:
        path.write_bytes(path.read_bytes()[:-1])
    result = toolchain(tmp_path).compile(one)
    assert compiled(result) == ["k.cpp"]
    assert call(result, "value", tmp_path) == 3


def test_errors_name_file_line_and_remedy(tmp_path: Path) -> None:
    compiler = toolchain(tmp_path)
    source = EXPORT + "EXPORT float f(float x) {\n  return sqrtf(x);\n}\n"
    good = function("good", 1)
    result = compiler.compile(submission(k_cpp=source, good_cpp=good))
    assert result.failure == "build-failed"
    assert result.library is None
    assert "kernels/k.cpp:3:10: error: 'sqrtf' was not declared in this scope" in result.diagnostics
    assert "3 |   return sqrtf(x);" in result.diagnostics
    assert result.diagnostics.endswith("hint: #include <cmath>")
    fixed = compiler.compile(submission(k_cpp="#include <cmath>\n" + source, good_cpp=good))
    assert compiled(fixed) == ["k.cpp"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (EXPORT + "int g();\nEXPORT int f() { return g(); }", "no file in kernels/ defines"),
        ("#include <torch/extension.h>\n", "torch binding"),
        ("#include <cuda_runtime.h>\n", "target cpu has no CUDA"),
        ("TVM_FFI_DLL_EXPORT_TYPED_FUNC(f, f);\n", "#include <tvm/ffi/function.h>"),
    ],
)
def test_common_mistakes_get_a_hint(tmp_path: Path, source: str, said: str) -> None:
    result = toolchain(tmp_path).compile(submission(k_cpp=source))
    assert result.failure == "build-failed"
    assert said in result.diagnostics


def test_long_output_keeps_its_end(tmp_path: Path) -> None:
    warnings = "".join(f"#warning number {i} {'x' * 80}\n" for i in range(1000))
    compiler = CpuToolchain(tmp_path / "cache", LimitSettings(output_bytes=4000), SandboxSettings())
    result = compiler.compile(submission(k_cpp=warnings + "int f() { return omp_nothing(); }\n"))
    assert len(result.diagnostics) < 4300
    assert "number 0 " in result.diagnostics
    assert "'omp_nothing' was not declared" in result.diagnostics
    assert result.diagnostics.endswith("hint: #include <omp.h>")


def test_endless_build_names_its_limit(tmp_path: Path) -> None:
    source = (
        "template <long a, int n> struct F {\n"
        "  static constexpr long v = F<2 * a, n - 1>::v + F<2 * a + 1, n - 1>::v;\n};\n"
        "template <long a> struct F<a, 0> { static constexpr long v = a; };\n"
        "long value = F<1, 40>::v;\n"
    )
    compiler = toolchain(tmp_path, build_s=1.0)
    result = compiler.compile(submission(k_cpp=source))
    assert result.failure == "build-timeout"
    assert result.diagnostics.endswith("build stopped after 1 s (limits.build_s)")
    assert compiler.compile(submission(k_cpp=source)).compiled == ("kernels/k.cpp",)


@pytest.mark.skipif(best_backend() != "namespace", reason="this machine allows no namespaces")
def test_a_build_sees_nothing_of_the_host(tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("#define SECRET 1\n")
    for path in (secret, Path.cwd() / "pyproject.toml", tmp_path / "cache" / "cpu"):
        result = toolchain(tmp_path).compile(submission(k_cpp=f'#include "{path}"\n'))
        assert "No such file or directory" in result.diagnostics, path


def test_what_is_not_a_solution(tmp_path: Path) -> None:
    compiler = toolchain(tmp_path)
    assert compiler.compile(Submission(())).failure == "no-solution"
    wrong = compiler.compile(submission(k_cu="int f();"))
    assert wrong.failure == "build-failed"
    assert "kernels/*.cpp only" in wrong.diagnostics
    for name in ("k_binding.cpp", "binding.cpp"):
        files = Submission.from_mapping({f"kernels/{name}": b"int f();"})
        assert "not supported on target cpu yet" in compiler.compile(files).diagnostics
    silent = compiler.compile(submission(k_cpp="static int f() { return 1; }"))
    assert silent.ok
    assert "no function is exported" in silent.diagnostics


def test_builds_wait_for_a_timed_section(tmp_path: Path) -> None:
    lease = TimingLease(directory=tmp_path / "lease")
    compiler = CpuToolchain(tmp_path / "cache", LimitSettings(), SandboxSettings(), lease)
    done = threading.Event()

    def work() -> None:
        compiler.compile(submission(k_cpp=function("value", 1)))
        done.set()

    with lease.exclusive(30):
        thread = threading.Thread(target=work)
        thread.start()
        assert not done.wait(0.5)
    thread.join(60)
    assert done.is_set()


def test_absent_targets_and_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(target: str) -> object:
        return open_toolchain(
            target, cache_dir=tmp_path, limits=LimitSettings(), sandbox=SandboxSettings()
        )

    assert isinstance(opened("cpu"), CpuToolchain)
    with pytest.raises(UserError, match="neither cuda nor cpu"):
        opened("tpu")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="target cuda: no GPU on this machine"):
        opened("cuda")
    with pytest.raises(UserError, match="no C\\+\\+ compiler: install g\\+\\+"):
        opened("cpu")
