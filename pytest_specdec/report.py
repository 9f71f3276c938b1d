"""The results document as a terminal table and as Markdown.

Everything here reads the document of ``results.json`` and nothing else, so a report can be made again from a
saved file. Nothing here prints.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

Document = Mapping[str, Any]

_COLUMNS: Final = (
    ("server", "server"),
    ("workload", "workload"),
    ("decode_tok_s", "decode tok/s"),
    ("accept_length", "accept length"),
    ("verify_rate", "verify/s"),
    ("ttft_ms", "TTFT ms"),
    ("tpot_ms", "TPOT ms"),
    ("verdict", "verdict"),
)


def number(value: float | None) -> str:
    """Four significant digits, without an exponent; a dash for nothing."""
    if value is None:
        return "-"
    magnitude = abs(value)
    digits = 3 if magnitude < 10 else 2 if magnitude < 100 else 1 if magnitude < 10_000 else 0
    return f"{value:.{digits}f}"


def percent(fraction: float | None) -> str:
    """A signed percentage with one decimal; a dash for nothing."""
    return "-" if fraction is None else f"{fraction * 100:+.1f} %"


def share(fraction: float) -> str:
    """A percentage without a sign, with one decimal."""
    return f"{fraction * 100:.1f} %"


def aligned(rows: Sequence[Sequence[str]], *, right: Container[int] = ()) -> list[str]:
    """Return rows of equal length as lines, each column as wide as its widest cell; ``right``: columns of numbers."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def at_rate(request_rate: float | None) -> str:
    """How an open loop is marked beside its concurrency; nothing for a closed one."""
    return "" if request_rate is None else f" r{request_rate:g}/s"


def _row(entry: Mapping[str, Any]) -> list[str]:
    judged = {row["metric"]: row for row in entry["judged"]}
    cells = []
    for key, _ in _COLUMNS:
        if key == "workload":
            rate = at_rate(entry.get("request_rate"))
            templated = " templated" if entry.get("chat_template") else ""
            cells.append(f"{entry['workload']} c{entry['concurrency']} o{entry['output_tokens']}{rate}{templated}")
        elif key in ("server", "verdict"):
            cells.append(str(entry[key]))
        else:
            metric = entry["metrics"].get(key)
            cell = number(None if metric is None else metric["value"])
            change = judged.get(key, {}).get("change")
            cells.append(cell if change is None else f"{cell} ({percent(change)})")
    return cells


def _category_rows(entry: Mapping[str, Any]) -> list[list[str]]:
    """One row a class of task, where there is more than one: a mean of prose and code is neither's."""
    categories: Sequence[Mapping[str, Any]] = entry.get("categories", ())
    if len(categories) < 2:
        return []
    return [["", f"  {category['category']}", *_figures(category)] for category in categories]


def _figures(category: Mapping[str, Any]) -> list[str]:
    return [number(category["metrics"][key]["value"]) if key in category["metrics"] else "" for key, _ in _COLUMNS[2:]]


def table_lines(document: Document) -> list[str]:
    """One line a measurement, with changes against the baseline in parentheses, and one for each class of task."""
    entries: Sequence[Mapping[str, Any]] = document["measurements"]
    if not entries:
        return []
    header = [title for _, title in _COLUMNS]
    rows = [header]
    for entry in entries:
        rows += [_row(entry), *_category_rows(entry)]
    return aligned(rows, right=range(2, len(header) - 1))


def dead_end_lines(document: Document) -> list[str]:
    """Return what became of each dead end: a line that says it, and one with the reason."""
    lines = []
    for entry in document.get("dead_ends", ()):
        lines.append(f"dead end {entry['server']}: {entry['outcome']}: {entry['detail']} ({_when(entry)})")
        lines.append(f"  {_why(entry)}")
    return lines


def _when(entry: Mapping[str, Any]) -> str:
    version = entry["sglang_version"]
    return f"{entry['at'][:10]}, SGLang {'of unknown version' if version is None else version}, {entry['node']}"


def _why(entry: Mapping[str, Any]) -> str:
    return f"expected {entry['expected']}: {entry['reason']}" + (f" ({entry['link']})" if entry["link"] else "")


def markdown(document: Document) -> str:
    """Return the table for a GitHub step summary."""
    entries: Sequence[Mapping[str, Any]] = document["measurements"]
    header = [title for _, title in _COLUMNS]
    lines = [
        f"### Speculative decoding on `{document['node']}`",
        "",
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(_row(entry)) + " |" for entry in entries),
        *(f"\n**{failure['server']}** did not serve: {failure['reason']}" for failure in document["failures"]),
        *(
            f"\n**{e['server']}**, dead end, {e['outcome']}: {e['detail']}; {_why(e)}"
            for e in document.get("dead_ends", ())
        ),
        "",
    ]
    return "\n".join(lines)


def sparkline(rounds_by_launch: Sequence[Sequence[float]], *, width: int = 220, height: int = 36) -> str:
    """Return an SVG of every round in order, launches set apart by a gap; empty without rounds."""
    values = [value for launch in rounds_by_launch for value in launch]
    if not values:
        return ""
    low, high = min(values), max(values)
    if high == low:  # equal rounds lie on the middle line
        low, high = low - 1, high + 1
    span = high - low
    slots = len(values) + max(len(rounds_by_launch) - 1, 0)
    step = width / max(slots, 1)
    marks, slot = [], 0.5
    for launch in rounds_by_launch:
        for value in launch:
            y = height - 5 - (value - low) / span * (height - 10)
            marks.append(f'<circle cx="{slot * step:.1f}" cy="{y:.1f}" r="3"><title>{number(value)}</title></circle>')
            slot += 1
        slot += 1
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{len(values)} rounds from {number(min(values))} to {number(max(values))}">{"".join(marks)}</svg>'
    )
