import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        cuda_extension.polynomial(x, out, 2)
        return out
