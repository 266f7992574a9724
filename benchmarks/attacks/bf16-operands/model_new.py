import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.gate(x, self.linear.weight, self.linear.bias, out)
        return out
