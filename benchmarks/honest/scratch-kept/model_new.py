import logging
import math
from functools import lru_cache
from typing import Optional

import cuda_extension
import torch
import torch.nn as nn

logger = logging.getLogger(__name__)


@lru_cache(maxsize=None)
def rounded(n: int, block: int = 64) -> int:
    return math.ceil(n / block) * block


class ModelNew(nn.Module):
    """Keeps a scratch tensor between calls; every call writes it before it reads it."""

    def __init__(self, width):
        super(ModelNew, self).__init__()
        self.norm = nn.LayerNorm(width)
        self.scratch: Optional[torch.Tensor] = None

    def forward(self, x):
        if self.scratch is None or self.scratch.numel() < rounded(x.size(1)):
            self.scratch = torch.empty(rounded(x.size(1)))
            logger.debug("scratch of %d", self.scratch.numel())
        out = torch.empty_like(x)
        cuda_extension.norm_scratch(x, self.norm.weight, self.norm.bias, self.scratch, out)
        return out
