"""The quickstart as a stranger meets it, timed whole, over seeds, with the control experiment.

For each seed: a fresh clone of this repository's HEAD, an empty home directory, `make quickstart`.
Measured: seconds of the installation and of the run, the report's table, and the exact probability
of each of the teacher's variants on the held-out tasks at cold start and at the end. `--shuffled`
repeats every seed with the rewards of each batch permuted (`run.shuffle_rewards=true`), in the
clone already made: the same steps without the signal.

    .venv/bin/python benchmarks/quickstart.py --seeds 0 1 2 --shuffled --scratch DIR

Takes about twelve minutes a run on two cores with nothing else to do. Every finished run is written
at once; a run that is already in the result file is not made again. There is no peer to compare
with: no other open system trains kernel-writing agents without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from cudaagent.files import write_text
from cudaagent.policy.likelihood import variant_probabilities
from cudaagent.run_dir import RunDir

ROOT = Path(__file__).parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--shuffled", action="store_true", help="also with shuffled rewards")
    parser.add_argument("--scratch", type=Path, required=True, help="directory for clones and runs")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/quickstart.json")
    options = parser.parse_args()
    results = _read(options.out)
    for shuffled in (False, True) if options.shuffled else (False,):
        for seed in options.seeds:
            name = f"seed{seed}{'_shuffled' if shuffled else ''}"
            place = options.scratch.resolve() / f"seed{seed}"
            if name in results["runs"]:
                print(f"{name}: in {options.out} already")
                continue
            results["runs"][name] = _one(place, seed, shuffled=shuffled)
            write_text(options.out, json.dumps(results, indent=1) + "\n")
            print(f"{name}: {_line(results['runs'][name])}", flush=True)
    return 0


def _read(path: Path) -> dict[str, Any]:
    if path.is_file():
        return json.loads(path.read_text())
    names = ("cudaagent", "ray", "torch", "transformers")
    return {
        "benchmark": "quickstart",
        "date": date.today().isoformat(),
        "versions": {"python": sys.version.split()[0]} | {n: metadata.version(n) for n in names},
        "cores": os.cpu_count(),
        "runs": {},
    }


def _one(place: Path, seed: int, *, shuffled: bool) -> dict[str, Any]:
    """One run, whole; what an interrupted one left is thrown away: its time would be wrong."""
    clone, home = place / "clone", place / "home"
    run_name = "shuffled" if shuffled else "quickstart"
    if not (shuffled and (clone / ".venv/.installed").is_file()):
        shutil.rmtree(place, ignore_errors=True)
        home.mkdir(parents=True)
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    shutil.rmtree(clone / "runs" / run_name, ignore_errors=True)
    overrides = f"run.name={run_name} run.seed={seed} run.shuffle_rewards={str(shuffled).lower()}"
    start = time.time()
    with open(place / f"{run_name}.txt", "wb") as output:
        done = subprocess.run(
            ["make", "--no-print-directory", "-C", str(clone), "quickstart", f"RUN={overrides}"],
            env={**os.environ, "HOME": str(home)},
            stdout=output,
            stderr=output,
            timeout=3600,
            check=False,
        )
    total_s = time.time() - start
    if done.returncode != 0:
        raise SystemExit(f"seed {seed}: make quickstart failed, see {output.name}")
    run = RunDir.existing(clone / "runs" / run_name)
    report = _output(str(clone / ".venv/bin/cudaagent"), "report", "--json", str(run.path))
    shown = json.loads(report)["runs"][0]
    heldout = [task.source for task in run.tasks("heldout")]
    return {
        "seed": seed,
        "shuffled_rewards": shuffled,
        "commit": _output("git", "-C", str(clone), "rev-parse", "HEAD").strip(),
        "devices": shown["devices"],
        "total_s": round(total_s, 1),
        "install_s": round(run.events("started")[0]["time"] - start, 1),
        "scores": shown["scores"],
        "written_variants": {e["label"]: e["variants"] for e in shown["evaluations"]},
        "probability_before": _probabilities(clone / "checkpoints/quickstart", heldout),
        "probability_after": _probabilities(run.checkpoint(run.checkpoints()[-1]), heldout),
    }


def _probabilities(checkpoint: Path, sources: list[str]) -> dict[str, Any]:
    found = variant_probabilities(checkpoint, sources)
    return {name: {"mean": round(p.mean, 4), "tasks": p.tasks} for name, p in found.items()}


def _top(run: dict[str, Any], label: str) -> float:
    rows = [s for s in run["scores"] if s["label"] == label and s["state"] == "best"]
    return next(s["top"] for s in rows if s["level"] is None)


def _line(run: dict[str, Any]) -> str:
    return (
        f"{run['total_s'] / 60:.1f} min, of it {run['install_s']:.0f} s installation; "
        f"top reward {_top(run, 'cold_start'):.1%} -> {_top(run, 'agentic'):.1%}"
    )


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


if __name__ == "__main__":
    sys.exit(main())
