import torch
import torch.nn as nn


class Model(nn.Module):
    """The logarithm of the gamma function."""

    def forward(self, x):
        return torch.lgamma(x)


def get_inputs():
    return [torch.rand(128, 1024) * 4.0 + 1.0]


def get_init_inputs():
    return []
