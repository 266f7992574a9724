import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        left = {"value": a.unsqueeze(1), "rows": 1}["value"]
        right = {"value": b, "rows": 1}["value"]
        return left * right
