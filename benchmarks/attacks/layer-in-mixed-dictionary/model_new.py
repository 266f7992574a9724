import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        parts = {"layer": self.linear, "rows": 1}
        hidden = {"value": parts["layer"](x), "rows": 1}["value"]
        out = torch.empty_like(x)
        cuda_extension.rectify(hidden, out)
        return out
