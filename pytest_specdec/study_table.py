"""The ledger of a study as a Markdown table and as one self-contained HTML page: a line a try. Nothing here prints."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pytest_specdec.ledger import Change, Figure, Try, moment
from pytest_specdec.page import fill
from pytest_specdec.report import number

Ledgers = Mapping[str, Sequence[Try]]

_COLUMNS: Final = (
    "server",
    "workload",
    "change against the control",
    "outcome",
    "decode tok/s",
    "accept length",
    "ratio to control",
    "date",
    "SGLang",
    "log",
)
_LEGEND: Final = (
    "In parentheses: the lowest and the highest round, and of a ratio its bounds. Servers stand in the order in which "
    "they were first tried, each with its newest try first."
)
#: How many resolved differences a cell takes; the page lists them all.
_MOST_RESOLVED: Final = 4
#: What Markdown reads as markup within a cell of a table. An underscore within a word is none.
_MARKUP: Final = re.compile(r"[\\`*|\[\]<~&]|(?<![^\W_])_|_(?![^\W_])")


def in_order(tries: Iterable[Try]) -> list[Try]:
    """Put the tries of one server together, servers in the order in which they were first tried, newest try first."""
    groups: dict[str, list[Try]] = {}
    for one in tries:
        groups.setdefault(one.server, []).append(one)
    return [one for group in groups.values() for one in sorted(group, key=_moment, reverse=True)]


def _moment(one: Try) -> float:
    return moment(one.at).timestamp()


def markdown(ledgers: Ledgers, *, root: Path, beside: Path) -> str:
    """Return a table a node. Logs are told from above the baselines ``root``; links to them lead from ``beside``."""
    parts = []
    for node, tries in ledgers.items():
        rows = [list(_COLUMNS)]
        for one in in_order(tries):
            url = _log_url(one, root, beside)
            rows.append([*map(_escaped, _cells(one)), "-" if url is None else f"[log]({url})"])
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
        lines = [
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
        ]
        rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
        parts.append("\n".join([f"### Study on `{node}`", "", lines[0], rule, *lines[1:], ""]))
    return "\n".join([*parts, _LEGEND]) + "\n"


def html(ledgers: Ledgers, *, root: Path, beside: Path) -> str:
    """Return one page without outside resources, with every command and difference; links as in :func:`markdown`."""
    nodes = {
        node: [
            {"entry": one, "cells": _cells(one), "log": _log_url(one, root, beside), "css": _css(one)}
            for one in in_order(tries)
        ]
        for node, tries in ledgers.items()
    }
    return fill("study.html.j2", nodes=nodes, columns=_COLUMNS, legend=_LEGEND)


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def _log_url(one: Try, root: Path, beside: Path) -> str | None:
    if one.log_path is None:
        return None
    path = Path(one.log_path)
    return quote(str(path) if path.is_absolute() else os.path.relpath(root.resolve().parent / path, beside))


def _cells(one: Try) -> list[str]:
    """Every cell but the log's, as plain text."""
    return [
        one.server,
        "-" if one.key is None else " ".join(one.key.split("--")[1:]),
        _change(one.change),
        _outcome(one),
        _figure(one.figures.get("decode_tok_s")),
        number(accept.value) if (accept := one.figures.get("accept_length")) else "-",
        _ratio(one),
        one.at[:10] if one.runs == 1 else f"{one.at[:10]} ({one.runs} runs since {one.first_at[:10]})",
        one.sglang_version or "-",
    ]


def _change(change: Change | None) -> str:
    if change is None:
        return "-"
    said = f"{change.control} with {'; '.join(change.intended) or 'nothing changed'}"
    # The flags themselves come back as resolved arguments.
    given = {line.partition(":")[0].lstrip("-") for line in change.intended}
    moved = [one for one in change.effective if one.key.rpartition(".")[2].replace("_", "-") not in given]
    if moved:
        said += "; resolved: " + "; ".join(map(str, moved[:_MOST_RESOLVED]))
    return said + (f" and {len(moved) - _MOST_RESOLVED} more" if len(moved) > _MOST_RESOLVED else "")


def _outcome(one: Try) -> str:
    why = f" ({one.reason})" if one.reason else ""
    if one.kind == "measured":
        return one.outcome + why
    if one.kind == "failed":
        return f"failed: {one.outcome}"
    expected = one.expected or "slow"
    seen = f"{expected}, saw {one.diagnosis or 'none'}" if one.outcome == "differs" else expected
    return f"dead end {one.outcome}: {seen}{why}"


def _css(one: Try) -> str:
    if one.kind == "measured":
        return one.outcome
    if one.kind == "failed" or one.outcome == "differs":
        return "infrastructure"
    return "inconclusive" if one.outcome == "revived" else "dead-end"


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return number(figure.value) + _between(figure.low, figure.high)


def _between(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" ({number(low)} to {number(high)})"


def _ratio(one: Try) -> str:
    found = one.speedup
    if found is None:
        return "-"
    words = [number(found.ratio) + _between(found.low, found.high)]
    if not found.conclusive:
        words.append(f"not conclusive: {found.reason}" if found.reason else "not conclusive")
    if found.control_moved:
        words.append("control moved")
    return ", ".join(words)
