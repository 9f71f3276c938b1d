"""A ranking as a table for a terminal, and as one SVG for a page. Nothing here prints."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pytest_specdec.ranking import Ranking, Standing
from pytest_specdec.report import aligned, number, share

#: Pixels; a letter of the monospaced font at its size is a little narrower.
_ROW: Final = 24
_LETTER: Final = 7.6
_PLOT_WIDTH: Final = 340
_LONGEST: Final = 52
_TOP, _BOTTOM, _GAP, _VALUE_WIDTH = 12, 44, 14, 60
_STYLE: Final = (
    'fill="currentColor" stroke="currentColor" stroke-width="0" font-family="ui-monospace, monospace" font-size="12"'
)


def ranking_of(document: Mapping[str, Any]) -> Ranking:
    """Return the ranking that a sweep's object in ``results.json`` tells."""
    rows = tuple(Standing(**row) for row in document["points"])
    best = next((row for row in rows if row.word == "best"), None)
    return Ranking(rows=rows, best=best, confidence=document["confidence"], basis=document["basis"])


def lines(document: Mapping[str, Any]) -> list[str]:
    """Return a sweep's object in ``results.json`` as a table with its name above it."""
    return [
        f"sweep {document['name']}",
        *table_lines(ranking_of(document), metric=document["metric"], unit=document["unit"]),
    ]


def drawn(document: Mapping[str, Any]) -> str:
    """Return the same as an SVG."""
    return plot(ranking_of(document), metric=document["metric"], unit=document["unit"])


def table_lines(ranking: Ranking, *, metric: str, unit: str) -> list[str]:
    """One line a point, with the interval and how it stands to the best one; then what the intervals rest on."""
    head = ["point", f"{metric} {unit}", f"{ranking.confidence:.0%} interval", "launches", "against the best"]
    rows = [head]
    rows += [[row.name, number(row.value), _interval(row), str(row.launches), said(row)] for row in ranking.rows]
    return [
        *aligned(rows, right=(1, 2, 3)),
        conclusion(ranking, unit=unit),
        *([ranking.basis] if ranking.basis else []),
    ]


def conclusion(ranking: Ranking, *, unit: str) -> str:
    """Return the best point with its interval, and what can't be told from it, in one sentence."""
    best = ranking.best
    if best is None:
        return "no point was measured"
    tied = [row.name for row in ranking.rows if row.word == "not-distinguishable"]
    text = f"best: {best.name}, {number(best.value)} {unit} ({_interval(best)})"
    return text + (f"; not distinguishable from {', '.join(tied)}" if tied else "; every other measured point is worse")


def said(row: Standing) -> str:
    """How a point stands to the best one."""
    if row.word == "best":
        return "best"
    if row.behind is None or row.behind_least is None:
        return f"failed: {row.reason}" if row.word == "failed" else "not measured"
    if row.word == "worse":
        return f"worse by {share(row.behind)}, at least {share(row.behind_least)}"
    return f"not distinguishable (behind by {share(row.behind)})"


def _interval(row: Standing) -> str:
    return "-" if row.low is None else f"{number(row.low)} to {number(row.high)}"


def plot(ranking: Ranking, *, metric: str, unit: str) -> str:
    """Return an SVG: one row a point, a dot for its value and a line for its interval; empty without a value.

    It takes the colour of the text around it. The dot of the best point is full, that of a point which can't be told
    from it hollow, and a worse one is faint; a failed point has its reason in the place of a line.
    """
    spans = [(row.low, row.high) for row in ranking.rows if row.low is not None and row.high is not None]
    if not spans:
        return ""
    ticks = _ticks(min(low for low, _ in spans), max(high for _, high in spans))
    left = _LETTER * max(len(row.name) for row in ranking.rows) + _GAP
    floor = _TOP + _ROW * len(ranking.rows)
    width, height = left + _PLOT_WIDTH + _GAP + _VALUE_WIDTH, floor + _BOTTOM

    def x(value: float) -> float:
        return left + (value - ticks[0]) / (ticks[-1] - ticks[0]) * _PLOT_WIDTH

    size = f'viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}"'
    label = html.escape(conclusion(ranking, unit=unit))
    parts = [f'<svg class="sweep" xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}" {_STYLE}>']
    for tick in ticks:
        parts.append(f'<path d="M{x(tick):.1f} {_TOP}V{floor}" stroke-width="1" opacity=".15"/>')
        parts.append(_text(x(tick), floor + 16, f"{tick:g}", anchor="middle", opacity=0.7))
    axis = f"{metric}, {unit}, {ranking.confidence:.0%} intervals"
    parts.append(_text(left + _PLOT_WIDTH / 2, floor + 34, axis, anchor="middle", opacity=0.7))
    for i, row in enumerate(ranking.rows):
        y = _TOP + _ROW * (i + 0.5)
        opacity, bold = 1.0 if row.contends else 0.5, row.word == "best"
        parts.append(_text(left - _GAP, y + 4, row.name, anchor="end", opacity=opacity, bold=bold))
        if row.value is None or row.low is None or row.high is None:
            parts.append(_text(left + 6, y + 4, textwrap.shorten(said(row), _LONGEST), opacity=opacity))
            continue
        parts.append(_mark(row, (x(row.low), x(row.value), x(row.high)), y, opacity))
        parts.append(_text(left + _PLOT_WIDTH + _GAP, y + 4, number(row.value), opacity=opacity, bold=bold))
    return "".join([*parts, "</svg>"])


def _text(x: float, y: float, words: str, *, anchor: str = "start", opacity: float = 1.0, bold: bool = False) -> str:
    weight = ' font-weight="700"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" opacity="{opacity:g}"{weight}'
    return f"<text {place}>{html.escape(words)}</text>"


def _mark(row: Standing, at: tuple[float, float, float], y: float, opacity: float) -> str:
    """The line of an interval, broken by the dot of its value."""
    low, value, high = at
    line = f"M{low:.1f} {y:.1f}H{max(low, value - 5):.1f}M{min(high, value + 5):.1f} {y:.1f}H{high:.1f}"
    fill = ' fill="none" stroke-width="2"' if row.word == "not-distinguishable" else ""
    title = html.escape(f"{row.name}: {number(row.value)} ({_interval(row)}), {said(row)}")
    return (
        f'<g opacity="{opacity:g}"><title>{title}</title><path d="{line}" stroke-width="2"/>'
        f'<circle cx="{value:.1f}" cy="{y:.1f}" r="4"{fill}/></g>'
    )


def _ticks(low: float, high: float) -> Sequence[float]:
    """Return round numbers that hold both ends, five or so."""
    span = high - low or abs(high) or 1.0
    power = 10 ** math.floor(math.log10(span / 4))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= span / 4)
    first, last = math.floor(low / step), math.ceil(high / step)
    if first == last:
        last += 1
    return [round(i * step, 12) for i in range(first, last + 1)]
