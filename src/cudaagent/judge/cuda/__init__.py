"""The judge's own work on an NVIDIA GPU."""
