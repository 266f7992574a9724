import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.norm(x, self.norm.weight, self.norm.bias, out)
        return out
