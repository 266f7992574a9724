import torch
import torch.nn as nn


class Model(nn.Module):
    """A small signal on a large offset."""

    def forward(self, x):
        return 100.0 + 1e-3 * torch.tanh(x).mean(dim=1)


def get_inputs():
    return [torch.randn(512, 1024)]


def get_init_inputs():
    return []
