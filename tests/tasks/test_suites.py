"""Suites read from disk, written back, and refused with one clear line."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cudaagent.errors import TaskError, UserError
from cudaagent.tasks.suites import load_suite, load_task, write_suite
from cudaagent.tasks.task import Task

SOURCE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(4)]


def get_init_inputs():
    return []
"""


@pytest.fixture
def kernelbench(tmp_path: Path) -> Path:
    root = tmp_path / "KernelBench"
    for name in ("level1/10_Later.py", "level1/2_Relu.py", "level2/1_Fused.py"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SOURCE)
    (root / "level1" / "__init__.py").write_text("")
    return tmp_path


def test_parquet_round_trip_keeps_every_field(tmp_path: Path) -> None:
    tasks = [
        Task("a", SOURCE, "own", 2, ("relu", "scale"), {"eager_ms": 1.5}),
        Task("b", SOURCE + "\n", "own", None, (), {"device": "cpu"}),
    ]
    path = tmp_path / "new" / "suite.parquet"
    write_suite(path, tasks)
    assert pq.read_table(path).column_names[:3] == ["ops", "data_source", "code"]
    loaded = load_suite(str(path))
    for before, after in zip(tasks, loaded, strict=True):
        assert (before.id, before.source, before.suite) == (after.id, after.source, after.suite)
        assert (before.level, before.ops) == (after.level, after.ops)
        assert dict(before.metadata).items() <= dict(after.metadata).items()
    assert [p.name for p in path.parent.iterdir()] == ["suite.parquet"]
    write_suite(path, loaded)
    assert load_suite(str(path)) == loaded


def test_published_columns_with_list_and_bare_name(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    columns = {
        "ops": ['["torch.matmul", "nn.ReLU"]', "ConvNextStage_0"],
        "data_source": ["torch#2", "transformers"],
        "code": [SOURCE, SOURCE],
    }
    pq.write_table(pa.table(columns), path)
    for spec in (f"ops6k:{path}", f"ops6k:{tmp_path}"):
        first, second = load_suite(spec)
        assert first.ops == ("torch.matmul", "nn.ReLU")
        assert second.ops == ("ConvNextStage_0",)
        assert first.id == "ops6k-00000"
        assert second.metadata == {"data_source": "transformers"}


def test_directory_gives_levels_in_numeric_order(kernelbench: Path) -> None:
    tasks = load_suite(f"kernelbench:{kernelbench}")
    assert [t.id for t in tasks] == ["level1/2_Relu", "level1/10_Later", "level2/1_Fused"]
    assert [t.level for t in tasks] == [1, 1, 2]
    assert [t.id for t in load_suite(f"kernelbench:{kernelbench}:2")] == ["level2/1_Fused"]
    assert [t.id for t in load_suite(f"kernelbench:{kernelbench}:level2")] == ["level2/1_Fused"]
    only = load_suite(str(kernelbench / "KernelBench" / "level1"))
    assert [(t.id, t.level) for t in only] == [("level1/2_Relu", 1), ("level1/10_Later", 1)]


def test_one_task_file(tmp_path: Path) -> None:
    path = tmp_path / "relu.py"
    path.write_text(SOURCE)
    assert load_task(path) == Task("relu", SOURCE)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class Model(:\n", "syntax error on line 1"),
        (SOURCE.replace("get_inputs", "inputs"), "no function get_inputs"),
        (SOURCE.replace("Model", "Net"), "no class Model"),
    ],
)
def test_a_file_that_is_no_task_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(TaskError, match=says) as caught:
        load_task(path)
    assert caught.value.code == "task-invalid"
    with pytest.raises(TaskError, match=says):
        load_suite(str(tmp_path))


def _refused(spec: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        load_suite(spec)
    assert "\n" not in str(caught.value)


def test_unusable_suites_are_refused_in_one_line(tmp_path: Path, kernelbench: Path) -> None:
    garbage = tmp_path / "garbage.parquet"
    garbage.write_bytes(b"no parquet")
    nameless = tmp_path / "nameless.parquet"
    pq.write_table(pa.table({"text": [SOURCE]}), nameless)
    twice = tmp_path / "twice.parquet"
    write_suite(twice, [Task("a", SOURCE), Task("a", SOURCE)])
    null = tmp_path / "null.parquet"
    pq.write_table(pa.table({"code": pa.array([None], pa.string())}), null)
    wrong = tmp_path / "wrong.parquet"
    pq.write_table(pa.table({"code": [SOURCE, "x = 1\n"]}), wrong)
    (tmp_path / "empty").mkdir()
    _refused(str(tmp_path / "absent.parquet"), "does not exist")
    _refused(str(garbage), "not a readable Parquet file")
    _refused(str(nameless), "no column `code`")
    _refused(str(twice), "two tasks with the id a")
    _refused(str(null), "row 0: `code` is not text")
    _refused(str(wrong), "row 1: .*no class Model")
    _refused(str(tmp_path / "empty"), "holds no task files")
    _refused(f"kernelbench:{kernelbench}:7", "no task of level 7")
    _refused(f"kernelbench:{tmp_path / 'absent'}", "not a directory")
    _refused(f"ops6k:{tmp_path / 'empty'}", "0 Parquet files")


def test_a_task_file_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.py"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read"):
        load_task(binary)
    with pytest.raises(UserError, match="does not exist"):
        load_task(tmp_path / "absent.py")
    with pytest.raises(UserError, match="is a directory"):
        load_task(tmp_path)
