"""The arithmetic of all-reduces, and that docs/communication.md says what it gives."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pytest_specdec.communication import (
    Ceiling,
    Traffic,
    ceiling,
    longest_all_reduce_us,
    step_change,
    step_traffic,
)

PAGE = (Path(__file__).parents[2] / "docs" / "communication.md").read_text(encoding="utf-8")
#: Kimi-K2.5, the model of the first contract.
LAYERS, HIDDEN = 61, 7168
CONTRACT_STEPS_S = 89.5


def marked(name: str) -> str:
    return PAGE.partition(f"<!-- {name} -->")[2].partition("<!-- end -->")[0]


def cells(name: str) -> list[list[str]]:
    """The rows of a table, head left out."""
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in marked(name).split("\n")[3:-1]]


def test_the_first_contract_is_122_calls_of_42_kib() -> None:
    found = step_traffic(layers=LAYERS, hidden_size=HIDDEN, batch_tokens=3)

    assert found == Traffic(calls=122, message_bytes=42 * 1024)


def test_four_bytes_an_element_double_the_message() -> None:
    assert step_traffic(layers=1, hidden_size=10, batch_tokens=1, element_bytes=4).message_bytes == 40


def test_the_ceiling_by_hand() -> None:
    found = ceiling(100, 50.0)

    # 100 x 50 us are 5 ms: 200 steps/s, 500 tok/s at 2.5 tokens a step, half of a step that takes 10 ms.
    assert found.communication_ms == pytest.approx(5.0)
    assert found.verify_rate == pytest.approx(200.0)
    assert found.decode_tok_s(2.5) == pytest.approx(500.0)
    assert found.share(100.0) == pytest.approx(0.5)


def test_a_server_faster_than_its_ceiling_has_a_share_above_one() -> None:
    assert ceiling(100, 50.0).share(220.0) == pytest.approx(1.1)


def test_the_longest_all_reduce_fills_the_step() -> None:
    longest = longest_all_reduce_us(122, CONTRACT_STEPS_S)

    assert ceiling(122, longest).share(CONTRACT_STEPS_S) == pytest.approx(1.0)


def test_a_slower_link_is_told_from_a_slower_engine() -> None:
    # 100 calls; a step of 10 ms becomes one of 12.5 ms.
    link = step_change(100, verify_rate=(100.0, 80.0), all_reduce_us=(50.0, 74.0))
    engine = step_change(100, verify_rate=(100.0, 80.0), all_reduce_us=(50.0, 50.0))

    assert (link.step_ms, link.communication_ms, link.rest_ms) == pytest.approx((2.5, 2.4, 0.1))
    assert (engine.step_ms, engine.communication_ms, engine.rest_ms) == pytest.approx((2.5, 0.0, 2.5))
    assert link.line() == (
        "a step takes +2.50 ms: communication +2.40 ms, the rest +0.10 ms; most of it is communication"
    )
    assert engine.line().endswith("most of it is the rest of the step")


@pytest.mark.parametrize("latency", [0.0, -1.0, math.nan, math.inf])
def test_a_latency_that_is_none_is_refused(latency: float) -> None:
    with pytest.raises(ValueError, match="all_reduce_us is a number above 0"):
        ceiling(122, latency)


def test_a_step_without_calls_is_refused() -> None:
    with pytest.raises(ValueError, match="calls is at least 1, got 0"):
        step_traffic(layers=0, hidden_size=HIDDEN, batch_tokens=1)


def test_the_page_has_the_contract_right() -> None:
    wanted = [["calls a step", f"2 x {LAYERS}", "122"]]
    for tokens in (1, 3, 4):
        size = step_traffic(layers=LAYERS, hidden_size=HIDDEN, batch_tokens=tokens).message_bytes
        plural = "s" if tokens > 1 else ""
        wanted.append([f"message for {tokens} token{plural}", f"{tokens} x {HIDDEN} x 2 bytes", str(size)])

    assert cells("contract") == wanted


def test_the_page_has_the_ceilings_right() -> None:
    rows = cells("ceiling")

    assert len(rows) == 6
    assert rows == [row(us, ceiling(122, float(us))) for us in (row[0] for row in rows)]


def row(us: str, found: Ceiling) -> list[str]:
    return [
        us,
        f"{found.communication_ms:.2f}",
        f"{found.verify_rate:.1f}",
        f"{found.decode_tok_s(1.0):.1f}",
        f"{found.decode_tok_s(2.5):.1f}",
        f"{found.share(CONTRACT_STEPS_S) * 100:.1f} %",
    ]


def test_the_page_has_the_first_contract_split_right() -> None:
    change = step_change(122, verify_rate=(CONTRACT_STEPS_S, 82.0), all_reduce_us=(60.0, 68.0))

    assert marked("step") == f"{1e3 / CONTRACT_STEPS_S:.2f}"
    assert marked("longest") == f"{longest_all_reduce_us(122, CONTRACT_STEPS_S):.1f}"
    assert [marked(name) for name in ("lost", "talked", "rest")] == [
        f"{change.step_ms:.2f}",
        f"{change.communication_ms:.2f}",
        f"{change.rest_ms:.2f}",
    ]


def test_what_follows_from_the_measured_latencies_is_right() -> None:
    rows = cells("gloo")

    assert len(rows) == 5
    for _, message, us, communication_ms, verify_rate in rows:
        found = ceiling(122, float(us))
        assert int(message) % (HIDDEN * 2) == 0
        assert [communication_ms, verify_rate] == [f"{found.communication_ms:.1f}", f"{found.verify_rate:.1f}"]
