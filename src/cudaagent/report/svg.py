"""Small line charts as SVG text, without a plotting library.

Process: any; pure functions of their arguments. Colours and fonts come from the page's style sheet
(classes ``s0`` to ``s7``), so that a chart follows the page into a dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from cudaagent.report.records import Panel, Series

COLOURS = 8
_WIDTH, _HEIGHT = 340, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 26
_TICKS = 4


def line_chart(panel: Panel) -> str:
    """One chart of all series of ``panel``; a missing value is a gap in its line."""
    points = [(x, y) for series in panel.series for x, y in series.points if y is not None]
    if not points:
        return ""
    x_low, x_high = _range([float(x) for x, _ in points], whole=True)
    y_ticks = ticks(min(y for _, y in points), max(y for _, y in points))
    scale = _Scale(x_low, x_high, y_ticks[0], y_ticks[-1])
    label = escape(f"{panel.title}, {panel.stage}, by step")
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">',
        *(_gridline(scale, tick) for tick in y_ticks),
        *_x_labels(scale, points),
    ]
    for number, series in enumerate(panel.series):
        parts += _line(scale, series, number % COLOURS)
    return "\n".join([*parts, "</svg>"])


def ticks(low: float, high: float) -> list[float]:
    """Round tick values, rising, that enclose ``low`` and ``high``; always at least two."""
    if low == high:
        pad = abs(low) * 0.5 or 0.5
        low, high = low - pad, high + pad
    raw = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


class _Scale:
    def __init__(self, x_low: float, x_high: float, y_low: float, y_high: float) -> None:
        self._x = (x_low, x_high)
        self._y = (y_low, y_high)

    def x(self, value: float) -> float:
        low, high = self._x
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self._y
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)


def _range(values: Sequence[float], *, whole: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        half = 1.0 if whole else 0.5
        return low - half, high + half
    return low, high


def _gridline(scale: _Scale, tick: float) -> str:
    y = scale.y(tick)
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{_short(tick)}'
        "</text>"
    )


def _x_labels(scale: _Scale, points: Sequence[tuple[int, float]]) -> list[str]:
    steps = sorted({x for x, _ in points})
    shown = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
    labels = [
        f'<text class="tick" x="{scale.x(step):.1f}" y="{_HEIGHT - 10}" text-anchor="middle">'
        f"{step}</text>"
        for step in shown
    ]
    return labels


def _line(scale: _Scale, series: Series, colour: int) -> list[str]:
    runs: list[list[tuple[int, float]]] = [[]]
    for step, value in sorted(series.points, key=lambda point: point[0]):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((step, value))
    parts: list[str] = []
    for run in runs:
        if len(run) > 1:
            path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in run)
            parts.append(f'<polyline class="line s{colour}" points="{path}"/>')
        for x, y in run:
            place = f'cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}"'
            parts.append(
                f'<circle class="dot s{colour}" {place} r="2.2">'
                f"<title>{escape(series.name)}, step {x}: {_short(y)}</title></circle>"
            )
    return parts


def _short(value: float) -> str:
    text = f"{value:.3g}"
    return "0" if text == "-0" else text
