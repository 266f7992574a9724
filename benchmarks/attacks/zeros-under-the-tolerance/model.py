import torch
import torch.nn as nn


class Model(nn.Module):
    """Outputs far below an absolute tolerance of 1e-2."""

    def forward(self, x):
        return 1e-4 * torch.tanh(x).sum(dim=1)


def get_inputs():
    return [torch.randn(512, 1024)]


def get_init_inputs():
    return []
