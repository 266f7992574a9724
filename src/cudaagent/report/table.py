"""Reports as text: aligned plain text for a terminal of 100 columns, and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cudaagent.report.records import RunReport, Scores, title_of

WIDTH = 100
_NAME_WIDTH = 17

COLUMNS = (
    ("episodes", "episodes"),
    ("pass %", "pass_rate"),
    (">eager", "faster_eager"),
    (">compile", "faster_compile"),
    ("x eager", "speedup_eager"),
    ("x compile", "speedup_compile"),
    ("top %", "top"),
    ("reward", "reward"),
)
"""Heading and field of ``Scores``; the five of the paper's Table 1 between count and reward."""

STATES = {
    "best": "Held-out tasks, best state of each episode (the paper's protocol)",
    "final": "Held-out tasks, state at the end of each episode (what training rewards)",
}

STAGE_TITLE = "Stages of one step"
LEGEND = (
    "pass, >eager, >compile, top in % of episodes. pass: correct. >eager, >compile: correct and",
    "faster than PyTorch eager, than torch.compile. top: reward 3, more than 5 % faster than both.",
    "x eager, x compile: geometric mean speed-up of correct solutions. (-N): N dropped, uncounted.",
)


@dataclass(frozen=True, slots=True)
class Table:
    """A heading, column names and rows of cells; the first ``text`` columns are left-aligned."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text: int = 1


def tables_of(reports: Sequence[RunReport], *, levels: bool = True) -> list[Table]:
    """All tables of a report, several runs row by row beside each other."""
    states = [state for state in STATES if _differs(reports, state)]
    tables = [_score_table(reports, state, levels) for state in states]
    tables += [_failure_table(reports), _variant_table(reports), _stage_table(reports)]
    tables.append(_result_table(reports))
    return [table for table in tables if table.rows]


def render_terminal(reports: Sequence[RunReport]) -> str:
    """Plain text within 100 columns; several runs are compared over all levels only."""
    blocks = ["\n".join(_header(report)) for report in reports]
    # The stages' other metrics are in the written report: the screen ends with what matters.
    tables = tables_of(reports, levels=len(reports) == 1)
    for number, table in enumerate(t for t in tables if t.title != STAGE_TITLE):
        lines = [table.title, *_aligned(table)]
        if number == 0 and any(report.scores for report in reports):
            lines += ["", *LEGEND]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def render_markdown(reports: Sequence[RunReport]) -> str:
    """GitHub-flavoured Markdown: what ``table.md`` holds."""
    blocks = [f"# {', '.join(report.name for report in reports)}"]
    blocks.append("\n".join(f"- `{report.path}`: {describe(report)}" for report in reports))
    for table in tables_of(reports):
        rules = [":--" if i < table.text else "--:" for i in range(len(table.header))]
        lines = [_markdown_row(row) for row in (table.header, tuple(rules), *table.rows)]
        blocks.append("\n".join([f"## {table.title}", "", *lines]))
    blocks.append(" ".join(LEGEND))
    return "\n\n".join(blocks) + "\n"


def describe(report: RunReport) -> str:
    """Target, isolation and task counts in one line."""
    parts = [
        f"target: {report.target}",
        f"device: {', '.join(report.devices) or 'unknown'}",
        f"isolation: {', '.join(report.isolation) or 'unknown'}",
        f"tasks: {report.tasks['train']} train, {report.tasks['heldout']} held out",
    ]
    if report.shuffled_rewards:
        parts.append("rewards shuffled (control)")
    return "; ".join(parts)


def format_cell(scores: Scores, field: str) -> str:
    """One value of ``scores`` as the tables show it."""
    value = getattr(scores, field)
    if value is None:
        return "-"
    if field == "episodes":
        return f"{value}" if not scores.dropped else f"{value} (-{scores.dropped})"
    if field.startswith("speedup") or field == "reward":
        return f"{value:.2f}"
    return f"{100 * value:.1f}"


def _header(report: RunReport) -> list[str]:
    lines = [f"run {report.path}"]
    line = ""
    for part in describe(report).split("; "):
        if line and len(line) + len(part) + 5 > WIDTH:
            lines.append(f"  {line}")
            line = ""
        line = f"{line}   {part}" if line else part
    return [*lines, f"  {line}"]


def _differs(reports: Sequence[RunReport], state: str) -> bool:
    """The final state is a table of its own only where it is not the best one."""
    if state == "best":
        return True
    return any(
        [_values(s) for s in report.scores if s.state == "best"]
        != [_values(s) for s in report.scores if s.state == "final"]
        for report in reports
    )


def _values(scores: Scores) -> tuple[str, ...]:
    return tuple(format_cell(scores, field) for _, field in COLUMNS)


def _score_table(reports: Sequence[RunReport], state: str, levels: bool) -> Table:
    several = len(reports) > 1
    levels = levels and any(s.level is not None for r in reports for s in r.scores)
    header = ["evaluation", *(["run"] if several else []), *(["level"] if levels else [])]
    text = len(header)
    keyed = [
        (s.label, s.level, report.name, s)
        for report in reports
        for s in report.scores
        if s.state == state and (levels or s.level is None)
    ]
    labels = list(dict.fromkeys(label for label, _, _, _ in keyed))
    keyed.sort(key=lambda k: (labels.index(k[0]), -1 if k[1] is None else k[1]))
    rows: list[tuple[str, ...]] = []
    for label, level, name, scores in keyed:
        cells = [title_of(label)]
        if several:
            cells.append(shorten(name))
        if levels:
            cells.append("all" if level is None else str(level))
        rows.append((*cells, *_values(scores)))
    return Table(STATES[state], (*header, *(heading for heading, _ in COLUMNS)), tuple(rows), text)


def _failure_table(reports: Sequence[RunReport]) -> Table:
    rows = [
        (
            *_who(reports, report, evaluation.label),
            ", ".join(f"{code} {count}" for code, count in evaluation.failures.items()),
        )
        for report in reports
        for evaluation in report.evaluations
        if evaluation.failures
    ]
    header = (*_who_header(reports), "failures of the final states")
    return Table("Why solutions failed", header, tuple(rows), text=len(header))


def _variant_table(reports: Sequence[RunReport]) -> Table:
    names = sorted({name for r in reports for e in r.evaluations for name in e.variants})
    names.sort(key=lambda name: name == "other")
    rows: list[tuple[str, ...]] = []
    for report in reports:
        for evaluation in report.evaluations:
            total = sum(evaluation.variants.values())
            if total:
                shares = (100 * evaluation.variants.get(name, 0) / total for name in names)
                cells = (f"{share:.1f}" for share in shares)
                rows.append((*_who(reports, report, evaluation.label), *cells))
    who = _who_header(reports)
    return Table("Teacher variants written, %", (*who, *names), tuple(rows), text=len(who))


def _stage_table(reports: Sequence[RunReport]) -> Table:
    rows = [
        (
            *_who(reports, report, totals.stage),
            str(totals.steps),
            str(totals.episodes),
            str(totals.dropped),
            str(totals.reused),
            _number(totals.first_reward),
            _number(totals.last_reward),
        )
        for report in reports
        for totals in report.stages
    ]
    numbers = ("steps", "episodes", "dropped", "reused", "reward, first", "reward, last")
    who = _who_header(reports)
    return Table("Training", (*who, *numbers), tuple(rows), text=len(who))


def _result_table(reports: Sequence[RunReport]) -> Table:
    rows = [
        (*_who(reports, report, totals.stage), name, f"{value:.4g}")
        for report in reports
        for totals in report.stages
        for name, value in totals.results.items()
        if not name.startswith("time/")
    ]
    header = (*_who_header(reports), "metric")
    return Table(STAGE_TITLE, (*header, "value"), tuple(rows), text=len(header))


def _who_header(reports: Sequence[RunReport]) -> tuple[str, ...]:
    return ("stage", "run") if len(reports) > 1 else ("stage",)


def _who(reports: Sequence[RunReport], report: RunReport, label: str) -> tuple[str, ...]:
    if len(reports) > 1:
        return (title_of(label), shorten(report.name))
    return (title_of(label),)


def shorten(name: str, width: int = _NAME_WIDTH) -> str:
    """``name`` within ``width`` characters, the middle cut."""
    if len(name) <= width:
        return name
    head = (width - 2) // 2
    return f"{name[:head]}..{name[-(width - 2 - head) :]}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _aligned(table: Table) -> list[str]:
    rows = [table.header, *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.header))]
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= WIDTH else 1
    lines: list[str] = []
    for row in rows:
        cells = [
            cell.ljust(width) if i < table.text else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((" " * gap).join(cells).rstrip())
    return [line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in lines]


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
