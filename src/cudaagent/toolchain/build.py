"""One build on target ``cpu``: confined compiler commands, objects from the cache, a link.

Runs on the trusted side, in the thread that asked for the build; the files of one build compile in
parallel. g++ runs in a sandbox that sees the submission's files, the system and the binding's
headers, has no network and writes one scratch directory; this side computes the keys from what the
compiler says it read, reads the results without following links and alone writes the cache.

Not covered: a flaw in g++ itself that lets a source forge its object; it reaches that source's own
entry only.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cudaagent.errors import InfrastructureError
from cudaagent.sandbox.command import CommandResult, CommandSpec, run_command
from cudaagent.sandbox.confine import Bind, ConfineLimits, fresh_uid
from cudaagent.sandbox.settings import SandboxSettings
from cudaagent.toolchain import keys, prelude, scratch
from cudaagent.toolchain.cache import Entry, ObjectCache
from cudaagent.toolchain.gxx import COMPILE_FLAGS, Gxx

BINDING = b"tvm/ffi/"
"""Stands in sources that include the binding's headers."""
_INSIDE = "/build"
_PRELUDE_INSIDE = "/prelude"
_MAX_HEADER_LISTS = 8


@dataclass(frozen=True, slots=True)
class BuildTools:
    """What all builds of one toolchain share."""

    compiler: Gxx
    cache: ObjectCache
    prelude: Path | None
    """Directory of the precompiled header, where a confined build can see it."""
    backend: str
    sandbox: SandboxSettings
    output_bytes: int
    jobs: threading.Semaphore
    """Compiler processes at a time."""


@dataclass(frozen=True, slots=True)
class Object:
    """What became of one source file; ``data`` is None when it does not compile."""

    path: str
    data: bytes | None
    text: str
    compiled: bool
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class BuildOutcome:
    """What became of a build; ``library`` is None when it failed."""

    library: bytes | None
    text: str
    timed_out: bool
    compiled: tuple[str, ...]
    reused: tuple[str, ...]


