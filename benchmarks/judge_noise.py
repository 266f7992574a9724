"""How far the judge's ratio scatters, and how often a reward flips near the 5 % line (target cpu).

One kernel with a knob: a fused pointwise kernel, then a spin of so many iterations. Spinning is
calibrated to times from 0.90 to 1.00 of ``torch.compile``'s, then each setting is judged again and
again, each time by a fresh runner. *Spread*: standard deviation over median of the ratio candidate
/ compile of the kernel without a spin. *Flip*: a verdict without ``undecided-margin`` on the other
side of the line than the median ratio of its setting.

    .venv/bin/python benchmarks/judge_noise.py [--judgements 40] [--spread 100] [key=value]

Every judgement is written at once and one that is in the result file is not made again. Times are
meaningful on an otherwise idle machine only. Takes about 20 minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cudaagent.config import load_config
from cudaagent.files import write_text
from cudaagent.judge.open import open_judge
from cudaagent.judge.verdict import Verdict
from cudaagent.lease import TimingLease
from cudaagent.tasks.task import Task
from cudaagent.toolchain.open import object_cache_dir, open_toolchain
from cudaagent.workspace.submission import Submission

HERE = Path(__file__).parent
LINE = 0.95
"""Faster means less than this share of the baseline's time."""
NEAR = 0.01
RATIOS = (0.90, 0.92, 0.935, 0.945, 0.955, 0.97, 1.00)
_CALIBRATION = 3

TASK = Task(
    "judge-noise",
    """
import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, x):
        y = x * 1.5 + 0.25
        y = y * y - x
        y = y.clamp(-4.0, 4.0)
        return y * torch.sigmoid(y)
def get_inputs(): return [torch.randn(1024, 2048)]
def get_init_inputs(): return []
""",
)
KERNEL = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <cstdint>
using tvm::ffi::TensorView;

// exp(-y) for |y| <= 4, by a polynomial on y / 16, raised to the 16th power.
static inline float gate(float y) {
  const float t = -y * 0.0625f;
  const float tail = 0.16666667f + t * (0.041666667f + t * 0.0083333f);
  float e = 1.0f + t * (1.0f + t * (0.5f + t * tail));
  e *= e; e *= e; e *= e; e *= e;
  return y / (1.0f + e);
}

void run(TensorView x, int64_t spins, TensorView out) {
  const float* a = static_cast<const float*>(x.data_ptr());
  float* b = static_cast<float*>(out.data_ptr());
  const int64_t n = x.size(0) * x.size(1);
  #pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) {
    float y = a[i] * 1.5f + 0.25f;
    y = y * y - a[i];
    y = y < -4.0f ? -4.0f : (y > 4.0f ? 4.0f : y);
    b[i] = gate(y);
  }
  volatile int64_t counter = 0;
  for (int64_t i = 0; i < spins; ++i) counter = i;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""
MODEL = """
import torch
import torch.nn as nn
import cuda_extension


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.run(x, {spins}, out)
        return out
"""


def submission(spins: int) -> Submission:
    return Submission.from_mapping(
        {
            "model_new.py": MODEL.format(spins=spins).encode(),
            "kernels/run.cpp": KERNEL.encode(),
        }
    )


