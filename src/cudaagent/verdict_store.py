"""Verdicts of one run, so that the same submission is judged once.

Process: the driver, which alone writes. In memory between flushes; ``flush`` replaces the Parquet
file as a whole, so a kill loses at most what was put since the last one, and that is judged again.
Verdicts that blame the system say nothing about the submission and are not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cudaagent.files import atomic_path
from cudaagent.judge.settings import JudgeSettings
from cudaagent.judge.verdict import Verdict

_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("task", "submission", "device", "policies", "task_id")]
    + [("verdict", pa.string())]
)


@dataclass(frozen=True, slots=True)
class VerdictKey:
    """What a verdict depends on: digests of task and submission, device, judging policies."""

    task: str
    submission: str
    device: str
    policies: str


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """One row of the store; the verdict as JSON, as it was given the first time."""

    key: VerdictKey
    task_id: str
    verdict: str


def policies_of(settings: JudgeSettings) -> str:
    """The judging policies that decide a verdict, as one stable string."""
    names = ("precision", "reward", "tolerance", "weights")
    return " ".join(f"{name}={getattr(settings, name)}" for name in names)


class VerdictStore:
    """A mapping from key to verdict, loaded from ``path`` when it exists."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[VerdictKey, StoredVerdict] = {}
        self._dirty = False
        if path.exists():
            for row in pq.read_table(path, schema=_SCHEMA).to_pylist():
                task_id, verdict = row.pop("task_id"), row.pop("verdict")
                key = VerdictKey(**row)
                self._rows[key] = StoredVerdict(key, task_id, verdict)

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> list[StoredVerdict]:
        """All rows in the order they were put."""
        return list(self._rows.values())

    def get(self, key: VerdictKey) -> Verdict | None:
        """The verdict given before, with the warning ``reused``; None when there is none."""
        row = self._rows.get(key)
        return None if row is None else Verdict.from_json(row.verdict).with_warning("reused")

    def put(self, key: VerdictKey, verdict: Verdict, task_id: str) -> None:
        """Keep ``verdict`` unless the system failed or the key has one already."""
        if verdict.blames_system or key in self._rows:
            return
        self._rows[key] = StoredVerdict(key, task_id, verdict.to_json())
        self._dirty = True

    def flush(self) -> None:
        """Write the Parquet file when something was put since the last flush."""
        if not self._dirty:
            return
        rows = [
            {
                "task": row.key.task,
                "submission": row.key.submission,
                "device": row.key.device,
                "policies": row.key.policies,
                "task_id": row.task_id,
                "verdict": row.verdict,
            }
            for row in self._rows.values()
        ]
        with atomic_path(self._path) as temporary:
            pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), temporary)
        self._dirty = False
