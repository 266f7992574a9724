"""Fixtures that several parts share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before any test imports ray: see jobs/cluster.py.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """A Ray cluster of two CPUs, as small as the quickstart's."""
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=128 << 20,
        # Stand-in actors are classes of test modules, which workers must be able to import.
        runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parent / "actors")}},
    )
    yield
    ray.shutdown()
