"""The run directory: everything a run leaves behind, and the only thing a report reads.

Process: the driver writes, one at a time (``exclusive``); anybody may read at any moment.

Invariants
- Every Parquet file and checkpoint is whole or absent. ``events.jsonl`` is append-only, one JSON
  object a line; a line torn by ``kill -9`` is ignored by readers and cut off by the next writer.
- A run keeps the configuration it was started with: ``open`` refuses another one, except for keys
  that only say how the work is spread over a machine (``RUN_TIME_KEYS``).

Layout: ``config.yaml``, ``events.jsonl``, ``tasks.parquet``, ``verdicts.parquet``,
``trajectories/<stage>-<step>.parquet``, ``evaluations/<label>.parquet``, ``checkpoints/step-N/``,
``report.html``, ``table.md``.

Not covered: two machines that write one directory over a network file system without ``flock``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from cudaagent.agent.trajectory import Trajectory, read_trajectories, write_trajectories
from cudaagent.config import Config, load_config, to_dict, to_yaml
from cudaagent.errors import UserError
from cudaagent.files import atomic_path, write_text
from cudaagent.tasks.task import Task
from cudaagent.verdict_store import VerdictStore

RUN_TIME_KEYS = (
    "run.root",
    "run.name",
    "run.stages",
    "rollout.",
    "learner.threads",
    "learner.use_gpu",
    "policy.device",
    "ppo.micro_tokens",
    "rft.micro_tokens",
    "value_pretraining.micro_tokens",
)
"""Keys, or prefixes ending in a dot, that may differ when a run is continued."""

_NAME = re.compile(r"[A-Za-z0-9_]+")

_TASKS = pa.schema(
    [
        ("ops", pa.string()),
        ("data_source", pa.string()),
        ("code", pa.string()),
        ("id", pa.string()),
        ("suite", pa.string()),
        ("level", pa.int32()),
        ("split", pa.string()),
        ("metadata", pa.string()),
    ]
)


class RunDir:
    """Paths and records of one run below ``path``; making the object touches no file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._appendable = False

    @classmethod
    def open(cls, config: Config) -> RunDir:
        """Start the run that ``config`` names, or continue it.

        Raises:
            UserError: the directory holds a run with another configuration; the first key that
                differs is named.
        """
        run = cls(config.run_dir)
        if not run.config_path.exists():
            if run.events_path.exists():
                raise UserError(
                    f"{run.path} has events but no config.yaml; choose another run.name"
                )
            run.path.mkdir(parents=True, exist_ok=True)
            write_text(run.config_path, to_yaml(config))
            run.event("started")
            return run
        changed = _changed(run.config(), config)
        fixed = {key: values for key, values in changed.items() if not _run_time(key)}
        if fixed and not run.has_products:
            # An attempt that ended before it made anything binds nobody.
            with run.exclusive():
                write_text(run.config_path, to_yaml(config))
                run.event("started")
            return run
        for key, (old, new) in fixed.items():
            raise UserError(
                f"run {run.path} was started with {key}={old}, not {new}; "
                "choose another run.name, or give the old value"
            )
        run.event("continued", changed={key: new for key, (_, new) in changed.items()})
        return run

    @classmethod
    def existing(cls, path: Path) -> RunDir:
        """The run at ``path``, for reading.

        Raises:
            UserError: there is none.
        """
        run = cls(path)
        if not path.is_dir():
            raise UserError(f"run {path} does not exist")
        if not run.config_path.is_file():
            raise UserError(f"{path} is not a run directory: no config.yaml in it")
        return run

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Be the only writer; the kernel frees the lock when the holder dies.

        Raises:
            UserError: another process is writing this run.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"run {self.path} is being written by another process; wait for it, end it, "
                    "or choose another run.name"
                ) from None
            try:
                yield
            except UserError:
                self._discard_unless_begun()
                raise
        finally:
            os.close(fd)

    @property
    def has_products(self) -> bool:
        """Whether the run has made anything that depends on its configuration."""
        made = ("tasks.parquet", "trajectories", "evaluations", "checkpoints", "cold_start")
        return any((self.path / name).exists() for name in made)

    def _discard_unless_begun(self) -> None:
        """Remove what an attempt left that was refused before it made anything."""
        if self.has_products:
            return
        for path in (self.events_path, self.config_path, self._lock_path):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody else's files are in it
            self.path.rmdir()

    @property
    def _lock_path(self) -> Path:
        return self.path / ".lock"

    @property
    def name(self) -> str:
        """The directory's own name."""
        return self.path.resolve().name

    @property
    def config_path(self) -> Path:
        return self.path / "config.yaml"

    @property
    def events_path(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def tasks_path(self) -> Path:
        return self.path / "tasks.parquet"

    def config(self) -> Config:
        """The configuration that the run was started with."""
        return load_config(self.config_path)

    # Events and metrics

    def event(self, kind: str, **fields: Any) -> None:
        """Append one event; non-finite numbers are written as null, numpy scalars as numbers."""
        if not self._appendable:
            self._cut_torn_line()
            self._appendable = True
        record = {"time": time.time(), "kind": kind, **fields}
        line = json.dumps(_plain(record), allow_nan=False) + "\n"
        fd = os.open(self.events_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)

    def step(self, stage: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Append the learner's metrics of one step of a stage; ``metrics`` gives them back."""
        self.event("step", stage=stage, step=step, **metrics)

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """All events in order, or those of one kind.

        Raises:
            UserError: a line other than a torn last one is not JSON.
        """
        if not self.events_path.exists():
            return []
        lines = self.events_path.read_bytes().split(b"\n")
        records: list[dict[str, Any]] = []
        for number, line in enumerate(lines[:-1], start=1):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise UserError(f"{self.events_path}, line {number}, is not a JSON object")
            if kind is None or record.get("kind") == kind:
                records.append(record)
        return records

    def metrics(self, stage: str) -> list[dict[str, Any]]:
        """The ``step`` events of a stage by rising step; a repeated step's last one counts."""
        by_step = {
            int(event["step"]): event
            for event in self.events("step")
            if event.get("stage") == stage and "step" in event
        }
        return [by_step[step] for step in sorted(by_step)]

    # Tasks

    def write_tasks(self, splits: Mapping[str, Sequence[Task]]) -> None:
        """Write ``tasks.parquet``; ``splits`` maps ``train`` and ``heldout`` to tasks."""
        rows = [_task_row(task, split) for split, tasks in splits.items() for task in tasks]
        with atomic_path(self.tasks_path) as temporary:
            pq.write_table(pa.Table.from_pylist(rows, schema=_TASKS), temporary)

    def tasks(self, split: str | None = None) -> list[Task]:
        """The run's tasks, or those of one split; empty before they were written."""
        if not self.tasks_path.exists():
            return []
        rows = read_parquet(self.tasks_path, schema=_TASKS).to_pylist()
        return [_task(row) for row in rows if split in (None, row["split"])]

    # Trajectories, evaluations, verdicts, checkpoints

    def trajectories_path(self, stage: str, step: int) -> Path:
        return self.path / "trajectories" / f"{_name(stage)}-{step}.parquet"

    def write_trajectories(self, stage: str, step: int, items: Sequence[Trajectory]) -> None:
        write_trajectories(self.trajectories_path(stage, step), items)

    def read_trajectories(self, stage: str, step: int) -> list[Trajectory]:
        return read_trajectories(self.trajectories_path(stage, step))

    def steps(self, stage: str) -> list[int]:
        """Steps of ``stage`` whose trajectories are on disk, rising."""
        return _numbers(self.path / "trajectories", re.compile(rf"{_name(stage)}-(\d+)\.parquet"))

    def evaluation_path(self, label: str) -> Path:
        return self.path / "evaluations" / f"{_name(label)}.parquet"

    def write_evaluation(self, label: str, items: Sequence[Trajectory]) -> None:
        write_trajectories(self.evaluation_path(label), items)

    def read_evaluation(self, label: str) -> list[Trajectory]:
        return read_trajectories(self.evaluation_path(label))

    def evaluations(self) -> list[str]:
        """Labels of the evaluations on disk, oldest first."""
        paths = (self.path / "evaluations").glob("*.parquet")
        found = [path for path in paths if _NAME.fullmatch(path.stem)]
        return [path.stem for path in sorted(found, key=lambda p: (p.stat().st_mtime, p.name))]

    def verdicts(self) -> VerdictStore:
        """The run's verdicts, loaded from ``verdicts.parquet``."""
        return VerdictStore(self.path / "verdicts.parquet")

    def checkpoint(self, step: int) -> Path:
        """Where checkpoint ``step`` is or will be; write it inside ``files.atomic_path``."""
        return self.path / "checkpoints" / f"step-{step}"

    def checkpoints(self) -> list[int]:
        """Numbers of the whole checkpoints, rising."""
        return _numbers(self.path / "checkpoints", re.compile(r"step-(\d+)"))

    def _cut_torn_line(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.events_path.exists():
            return
        with self.events_path.open("rb+") as handle:
            data = handle.read()
            handle.truncate(data.rfind(b"\n") + 1)


def read_parquet(path: Path, **options: Any) -> pa.Table:
    """A Parquet file of a run.

    Raises:
        UserError: it is damaged, or of something else.
    """
    try:
        table: pa.Table = pq.read_table(path, **options)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} is not readable: {reason}") from error
    return table


def _numbers(directory: Path, pattern: re.Pattern[str]) -> list[int]:
    if not directory.is_dir():
        return []
    matches = (pattern.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match.group(1)) for match in matches if match)


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no stage or label: letters, digits and _ only")
    return text


def _run_time(key: str) -> bool:
    return any(key == k or (k.endswith(".") and key.startswith(k)) for k in RUN_TIME_KEYS)


def _changed(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    before, after = _flat(to_dict(old)), _flat(to_dict(new))
    return {key: (before[key], after[key]) for key in after if before[key] != after[key]}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        items = cast(Mapping[Any, Any], value).items()
        return {str(key): _plain(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast(Sequence[Any], value)]
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "item"):
        return _plain(value.item())
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"an event cannot hold a {type(value).__name__}")


def _task_row(task: Task, split: str) -> dict[str, Any]:
    return {
        "ops": json.dumps(list(task.ops)),
        "data_source": f"torch#{len(task.ops)}",
        "code": task.source,
        "id": task.id,
        "suite": task.suite,
        "level": task.level,
        "split": split,
        "metadata": json.dumps(_plain(task.metadata)),
    }


def _task(row: Mapping[str, Any]) -> Task:
    return Task(
        id=row["id"],
        source=row["code"],
        suite=row["suite"] or "",
        level=row["level"],
        ops=tuple(json.loads(row["ops"])),
        metadata=json.loads(row["metadata"]),
    )
