"""The policy that runs a Hugging Face causal language model with plain transformers.

Runs in the process that generates (a rollout worker, a script). Simple beside a serving engine, and
the same on a laptop and on a GPU. Tokens in, tokens out: sampled ids go back as they were sampled,
observations are rendered by the tokenizer's own chat template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from cudaagent.errors import UserError
from cudaagent.lease import TimingLease
from cudaagent.policy.base import Generation, GenerationRequest, Message
from cudaagent.policy.decoding import CausalModel, Decoder
from cudaagent.policy.quiet import quiet_transformers
from cudaagent.policy.seams import ChatSeams


class HFPolicy:
    """Any decoder-only attention model of transformers, sampled at temperature 1.

    ``temperature`` 0 decodes greedily and is for evaluation. ``lease`` is held shared in pieces of
    about half a second while the policy computes.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        temperature: float = 1.0,
        lease: TimingLease | None = None,
        name: str = "",
        max_rows: int = 64,
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.policy_version = 0
        self._seams = ChatSeams(tokenizer, name or type(model).__name__)
        self._stop = _stop_ids(model, tokenizer) | {self._seams.end_id}
        self._max_rows = max_rows
        self._decoder = Decoder(
            CausalModel(model), self._stop, temperature=temperature, lease=lease
        )

    @classmethod
    def load(
        cls,
        directory: str | Path,
        device: str = "auto",
        *,
        lease: TimingLease | None = None,
        threads: int | None = None,
        temperature: float = 1.0,
    ) -> HFPolicy:
        """Load a Hugging Face directory (or, where the hub answers, a model's name).

        ``threads`` sets the CPU threads of this whole process.

        Raises:
            UserError: the checkpoint cannot be read, or its tokenizer cannot chat.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        model, tokenizer = load_checkpoint(directory, device)
        return cls(model, tokenizer, temperature=temperature, lease=lease, name=str(directory))

    def start(self, messages: Sequence[Message]) -> NDArray[np.int32]:
        """Ids of the prompt, ending where the assistant's first turn begins."""
        return self._seams.start(messages)

    def observe(self, text: str) -> NDArray[np.int32]:
        """Ids between the end of an assistant turn and the start of the next one."""
        return self._seams.observe(text)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One generation for each request, in order.

        A prompt that fills the model's positions gets an empty one with reason ``length``.
        """
        results: list[Generation] = []
        for first in range(0, len(requests), self._max_rows):
            for drawn in self._decoder.draw(requests[first : first + self._max_rows]):
                body = drawn.token_ids[:-1] if drawn.stopped else drawn.token_ids
                text = self.tokenizer.decode(
                    body.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False
                )
                results.append(
                    Generation(
                        drawn.token_ids,
                        drawn.logprobs,
                        text,
                        "stop" if drawn.stopped else "length",
                        self.policy_version,
                    )
                )
        return results

    def load_weights(self, state: Mapping[str, Any], version: int) -> None:
        """Take the learner's weights: parameter name to array or tensor of the same shape.

        A tied output layer may be left out.

        Raises:
            ValueError: names or shapes that do not fit this model; nothing is changed.
        """
        own = dict(self.model.named_parameters(remove_duplicate=False))
        given = {name: torch.as_tensor(value) for name, value in state.items()}
        tied = _tied_names(self.model)
        missing, unknown = own.keys() - given.keys() - tied, given.keys() - own.keys()
        if missing or unknown:
            raise ValueError(
                f"weights do not fit: missing {sorted(missing)[:3]}, unknown {sorted(unknown)[:3]}"
            )
        for name, value in given.items():
            if value.shape != own[name].shape:
                raise ValueError(f"weights do not fit: {name} is {tuple(value.shape)}")
        with torch.no_grad():
            for name, value in given.items():
                own[name].copy_(value)
        self._decoder.forget()
        self.policy_version = version


def load_checkpoint(directory: str | Path, device: str = "cpu") -> tuple[Any, Any]:
    """Model and tokenizer of a Hugging Face directory; float32 on the CPU, as stored on a GPU.

    Raises:
        UserError: in one line, what of the checkpoint cannot be read.
    """
    path = Path(directory)
    if path.exists() and not (path / "config.json").is_file():
        raise UserError(
            f"checkpoint {directory}: no config.json in it; give a Hugging Face directory"
        )
    dtype = torch.float32 if device == "cpu" else "auto"
    loaded: Any
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(directory)
            loaded = AutoModelForCausalLM.from_pretrained(
                directory, dtype=dtype, attn_implementation="sdpa", output_loading_info=True
            )
    except Exception as error:
        # Every library below raises its own kind for a broken file (safetensors, json, tokenizers).
        raise UserError(f"checkpoint {directory}: {_reason(error)}") from error
    model, info = loaded
    if info["missing_keys"]:
        names = ", ".join(sorted(info["missing_keys"])[:3])
        raise UserError(f"checkpoint {directory}: weights are missing: {names}")
    return model.to(device), tokenizer


def _stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    configured: Any = model.generation_config.eos_token_id if model.generation_config else None
    listed: list[int | None] = configured if isinstance(configured, list) else [configured]
    return frozenset(i for i in (*listed, tokenizer.eos_token_id) if i is not None)


def _tied_names(model: Any) -> set[str]:
    """Names of parameters that are another parameter under a second name."""
    first: dict[int, str] = {}
    tied: set[str] = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            tied.add(name)
    return tied


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "ignore_mismatched_sizes" in text:
        return "its weights have other shapes than its config.json says"
    if "backend tokenizer" in text:
        return "its tokenizer's files are missing or not readable"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
