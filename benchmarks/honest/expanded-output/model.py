import torch
import torch.nn as nn


class Model(nn.Module):
    """Each row's mean, as wide as the row."""

    def forward(self, x):
        return x.mean(dim=1, keepdim=True).expand(-1, 4)


def get_inputs():
    return [torch.randn(256, 512)]


def get_init_inputs():
    return []
