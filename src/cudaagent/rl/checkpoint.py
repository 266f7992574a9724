"""Checkpoints: a plain Hugging Face directory of the actor, with the rest of the learner beside it.

Runs in the learner's process (one worker writes) and wherever a checkpoint is read. Layout::

    DIR/config.json, model.safetensors   the actor; transformers and vLLM load it
    DIR/tokenizer.json, ...              its tokenizer
    DIR/critic/                          backbone and value_head.safetensors
    DIR/optimizer.pt                     learner state: tensors and plain values
    DIR/trainer_state.json               format, step, and what the caller adds

A checkpoint is whole or absent. Weights are stored in the dtype they have; resuming is exact when
they are loaded in that dtype.
"""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from cudaagent.errors import UserError
from cudaagent.files import atomic_path
from cudaagent.rl.pretrained import load_pretrained
from cudaagent.rl.value import ValueModel

FORMAT = 1
CRITIC = "critic"
OPTIMIZER = "optimizer.pt"
STATE = "trainer_state.json"
_NOT_TOKENIZER = ("model", "pytorch_model", "config.json", "generation_config.json")
_TOKENIZER_SUFFIXES = (".json", ".txt", ".model", ".jinja")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint holds; absent parts are None."""

    actor: PreTrainedModel
    critic: ValueModel | None
    learner_state: dict[str, Any] | None
    trainer_state: dict[str, Any] = field(default_factory=dict[str, Any])


def save_checkpoint(
    directory: Path,
    actor: PreTrainedModel,
    tokenizer: Path | PreTrainedTokenizerBase | None,
    critic: ValueModel | None = None,
    learner_state: dict[str, Any] | None = None,
    *,
    trainer_state: dict[str, Any] | None = None,
) -> None:
    """Write a checkpoint that replaces ``directory`` at once or not at all.

    ``tokenizer`` is an object or a directory to copy the tokenizer's files from.
    """
    with atomic_path(directory) as temporary:
        temporary.mkdir()
        actor.save_pretrained(temporary)
        if isinstance(tokenizer, Path):
            _copy_tokenizer(tokenizer, temporary)
        elif tokenizer is not None:
            tokenizer.save_pretrained(temporary)
        if critic is not None:
            critic.save(temporary / CRITIC)
        state: dict[str, Any] = {"format": FORMAT, **(trainer_state or {})}
        if learner_state is not None:
            torch.save(learner_state, temporary / OPTIMIZER)
            state.setdefault("step", learner_state.get("step"))
        (temporary / STATE).write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")


def load_checkpoint(
    directory: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Checkpoint:
    """Read a checkpoint, or any Hugging Face directory of a causal language model.

    Raises:
        UserError: missing, damaged, or of a newer format.
    """
    if not directory.is_dir():
        raise UserError(f"checkpoint {directory} does not exist")
    state = _read_state(directory / STATE)
    critic = None
    if (directory / CRITIC).is_dir():
        critic = ValueModel.load(directory / CRITIC, dtype=dtype, device=device)
    return Checkpoint(
        actor=load_pretrained(AutoModelForCausalLM, directory, dtype=dtype, device=device),
        critic=critic,
        learner_state=_read_learner(directory / OPTIMIZER),
        trainer_state=state,
    )


def _read_state(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        state: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not readable: {error}") from error
    if not isinstance(state, dict):
        raise UserError(f"{path} is not a JSON object")
    found = cast("dict[str, Any]", state)
    if found.get("format") != FORMAT:
        raise UserError(
            f"{path} has format {found.get('format')}; this version reads format {FORMAT}"
        )
    return found


def _read_learner(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"learner state {path} is not readable: {lines[0]}") from error
    if not isinstance(state, dict):
        raise UserError(f"learner state {path} is not a mapping")
    return cast("dict[str, Any]", state)


def _copy_tokenizer(source: Path, target: Path) -> None:
    """Copy a tokenizer's files from a model directory, without its weights."""
    for path in sorted(source.iterdir()):
        wanted = path.suffix in _TOKENIZER_SUFFIXES and path.is_file()
        if wanted and path.name != STATE and not path.name.startswith(_NOT_TOKENIZER):
            shutil.copyfile(path, target / path.name)
