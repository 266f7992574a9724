"""Tool calls as text, and small deterministic implementations of the two protocols.

The compiler "builds" sources that hold no ``error``; the judge reads the reward from a comment of
``model_new.py``: ``# reward 2``. The real ones are used in ``test_real_loop.py``.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from cudaagent.errors import InfrastructureError
from cudaagent.judge.verdict import Baseline, Purpose, Times, Verdict, failed
from cudaagent.tasks.task import Task
from cudaagent.toolchain.compiler import CompileResult
from cudaagent.workspace.submission import Submission

SOURCE = "class Model: ...\n\n\ndef get_inputs(): ...\n\n\ndef get_init_inputs(): ...\n"


def call(name: str, **parameters: str) -> str:
    """A tool call as an assistant writes it."""
    inner = "".join(f"<parameter={k}>{v}</parameter>\n" for k, v in parameters.items())
    return f"<function={name}>\n{inner}</function>"


def write(path: str, content: str) -> str:
    return call("Write", path=path, content="\n" + content)


def bash(command: str) -> str:
    return call("Bash", command=command)


@dataclass
class TextCompiler:
    """Builds anything in which no source holds the word ``error``."""

    built: list[str] = field(default_factory=list)
    broken: int = 0
    """So many calls fail as a broken toolchain does."""

    def compile(self, submission: Submission) -> CompileResult:
        if self.broken:
            self.broken -= 1
            raise InfrastructureError("the toolchain is gone")
        self.built.append(submission.digest)
        bad = [path for path, data in submission.sources if b"error" in data]
        if bad:
            return CompileResult(None, "", "build-failed", f"{bad[0]}:1: error", 0.5)
        library = b"so:" + submission.digest.encode()
        return CompileResult(library, hashlib.sha256(library).hexdigest(), None, "", 0.5)


@dataclass
class TextJudge:
    """Takes the verdict from a comment: ``# reward 2``, ``# wrong`` or ``# code task-random``."""

    asked: list[tuple[str, str]] = field(default_factory=list)
    inside: Callable[[], None] | None = None
    """Called while a request is judged."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def judge(
        self,
        task: Task,
        submission: Submission,
        build: CompileResult | None,
        *,
        purpose: Purpose = "judge",
    ) -> Verdict:
        with self.lock:
            self.asked.append((submission.digest, purpose))
        if self.inside is not None:
            self.inside()
        text = submission.model_new or ""
        if build is None:
            return failed("no-solution", "static", "nothing to judge")
        if build.failure is not None:
            return failed(build.failure, "build", build.diagnostics)
        if code := re.search(r"# code (\S+)", text):
            return failed(code.group(1), "system", "as the comment says")
        if "# wrong" in text:
            return failed("wrong-values", "verify", "outputs differ", index=[3, 4], expected=1.0)
        if purpose == "verify":
            return Verdict(correct=True, error_candidate=0.001)
        found = re.search(r"# reward (\S+)", text)
        reward = float(found.group(1)) if found else 1.0
        times = Times(4.0 - reward, 3.9 - reward, 4.1 - reward)
        return Verdict(
            correct=True,
            reward=reward,
            candidate_ms=times,
            eager_ms=Times(3.0, 2.9, 3.1),
            compile_ms=Times(2.0, 1.9, 2.1),
            speedup_vs_eager=3.0 / times.ms,
            speedup_vs_compile=2.0 / times.ms,
        )

    def prepare(self, task: Task) -> Baseline:
        return Baseline(task.id, None, 3.0, 2.0)
