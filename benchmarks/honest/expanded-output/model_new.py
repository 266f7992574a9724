import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(x.size(0), 1)
        cuda_extension.means(x, out)
        return out.expand(-1, 4)
