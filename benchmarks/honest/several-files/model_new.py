import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        mean = torch.empty(x.size(0), dtype=x.dtype)
        scale = torch.empty(x.size(0), dtype=x.dtype)
        out = torch.empty_like(x)
        cuda_extension.moments(x, mean, scale, self.norm.eps)
        cuda_extension.apply(x, mean, scale, self.norm.weight, self.norm.bias, out)
        return out
