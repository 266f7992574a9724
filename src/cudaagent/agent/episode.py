"""One episode: a conversation between a policy and the tools of one workspace, then a judgement.

Runs on the trusted side, in a rollout worker or a plain script. A state machine without a loop of
its own: ``request`` is what the policy must answer next, ``advance`` takes the answer, runs the
tools and makes the next request, until ``exit_reason`` is set; ``finish`` has what was left behind
judged. So many episodes can share one batched policy.

Invariants (checked): tokens in, tokens out: ids come from generations and from
``policy.observe``/``start`` only and no text is tokenised again; ids, loss mask and
log-probabilities have one length; the mask is true exactly on the tokens of turns; the last token
is a turn's. The draw of every turn depends on the episode's seed and the turn's index alone.

Not covered: that ``Generation.text`` is what its ids decode to; that is the policy's promise.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cudaagent.agent.gateway import Fault, Gateway
from cudaagent.agent.judging import judge_submission
from cudaagent.agent.parse import parse_calls
from cudaagent.agent.prompt import build_prompt
from cudaagent.agent.settings import AgentSettings
from cudaagent.agent.tools import ToolBox
from cudaagent.agent.trajectory import ExitReason, ToolCall, Trajectory, Turn
from cudaagent.errors import InfrastructureError, UserError
from cudaagent.judge.verdict import SYSTEM_CODES, Judge, Verdict, failed
from cudaagent.policy.base import Generation, GenerationRequest, Policy
from cudaagent.tasks.task import Task
from cudaagent.toolchain.compiler import Compiler
from cudaagent.workspace.submission import Submission

NO_TOKENS = "no-action-tokens"
"""Drop reason of an episode whose prompt left no room for a turn."""


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """What decides an episode, apart from the policy's weights and the settings."""

    id: str
    task: Task
    stage: str
    step: int
    seed: int
    policy_version: int = 0
    max_turns: int = 150
    context_tokens: int = 131072
    best: bool = False
    """Judge the best state that a tool call found correct beside the final one (evaluation)."""

    def turn_seed(self, turn: int) -> int:
        """Seed of the ``turn``-th generation, below 2**63."""
        text = f"turn:{self.seed}:{turn}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class _Dropped:
    """Why an episode counts for nothing; ``verdict`` says it in full where there is more."""

    reason: str
    verdict: Verdict | None


