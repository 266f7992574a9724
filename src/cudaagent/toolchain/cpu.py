"""Target ``cpu``: ``kernels/*.cpp`` to one shared object, confined, each file compiled once.

Runs on the trusted side. Builds of one toolchain may run in several threads; the cache is shared by
all processes that use its directory. What is sandboxed and what is trusted: see ``build``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cudaagent.judge.settings import LimitSettings
from cudaagent.lease import TimingLease
from cudaagent.sandbox.base import choose_backend
from cudaagent.sandbox.settings import SandboxSettings
from cudaagent.toolchain import diagnostics, keys, scratch
from cudaagent.toolchain.build import BINDING, Build, BuildOutcome, BuildTools
from cudaagent.toolchain.cache import Entry, ObjectCache
from cudaagent.toolchain.compiler import CompileResult
from cudaagent.toolchain.gxx import find_cpu_compiler
from cudaagent.toolchain.prelude import Prelude
from cudaagent.workspace.submission import Submission

_TORCH_BINDING = re.compile(rb"REGISTER_BINDING|#\s*include\s*[<\"](?:torch|ATen|c10|pybind11)/")
_EXPORT = b"__tvm_ffi_"


class CpuToolchain:
    """A ``Compiler`` for target ``cpu``."""

    def __init__(
        self,
        cache_dir: Path,
        limits: LimitSettings,
        sandbox: SandboxSettings,
        lease: TimingLease | None = None,
    ) -> None:
        """Find the compiler and open the cache.

        Raises:
            UserError: no g++, no binding headers, or no sandbox as asked for.
        """
        compiler = find_cpu_compiler()
        self._limits = limits
        self._lease = lease
        self._prelude = Prelude(cache_dir / "prelude", compiler)
        self._tools = BuildTools(
            compiler=compiler,
            cache=ObjectCache(cache_dir / "cpu"),
            prelude=None,
            backend=choose_backend(sandbox),
            sandbox=sandbox,
            output_bytes=limits.output_bytes,
            jobs=threading.Semaphore(os.cpu_count() or 1),
        )
        self._bound_builds = 0
        scratch.sweep()

    def prepare(self) -> None:
        """Build the precompiled header now; otherwise the second build does."""
        with self._held():
            self._prelude.build()

    def compile(self, submission: Submission) -> CompileResult:
        """See ``compiler.Compiler``."""
        started = time.monotonic()
        files = {path: data for path, data in submission.files if path.startswith("kernels/")}
        names = tuple(sorted(path for path in files if path.endswith(".cpp")))
        if (refusal := _refuse(files, names)) is not None:
            return _failed(*refusal, started)
        key = keys.library_key(self._tools.compiler.digest, files)
        if (entry := self._tools.cache.get(key)) is not None:
            return _from_entry(entry, names, started)
        with self._held():
            outcome = self._build(files, names)
        result = self._result(outcome, started)
        if outcome.library is not None or (
            not outcome.timed_out and diagnostics.is_repeatable(outcome.text)
        ):
            head = {"failure": result.failure, "diagnostics": result.diagnostics}
            self._tools.cache.put(key, Entry(head, outcome.library or b""))
        return result

    def _held(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._lease is None else self._lease.shared()

    def _build(self, files: Mapping[str, bytes], names: tuple[str, ...]) -> BuildOutcome:
        if any(BINDING in files[name] for name in names):
            if self._bound_builds == 1:  # a single build is over before the header would be there
                self._prelude.build()
            self._bound_builds += 1
        reachable = self._tools.backend == "namespace" or os.getuid() != 0
        tools = replace(self._tools, prelude=self._prelude.directory if reachable else None)
        with scratch.new_scratch() as place:
            return Build(tools, place, files, self._limits.build_s).run(names)

    def _result(self, outcome: BuildOutcome, started: float) -> CompileResult:
        shown = diagnostics.explain(outcome.text, self._limits.output_bytes)
        library, files = outcome.library, (outcome.compiled, outcome.reused)
        if outcome.timed_out:
            message = f"build stopped after {self._limits.build_s:g} s (limits.build_s)"
            return _failed("build-timeout", f"{shown}\n{message}".strip(), started, *files)
        if library is None:
            return _failed("build-failed", shown, started, *files)
        if _EXPORT not in library:
            note = "note: no function is exported; add TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, name);"
            shown = f"{shown}\n{note}".strip()
        digest = hashlib.sha256(library).hexdigest()
        return CompileResult(library, digest, None, shown, time.monotonic() - started, *files)


def _refuse(files: Mapping[str, bytes], names: tuple[str, ...]) -> tuple[str, str] | None:
    """Failure code and message of a submission that no compiler need see."""
    for path, data in sorted(files.items()):
        binding = path.endswith("_binding.cpp") or path.endswith("/binding.cpp")
        if binding or _TORCH_BINDING.search(data):
            return "build-failed", (
                f"{path}: the torch binding (REGISTER_BINDING, torch headers) is not supported on "
                "target cpu yet; take tvm::ffi::TensorView arguments "
                "(<tvm/ffi/container/tensor.h>, <tvm/ffi/function.h>) and export each function "
                "with TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, name);"
            )
    if names:
        return None
    others = sorted(path for path in files if path.endswith((".cu", ".cc", ".cxx", ".c")))
    if others:
        return "build-failed", f"{others[0]}: target cpu builds kernels/*.cpp only; rename it"
    return "no-solution", "kernels/ holds no .cpp file; write kernels/kernel.cpp"


def _failed(
    code: str,
    text: str,
    started: float,
    compiled: tuple[str, ...] = (),
    reused: tuple[str, ...] = (),
) -> CompileResult:
    return CompileResult(None, "", code, text, time.monotonic() - started, compiled, reused)


def _from_entry(entry: Entry, names: tuple[str, ...], started: float) -> CompileResult:
    failure: str | None = entry.head["failure"]
    text: str = entry.head["diagnostics"]
    if failure is not None:
        return _failed(failure, text, started)
    digest = hashlib.sha256(entry.payload).hexdigest()
    seconds = time.monotonic() - started
    return CompileResult(entry.payload, digest, None, text, seconds, (), names)
