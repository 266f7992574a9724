import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(x.size(0))
        cuda_extension.fill(x, out)
        return out
