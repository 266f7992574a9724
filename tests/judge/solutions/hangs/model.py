import torch
import torch.nn as nn


class Model(nn.Module):
    """A linear layer whose outputs are summed and scaled."""

    def __init__(self, in_features, out_features, scale):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.scale = scale

    def forward(self, x):
        y = self.linear(x)
        return torch.sum(y, dim=1, keepdim=True) * self.scale


def get_inputs():
    return [torch.randn(256, 1024)]


def get_init_inputs():
    return [1024, 1024, 0.5]
