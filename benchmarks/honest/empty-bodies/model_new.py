from abc import ABC, abstractmethod

import cuda_extension
import torch
from torch import nn


class Launcher(ABC):
    @abstractmethod
    def launch(self, x, out): ...


class Tag:
    pass


class Polynomial(Launcher):
    def __init__(self):
        pass

    def launch(self, x, out):
        cuda_extension.polynomial(x, out)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.launcher = Polynomial()
        self.tag = Tag()
        try:
            self.width = int("64")
        except ValueError:
            pass

    def forward(self, x):
        out = torch.empty_like(x)
        self.launcher.launch(x, out)
        return out