class Bench:
    """Judges settings of the knob; one judge for all."""

    def __init__(self, overrides: list[str], out: Path) -> None:
        config = load_config(None, overrides)
        lease = TimingLease("cpu")
        toolchain = open_toolchain(
            "cpu", cache_dir=object_cache_dir(), limits=config.limits, sandbox=config.sandbox
        )
        self._build = toolchain.compile(submission(0))
        if not self._build.ok:
            raise SystemExit(self._build.diagnostics)
        self._judge = open_judge("cpu", config.judge, config.limits, config.sandbox, lease=lease)
        self._out = out
        self.results = self._read(overrides)

    def close(self) -> None:
        self._judge.close()

    def one(self, spins: int) -> Verdict:
        verdict = self._judge.judge(TASK, submission(spins), self._build)
        self.results["device"] = verdict.device
        self.results["versions"] |= verdict.versions
        if not verdict.correct:
            message = verdict.failure.message if verdict.failure else ""
            raise SystemExit(f"the kernel is judged {verdict.code}: {message}")
        return verdict

    def collect(self, key: str, spins: int, count: int, bar: tqdm[Any]) -> list[dict[str, Any]]:
        """So many judgements of a setting, those of the file included."""
        made: list[dict[str, Any]] = self.results["judgements"].setdefault(key, [])
        while len(made) < count:
            verdict = self.one(spins)
            made.append(
                {
                    "ratio": 1.0 / (verdict.speedup_vs_compile or 1.0),
                    "reward": verdict.reward,
                    "undecided": "undecided-margin" in verdict.warnings,
                    "rounds": verdict.evidence["rounds"],
                    "seconds": verdict.evidence["seconds"]["total"],
                }
            )
            self.save()
            bar.update()
        return made

    def spins(self) -> dict[str, int]:
        """Iterations for each of ``RATIOS``, from the times of two settings."""
        if not self.results["spins"]:
            far = 1_000_000
            ratios = {
                spins: statistics.median(
                    1.0 / (self.one(spins).speedup_vs_compile or 1.0) for _ in range(_CALIBRATION)
                )
                for spins in (0, far)
            }
            slope = (ratios[far] - ratios[0]) / far
            self.results["spins"] = {
                str(ratio): max(0, round((ratio - ratios[0]) / slope)) for ratio in RATIOS
            }
            self.save()
        return self.results["spins"]

    def save(self) -> None:
        self.results["totals"] = totals(self.results)
        write_text(self._out, json.dumps(self.results, indent=1) + "\n")

    def _read(self, overrides: list[str]) -> dict[str, Any]:
        if self._out.is_file():
            found = json.loads(self._out.read_text())
            if found["overrides"] == overrides:
                return found
            raise SystemExit(f"{self._out} holds results with other settings; use --out")
        return {
            "benchmark": "judge_noise",
            "date": date.today().isoformat(),
            "commit": _commit(),
            "device": "",
            "versions": {"cudaagent": metadata.version("cudaagent")},
            "overrides": overrides,
            "spins": {},
            "totals": {},
            "judgements": {},
        }


def totals(results: dict[str, Any]) -> dict[str, Any]:
    """Spread of the kernel without a spin; flips of each setting."""
    answer: dict[str, Any] = {"settings": {}}
    outside = flips = 0
    for key, made in results["judgements"].items():
        ratios = [one["ratio"] for one in made]
        middle = statistics.median(ratios)
        spread = statistics.stdev(ratios) / middle if len(ratios) > 1 else None
        if key == "none":
            answer["spread"] = {"judgements": len(made), "median": middle, "sd_over_median": spread}
            answer["seconds"] = statistics.median(one["seconds"] for one in made)
            continue
        wrong = sum(
            not one["undecided"] and (one["reward"] >= 3.0) != (middle < LINE) for one in made
        )
        undecided = sum(one["undecided"] for one in made)
        near = abs(middle - LINE) <= NEAR
        answer["settings"][key] = {
            "judgements": len(made),
            "median": middle,
            "sd_over_median": spread,
            "flips": wrong,
            "undecided": undecided,
            "near_the_line": near,
        }
        if not near:
            outside += len(made)
            flips += wrong
    answer["flips_outside"] = {"judgements": outside, "flips": flips}
    return answer


def _commit() -> str:
    done = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--abbrev=40", "--dirty"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--judgements", type=int, default=40, help="of each setting")
    parser.add_argument("--spread", type=int, default=100, help="of the kernel without a spin")
    parser.add_argument("--out", type=Path, default=HERE / "results/judge_noise-cpu.json")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of the configuration")
    options = parser.parse_args()
    bench = Bench(options.overrides, options.out)
    try:
        have = {key: len(made) for key, made in bench.results["judgements"].items()}
        wanted = {"none": options.spread} | {str(ratio): options.judgements for ratio in RATIOS}
        todo = sum(max(0, count - have.get(key, 0)) for key, count in wanted.items())
        with tqdm(total=todo, unit="judgement") as bar:
            bench.collect("none", 0, options.spread, bar)
            spins = bench.spins()
            # All settings in turn, so that a drift of the machine meets all of them.
            for count in range(1, options.judgements + 1):
                for ratio in RATIOS:
                    bench.collect(str(ratio), spins[str(ratio)], count, bar)
    finally:
        bench.close()
    print(json.dumps(bench.results["totals"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
