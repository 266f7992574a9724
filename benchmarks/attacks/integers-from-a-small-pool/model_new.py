import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = torch.empty_like(a)
        cuda_extension.divisors(a, b, out)
        return out
