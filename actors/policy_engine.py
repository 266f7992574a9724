"""The policy engine: one process that holds the policy's weights and answers generation requests.

Invariant: every answer carries the version of the weights that produced it. A restarted engine
loads what the driver told it last (the newest checkpoint), never the first weights again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import ray
from numpy.typing import NDArray

from cudaagent.config import PolicySettings
from cudaagent.lease import TimingLease
from cudaagent.policy.base import Generation, GenerationRequest, Message, Policy
from cudaagent.policy.open import open_policy


class PolicyEngine:
    """Loads a policy by its URL-like string and serves it.

    ``start`` and ``observe`` run beside a generation (the actor has several threads); generations
    themselves run one at a time, since they share the device.
    """

    def __init__(self, settings: PolicySettings, threads: int, latest: str | None = None) -> None:
        self._settings = settings
        self._threads = threads
        self._generating = threading.Lock()
        pointer = None if latest is None else Path(latest)
        spec, version = settings.spec, 0
        if pointer is not None and pointer.is_file():
            version_text, _, directory = pointer.read_text().strip().partition(" ")
            spec, version = f"hf:{directory}", int(version_text)
        self._policy = self._open(spec)
        self._version = version

    def _open(self, spec: str) -> Policy:
        return open_policy(
            spec, device=self._settings.device, threads=self._threads, lease=TimingLease()
        )

    def load(self, directory: str, version: int) -> int:
        """Replace the weights by those of a checkpoint directory; returns the version."""
        with self._generating:
            self._policy = self._open(f"hf:{directory}")
            self._version = version
        return version

    def version(self) -> int:
        return self._version

    def start(self, messages: Sequence[Message]) -> NDArray[np.int32]:
        return self._policy.start(messages)

    def observe(self, text: str) -> NDArray[np.int32]:
        return self._policy.observe(text)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        with self._generating:
            version = self._version
            answers = self._policy.generate(requests)
        return [
            Generation(a.token_ids, a.logprobs, a.text, a.finish_reason, version) for a in answers
        ]


class RemotePolicy:
    """The ``Policy`` protocol over a policy engine actor."""

    def __init__(self, engine: ray.actor.ActorHandle, timeout_s: float = 3600.0) -> None:
        self._engine = engine
        self._timeout_s = timeout_s

    def start(self, messages: Sequence[Message]) -> NDArray[np.int32]:
        return ray.get(self._engine.start.remote(list(messages)), timeout=self._timeout_s)

    def observe(self, text: str) -> NDArray[np.int32]:
        return ray.get(self._engine.observe.remote(text), timeout=self._timeout_s)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return ray.get(self._engine.generate.remote(list(requests)), timeout=self._timeout_s)
