import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, nodes):
        super().__init__()
        self.register_buffer("graph", torch.zeros(nodes, nodes))

    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.propagate(self.graph, x, out)
        return out
