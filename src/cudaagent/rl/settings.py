"""Options of the learner. Each default is marked: from the paper, or ours where it is silent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PPOSettings:
    """Proximal policy optimisation over token-level actions."""

    clip_low: float = 0.2
    """Lower clip of the ratio (paper)."""
    clip_high: float = 0.28
    """Upper clip of the ratio (paper)."""
    gamma: float = 1.0
    """Discount (paper)."""
    lam: float = 0.95
    """GAE lambda of the actor's advantages (paper)."""
    critic_lam: float | None = None
    """GAE lambda of the critic's targets; None: the same as the actor's (paper)."""
    actor_lr: float = 3e-6
    """Learning rate of the actor (paper)."""
    critic_lr: float = 6e-6
    """Learning rate of the critic (paper)."""
    epochs: int = 1
    """Passes over one batch (ours; the paper's batch equals its mini-batch)."""
    mini_batches: int = 1
    """Mini-batches in a batch (paper: 1)."""
    critic_epochs: int = 1
    """Passes of the critic over one batch, made before the actor's (ours)."""
    tis_cap: float = 2.0
    """Cap of pi_old / pi_engine, the truncated importance weight (ours)."""
    whiten_advantages: bool = True
    """Whiten over all action tokens of the global batch (ours)."""
    warmup_steps: int = 5
    """Linear warm-up of both learning rates, in optimizer steps (ours)."""
    beta1: float = 0.9
    """AdamW (ours)."""
    beta2: float = 0.95
    """AdamW (ours)."""
    weight_decay: float = 0.0
    """AdamW (ours)."""
    max_grad_norm: float = 1.0
    """Gradient norm to clip at (ours)."""
    kl_coef: float = 0.0
    """Weight of the KL term against the batch's old policy (ours)."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus (ours)."""
    value_clip: float | None = None
    """Clip the critic's move from the batch's old value to this; None: unclipped (ours)."""
    max_skipped_steps: int = 3
    """Consecutive optimizer steps with non-finite gradients before the run ends (ours)."""
    micro_tokens: int = 16384
    """Tokens of one forward and backward; memory only, the gradient is the same."""


@dataclass
class RFTSettings:
    """Rejection fine-tuning (paper, 3.3)."""

    trajectories: int = 1024
    """Agent trajectories of the single-turn policy to collect (ours)."""
    epochs: int = 1
    """Passes over the kept trajectories (ours)."""
    lr: float = 3e-6
    """Learning rate (ours)."""
    batch: int = 64
    """Trajectories in one optimizer step (ours)."""
    max_repeats: int = 3
    """Identical consecutive tool calls above which a trajectory counts as a redundant loop."""
    warmup_steps: int = 5
    """Linear warm-up of the learning rate, in optimizer steps (ours)."""
    max_grad_norm: float = 1.0
    """Gradient norm to clip at (ours)."""
    max_skipped_steps: int = 3
    """Consecutive optimizer steps with non-finite gradients before the run ends (ours)."""
    micro_tokens: int = 16384
    """Tokens of one forward and backward; memory only, the gradient is the same."""


@dataclass
class ValuePretrainingSettings:
    """Fit the critic on the unfiltered trajectories of the single-turn policy (paper, 3.3)."""

    epochs: int = 10
    """At most so many passes; targets are recomputed before each."""
    lr: float = 6e-6
    """Learning rate (ours)."""
    batch: int = 64
    """Trajectories in one optimizer step (ours)."""
    lam: float = 0.95
    """GAE lambda of the targets (paper); 1 gives Monte-Carlo returns."""
    holdout: float = 0.2
    """Share of the trajectories held out to measure explained variance."""
    stop_explained_variance: float = 0.9
    """Stop when explained variance on the held-out part reaches this."""
    patience: int = 3
    """Stop after so many epochs without improvement."""
    gamma: float = 1.0
    """Discount (paper)."""
    warmup_steps: int = 5
    """Linear warm-up of the learning rate, in optimizer steps (ours)."""
    max_grad_norm: float = 1.0
    """Gradient norm to clip at (ours)."""
    max_skipped_steps: int = 3
    """Consecutive optimizer steps with non-finite gradients before the run ends (ours)."""
    micro_tokens: int = 16384
    """Tokens of one forward and backward; memory only, the gradient is the same."""


@dataclass
class StageSettings:
    """Length of one reinforcement-learning stage."""

    steps: int = 150
    """Batches (paper: 150 for agentic PPO)."""
    batch: int = 1024
    """Trajectories in one batch (paper)."""
    max_turns: int = 150
    """Assistant turns of one episode."""
    context_tokens: int = 131072
    """Tokens of one episode."""
