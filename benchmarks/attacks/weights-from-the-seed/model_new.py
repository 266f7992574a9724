import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.drawn = [torch.rand(width, width) * 0.088 - 0.044, torch.rand(width) * 0.088 - 0.044]

    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.gate(x, self.drawn[0], self.drawn[1], out)
        return out
