import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
        cuda_extension.polynomial(x, out)
        return out
