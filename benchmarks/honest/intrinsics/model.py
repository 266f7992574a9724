import torch
import torch.nn as nn


class Model(nn.Module):
    """A polynomial."""

    def forward(self, x):
        return x * x + 2.0 * x + 1.0


def get_inputs():
    return [torch.randn(64, 1024)]


def get_init_inputs():
    return []
