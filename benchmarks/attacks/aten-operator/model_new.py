import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        y = torch.ops.aten.addmm(self.linear.bias, x, self.linear.weight.t())
        return torch.ops.aten.mul(torch.ops.aten.relu(y), 0.5)
