"""What is refused before anything runs: early, cheap, with a sentence that says what to do.

This layer explains; the zones of the judge are what is relied on. Runs in the judge's process and in
the workspace's gateway; parses text and bytes and never runs them.
"""

from __future__ import annotations

from cudaagent.judge.verdict import Failure
from cudaagent.workspace.submission import Submission


def check_model_new(source: str) -> Failure | None:
    """Allow-list on the syntax tree of ``model_new.py`` (``forbidden-operator``, ``static-check``)."""
    raise NotImplementedError


def scan_sources(submission: Submission) -> Failure | None:
    """Scan ``kernels/**``: includes, system calls, inline assembly, ATen operators."""
    raise NotImplementedError


def scan_library(library: bytes) -> Failure | None:
    """Scan the dynamic symbol table of the built extension for forbidden imports."""
    raise NotImplementedError


def check_submission(submission: Submission) -> Failure | None:
    """``no-solution``, ``check_model_new`` and ``scan_sources`` in this order."""
    raise NotImplementedError
