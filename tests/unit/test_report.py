"""The results document as people read it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_specdec import report
from pytest_specdec.page import html


def metric(value: float, rounds: list[list[float]] | None = None) -> dict[str, Any]:
    return {
        "unit": "tok/s",
        "formula": "a / b",
        "value": value,
        "median": value,
        "low": value,
        "high": value,
        "spread": 0.0125,
        "rounds_by_launch": rounds or [[value]],
    }


def judged(name: str, **fields: Any) -> dict[str, Any]:
    row = {
        "metric": name,
        "baseline": None,
        "change": None,
        "change_low": None,
        "change_high": None,
        "catches": None,
        "floor": None,
        "gated": True,
        "verdict": None,
    }
    return {**row, **fields}


def entry(server: str, verdict: str = "pass", **metrics: float) -> dict[str, Any]:
    return {
        "key": f"{server}--chat--c1--o512",
        "server": server,
        "command": f"python -m sglang.launch_server --model-path <{server}>",
        "workload": "chat",
        "concurrency": 1,
        "output_tokens": 512,
        "verdict": verdict,
        "violations": [],
        "validity": [],
        "acceptance_by_position": None,
        "goodput_limits": None,
        "notes": [],
        "metrics": {name: metric(value) for name, value in metrics.items()},
        "judged": [],
        "split": None,
        "accept_histogram": None,
        "environment_changes": [],
        "baseline": None,
        "launches": [{"index": 0, "ready_s": 22.5, "sglang_version": "0.5.23", "log_path": "x.log"}],
    }


def document(*entries: dict[str, Any], failures: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {
        "created": "2026-01-02T03:04:05+00:00",
        "command": "pytest --gpu-host",
        "git_commit": "0123456789abcdef",
        "node": "cpu-x-2c",
        "failures": list(failures),
        "measurements": list(entries),
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (3.9375, "3.938"), (89.5, "89.50"), (169.84, "169.8"), (12345.6, "12346"), (0.0, "0.000")],
)
def test_numbers_have_four_significant_digits(value: float | None, text: str) -> None:
    assert report.number(value) == text


@pytest.mark.parametrize(("fraction", "text"), [(None, "-"), (-0.3333, "-33.3 %"), (0.0, "+0.0 %"), (0.056, "+5.6 %")])
def test_changes_are_signed_percentages(fraction: float | None, text: str) -> None:
    assert report.percent(fraction) == text


def test_the_table_has_a_line_a_measurement_with_changes_in_parentheses() -> None:
    drafting = entry("eagle3", "regression", decode_tok_s=80.0, accept_length=2.0)
    drafting["judged"] = [judged("accept_length", change=-1 / 3)]

    lines = report.table_lines(document(entry("base", decode_tok_s=89.5), drafting))

    assert [re.split(r"  +", line) for line in lines] == [
        ["server", "workload", "decode tok/s", "accept length", "verify/s", "TTFT ms", "TPOT ms", "verdict"],
        ["base", "chat c1 o512", "89.50", "-", "-", "-", "-", "pass"],
        ["eagle3", "chat c1 o512", "80.00", "2.000 (-33.3 %)", "-", "-", "-", "regression"],
    ]


def test_nothing_measured_is_no_table() -> None:
    assert report.table_lines(document()) == []


def test_markdown_names_servers_that_did_not_serve() -> None:
    text = report.markdown(document(entry("base"), failures=({"server": "x", "reason": "exit code 2"},)))

    assert "| base | chat c1 o512 | - | - | - | - | - | pass |" in text
    assert "**x** did not serve: exit code 2" in text


def test_a_sparkline_shows_every_round_and_sets_launches_apart() -> None:
    svg = report.sparkline([[1.0, 3.0], [2.0]], width=200, height=50)

    centres = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg)]
    assert centres == [(25.0, 45.0), (75.0, 5.0), (175.0, 25.0)], "four slots of 50: round, round, gap, round"
    assert "3 rounds from 1.000 to 3.000" in svg


def test_equal_rounds_lie_in_the_middle() -> None:
    assert re.findall(r'cy="([\d.]+)"', report.sparkline([[2.0, 2.0]], height=50)) == ["25.0", "25.0"]
    assert report.sparkline([]) == ""


def test_the_page_shows_all_and_escapes_what_it_is_given() -> None:
    bad = entry("eagle3", "invalid", decode_tok_s=80.0)
    bad["violations"] = [{"rule": "not-drafting", "reason": "accept length is <1.000>"}]
    bad["judged"] = [judged("decode_tok_s", baseline=89.5, change=-0.106, floor=89.5)]
    bad["judged"][0] |= {"change_low": -0.13, "change_high": -0.08, "catches": 0.029}
    bad["split"] = {"accept_length": -0.1, "verify_rate": 0.0}
    bad["explanation"] = ["decode tok/s -10.0 % = accept length -10.0 %: the <drafter> got worse"]
    bad["environment_changes"] = [{"key": "sglang_version", "before": "0.5.20", "after": "<0.5.23>"}]
    bad["accept_histogram"] = [3, 1]
    bad["acceptance_by_position"] = [0.25, None]
    bad["goodput_limits"] = {"tpot_ms": 25.0, "ttft_ms": 500.0}
    bad["validity"] = [
        {"rule": "retraction", "status": "not-checked", "reason": "the log <is> not known"},
        {"rule": "gpu-slowdown", "status": "not-applicable", "reason": "not shown"},
    ]

    page = html(document(bad, failures=({"server": "fi", "reason": "exit code 2"},)))

    for expected in (
        "Speculative decoding on cpu-x-2c",
        "0123456789ab",
        "not-drafting",
        "accept length is &lt;1.000&gt;",
        "&lt;eagle3&gt;",
        "-10.6 %",
        "-13.0 % to -8.0 %",
        "2.9 % floor 89.50",
        "1.2 %",
        "0: 3, 1: 1",
        "1: 25.0 %, 2: -",
        "tpot_ms 25.00, ttft_ms 500.0",
        "<b>retraction</b>: the log &lt;is&gt; not known",
        "sglang_version: 0.5.20 → &lt;0.5.23&gt;",
        "accept length -10.0 %: the &lt;drafter&gt; got worse",
        "fi did not serve",
        "<svg",
    ):
        assert expected in page, expected
    assert "<eagle3>" not in page
    assert "not shown" not in page
    assert "http" not in page.replace("http-equiv", ""), "no outside resources"


def test_a_page_without_measurements_says_so() -> None:
    assert "No measurement was taken." in html(document())


def categories() -> list[dict[str, Any]]:
    return [
        {"category": "prose", "requests": 4, "metrics": {"decode_tok_s": metric(89.0), "accept_length": metric(1.1)}},
        {"category": "table", "requests": 2, "metrics": {"decode_tok_s": metric(876.5)}},
    ]


def test_categories_have_a_line_each_where_there_are_several() -> None:
    several, one = entry("a", decode_tok_s=200.0), entry("b", decode_tok_s=300.0)
    several["categories"], one["categories"] = categories(), categories()[:1]
    several["chat_template"] = True

    lines = report.table_lines(document(several, one))

    assert [re.split(r"  +", line.strip()) for line in lines[1:]] == [
        ["a", "chat c1 o512 templated", "200.0", "-", "-", "-", "-", "pass"],
        ["prose", "89.00", "1.100"],
        ["table", "876.5"],
        ["b", "chat c1 o512", "300.0", "-", "-", "-", "-", "pass"],
    ]
    page = html(document(several, one))
    assert page.count("<td>prose</td>") == 1
    assert '<td class="n">876.5</td>' in page


DEAD_END: dict[str, Any] = {
    "nodeid": "test_x.py::test_y[fi]",
    "server": "fi",
    "command": "python -m sglang.launch_server --model-path <m>",
    "expected": "oom-weights",
    "outcome": "holds",
    "seen": "oom-weights",
    "reason": "no kernels for <SM120>",
    "link": "https://example.org/7",
    "versions": "<0.6",
    "sglang_version": None,
    "node": "cpu-x-2c",
    "at": "2026-01-02T03:04:05+00:00",
    "log_path": "fi.log",
    "metrics": {},
    "detail": "oom-weights, in phase weights",
}


def test_dead_ends_are_told_in_the_terminal_and_the_summary() -> None:
    told = {**document(), "dead_ends": [DEAD_END, {**DEAD_END, "link": None, "sglang_version": "0.5.23"}]}

    assert report.dead_end_lines(told) == [
        "dead end fi: holds: oom-weights, in phase weights (2026-01-02, SGLang of unknown version, cpu-x-2c)",
        "  expected oom-weights: no kernels for <SM120> (https://example.org/7)",
        "dead end fi: holds: oom-weights, in phase weights (2026-01-02, SGLang 0.5.23, cpu-x-2c)",
        "  expected oom-weights: no kernels for <SM120>",
    ]
    assert "**fi**, dead end, holds: oom-weights, in phase weights; expected" in report.markdown(told)
    assert report.dead_end_lines(document()) == [], "a document from before there were any"


def test_the_page_has_a_section_on_dead_ends_where_there_are_some() -> None:
    page = html({**document(), "dead_ends": [DEAD_END]})

    assert "<h2>Dead ends</h2>" in page
    assert "no kernels for &lt;SM120&gt;" in page
    assert '<a href="https://example.org/7">' in page
    assert "Dead ends" not in html(document())
