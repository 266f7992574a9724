"""Options of the sandboxes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SandboxSettings:
    """Where untrusted processes run."""

    backend: str = "auto"
    """auto (the strongest this machine has), namespace, docker or process."""
    allow_weak: bool = False
    """Train although the isolation is only `process`."""
    command_s: float = 120.0
    """Seconds for one command of the agent."""
    memory_bytes: int = 8 << 30
    """Memory of one sandbox."""
    processes: int = 256
    """Processes in one sandbox."""
    file_bytes: int = 1 << 30
    """Largest file that a sandboxed process may write."""
