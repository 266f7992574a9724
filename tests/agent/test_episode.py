"""The episode: limits, masks, drops and rewards, on a real workspace, sandbox and gateway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles import SOURCE, TextCompiler, TextJudge, bash, write

from cudaagent.agent.episode import NO_TOKENS, Episode, EpisodeSpec
from cudaagent.agent.gateway import Gateway
from cudaagent.agent.prompt import build_prompt
from cudaagent.agent.settings import AgentSettings
from cudaagent.agent.tools import SCHEMAS, ToolBox
from cudaagent.agent.trajectory import ExitReason, Trajectory, from_table, to_table
from cudaagent.errors import UserError
from cudaagent.policy import byte_level
from cudaagent.policy.base import Generation
from cudaagent.policy.fake import LOGPROB, FakePolicy
from cudaagent.sandbox.base import Sandbox
from cudaagent.tasks.task import Task

ASK = """\
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(".gateway")
s.sendall(json.dumps({"command": sys.argv[1]}).encode() + b"\\n")
print(json.loads(s.makefile().readline())["text"])
"""
SPEC = EpisodeSpec("episode-1", Task("task-1", SOURCE), "agentic", 3, seed=11, policy_version=4)
SHORT = AgentSettings(prompt="short")
Play = Callable[..., Trajectory]


def solution(comment: str) -> str:
    return "\n".join(
        (
            f"Plan: {comment}",
            write("kernels/k.cpp", "int a;\n"),
            write("model_new.py", f"class ModelNew: ...\n# {comment}\n"),
        )
    )


@pytest.fixture
def play(
    workspace: Path, tools: ToolBox, gateway: Gateway, compiler: TextCompiler, judge: TextJudge
) -> Play:
    """Run an episode to its end and return its trajectory."""
    (workspace / "ask.py").write_text(ASK)

    def run(
        replies: Sequence[str] | Any,
        *,
        settings: AgentSettings = SHORT,
        reward_of: str = "final",
        clock: Callable[[], float] | None = None,
        **changes: Any,
    ) -> Trajectory:
        policy = FakePolicy(replies)
        extra = {} if clock is None else {"clock": clock}
        spec = replace(SPEC, **changes)
        episode = Episode(spec, policy, tools, gateway, settings, **extra)
        while (request := episode.request) is not None:
            (answer,) = policy.generate([request])
            episode.advance(answer)
        done = episode.finish(compiler, judge, reward_of=reward_of)
        check_invariants(done, spec)
        return done

    return run


def check_invariants(done: Trajectory, spec: EpisodeSpec) -> None:
    assert len(done.token_ids) == len(done.loss_mask) == len(done.logprobs)
    assert len(done.token_ids) <= spec.context_tokens or not done.turns
    spans = [np.arange(turn.start, turn.end) for turn in done.turns]
    expected = np.concatenate([*spans, np.zeros(0, dtype=int)])
    assert np.array_equal(np.flatnonzero(done.loss_mask), expected)
    assert (done.logprobs[done.loss_mask] == np.float32(LOGPROB)).all()
    assert (done.logprobs[~done.loss_mask] == 0).all()
    for turn in done.turns:
        assert byte_level.decode(done.token_ids[turn.start : turn.end]) == turn.text
    (again,) = from_table(to_table([done]))
    assert again.turns == done.turns
    assert np.array_equal(again.token_ids, done.token_ids)


def test_a_whole_episode(play: Play, judge: TextJudge, compiler: TextCompiler) -> None:
    compile_it = bash("python3 ask.py compile")
    done = play([f"{solution('reward 2')}\n{compile_it}", bash("python3 ask.py verify"), "Done."])

    assert (done.exit_reason, done.reward, done.drop_reason) == (ExitReason.SUBMITTED, 2.0, None)
    assert (done.id, done.task_id, done.stage, done.step) == ("episode-1", "task-1", "agentic", 3)
    assert (done.seed, done.policy_version) == (11, 4)
    assert set(done.files) == {"model_new.py", "kernels/k.cpp"}
    assert done.files["kernels/k.cpp"] == "int a;\n"
    calls = [call for turn in done.turns for call in turn.calls]
    assert [call.name for call in calls] == ["Write", "Write", "Bash", "Bash"]
    assert all(call.ok for call in calls)
    assert calls[2].result == "BUILD OK"
    assert calls[3].result.startswith("VERIFY OK\n")
    spoken = byte_level.messages(np.append(done.token_ids, byte_level.ASSISTANT))
    assert spoken[0].content == SOURCE
    assert spoken[2].content == (
        "[Write] wrote kernels/k.cpp (1 lines)\n[Write] wrote model_new.py (2 lines)\n"
        "[Bash] BUILD OK"
    )
    assert spoken[-1].content == "Done."
    assert [purpose for _, purpose in judge.asked] == ["verify", "judge"]
    assert compiler.built == [done.submission]


def test_the_full_prompt_has_the_tools_and_the_task_between_markers() -> None:
    offered = [SCHEMAS[name] for name in ("Bash", "Read")]
    system, user = build_prompt(SPEC.task, "full", offered)
    assert (system.role, user.role) == ("system", "user")
    assert "- Bash:" in system.content
    assert "- Edit:" not in system.content
    assert "SKILL.md" in system.content
    assert user.content.count("-----") == 4
    assert SOURCE.rstrip() in user.content
    with pytest.raises(UserError, match=r"agent\.prompt=long"):
        build_prompt(SPEC.task, "long", offered)


def test_single_turn_runs_the_tools_and_ends(play: Play) -> None:
    done = play([solution("reward 3"), "never"], max_turns=1)
    assert (done.exit_reason, done.reward) == (ExitReason.TURN_LIMIT, 3.0)
    assert len(done.turns) == 1
    assert done.loss_mask[-1]


def test_the_state_at_the_turn_limit_is_judged(play: Play) -> None:
    done = play(lambda prompt, turn, seed: solution(f"reward {turn}"), max_turns=3)
    assert (done.exit_reason, done.reward, len(done.turns)) == (ExitReason.TURN_LIMIT, 2.0, 3)


@pytest.mark.parametrize("replies", [["Done."], [write("kernels/k.cpp", "int a;\n")]])
def test_an_untouched_model_new_is_no_solution(
    play: Play, judge: TextJudge, replies: list[str]
) -> None:
    done = play(replies)
    assert done.reward == -1.0
    assert done.verdict is not None
    assert done.verdict.code == "no-solution"
    assert judge.asked == []


def test_a_missing_model_new_is_no_solution(play: Play) -> None:
    done = play([bash("rm model_new.py")])
    assert done.verdict is not None
    assert (done.reward, done.verdict.code) == (-1.0, "no-solution")


def test_failures_of_the_candidate_are_rewarded_minus_one(play: Play) -> None:
    done = play([solution("wrong")])
    assert done.verdict is not None
    assert (done.reward, done.verdict.code, done.drop_reason) == (-1.0, "wrong-values", None)


def test_an_oversized_submission_is_the_candidates_failure(play: Play) -> None:
    done = play([solution("reward 3"), bash("head -c 2000000 /dev/zero > kernels/big.cpp")])
    assert done.verdict is not None
    assert (done.reward, done.verdict.code) == (-1.0, "static-check")
    assert "larger than" in done.verdict.failure.message  # type: ignore[union-attr]


def test_a_turn_cut_by_the_token_limit_keeps_its_tokens_and_runs_nothing(
    play: Play, workspace: Path
) -> None:
    settings = AgentSettings(prompt="short", turn_tokens=400)
    long = f"{bash('touch ran')}{'x' * 500}"
    done = play([solution("reward 2"), long, "never"], settings=settings)
    assert done.exit_reason == ExitReason.CONTEXT_FULL
    assert [len(turn.calls) for turn in done.turns] == [2, 0]
    assert done.turns[1].end - done.turns[1].start == 400
    assert not (workspace / "ran").exists()
    assert done.reward == 2.0


def test_the_context_is_never_exceeded(play: Play, workspace: Path) -> None:
    done = play([solution("reward 2"), f"{bash('touch ran')}{'x' * 5000}"], context_tokens=700)
    assert done.exit_reason == ExitReason.CONTEXT_FULL
    assert len(done.token_ids) == 700
    assert not (workspace / "ran").exists()


def test_an_observation_without_room_ends_the_episode_after_its_tools(
    play: Play, workspace: Path
) -> None:
    done = play([solution("reward 2"), bash("touch ran; seq 1 1000")], context_tokens=1000)
    assert done.exit_reason == ExitReason.CONTEXT_FULL
    assert (workspace / "ran").exists()
    assert done.turns[-1].end == len(done.token_ids)


def test_a_prompt_without_room_is_dropped(play: Play) -> None:
    done = play(["never"], context_tokens=10)
    assert (done.exit_reason, done.drop_reason) == (ExitReason.CONTEXT_FULL, NO_TOKENS)
    assert (done.reward, len(done.turns)) == (None, 0)


def test_the_wall_clock_ends_an_episode_like_a_submission(play: Play) -> None:
    ticks = iter(range(0, 10_000, 100))
    settings = AgentSettings(prompt="short", wall_clock_s=650.0)
    done = play(
        [solution("reward 2")] + [bash("true")] * 20, settings=settings, clock=ticks.__next__
    )
    assert done.exit_reason == ExitReason.WALL_CLOCK
    assert done.reward is not None
    assert done.drop_reason is None
    assert 1 <= len(done.turns) < 20


def test_mistakes_of_syntax_are_answered_and_counted(play: Play) -> None:
    done = play(["<function=Bash>\nls\n</function>", "<function=Grep>\n</function>", "Done."])
    first, second = (turn.calls[0] for turn in done.turns[:2])
    assert first.schema_error
    assert second.schema_error
    shown = byte_level.messages(done.token_ids)
    assert "[Grep] not run: there is no tool Grep" in shown[4].content


def test_best_is_the_best_verified_state_judged_once_more(play: Play, judge: TextJudge) -> None:
    replies = [
        f"{solution('reward 3')}\n{bash('python3 ask.py profile')}",
        f"{solution('reward 1')}\n{bash('python3 ask.py profile')}",
        solution("wrong"),
    ]
    done = play(replies, reward_of="best")
    assert done.verdict is not None
    assert done.best_verdict is not None
    assert (done.reward, done.best_verdict.reward, done.verdict.code) == (3.0, 3.0, "wrong-values")
    assert [purpose for _, purpose in judge.asked] == ["profile", "profile", "judge", "judge"]


def test_an_evaluation_has_both_and_rewards_the_final_state(play: Play) -> None:
    replies = [f"{solution('reward 3')}\n{bash('python3 ask.py verify')}", solution("reward 1")]
    done = play(replies, best=True)
    assert done.best_verdict is not None
    assert (done.reward, done.best_verdict.reward) == (1.0, 3.0)


def test_without_a_verified_state_the_final_one_is_the_best(play: Play, judge: TextJudge) -> None:
    done = play([solution("reward 2")], reward_of="best")
    assert done.best_verdict == done.verdict
    assert (done.reward, len(judge.asked)) == (2.0, 1)


@pytest.mark.parametrize("code", ["infrastructure", "task-constant"])
@pytest.mark.parametrize("when", ["tool", "end"])
def test_failures_of_task_and_system_drop_the_episode(play: Play, code: str, when: str) -> None:
    ask = bash("python3 ask.py verify") if when == "tool" else ""
    done = play([f"{solution('code ' + code)}\n{ask}", "Done."])
    assert done.verdict is not None
    assert (done.reward, done.drop_reason, done.verdict.code) == (None, code, code)
    lost = done.exit_reason == ExitReason.SANDBOX_LOST
    assert lost == (when == "tool")


def test_a_lost_sandbox_drops_the_episode(play: Play, sandbox: Sandbox, judge: TextJudge) -> None:
    sandbox.close()
    done = play([f"{solution('reward 3')}\n{bash('true')}", "never"])
    assert (done.exit_reason, done.drop_reason) == (ExitReason.SANDBOX_LOST, "sandbox-lost")
    assert (done.reward, len(done.turns), judge.asked) == (None, 1, [])


def test_a_broken_compiler_drops_the_episode(play: Play, compiler: TextCompiler) -> None:
    compiler.broken = 2
    done = play([solution("reward 3")])
    assert (done.reward, done.drop_reason) == (None, "infrastructure")


def test_each_turn_has_a_seed_of_its_own_that_the_episodes_seed_decides(play: Play) -> None:
    seeds: list[list[int]] = []
    for seed in (11, 11, 12):
        seen: list[int] = []

        def speak(prompt: str, turn: int, turn_seed: int, seen: list[int] = seen) -> str:
            seen.append(turn_seed)
            return bash("true")

        spec = replace(SPEC, seed=seed)
        seeds.append([spec.turn_seed(turn) for turn in range(3)])
        if not seeds[1:]:
            play(speak, max_turns=3)
            assert seen == seeds[0]
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 6
    assert all(0 <= seed < 1 << 63 for seed in seeds[0])


@pytest.mark.parametrize(
    ("ids", "logprobs"),
    [([], []), ([1, 2], [-1.0]), ([1] * 17000, [-1.0] * 17000), ([1], [float("nan")])],
)
def test_a_policy_that_breaks_its_promise_is_an_error(
    tools: ToolBox, gateway: Gateway, ids: list[int], logprobs: list[float]
) -> None:
    episode = Episode(SPEC, FakePolicy([]), tools, gateway, SHORT)
    answer = Generation(
        np.array(ids, dtype=np.int32), np.array(logprobs, dtype=np.float32), "", "stop"
    )
    with pytest.raises(ValueError, match=r"policy (broke|gave)"):
        episode.advance(answer)


def test_the_oldest_version_that_spoke_is_recorded(
    tools: ToolBox, gateway: Gateway, compiler: TextCompiler, judge: TextJudge
) -> None:
    policy = FakePolicy([bash("true"), "Done."])
    episode = Episode(SPEC, policy, tools, gateway, SHORT)
    for version in (7, 8):
        assert episode.request is not None
        (answer,) = policy.generate([episode.request])
        episode.advance(replace(answer, policy_version=version))
    assert episode.finish(compiler, judge).policy_version == 7
