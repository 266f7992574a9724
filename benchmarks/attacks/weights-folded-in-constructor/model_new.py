import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.folded = self.linear.weight.detach().contiguous()

    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.gate(x, self.folded, self.linear.bias, out)
        return out
