"""Opens a policy by its URL-like string.

``hf:MODEL_OR_DIR``, ``teacher``, ``replay:FILE``, ``openai:MODEL@BASE_URL``, ``vllm:MODEL``. Heavy
libraries are imported only for the kind that needs them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from cudaagent.errors import UserError
from cudaagent.lease import TimingLease
from cudaagent.policy.base import Policy
from cudaagent.policy.checkpoint import check_checkpoint

KINDS = "hf:MODEL_OR_DIR, teacher, replay:FILE, openai:MODEL@BASE_URL or vllm:MODEL"


def open_policy(
    spec: str,
    *,
    device: str = "auto",
    threads: int | None = None,
    lease: TimingLease | None = None,
) -> Policy:
    """The policy that ``spec`` names.

    Args:
        spec: see the module.
        device: ``auto``, ``cpu`` or ``cuda``; for ``hf``.
        threads: CPU threads of this process while ``hf`` computes; None leaves them as they are.
        lease: held shared while ``hf`` computes.

    Raises:
        UserError: unknown kind, or whatever the policy needs is missing.
    """
    kind, _, rest = spec.partition(":")
    if kind == "teacher" and not rest:
        from cudaagent.policy.teacher import TeacherPolicy

        return TeacherPolicy()
    if not rest:
        raise UserError(f"policy {spec!r} is none of {KINDS}")
    if kind == "hf":
        from cudaagent.policy.hf import HFPolicy

        return HFPolicy.load(rest, device, lease=lease, threads=threads)
    if kind == "replay":
        from cudaagent.policy.replay import ReplayPolicy

        return ReplayPolicy.load(Path(rest))
    if kind == "openai":
        from cudaagent.policy.endpoint import EndpointPolicy

        return EndpointPolicy.parse(rest)
    if kind == "vllm":
        raise UserError(_vllm_missing(rest))
    raise UserError(f"policy {spec!r} is none of {KINDS}")


def check_policy(spec: str) -> None:
    """Find out what can be found out about ``spec`` without loading it.

    Raises:
        UserError: see ``open_policy``.
    """
    kind, _, rest = spec.partition(":")
    if kind != "hf":
        open_policy(spec)
    elif not rest:
        raise UserError(f"policy {spec!r} is none of {KINDS}")
    elif _names_a_directory(rest):
        check_checkpoint(Path(rest))


def _names_a_directory(text: str) -> bool:
    """Not a model's name on the hub: a path that exists, or whose parent does."""
    path = Path(text)
    return path.exists() or path.is_absolute() or ("/" in text and path.parent.is_dir())


def is_trainable(spec: str) -> bool:
    """Whether trajectories of this policy carry the ids and log-probabilities that PPO needs."""
    return spec.partition(":")[0] in ("hf", "vllm")


def _vllm_missing(model: str) -> str:
    server = f"serve {model} with vLLM and use openai:{model}@http://HOST:8000/v1"
    if importlib.util.find_spec("vllm") is None:
        return f"policy vllm:{model}: vllm is not installed here; {server}"
    return f"policy vllm:{model}: vLLM inside this process is not available yet; {server}"
