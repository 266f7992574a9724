"""The record of one episode, as sampled, and its Arrow form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cudaagent.files import atomic_path
from cudaagent.judge.verdict import Verdict


class ExitReason(StrEnum):
    """Why an episode ended."""

    SUBMITTED = "submitted"
    TURN_LIMIT = "turn-limit"
    CONTEXT_FULL = "context-full"
    WALL_CLOCK = "wall-clock"
    SANDBOX_LOST = "sandbox-lost"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call and what it returned; ``ok`` is False on a schema violation or tool error."""

    name: str
    arguments: dict[str, str]
    result: str
    ok: bool
    schema_error: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant turn: its tokens are ``token_ids[start:end]`` of the trajectory."""

    start: int
    end: int
    calls: tuple[ToolCall, ...] = ()
    text: str = ""
    """What the policy said, as the parser saw it."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode: tokens as sampled, what the tools said, how it was judged.

    ``token_ids`` int32 [T]; ``loss_mask`` bool [T], true on tokens the policy produced;
    ``logprobs`` float32 [T], the behaviour log-probabilities, zero where the mask is false.
    """

    id: str
    task_id: str
    stage: str
    step: int
    seed: int
    policy_version: int
    token_ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    turns: tuple[Turn, ...]
    exit_reason: ExitReason
    files: dict[str, str] = field(default_factory=dict[str, str])
    """The final submission, path to text."""
    submission: str = ""
    """Digest of the final submission."""
    verdict: Verdict | None = None
    """Verdict of the final submission (reward)."""
    best_verdict: Verdict | None = None
    """Verdict of the best snapshot, where it was asked for (evaluation, ``reward.of=best``)."""
    reward: float | None = None
    """Outcome reward; None when the episode is dropped."""
    drop_reason: str | None = None
    seconds: float = 0.0

    def with_reward(self, reward: float | None) -> Trajectory:
        return replace(self, reward=reward)


SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("task_id", pa.string()),
        ("stage", pa.string()),
        ("step", pa.int32()),
        ("seed", pa.int64()),
        ("policy_version", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.bool_())),
        ("logprobs", pa.list_(pa.float32())),
        ("turns", pa.string()),
        ("exit_reason", pa.string()),
        ("files", pa.string()),
        ("submission", pa.string()),
        ("verdict", pa.string()),
        ("best_verdict", pa.string()),
        ("reward", pa.float64()),
        ("drop_reason", pa.string()),
        ("seconds", pa.float64()),
    ]
)


def to_table(trajectories: Sequence[Trajectory]) -> pa.Table:
    """Arrow table of trajectories, one row each."""
    rows = [_to_row(trajectory) for trajectory in trajectories]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def from_table(table: pa.Table) -> list[Trajectory]:
    """Inverse of ``to_table``."""
    return [_from_row(row) for row in table.to_pylist()]


def write_trajectories(path: Path, trajectories: Sequence[Trajectory]) -> None:
    """Write a Parquet file that is either whole or absent."""
    with atomic_path(path) as temporary:
        pq.write_table(to_table(trajectories), temporary)


def read_trajectories(path: Path) -> list[Trajectory]:
    """Read what ``write_trajectories`` wrote."""
    return from_table(pq.read_table(path, schema=SCHEMA))


def _to_row(item: Trajectory) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(item, name) for name in SCHEMA.names}
    row["turns"] = json.dumps([asdict(turn) for turn in item.turns])
    row["files"] = json.dumps(item.files)
    row["exit_reason"] = str(item.exit_reason)
    for name in ("verdict", "best_verdict"):
        row[name] = None if row[name] is None else row[name].to_json()
    return row


def _from_row(row: dict[str, Any]) -> Trajectory:
    values = dict(row)
    values["token_ids"] = np.asarray(row["token_ids"], dtype=np.int32)
    values["loss_mask"] = np.asarray(row["loss_mask"], dtype=np.bool_)
    values["logprobs"] = np.asarray(row["logprobs"], dtype=np.float32)
    values["turns"] = tuple(
        Turn(
            turn["start"],
            turn["end"],
            tuple(ToolCall(**call) for call in turn["calls"]),
            turn["text"],
        )
        for turn in json.loads(row["turns"])
    )
    values["files"] = json.loads(row["files"])
    values["exit_reason"] = ExitReason(row["exit_reason"])
    for name in ("verdict", "best_verdict"):
        values[name] = None if row[name] is None else Verdict.from_json(row[name])
    return Trajectory(**values)
