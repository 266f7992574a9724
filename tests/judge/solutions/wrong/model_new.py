import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, scale):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.scale = scale

    def forward(self, x):
        out = torch.empty((x.size(0), 1), dtype=x.dtype, device=x.device)
        cuda_extension.linear_sum(x, self.linear.weight, self.linear.bias, out, self.scale)
        return out