class Build:
    """One build of ``files`` (path -> content) in the scratch directory ``place``."""

    def __init__(
        self, tools: BuildTools, place: scratch.Scratch, files: Mapping[str, bytes], build_s: float
    ) -> None:
        self._tools = tools
        self._place = place
        self._files = files
        self._deadline = time.monotonic() + build_s

    def run(self, names: Sequence[str]) -> BuildOutcome:
        """Compile the sources ``names`` and link them.

        Raises:
            InfrastructureError: the compiler could not be run or left no result.
        """
        self._place.write_sources(self._files)
        with ThreadPoolExecutor(max_workers=min(len(names), os.cpu_count() or 1)) as pool:
            objects = list(pool.map(self._object, names))
        text = "\n".join(item.text for item in objects if item.text)
        timed_out = any(item.timed_out for item in objects)
        library = None
        if all(item.data is not None for item in objects):
            linked, library = self._link(objects)
            text = "\n".join(part for part in (text, linked.output.strip()) if part)
            timed_out = linked.timed_out
        compiled = tuple(item.path for item in objects if item.compiled)
        reused = tuple(item.path for item in objects if not item.compiled)
        return BuildOutcome(library, text, timed_out, compiled, reused)

    def _object(self, path: str) -> Object:
        """The object of one source file, from the cache or compiled."""
        cache = self._tools.cache
        manifest = keys.manifest_key(self._tools.compiler.digest, path, self._files)
        known = cache.get(manifest)
        lists: list[list[str]] = known.head["lists"] if known else []
        for headers in lists:
            key = keys.object_key(manifest, headers, self._files)
            if key is not None and (entry := cache.get(key)) is not None:
                return Object(path, entry.payload, entry.head["text"], compiled=False)
        result, data, depfile = self._compile(path)
        text = result.output.strip()
        if result.status != 0:
            return Object(path, None, text, compiled=True, timed_out=result.timed_out)
        if data is None or depfile is None:
            raise InfrastructureError(f"{path}: the compiler succeeded and left no object")
        headers = list(keys.own_headers(depfile, path, self._files))
        key = keys.object_key(manifest, headers, self._files)
        assert key is not None  # own_headers names files of this build only
        cache.put(key, Entry({"text": text}, data))
        if headers not in lists:
            kept = [headers, *lists][:_MAX_HEADER_LISTS]
            cache.put(manifest, Entry({"lists": kept}, b""))
        return Object(path, data, text, compiled=True)

    def _compile(self, path: str) -> tuple[CommandResult, bytes | None, str | None]:
        tools = self._tools
        uid = fresh_uid(tools.backend, str(self._place.root))
        output = self._place.output_dir(f"out-{keys.digest([path])[:16]}", uid)
        argv = [tools.compiler.path, *COMPILE_FLAGS, "-fdiagnostics-color=never"]
        argv += ["-fmax-errors=20", "-Ikernels", f"-I{tools.compiler.include}"]
        if tools.prelude is not None and BINDING in self._files[path]:
            directory = _PRELUDE_INSIDE if self._inside else str(tools.prelude)
            argv += ["-include", f"{directory}/{prelude.NAME}"]
        argv += ["-MD", "-MF", f"../{output.name}/d", "-c", path, "-o", f"../{output.name}/o"]
        result = self._run_confined(argv, output, uid)
        depfile = scratch.read_result(output / "d")
        data = scratch.read_result(output / "o")
        return result, data, None if depfile is None else depfile.decode(errors="replace")

    def _link(self, objects: Sequence[Object]) -> tuple[CommandResult, bytes | None]:
        tools = self._tools
        uid = fresh_uid(tools.backend, str(self._place.root))
        inputs: list[str] = []
        (self._place.root / "objects").mkdir()
        for item in objects:
            name = f"../objects/{keys.digest([item.path])[:8]}-{Path(item.path).stem}.o"
            (self._place.sources / name).write_bytes(item.data or b"")
            inputs.append(name)
        output = self._place.output_dir("out-link", uid)
        # Undefined symbols are an error here and not a riddle when the library is loaded.
        argv = [tools.compiler.path, "-shared", "-fopenmp", *inputs, "-Wl,-z,defs"]
        argv += [f"-L{tools.compiler.library_dir}", "-ltvm_ffi", "-o", "../out-link/library"]
        result = self._run_confined(argv, output, uid)
        library = scratch.read_result(output / "library") if result.status == 0 else None
        if result.status == 0 and library is None:
            raise InfrastructureError("the linker succeeded and left no library")
        return result, library

    @property
    def _inside(self) -> bool:
        return self._tools.backend == "namespace"

    def _run_confined(self, argv: Sequence[str], output: Path, uid: int) -> CommandResult:
        tools = self._tools
        binds = [Bind(path) for path in tools.compiler.visible]
        binds += [
            Bind(str(self._place.root), _INSIDE),
            Bind(str(output), f"{_INSIDE}/{output.name}", writable=True),
        ]
        if tools.prelude is not None:
            binds.append(Bind(str(tools.prelude), _PRELUDE_INSIDE))
        spec = CommandSpec(
            argv=argv,
            env={
                "PATH": f"{os.path.dirname(tools.compiler.path)}:/usr/local/bin:/usr/bin:/bin",
                "LC_ALL": "C.UTF-8",
                "TMPDIR": "/tmp" if self._inside else str(output),
            },
            cwd=f"{_INSIDE}/src" if self._inside else str(self._place.sources),
            backend=tools.backend,
            uid=uid,
            binds=tuple(binds),
            limits=ConfineLimits(
                data_bytes=tools.sandbox.memory_bytes,
                processes=tools.sandbox.processes,
                file_bytes=tools.sandbox.file_bytes,
            ),
            python=False,
        )
        with tools.jobs:
            left = max(0.1, self._deadline - time.monotonic())
            return run_command(spec, timeout_s=left, output_bytes=tools.output_bytes)
