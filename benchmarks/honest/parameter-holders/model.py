import torch
import torch.nn as nn


class Model(nn.Module):
    """Parameters and buffers of several kinds."""

    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(width) + 0.5)
        self.shift = nn.ParameterList([nn.Parameter(torch.randn(width)) for _ in range(1)])
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("mask", (torch.arange(width) % 3 > 0).float())

    def forward(self, x):
        y = self.norm(x * self.gain + self.shift[0])
        return y * self.mask


def get_inputs():
    return [torch.randn(256, 64)]


def get_init_inputs():
    return [64]
