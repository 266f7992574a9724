"""cudaagent: train and run agents that write GPU kernels faster than torch.compile."""

__version__ = "0.1.0"
