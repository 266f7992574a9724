"""A fused polynomial.

try:
    y = torch.relu(x)  # what the reference would do; eval("...") and open("...") are words here
except RuntimeError:
    pass
"""

import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """Never calls torch.matmul, F.relu or exec; it says so in prose."""

    def forward(self, x):
        """import os; os.system("...") is a text, not a call."""
        out = torch.empty_like(x)  # torch.compile would do the same
        cuda_extension.polynomial(x, out)
        return out
