"""Which target this machine can serve."""

from __future__ import annotations

import shutil

from cudaagent.errors import UserError


def resolve_target(requested: str) -> str:
    """``cuda`` or ``cpu``; ``auto`` takes what is there.

    Raises:
        UserError: the requested target is absent, or unknown.
    """
    if requested == "auto":
        return "cpu"
    if requested == "cpu":
        return "cpu"
    if requested == "cuda":
        if shutil.which("nvidia-smi") is None:
            raise UserError("target cuda: this machine has no NVIDIA GPU; use --target cpu")
        raise UserError("target cuda: not served by this version yet; use --target cpu")
    raise UserError(f"target {requested} is none of auto, cuda, cpu")
