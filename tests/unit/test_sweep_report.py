"""The table and the plot of a sweep."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from pytest_specdec import sweep_report
from pytest_specdec.ranking import Ranking, Standing

ROWS = (
    Standing(name="a", word="best", launches=3, value=89.5, low=88.0, high=91.0, behind=0.0, behind_least=0.0),
    Standing(
        name="b<64>",
        word="not-distinguishable",
        launches=3,
        value=89.0,
        low=87.5,
        high=90.5,
        behind=0.0056,
        behind_least=-0.01,
    ),
    Standing(name="c", word="worse", launches=1, value=82.0, low=80.5, high=83.5, behind=0.084, behind_least=0.06),
    Standing(name="d", word="failed", launches=0, reason="cuda-graph-capture-oom"),
    Standing(name="e", word="not-measured", launches=0),
)
RANKING = Ranking(rows=ROWS, best=ROWS[0], confidence=0.95, basis="noise of a launch 0.9%")


def test_the_table_has_a_line_a_point_and_ends_with_the_best() -> None:
    assert sweep_report.table_lines(RANKING, metric="decode_tok_s", unit="tok/s") == [
        "point  decode_tok_s tok/s    95% interval  launches  against the best",
        "a                   89.50  88.00 to 91.00         3  best",
        "b<64>               89.00  87.50 to 90.50         3  not distinguishable (behind by 0.6 %)",
        "c                   82.00  80.50 to 83.50         1  worse by 8.4 %, at least 6.0 %",
        "d                       -               -         0  failed: cuda-graph-capture-oom",
        "e                       -               -         0  not measured",
        "best: a, 89.50 tok/s (88.00 to 91.00); not distinguishable from b<64>",
        "noise of a launch 0.9%",
    ]


def test_a_clear_best_is_said_to_be_one() -> None:
    clear = Ranking(rows=(ROWS[0], ROWS[2]), best=ROWS[0], confidence=0.95, basis="")

    assert sweep_report.table_lines(clear, metric="m", unit="u")[-1].endswith("; every other measured point is worse")


def drawn(found: Ranking) -> ET.Element:
    return ET.fromstring(sweep_report.plot(found, metric="decode_tok_s", unit="tok/s"))


def texts(svg: ET.Element) -> list[str]:
    return ["".join(each.itertext()) for each in svg.iter() if each.tag.endswith("}text")]


def test_the_plot_has_a_dot_a_value_in_the_place_the_axis_says() -> None:
    svg = drawn(RANKING)
    ticks = {
        float(each.text): float(each.attrib["x"])
        for each in svg.iter()
        if each.tag.endswith("}text") and each.text and re.fullmatch(r"\d+(\.5)?", each.text)
    }
    low, high = min(ticks), max(ticks)
    scale = (ticks[high] - ticks[low]) / (high - low)

    dots = [each for each in svg.iter() if each.tag.endswith("}circle")]
    assert [float(dot.attrib["cx"]) for dot in dots] == pytest.approx(
        [ticks[low] + (value - low) * scale for value in (89.5, 89.0, 82.0)], abs=0.2
    )
    assert low <= 80.5
    assert high >= 91.0
    assert [dot.get("fill") for dot in dots] == [None, "none", None], "what can't be told from the best is hollow"


def test_the_plot_names_every_point_and_why_one_failed() -> None:
    found = texts(drawn(RANKING))

    assert {"a", "b<64>", "c", "d", "e", "failed: cuda-graph-capture-oom", "not measured"} <= set(found)


def test_equal_values_and_no_values_can_be_drawn() -> None:
    same = Standing(name="s", word="best", launches=1, value=5.0, low=5.0, high=5.0)

    assert len(texts(drawn(Ranking(rows=(same,), best=same, confidence=0.95, basis="")))) >= 4
    assert sweep_report.plot(Ranking(rows=ROWS[3:], best=None, confidence=0.95, basis=""), metric="m", unit="u") == ""


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(80.5, 91.0, [80, 85, 90, 95]), (0.93, 1.02, [0.925, 0.95, 0.975, 1.0, 1.025]), (5.0, 5.0, [4.0, 6.0])],
)
def test_ticks_are_round_and_hold_both_ends(low: float, high: float, ticks: list[float]) -> None:
    assert list(sweep_report._ticks(low, high)) == pytest.approx(ticks)
