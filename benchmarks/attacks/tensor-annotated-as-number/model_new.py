import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a: int, b: int):
        return a[:, None] * b
