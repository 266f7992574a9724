"""A task: one PyTorch module to make faster, in the KernelBench convention.

The source defines ``Model``, ``get_inputs()`` and ``get_init_inputs()``. It is untrusted text: this
module parses it and never runs it.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cudaagent.errors import TaskError


@dataclass(frozen=True, slots=True)
class Task:
    """One module to optimise."""

    id: str
    source: str
    suite: str = ""
    level: int | None = None
    ops: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def digest(self) -> str:
        """SHA-256 of the source; two tasks with equal digests are the same task to the judge."""
        return hashlib.sha256(self.source.encode()).hexdigest()


def check_source(task: Task) -> None:
    """Parse the task's source without running it.

    Raises:
        TaskError: ``task-invalid`` on a syntax error or when ``Model``, ``get_inputs`` or
            ``get_init_inputs`` is missing.
    """
    try:
        tree = ast.parse(task.source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f" on line {line}" if line else ""
        reason = getattr(error, "msg", None) or str(error)
        raise TaskError("task-invalid", f"task {task.id}: syntax error{where}: {reason}") from error
    names = {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for name, kind in (
        ("Model", "class"),
        ("get_inputs", "function"),
        ("get_init_inputs", "function"),
    ):
        if name not in names:
            raise TaskError(
                "task-invalid",
                f"task {task.id}: no {kind} {name}; a task defines "
                "Model, get_inputs and get_init_inputs at its top level",
            )
