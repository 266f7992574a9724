"""Passes over micro-batches: forward only, or gradients and one optimizer step.

Runs in the learner's process. Each micro-batch is computed under a shared hold of the timing
lease, where one is given, so ``micro_tokens`` also bounds how long a timed section waits. No hold
spans communication between workers: a worker may be waiting for the lease meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from cudaagent.lease import TimingLease
from cudaagent.rl.batch import Batch, MicroBatch, MiniBatch
from cudaagent.rl.optimization import GuardedAdamW, StepResult

Progress = Callable[[str, int, int], None]
"""Called with phase, micro-batches done, micro-batches in all."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Where and in what pieces a worker computes."""

    device: torch.device
    micro_tokens: int
    lease: TimingLease | None = None
    progress: Progress | None = None

    def forward(
        self,
        phase: str,
        batch: Batch,
        rows: Sequence[int],
        function: Callable[[MicroBatch], None],
    ) -> None:
        """Call ``function`` on each micro-batch of ``rows`` without gradients."""
        total = batch.micro_batch_count(rows, self.micro_tokens)
        micros = batch.micro_batches(rows, self.micro_tokens, self.device)
        for done, micro in enumerate(micros, start=1):
            with self._hold(), torch.no_grad():
                function(micro)
            self._report(phase, done, total)

    def learn(
        self,
        phase: str,
        batch: Batch,
        mini: MiniBatch,
        optimizer: GuardedAdamW,
        function: Callable[[MicroBatch], None],
    ) -> StepResult:
        """Let ``function`` add each micro-batch's gradients, then step with all workers."""
        optimizer.zero_grad()
        total = batch.micro_batch_count(mini.rows, self.micro_tokens)
        micros = batch.micro_batches(mini.rows, self.micro_tokens, self.device)
        for done, micro in enumerate(micros, start=1):
            with self._hold():
                function(micro)
            self._report(phase, done, total)
        optimizer.reduce()
        with self._hold():
            return optimizer.step()

    def _hold(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if self.lease is None else self.lease.shared()

    def _report(self, phase: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(phase, done, total)
