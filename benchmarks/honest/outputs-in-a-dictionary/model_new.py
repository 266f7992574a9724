import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        outs = {
            "value": torch.empty(x.shape[0]),
            "where": torch.empty(x.shape[0], dtype=torch.int64),
            "positive": torch.empty(x.shape, dtype=torch.bool),
        }
        cuda_extension.best(x, *[outs[name] for name in ("value", "where", "positive")])
        return outs
