"""Where tasks come from: single files, directories, Parquet files, KernelBench and Ops-6K.

Texts are read and parsed, never run. Every fault of the input is a ``UserError`` of one line that
names the file. Runs in the driver and in command-line processes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cudaagent.errors import TaskError, UserError
from cudaagent.files import atomic_path
from cudaagent.tasks.task import Task, check_source

_PUBLISHED = ("ops", "data_source", "code")
_OWN = {"id", "suite", "level"}


def load_task(path: Path) -> Task:
    """Read one task file; its id is the file's stem.

    Raises:
        UserError: missing or unreadable file; ``TaskError`` when it is no task.
    """
    task = _read_file(path, suite="", level=None)
    check_source(task)
    return task


def load_suite(spec: str) -> list[Task]:
    """Read a suite: a Parquet file, a directory, ``kernelbench:PATH[:LEVEL]`` or ``ops6k:PATH``.

    Raises:
        UserError: nothing there, not readable, no task in it, or a task that is none.
    """
    kind, _, rest = spec.partition(":")
    if kind in ("kernelbench", "ops6k") and not rest:
        raise UserError(f"suite {spec}: give the path of a local copy, {kind}:PATH")
    if kind == "kernelbench":
        return _kernelbench(rest)
    if kind == "ops6k":
        path = Path(rest)
        return _parquet(_only_parquet(path) if path.is_dir() else path, suite="ops6k")
    path = Path(spec)
    if path.is_dir():
        return _directory(path, suite=path.name)
    return _parquet(path, suite=path.stem)


def write_suite(path: Path, tasks: Sequence[Task]) -> None:
    """Write tasks as Parquet, published columns first; the file is either whole or absent.

    Metadata keys become columns of their own, null where a task lacks one.
    """
    extra = sorted({key for task in tasks for key in task.metadata} - {*_PUBLISHED, *_OWN})
    columns: dict[str, list[Any]] = {
        "ops": [json.dumps(list(task.ops)) for task in tasks],
        "data_source": [_data_source(task) for task in tasks],
        "code": [task.source for task in tasks],
        "id": [task.id for task in tasks],
        "suite": [task.suite for task in tasks],
        "level": pa.array([task.level for task in tasks], pa.int32()),
    }
    for key in extra:
        columns[key] = [task.metadata.get(key) for task in tasks]
    with atomic_path(path) as temporary:
        pq.write_table(pa.table(columns), temporary)


def _data_source(task: Task) -> str:
    return str(task.metadata.get("data_source") or f"{task.suite or 'own'}#{len(task.ops)}")


def _kernelbench(rest: str) -> list[Task]:
    name, _, level = rest.rpartition(":")
    wanted: int | None = None
    if name and re.fullmatch(r"(level)?\d+", level):
        wanted = int(level.removeprefix("level"))
    else:
        name = rest
    path = Path(name)
    if path.is_dir() and (path / "KernelBench").is_dir():
        path = path / "KernelBench"
    if not path.is_dir():
        raise UserError(f"kernelbench:{rest}: {path} is not a directory; give a local checkout")
    tasks = _directory(path, suite="kernelbench")
    if wanted is not None:
        tasks = [task for task in tasks if task.level == wanted]
        if not tasks:
            raise UserError(f"kernelbench:{rest}: no task of level {wanted} below {path}")
    return tasks


def _directory(path: Path, suite: str) -> list[Task]:
    """All task files below ``path``, by level and then by the number in front of the name."""
    files = [p for p in path.rglob("*.py") if p.is_file() and not p.name.startswith(("_", "."))]
    files.sort(key=lambda p: (_level(p) or 0, _number(p), p.as_posix()))
    if not files:
        raise UserError(f"suite {path} holds no task files (*.py)")
    tasks: list[Task] = []
    for file in files:
        level = _level(file.relative_to(path.parent))
        task = _read_file(file, suite=suite, level=level)
        prefix = f"level{level}/" if level is not None else ""
        task = Task(f"{prefix}{file.stem}", task.source, suite, level)
        try:
            check_source(task)
        except TaskError as error:
            raise TaskError(error.code, f"{file}: {error}") from error
        tasks.append(task)
    _unique(tasks, str(path))
    return tasks


def _level(path: Path) -> int | None:
    for part in reversed(path.parts[:-1]):
        if match := re.fullmatch(r"level_?(\d+)", part):
            return int(match.group(1))
    return None


def _number(path: Path) -> int:
    match = re.match(r"(\d+)_", path.name)
    return int(match.group(1)) if match else 0


def _read_file(path: Path, *, suite: str, level: int | None) -> Task:
    try:
        source = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"task file {path} does not exist") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a directory; give one task file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"task file {path} cannot be read: {error}") from error
    return Task(path.stem, source, suite, level)


def _only_parquet(path: Path) -> Path:
    files = sorted(path.rglob("*.parquet"))
    if len(files) != 1:
        raise UserError(f"{path} holds {len(files)} Parquet files; name one of them")
    return files[0]


def _parquet(path: Path, suite: str) -> list[Task]:
    if not path.is_file():
        raise UserError(f"suite {path} does not exist; give a Parquet file or a directory of tasks")
    try:
        rows = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"suite {path} is not a readable Parquet file: {reason}") from error
    if not rows:
        raise UserError(f"suite {path} holds no rows")
    if "code" not in rows[0]:
        raise UserError(f"suite {path} has no column `code`; found {', '.join(rows[0])}")
    tasks = [_row(row, number, suite, path) for number, row in enumerate(rows)]
    _unique(tasks, str(path))
    return tasks


def _row(row: Mapping[str, Any], number: int, suite: str, path: Path) -> Task:
    if not isinstance(row["code"], str):
        raise UserError(f"suite {path}, row {number}: `code` is not text")
    known = {*_PUBLISHED, *_OWN} - {"data_source"}
    metadata = {key: value for key, value in row.items() if key not in known and value is not None}
    level = row.get("level")
    if level is not None and not (isinstance(level, int | float) and level == int(level)):
        raise UserError(f"suite {path}, row {number}: level {level!r} is not a whole number")
    task = Task(
        id=str(row.get("id") or f"{suite}-{number:05d}"),
        source=row["code"],
        suite=str(row.get("suite") or suite),
        level=int(level) if level is not None else None,
        ops=_ops(row.get("ops")),
        metadata=metadata,
    )
    try:
        check_source(task)
    except TaskError as error:
        raise TaskError(error.code, f"suite {path}, row {number}: {error}") from error
    return task


def _ops(value: object) -> tuple[str, ...]:
    """A list, a JSON list in a string, or one bare name."""
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        if not value.lstrip().startswith("["):
            return (value,)
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return (str(value),)
    if isinstance(value, Iterable):
        return tuple(str(item) for item in value)
    return (str(value),)


def _unique(tasks: Sequence[Task], where: str) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise UserError(f"suite {where} has two tasks with the id {task.id}; rename one")
        seen.add(task.id)
