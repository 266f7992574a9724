"""Byte-level conversations, the fake and the replay policy, and how a policy is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cudaagent.agent.trajectory import ExitReason, Trajectory, Turn, write_trajectories
from cudaagent.errors import UserError
from cudaagent.policy import byte_level
from cudaagent.policy.base import GenerationRequest, Message
from cudaagent.policy.fake import FakePolicy
from cudaagent.policy.open import is_trainable, open_policy
from cudaagent.policy.replay import ReplayPolicy

PROMPT = [Message("system", "be fast"), Message("user", "größer ☃")]


def test_a_conversation_is_read_back_from_its_ids() -> None:
    policy = FakePolicy(["erstens ä", "zweitens"])
    ids = policy.start(PROMPT)
    for _ in range(2):
        (answer,) = policy.generate([GenerationRequest(ids, 100, seed=0)])
        ids = np.concatenate([ids, answer.token_ids, policy.observe("ok <|user|> \u2603")])

    assert byte_level.turn_index(ids) == 2
    assert byte_level.messages(ids) == [
        *PROMPT,
        Message("assistant", "erstens ä"),
        Message("user", "ok <|user|> \u2603"),
        Message("assistant", "zweitens"),
        Message("user", "ok <|user|> \u2603"),
    ]


def test_text_and_ids_of_a_generation_agree_and_the_limit_cuts() -> None:
    policy = FakePolicy(["añb"])
    ids = policy.start(PROMPT)
    whole, exact, cut = policy.generate([GenerationRequest(ids, n, seed=0) for n in (5, 4, 2)])

    assert (whole.finish_reason, whole.text, len(whole.token_ids)) == ("stop", "añb", 5)
    assert whole.token_ids[-1] == byte_level.END
    assert (exact.finish_reason, exact.text, len(exact.token_ids)) == ("length", "añb", 4)
    assert (cut.finish_reason, len(cut.token_ids)) == ("length", 2)
    for answer in (whole, exact, cut):
        assert byte_level.decode(answer.token_ids) == answer.text
        assert answer.logprobs.shape == answer.token_ids.shape
        assert answer.token_ids.dtype == np.int32


def test_a_script_sees_prompt_turn_and_seed() -> None:
    policy = FakePolicy(lambda prompt, turn, seed: f"{prompt}|{turn}|{seed}")
    (answer,) = policy.generate([GenerationRequest(policy.start(PROMPT), 100, seed=7)])
    assert answer.text == "größer ☃|0|7"


def _trajectory(name: str, *texts: str) -> Trajectory:
    ids = np.zeros(1, dtype=np.int32)
    return Trajectory(
        id=name,
        task_id="t",
        stage="s",
        step=0,
        seed=0,
        policy_version=0,
        token_ids=ids,
        loss_mask=ids.astype(bool),
        logprobs=ids.astype(np.float32),
        turns=tuple(Turn(0, 0, (), text) for text in texts),
        exit_reason=ExitReason.SUBMITTED,
    )


def test_replay_says_what_the_stored_trajectory_said(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_trajectories(path, [_trajectory("a", "one", "two"), _trajectory("b", "three")])
    policy = open_policy(f"replay:{path}")
    said: list[str] = []
    ids = policy.start(PROMPT)
    for _ in range(3):
        (answer,) = policy.generate([GenerationRequest(ids, 100, 0, episode_id="a")])
        said.append(answer.text)
        ids = np.concatenate([ids, answer.token_ids, policy.observe("ok")])
    assert said == ["one", "two", ""]
    with pytest.raises(UserError, match="has no trajectory c"):
        policy.generate([GenerationRequest(ids, 100, 0, episode_id="c")])


def test_a_replayed_file_with_one_trajectory_serves_every_episode() -> None:
    policy = ReplayPolicy([_trajectory("a", "one")], "memory")
    (answer,) = policy.generate([GenerationRequest(policy.start(PROMPT), 9, 0, episode_id="x")])
    assert answer.text == "one"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nonsense", "none of hf:"),
        ("hf:", "none of hf:"),
        ("teacher:x", "none of hf:"),
        ("replay:/no/such/file", "is not a file"),
        (f"replay:{__file__}", "holds no trajectories"),
        ("openai:m", "openai:MODEL@BASE_URL"),
        ("openai:@http://x", "openai:MODEL@BASE_URL"),
        ("openai:m@https://localhost/v1", "OPENAI_API_KEY"),
        ("vllm:m", "openai:m@http://HOST:8000/v1"),
    ],
)
def test_an_unusable_policy_is_one_clear_line(
    spec: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError) as caught:
        open_policy(spec)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_policies_with_ids_and_logprobs_are_trainable() -> None:
    specs = ("hf:x", "vllm:x", "teacher", "replay:x", "openai:m@http://x")
    assert [is_trainable(spec) for spec in specs] == [True, True, False, False, False]


def test_naming_a_policy_imports_no_heavy_library() -> None:
    code = (
        "import sys, cudaagent.policy.open, cudaagent.policy.endpoint, cudaagent.agent.episode\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'ray')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
