"""Write a run's report into its directory."""

from __future__ import annotations

from pathlib import Path

from cudaagent.files import write_text
from cudaagent.report.page import render_html
from cudaagent.report.records import Classifier, RunReport
from cudaagent.report.summary import summarise
from cudaagent.report.table import render_markdown
from cudaagent.run_dir import RunDir


def write_report(run_dir: Path, classify: Classifier | None = None) -> RunReport:
    """Write ``report.html`` and ``table.md`` of the run at ``run_dir`` and return what they show.

    Raises:
        UserError: no run there, or nothing in it yet.
    """
    run = RunDir.existing(run_dir)
    report = summarise(run, classify)
    write_text(run.path / "report.html", render_html([report]))
    write_text(run.path / "table.md", render_markdown([report]))
    return report
