"""What is wrong with a policy is said before anything is written or started."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cudaagent.errors import UserError
from cudaagent.policy.checkpoint import local_checkpoint
from cudaagent.policy.open import check_policy

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "quickstart"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nonsense", "is none of"),
        ("hf:", "is none of"),
        ("replay:missing.json", "missing.json"),
        ("openai:model", "openai:MODEL@BASE_URL"),
        ("hf:/nowhere/at-all", "no config.json"),
    ],
)
def test_an_unusable_policy_is_one_line(spec: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        check_policy(spec)
    assert "\n" not in str(caught.value)


def test_a_mistyped_directory_is_no_model_of_the_hub(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.json"):
        check_policy(f"hf:{tmp_path}/quikstart")


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINT, tmp_path / "damaged")
    check_policy(f"hf:{tmp_path / 'damaged'}")
    weights = tmp_path / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UserError, match="not readable"):
        check_policy(f"hf:{tmp_path / 'damaged'}")


def test_only_a_local_model_can_be_trained() -> None:
    assert local_checkpoint(f"hf:{CHECKPOINT}") == CHECKPOINT
    with pytest.raises(UserError, match="cannot be trained"):
        local_checkpoint("teacher")
