"""Tables, curves and the page that show a run, made from its directory alone."""

from cudaagent.report.page import render_html
from cudaagent.report.records import Classifier, RunReport
from cudaagent.report.summary import summarise
from cudaagent.report.table import render_markdown, render_terminal
from cudaagent.report.write import write_report

__all__ = [
    "Classifier",
    "RunReport",
    "render_html",
    "render_markdown",
    "render_terminal",
    "summarise",
    "write_report",
]
