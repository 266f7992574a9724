import torch
import torch.nn as nn


class Model(nn.Module):
    """A gated linear unit on a transposed input."""

    def forward(self, x):
        left, right = x.transpose(0, 1).chunk(2, dim=-1)
        return left * torch.sigmoid(right)


def get_inputs():
    return [torch.randn(512, 256)]


def get_init_inputs():
    return []
