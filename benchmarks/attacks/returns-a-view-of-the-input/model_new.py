import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.view(-1).reshape(x.shape).detach()
