import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(x.size(0), dtype=torch.int64)
        cuda_extension.where(x, out)
        return out
