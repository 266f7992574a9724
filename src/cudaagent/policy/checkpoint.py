"""Whether a checkpoint directory can be read, found out without loading it.

Runs in any process, before anything is written or started. Weights are opened, not read; whether
they fit the architecture is seen when the model is loaded.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from cudaagent.errors import UserError


def local_checkpoint(spec: str) -> Path:
    """The absolute directory of an ``hf:`` policy that can be trained.

    Raises:
        UserError: another kind of policy, or a directory whose files cannot be read.
    """
    kind, _, directory = spec.partition(":")
    if kind != "hf":
        raise UserError(f"policy.spec={spec} cannot be trained; give hf:DIRECTORY")
    return check_checkpoint(Path(directory))


def check_checkpoint(path: Path) -> Path:
    """The absolute path of a Hugging Face directory with readable files.

    Raises:
        UserError: what is missing or damaged.
    """
    if not (path / "config.json").is_file():
        raise UserError(f"policy.spec: {path} is no Hugging Face directory (no config.json)")
    try:
        json.loads((path / "config.json").read_text())
        weights = sorted(path.glob("*.safetensors"))
        if not weights:
            raise UserError(f"policy.spec: {path} holds no *.safetensors file")
        for file in weights:
            with safe_open(file, framework="numpy"):
                pass
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"policy.spec: checkpoint {path} is not readable: {error}") from error
    return path.resolve()
