from __future__ import annotations

import pytest
from learner_data import MakeModel, MakeTrajectories, build_model, build_trajectories


@pytest.fixture
def make_model() -> MakeModel:
    return build_model


@pytest.fixture
def make_trajectories() -> MakeTrajectories:
    return build_trajectories
