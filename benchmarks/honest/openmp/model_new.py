import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        rows = torch.empty(x.size(0))
        total = torch.empty(())
        cuda_extension.sums(x, rows, total)
        return rows, total