class Episode:
    """An episode in progress; owns neither the workspace directory nor the sandbox."""

    def __init__(
        self,
        spec: EpisodeSpec,
        policy: Policy,
        tools: ToolBox,
        gateway: Gateway,
        settings: AgentSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self._policy = policy
        self._tools = tools
        self._gateway = gateway
        self._settings = settings
        self._clock = clock
        self._started = clock()
        self._ids: list[NDArray[np.int32]] = []
        self._masks: list[NDArray[np.bool_]] = []
        self._logprobs: list[NDArray[np.float32]] = []
        self._length = 0
        self._turns: list[Turn] = []
        self._versions: list[int] = []
        self._dropped: _Dropped | None = None
        self.exit_reason: ExitReason | None = None
        prompt = build_prompt(spec.task, settings.prompt, tools.schemas.values())
        self._append(policy.start(prompt))
        self._end_if_full()

    @property
    def request(self) -> GenerationRequest | None:
        """What the policy must answer next; None once the episode has ended."""
        if self.exit_reason is not None:
            return None
        room = self.spec.context_tokens - self._length
        return GenerationRequest(
            token_ids=np.concatenate(self._ids),
            max_new_tokens=min(self._settings.turn_tokens, room),
            seed=self.spec.turn_seed(len(self._turns)),
            episode_id=self.spec.id,
        )

    def advance(self, generation: Generation) -> None:
        """Take the policy's answer to ``request``, run its tools and go on.

        A lost sandbox and faults of task or system end the episode; they do not raise.
        """
        start = self._length
        self._append(generation.token_ids, generation.logprobs)
        self._versions.append(generation.policy_version)
        calls: tuple[ToolCall, ...] = ()
        cut = generation.finish_reason == "length"
        if cut:
            self.exit_reason = ExitReason.CONTEXT_FULL
        elif self._late():
            self.exit_reason = ExitReason.WALL_CLOCK
        else:
            calls = self._act(generation.text)
        self._turns.append(Turn(start, self._length, calls, generation.text))
        if self.exit_reason is None:
            self._observe(calls)

    def finish(self, compiler: Compiler, judge: Judge, *, reward_of: str = "final") -> Trajectory:
        """Have the workspace judged and return the record of the episode.

        A failure of the task or the system drops the episode and is its verdict.

        Args:
            compiler: builds what no tool call has built.
            judge: gives fresh verdicts.
            reward_of: ``final``, or ``best``: the best state that a tool call found correct,
                judged once more; the final state where there is none.
        """
        assert self.exit_reason is not None, "the episode has not ended"
        self._close_gateway()
        try:
            submission = Submission.from_dir(self._tools.root)
            refusal = None
        except UserError as error:
            submission = Submission(())
            refusal = failed("static-check", "static", str(error))
        if not self._turns:
            self._dropped = self._dropped or _Dropped(NO_TOKENS, None)
        verdict = best_verdict = None
        if self._dropped is None:
            verdict = refusal or self._judge(compiler, judge, submission)
        if self._dropped is None and verdict and (self.spec.best or reward_of == "best"):
            best_verdict = self._judge_best(compiler, judge, submission, verdict)
        if self._dropped is not None:
            verdict = self._dropped.verdict
        rewarded = best_verdict if reward_of == "best" else verdict
        reward = None if self._dropped or rewarded is None else rewarded.reward
        if reward is None and self._dropped is None:
            self._dropped = _Dropped("no-reward", None)
        return self._record(submission, verdict, best_verdict, reward)

    def _append(
        self, token_ids: NDArray[np.int32], logprobs: NDArray[np.float32] | None = None
    ) -> None:
        """Add policy tokens (with ``logprobs``) or rendered tokens (without)."""
        count = len(token_ids)
        if logprobs is None:
            logprobs = np.zeros(count, dtype=np.float32)
            mask = np.zeros(count, dtype=np.bool_)
        else:
            request = self.request
            assert request is not None, "the episode has ended"
            if not 0 < count <= request.max_new_tokens or logprobs.shape != token_ids.shape:
                raise ValueError(
                    f"policy broke its promise in episode {self.spec.id}: {count} ids and "
                    f"{len(logprobs)} log-probabilities for at most {request.max_new_tokens} tokens"
                )
            if not np.isfinite(logprobs).all():
                raise ValueError(
                    f"policy gave a log-probability that is not finite: {self.spec.id}"
                )
            mask = np.ones(count, dtype=np.bool_)
        self._ids.append(np.asarray(token_ids, dtype=np.int32))
        self._masks.append(mask)
        self._logprobs.append(np.asarray(logprobs, dtype=np.float32))
        self._length += count

    def _act(self, text: str) -> tuple[ToolCall, ...]:
        """Run the turn's calls in order; sets the exit reason where the turn is the last."""
        parsed = parse_calls(text, self._tools.schemas)
        if not parsed:
            self.exit_reason = ExitReason.SUBMITTED
            return ()
        done: list[ToolCall] = []
        for call in parsed:
            if self._late():
                self.exit_reason = ExitReason.WALL_CLOCK
                return tuple(done)
            try:
                done.append(self._tools.run(call, timeout_s=self._time_left()))
            except InfrastructureError as error:
                lost = failed("infrastructure", "system", str(error))
                self._lose(_Dropped(str(ExitReason.SANDBOX_LOST), lost))
                return tuple(done)
            if (fault := self._gateway.fault) is not None:
                self._lose(_of_fault(fault))
                return tuple(done)
        if len(self._turns) + 1 >= self.spec.max_turns:
            self.exit_reason = ExitReason.TURN_LIMIT
        return tuple(done)

    def _observe(self, calls: tuple[ToolCall, ...]) -> None:
        """Show the results to the policy, if there is room for them and an answer."""
        token_ids = self._policy.observe(observation_text(calls))
        if self._length + len(token_ids) >= self.spec.context_tokens:
            self.exit_reason = ExitReason.CONTEXT_FULL
        elif self._late():
            self.exit_reason = ExitReason.WALL_CLOCK
        else:
            self._append(token_ids)

    def _lose(self, dropped: _Dropped) -> None:
        self.exit_reason = ExitReason.SANDBOX_LOST
        self._dropped = dropped

    def _end_if_full(self) -> None:
        if self._length >= self.spec.context_tokens:
            self.exit_reason = ExitReason.CONTEXT_FULL

    def _time_left(self) -> float:
        return self._settings.wall_clock_s - (self._clock() - self._started)

    def _late(self) -> bool:
        return self._time_left() <= 0

    def _close_gateway(self) -> None:
        try:
            self._gateway.close()
        except InfrastructureError as error:
            fault: Fault | None = Fault("infrastructure", str(error))
        else:
            fault = self._gateway.fault
        if fault is not None and self._dropped is None:
            self._dropped = _of_fault(fault)

    def _judge(self, compiler: Compiler, judge: Judge, submission: Submission) -> Verdict:
        """A fresh verdict; one about the task or the system drops the episode."""
        build = self._gateway.build_of(submission)
        verdict = judge_submission(
            compiler, judge, self.spec.task, submission, purpose="judge", build=build
        ).verdict
        if verdict.failure is not None and (verdict.blames_system or verdict.blames_task):
            self._dropped = _Dropped(verdict.failure.code, verdict)
        return verdict

    def _judge_best(
        self, compiler: Compiler, judge: Judge, final: Submission, verdict: Verdict
    ) -> Verdict:
        best = self._gateway.best
        if best is None or best.submission.digest == final.digest:
            return verdict
        return self._judge(compiler, judge, best.submission)

    def _record(
        self,
        submission: Submission,
        verdict: Verdict | None,
        best_verdict: Verdict | None,
        reward: float | None,
    ) -> Trajectory:
        assert self.exit_reason is not None
        token_ids = np.concatenate(self._ids)
        mask = np.concatenate(self._masks)
        logprobs = np.concatenate(self._logprobs)
        spans = np.zeros(len(token_ids), dtype=np.bool_)
        for turn in self._turns:
            spans[turn.start : turn.end] = True
        assert len(token_ids) == len(mask) == len(logprobs) == self._length
        assert np.array_equal(spans, mask), "loss mask and turns disagree"
        assert not logprobs[~mask].any(), "log-probability on a token the policy did not produce"
        assert not self._turns or mask[-1], "the last token is not the policy's"
        return Trajectory(
            id=self.spec.id,
            task_id=self.spec.task.id,
            stage=self.spec.stage,
            step=self.spec.step,
            seed=self.spec.seed,
            policy_version=self._version(),
            token_ids=token_ids,
            loss_mask=mask,
            logprobs=logprobs,
            turns=tuple(self._turns),
            exit_reason=self.exit_reason,
            files={path: data.decode("utf-8", "replace") for path, data in submission.files},
            submission=submission.digest,
            verdict=verdict,
            best_verdict=best_verdict,
            reward=reward,
            drop_reason=self._dropped.reason if self._dropped else None,
            seconds=self._clock() - self._started,
        )

    def _version(self) -> int:
        """The oldest version that spoke; the specification's where a policy tells none."""
        return min(self._versions, default=0) or self.spec.policy_version


def observation_text(calls: Sequence[ToolCall]) -> str:
    """What the policy reads of its calls' results: one after another, each with its tool's name."""
    return "\n".join(f"[{call.name or 'call'}] {call.result}" for call in calls)


def _of_fault(fault: Fault) -> _Dropped:
    stage = "system" if fault.code in SYSTEM_CODES else "task"
    return _Dropped(fault.code, failed(fault.code, stage, fault.message))
