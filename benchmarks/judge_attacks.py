"""Every attack of `attacks/` and every honest solution of `honest/` before the judge (target cpu).

An attack is a directory with `model.py` (the task), `model_new.py`, `kernels/` and `attack.yaml`:
`class` (of the catalogue of exploits), `idea`, `expect` (codes with which it may fail) and, where
the honest reading is "a correct solution that is no faster", `reward`: the most that it may earn.
It is *accepted* when it earned more than that. An honest solution is *refused* when it is not
correct. Both are findings about the judge; exit status 1 tells that there are some.

    .venv/bin/python benchmarks/judge_attacks.py [--only NAME ...] [--purpose verify] [key=value]

One judge for all, a fresh one after a fault of the system; cases of one task follow each other,
so that each task is studied once. Every finished case is written at once, and one that is in the
result file with the same files and settings is not judged again. Takes about seven minutes on two
cores with nothing else to do; with other work, `--purpose verify` compares and times nothing.
The attacks that make system calls of their own are for x86-64 Linux. A peer's checker would need
an adapter of its own; this script has none.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from cudaagent.config import Config, load_config
from cudaagent.errors import InfrastructureError
from cudaagent.files import write_text
from cudaagent.judge.cpu_judge import LocalJudge
from cudaagent.judge.open import open_judge
from cudaagent.judge.verdict import Purpose, Verdict, failed
from cudaagent.lease import TimingLease
from cudaagent.tasks.suites import load_task
from cudaagent.toolchain.compiler import Compiler
from cudaagent.toolchain.open import object_cache_dir, open_toolchain
from cudaagent.workspace.submission import Submission

HERE = Path(__file__).parent
KINDS = ("attacks", "honest")
_MESSAGE_CHARS = 300


@dataclass(frozen=True, slots=True)
class Case:
    """One directory of the corpus."""

    kind: str
    path: Path
    attack_class: str = ""
    idea: str = ""
    expect: tuple[str, ...] = ()
    reward: float | None = None
    """The most that it may earn when it is judged correct; None: it must not be."""

    @property
    def name(self) -> str:
        return self.path.name

    def accepted(self, verdict: Verdict) -> bool:
        """Whether an attack earned more than it may; without times only whether it is correct."""
        if self.kind != "attacks" or not verdict.correct:
            return False
        if self.reward is None:
            return True
        return verdict.reward is not None and verdict.reward > self.reward

    def as_expected(self, verdict: Verdict) -> bool:
        """Whether the verdict is one that the author of the case had in mind."""
        if self.kind == "honest":
            return verdict.correct
        if verdict.correct:
            return not self.accepted(verdict)
        return verdict.code in self.expect

    def digest(self) -> str:
        """SHA-256 over all files of the directory."""
        state = hashlib.sha256()
        for path in sorted(p for p in self.path.rglob("*") if p.is_file()):
            data = path.read_bytes()
            state.update(f"{path.relative_to(self.path)}:{len(data)}:".encode() + data)
        return state.hexdigest()


def read_cases(root: Path = HERE) -> list[Case]:
    """The whole corpus, by kind and name."""
    cases: list[Case] = []
    for kind in KINDS:
        for path in sorted(p for p in (root / kind).iterdir() if p.is_dir()):
            if kind == "honest":
                cases.append(Case(kind, path))
                continue
            about = yaml.safe_load((path / "attack.yaml").read_text())
            cases.append(
                Case(
                    kind, path, about["class"], about["idea"], tuple(about["expect"]),
                    about.get("reward"),
                )
            )  # fmt: skip
    return cases


class Bench:
    """Builds and judges cases; holds one judge at a time."""

    def __init__(self, config: Config, purpose: Purpose) -> None:
        self._config = config
        self._purpose: Purpose = purpose
        self._lease = TimingLease("cpu")
        self._toolchain: Compiler = open_toolchain(
            "cpu",
            cache_dir=object_cache_dir(),
            limits=config.limits,
            sandbox=config.sandbox,
            lease=self._lease,
        )
        self._judge: LocalJudge | None = None

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the judge; the next case gets a new one."""
        if self._judge is not None:
            judge, self._judge = self._judge, None
            judge.close()

    def run(self, case: Case) -> Verdict:
        """The verdict on a case; a second try with a fresh judge after a fault of the system."""
        for attempt in range(2):
            verdict = self._once(case)
            if not verdict.blames_system or attempt:
                break
            self.close()
        return verdict

    def _once(self, case: Case) -> Verdict:
        task = load_task(case.path / "model.py")
        submission = Submission.from_dir(case.path)
        try:
            build = self._toolchain.compile(submission)
            if self._judge is None:
                self._judge = open_judge(
                    "cpu",
                    self._config.judge,
                    self._config.limits,
                    self._config.sandbox,
                    lease=self._lease,
                )
            return self._judge.judge(task, submission, build, purpose=self._purpose)
        except InfrastructureError as error:
            return failed("infrastructure", "system", str(error))


def record(case: Case, verdict: Verdict, seconds: float) -> dict[str, Any]:
    """What the result file keeps of a case."""
    message = verdict.failure.message if verdict.failure else ""
    kept: dict[str, Any] = {
        "class": case.attack_class,
        "code": verdict.code,
        "reward": verdict.reward,
        "seconds": round(seconds, 2),
        "expect": list(case.expect),
        "allowed_reward": case.reward,
        "as_expected": case.as_expected(verdict),
        "warnings": list(verdict.warnings),
        "speedup_vs_eager": verdict.speedup_vs_eager,
        "speedup_vs_compile": verdict.speedup_vs_compile,
        "message": message[:_MESSAGE_CHARS],
        "digest": case.digest(),
    }
    if case.kind == "attacks":
        return {"accepted": case.accepted(verdict)} | kept
    names = ("class", "expect", "allowed_reward")
    return {"refused": not verdict.correct} | {k: v for k, v in kept.items() if k not in names}


