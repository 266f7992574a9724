import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        rows, columns = x.size(1), x.size(0)
        turned = x.t().unsqueeze(0).squeeze(0)
        left, right = turned[:, : columns // 2], turned.narrow(1, columns // 2, columns // 2)
        out = torch.empty((rows, columns // 2), dtype=x.dtype, device=x.device)
        cuda_extension.glu(left.contiguous(), right.contiguous(), out)
        return out.view(-1).reshape(rows, -1)
