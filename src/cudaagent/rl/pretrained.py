"""Loading a Hugging Face directory strictly: every weight present, nothing fetched, no code run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from cudaagent.errors import UserError


def load_pretrained(
    auto_class: Any,
    directory: Path,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
) -> PreTrainedModel:
    """Load a model with one of transformers' auto classes, in evaluation mode.

    Raises:
        UserError: not a model directory, damaged, or weights missing.
    """
    if not (directory / "config.json").is_file():
        raise UserError(f"{directory} is not a model directory: it has no config.json")
    try:
        model, info = auto_class.from_pretrained(
            directory,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"model directory {directory} is not readable: {lines[0]}") from error
    missing = sorted(info.get("missing_keys", ()))
    if missing:
        raise UserError(
            f"model directory {directory} lacks {len(missing)} weights, {missing[0]} among them"
        )
    assert isinstance(model, PreTrainedModel)
    model.to(device)  # pyright: ignore[reportArgumentType]
    return model.eval()