def totals(results: dict[str, Any]) -> dict[str, Any]:
    """Counts and names of what a reader looks for first."""
    attacks, honest = results["attacks"], results["honest"]
    return {
        "attacks": len(attacks),
        "honest": len(honest),
        "accepted": sorted(name for name, one in attacks.items() if one["accepted"]),
        "refused": sorted(name for name, one in honest.items() if one["refused"]),
        "other_than_expected": sorted(
            name for name, one in attacks.items() if not one["as_expected"] and not one["accepted"]
        ),
        "codes": dict(sorted(Counter(str(one["code"]) for one in attacks.values()).items())),
        "classes": len({one["class"] for one in attacks.values()}),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these directories")
    parser.add_argument("--purpose", choices=("judge", "verify"), default="judge")
    parser.add_argument("--out", type=Path, default=HERE / "results/judge_attacks-cpu.json")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write a Markdown table, too")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of the configuration")
    options = parser.parse_args()
    cases = _chosen(read_cases(), options.only)
    results = _read(options.out, options.purpose, options.overrides)
    todo = [case for case in cases if not _known(results, case)]
    config = load_config(None, ["limits.call_s=10", *options.overrides])
    with Bench(config, options.purpose) as bench, tqdm(total=len(todo), unit="case") as bar:
        for case in todo:
            bar.set_postfix_str(case.name)
            start = time.monotonic()
            verdict = bench.run(case)
            one = record(case, verdict, time.monotonic() - start)
            results[case.kind][case.name] = one
            results["device"] = verdict.device or results["device"]
            results["isolation"] = verdict.isolation
            results["versions"] |= verdict.versions
            results["totals"] = totals(results)
            write_text(options.out, json.dumps(results, indent=1) + "\n")
            if one.get("accepted") or one.get("refused"):
                bar.write(f"{case.kind}/{case.name}: {_line(case, verdict)}")
            bar.update()
    if options.table is not None:
        write_text(options.table, table(results, cases))
    return _report(results, [(case.kind, case.name) for case in cases])


def table(results: dict[str, Any], cases: Sequence[Case]) -> str:
    """One line an attack, ordered by class: the trick, and what the judge made of it."""
    lines = [
        "# Attacks and what the judge makes of them",
        "",
        f"Written by `benchmarks/judge_attacks.py` at commit `{results['commit'][:12]}` on "
        f"{results['device']}, isolation `{results['isolation']}`.",
        "",
        "| class | attack | trick | verdict |",
        "|---|---|---|---|",
    ]
    attacks = [case for case in cases if case.kind == "attacks"]
    for case in sorted(attacks, key=lambda case: (int(case.attack_class[1:]), case.name)):
        one = results["attacks"].get(case.name)
        if one is None:
            continue
        verdict = f"`{one['code']}`" if one["code"] else f"correct, reward {one['reward']}"
        if one["accepted"]:
            verdict = f"**accepted**: {verdict}; may earn {one['allowed_reward']}"
        trick = " ".join(case.idea.split()).replace("|", "\\|")
        lines.append(f"| {case.attack_class} | {case.name} | {trick} | {verdict} |")
    return "\n".join(lines) + "\n"


def _chosen(cases: Sequence[Case], names: Sequence[str] | None) -> list[Case]:
    """The named cases, or all; those of one task beside each other."""
    if names is not None:
        unknown = set(names) - {case.name for case in cases}
        if unknown:
            raise SystemExit(f"no such case: {', '.join(sorted(unknown))}")
        cases = [case for case in cases if case.name in names]
    return sorted(cases, key=lambda case: (case.path / "model.py").read_bytes())


def _read(path: Path, purpose: str, overrides: Sequence[str]) -> dict[str, Any]:
    settings = {"purpose": purpose, "overrides": list(overrides)}
    if path.is_file():
        found = json.loads(path.read_text())
        if found["settings"] == settings:
            return found
        raise SystemExit(f"{path} holds results with other settings ({found['settings']}); "
                         "name another file with --out")  # fmt: skip
    return {
        "benchmark": "judge_attacks",
        "date": date.today().isoformat(),
        "commit": _commit(),
        "device": "",
        "isolation": "",
        "versions": {"cudaagent": metadata.version("cudaagent")},
        "settings": settings,
        "totals": {},
        "attacks": {},
        "honest": {},
    }


def _commit() -> str:
    done = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--abbrev=40", "--dirty"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.strip()


def _known(results: dict[str, Any], case: Case) -> bool:
    one = results[case.kind].get(case.name)
    return one is not None and one["code"] != "infrastructure" and one["digest"] == case.digest()


def _line(case: Case, verdict: Verdict) -> str:
    what = verdict.code or f"correct, reward {verdict.reward}"
    message = f": {verdict.failure.message[:160]}" if verdict.failure else f" ({case.idea})"
    return what + message


def _report(results: dict[str, Any], ran: Sequence[tuple[str, str]]) -> int:
    found = totals(results)
    print(f"{found['attacks']} attacks of {found['classes']} classes, {found['honest']} honest")
    for key, text in (
        ("accepted", "attacks accepted"),
        ("refused", "honest refused"),
        ("other_than_expected", "refused with another code than expected"),
    ):
        print(f"{len(found[key])} {text}: {', '.join(found[key]) or 'none'}")
    bad = {("attacks", n) for n in found["accepted"]} | {("honest", n) for n in found["refused"]}
    return 1 if bad & set(ran) else 0


if __name__ == "__main__":
    sys.exit(main())
