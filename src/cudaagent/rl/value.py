"""The value model: the policy's architecture with parameters of its own and a scalar head.

Runs in the learner's process. On disk it is a plain Hugging Face directory of the backbone plus
``value_head.safetensors``. The head is float32 and its weights start at zero, so no gradient
reaches the backbone before the head has moved. Whoever trains an untouched critic first puts its
bias at the mean return (``centre``): from a bias of 0 the first steps learn nothing but that mean,
with all parameters at once, and what distinguishes one state from another comes many epochs later.
"""

from __future__ import annotations

import copy
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from cudaagent.errors import UserError
from cudaagent.rl import world
from cudaagent.rl.pretrained import load_pretrained

HEAD_FILE = "value_head.safetensors"


class ValueModel(torch.nn.Module):
    """Backbone and scalar head."""

    def __init__(self, backbone: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = backbone
        dtype = torch.float64 if backbone.dtype == torch.float64 else torch.float32
        self.head = torch.nn.Linear(
            int(backbone.config.hidden_size), 1, dtype=dtype, device=backbone.device
        )
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    @classmethod
    def from_policy(cls, policy: PreTrainedModel) -> ValueModel:
        """A critic that starts from a copy of the policy's backbone."""
        backbone = copy.deepcopy(policy.base_model)
        assert isinstance(backbone, PreTrainedModel)
        return cls(backbone)

    def centre(self, return_N: Tensor, weight_N: Tensor) -> None:
        """Put an untouched head's bias at the weighted mean return over all workers."""
        if bool(self.head.weight.any()) or bool(self.head.bias.any()):
            return
        weight_N = weight_N.double()
        total, weight = world.all_sum(
            torch.stack([(weight_N * return_N.double()).sum(), weight_N.sum()])
        ).tolist()
        if weight > 0:
            torch.nn.init.constant_(self.head.bias, total / weight)

    def value(self, hidden_AH: Tensor) -> Tensor:
        """Values [A] of hidden states [A, H]."""
        return self.head(hidden_AH.to(self.head.weight.dtype)).squeeze(-1)

    def save(self, directory: Path) -> None:
        """Write the directory; not atomic by itself."""
        self.backbone.save_pretrained(directory)
        state = {name: tensor.contiguous() for name, tensor in self.head.state_dict().items()}
        safetensors.torch.save_file(state, directory / HEAD_FILE)

    @classmethod
    def load(
        cls,
        directory: Path,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> ValueModel:
        """Read what ``save`` wrote.

        Raises:
            UserError: missing or damaged files.
        """
        model = cls(load_pretrained(AutoModel, directory, dtype=dtype, device=device))
        path = directory / HEAD_FILE
        try:
            model.head.load_state_dict(safetensors.torch.load_file(path, device=str(device)))
        except (OSError, SafetensorError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"value head {path} is not readable: {reason}") from error
        return model
