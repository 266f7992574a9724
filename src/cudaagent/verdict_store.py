"""Verdicts of one run, so that the same submission is judged once.

Process: one writer (the profiler pool). In memory between flushes; ``flush`` replaces the Parquet
file as a whole, so a kill loses at most what was put since the last one, and that is judged again.
Verdicts that blame the system say nothing about the submission and are not kept.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cudaagent.files import atomic_path
from cudaagent.judge.settings import JudgeSettings
from cudaagent.judge.verdict import Verdict

_SCHEMA = pa.schema(
    [
        (name, pa.string())
        for name in ("task", "submission", "device", "policies", "task_id", "verdict")
    ]
)
_IDLE_SHARE = 20.0
"""A lazy flush waits this many times as long as the last write took."""


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """One row: what the verdict depends on, the task's id, the verdict as JSON when first given."""

    task: str
    """Digest of the task's source."""
    submission: str
    """Digest of the submission."""
    device: str
    policies: str
    """The judging policies, see ``policies_of``."""
    task_id: str
    verdict: str


def policies_of(settings: JudgeSettings) -> str:
    """The judging policies that decide a verdict, as one stable string."""
    names = ("precision", "weights", "tolerance", "reward")
    return "/".join(str(getattr(settings, name)) for name in names)


class VerdictStore:
    """Verdicts by (task, submission, device, policies); ``path`` None keeps them in memory only."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: dict[tuple[str, str, str, str], StoredVerdict] = {}
        self._dirty = False
        self._next_lazy_flush = 0.0
        if path is not None and path.exists():
            for values in pq.read_table(path, schema=_SCHEMA).to_pylist():
                row = StoredVerdict(**values)
                self._rows[row.task, row.submission, row.device, row.policies] = row

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> list[StoredVerdict]:
        """All rows in the order they were put."""
        return list(self._rows.values())

    def get(self, task: str, submission: str, device: str, policies: str) -> Verdict | None:
        """The verdict given before, with the warning ``reused``; None when there is none."""
        row = self._rows.get((task, submission, device, policies))
        return None if row is None else Verdict.from_json(row.verdict).with_warning("reused")

    def put(
        self,
        task: str,
        submission: str,
        device: str,
        policies: str,
        *,
        verdict: Verdict,
        task_id: str,
    ) -> None:
        """Keep ``verdict`` unless the system failed or there is one already."""
        key = (task, submission, device, policies)
        if verdict.blames_system or key in self._rows:
            return
        self._rows[key] = StoredVerdict(*key, task_id, verdict.to_json())
        self._dirty = True

    def flush(self, *, lazily: bool = False) -> None:
        """Write the Parquet file when something was put since the last flush.

        ``lazily`` leaves it for later when writing would take a noticeable share of the time.
        """
        started = time.monotonic()
        if self._path is None or not self._dirty or (lazily and started < self._next_lazy_flush):
            return
        table = pa.Table.from_pylist([asdict(row) for row in self._rows.values()], schema=_SCHEMA)
        with atomic_path(self._path) as temporary:
            pq.write_table(table, temporary)
        self._dirty = False
        ended = time.monotonic()
        self._next_lazy_flush = ended + _IDLE_SHARE * (ended - started)
