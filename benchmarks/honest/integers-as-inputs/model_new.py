import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, rows: int, width: int):
        super().__init__()
        self.table = nn.Embedding(rows, width)

    def forward(self, ids):
        out = torch.empty(*ids.shape, self.table.embedding_dim, dtype=self.table.weight.dtype)
        cuda_extension.gather(ids.reshape(-1), self.table.weight, out.view(ids.numel(), -1))
        return out
