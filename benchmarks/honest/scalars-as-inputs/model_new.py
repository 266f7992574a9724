import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, alpha: float, steps: int = 1):
        alpha = float(alpha) if alpha is not None else 1.0
        total = max(1, steps) * x.numel() // x.numel()
        out = x.new_empty(x.shape)
        cuda_extension.steps(x, out, alpha, int(total))
        return out
