"""The corpus of attacks and honest solutions in ``benchmarks/`` is well-formed; nothing runs."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from cudaagent.judge.static_check import check_submission
from cudaagent.judge.verdict import CANDIDATE_CODES, SYSTEM_CODES, TASK_CODES, Verdict, failed
from cudaagent.tasks.suites import load_task
from cudaagent.workspace.submission import Submission

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ATTACKS = sorted(path for path in (BENCHMARKS / "attacks").iterdir() if path.is_dir())
HONEST = sorted(path for path in (BENCHMARKS / "honest").iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("judge_attacks", BENCHMARKS / "judge_attacks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["judge_attacks"] = module
    spec.loader.exec_module(module)
    return module


def check_files(path: Path) -> Submission:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", path.name)
    load_task(path / "model.py")
    submission = Submission.from_dir(path)
    assert submission.model_new is not None
    assert any(name.endswith(".cpp") for name, _ in submission.sources)
    return submission


@pytest.mark.parametrize("path", ATTACKS, ids=lambda path: path.name)
def test_an_attack_is_well_formed(path: Path) -> None:
    check_files(path)
    assert {p.name for p in path.iterdir()} == {
        "attack.yaml", "kernels", "model.py", "model_new.py"
    }  # fmt: skip
    about = yaml.safe_load((path / "attack.yaml").read_text())
    assert {"class", "idea", "expect"} <= set(about) <= {"class", "idea", "expect", "reward"}
    number = re.fullmatch(r"E(\d+)", about["class"])
    assert number is not None
    assert 1 <= int(number.group(1)) <= 88
    assert about["idea"].strip().endswith((".", ")"))
    assert set(about["expect"]) <= CANDIDATE_CODES | TASK_CODES | SYSTEM_CODES
    assert about["expect"] or "reward" in about
    assert about.get("reward", 1) in (1, 2)


@pytest.mark.parametrize("path", HONEST, ids=lambda path: path.name)
def test_an_honest_solution_is_well_formed_and_passes_the_static_check(path: Path) -> None:
    submission = check_files(path)
    assert {p.name for p in path.iterdir()} == {"kernels", "model.py", "model_new.py"}
    failure = check_submission(submission)
    assert failure is None, failure


def test_the_corpus_is_large_and_broad(bench: ModuleType) -> None:
    cases = bench.read_cases()
    attacks = [case for case in cases if case.kind == "attacks"]
    assert len(attacks) >= 50
    assert len({case.attack_class for case in attacks}) >= 40
    assert len(cases) - len(attacks) >= 12


def test_accepted_means_earning_more_than_allowed(bench: ModuleType) -> None:
    strict = bench.Case("attacks", ATTACKS[0], expect=("wrong-values",))
    slow = bench.Case("attacks", ATTACKS[0], expect=("wrong-values",), reward=1)
    wrong, other = failed("wrong-values", "verify", ""), failed("crashed", "verify", "")
    verified = Verdict(correct=True)
    paid = Verdict(correct=True, reward=3.0)
    unpaid = Verdict(correct=True, reward=1.0)
    assert [strict.accepted(v) for v in (wrong, other, verified, unpaid)] == [0, 0, 1, 1]
    assert [slow.accepted(v) for v in (wrong, verified, unpaid, paid)] == [0, 0, 0, 1]
    assert [strict.as_expected(v) for v in (wrong, other, unpaid)] == [1, 0, 0]
    assert [slow.as_expected(v) for v in (unpaid, paid)] == [1, 0]
    honest = bench.Case("honest", HONEST[0])
    assert honest.as_expected(paid)
    assert not honest.accepted(paid)
