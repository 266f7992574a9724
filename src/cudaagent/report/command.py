"""``cudaagent report RUN [RUN...]``: write each run's report, print them beside each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from cudaagent.policy.teacher import classify
from cudaagent.report.table import render_terminal
from cudaagent.report.write import write_report


def command(runs: Sequence[Path], *, as_json: bool = False) -> int:
    """Report on ``runs``; returns the exit status.

    Raises:
        UserError: a run that does not exist or holds nothing yet.
    """
    reports = [write_report(path, classify) for path in runs]
    if as_json:
        print(json.dumps({"runs": [report.to_dict() for report in reports]}, allow_nan=False))
        return 0
    print(render_terminal(reports))
    for path in runs:
        print(f"curves: {path / 'report.html'}   table: {path / 'table.md'}")
    return 0
