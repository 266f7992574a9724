from dataclasses import dataclass

import cuda_extension
import torch
import torch.nn as nn


@dataclass(frozen=True)
class Shape:
    rows: int
    width: int

    @property
    def area(self) -> int:
        return self.rows * self.width


class ModelNew(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(width) + 0.5)
        self.shift = nn.ParameterList([nn.Parameter(torch.randn(width)) for _ in range(1)])
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("mask", torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = Shape(x.shape[0], x.shape[-1])
        if shape.area != x.numel():
            raise ValueError(f"expected a matrix, got {tuple(x.shape)}")
        out = torch.empty_like(x)
        norm = self.norm
        cuda_extension.affine_norm(
            x, self.gain, self.shift[0], norm.weight, norm.bias, norm.running_mean,
            norm.running_var, self.mask, out, float(norm.eps),
        )
        return out
