"""The HTML page of a report: one file, no script, nothing loaded from anywhere.

Process: any. Invariant: every text that comes from a run is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from cudaagent.report.curves import is_main, merge_panels
from cudaagent.report.records import Panel, RunReport, title_of
from cudaagent.report.svg import COLOURS, line_chart
from cudaagent.report.table import LEGEND, Table, describe, tables_of

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #60646c; --paper: #fff; --rule: #e0e1e6;
  --c0: #0b6bcb; --c1: #c2410c; --c2: #15803d; --c3: #9333ea; --c4: #b45309; --c5: #0e7490;
  --c6: #be185d; --c7: #4b5563; }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --soft: #b0b4ba; --paper: #111113;
  --rule: #363a3f; --c0: #70b8ff; --c1: #ffa057; --c2: #3dd68c; --c3: #d19dff; --c4: #ffca16;
  --c5: #4ccce6; --c6: #ff8dcc; --c7: #9ca3af; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1120px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: .95rem; margin: 1.2rem 0 .25rem; }
p, .soft { color: var(--soft); margin: .25rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 500; } td.text, th.text { text-align: left; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); gap: 1rem; }
figure { margin: 0; } figcaption { font-weight: 500; font-size: .9rem; }
.key { font-size: .8rem; color: var(--soft); } .key span { margin-right: .8rem; }
svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--rule); } .tick { fill: var(--soft); font-size: 10px; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
pre { overflow-x: auto; font-size: .8rem; border: 1px solid var(--rule); padding: .8rem; }
"""


def render_html(reports: Sequence[RunReport]) -> str:
    """The whole page for one run, or for several beside each other."""
    names = ", ".join(report.name for report in reports)
    body = [f"<h1>{escape(names)}</h1>"]
    body += [f"<p>{escape(report.path)}. {escape(describe(report))}.</p>" for report in reports]
    for number, table in enumerate(tables_of(reports)):
        body.append(_table(table))
        if number == 0:
            body.append(f"<p>{escape(' '.join(LEGEND))}</p>")
    body += _curves(merge_panels(reports))
    for report in reports:
        body.append(
            f"<details><summary>Configuration of {escape(report.name)}</summary>"
            f"<pre>{escape(report.config)}</pre></details>"
        )
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>cudaagent: {escape(names)}</title>",
            f"<style>{_STYLE}{_colour_rules()}</style></head><body>",
            *body,
            "</body></html>\n",
        ]
    )


def _colour_rules() -> str:
    return "\n".join(
        f".line.s{i} {{ stroke: var(--c{i}); }} .dot.s{i} {{ fill: var(--c{i}); }} "
        f".key .s{i} {{ color: var(--c{i}); }}"
        for i in range(COLOURS)
    )


def _table(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        inner = "".join(
            f'<{tag} class="text">{escape(cell)}</{tag}>'
            if i < table.text
            else f"<{tag}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )
        return f"<tr>{inner}</tr>"

    rows = "\n".join(row(cells, "td") for cells in table.rows)
    return (
        f'<h2>{escape(table.title)}</h2><div class="scroll"><table>'
        f"<thead>{row(table.header, 'th')}</thead><tbody>{rows}</tbody></table></div>"
    )


def _curves(panels: Sequence[Panel]) -> list[str]:
    stages = list(dict.fromkeys(panel.stage for panel in panels))
    parts = ["<h2>Learning curves, by step</h2>"] if panels else []
    for stage in stages:
        own = [panel for panel in panels if panel.stage == stage]
        others = [panel for panel in own if not is_main(panel)]
        parts.append(f"<h3>{escape(title_of(stage))}</h3>")
        parts.append(_charts([panel for panel in own if is_main(panel)]))
        if others:
            parts.append("<details><summary>All other metrics</summary>")
            parts.append(f"{_charts(others)}</details>")
    return parts


def _charts(panels: Sequence[Panel]) -> str:
    figures = "\n".join(_figure(panel) for panel in panels)
    return f'<div class="charts">{figures}</div>'


def _figure(panel: Panel) -> str:
    key = ""
    if len(panel.series) > 1:
        spans = "".join(
            f'<span><b class="s{i % COLOURS}">&#9632;</b> {escape(series.name)}</span>'
            for i, series in enumerate(panel.series)
        )
        key = f'<div class="key">{spans}</div>'
    return (
        f"<figure><figcaption>{escape(panel.title)}</figcaption>{key}{line_chart(panel)}</figure>"
    )
