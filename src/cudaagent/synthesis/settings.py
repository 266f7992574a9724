"""Options of task synthesis."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SynthesisSettings:
    """What is composed and which eager times are kept."""

    seed: int = 0
    """Decides every draw."""
    train: int = 24
    """Tasks to train on."""
    heldout: int = 12
    """Tasks to evaluate on; their compositions are unseen in training."""
    max_operators: int = 3
    """Operators composed into one layer."""
    min_ms: float = 1.0
    """Lower bound of the eager time, milliseconds (paper: 1)."""
    max_ms: float = 100.0
    """Upper bound of the eager time, milliseconds (paper: 100)."""
