"""Decode lines of every version, as its source prints them; values are made up where no line was captured."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specdec import decode_log
from pytest_specdec.decode_log import parse
from pytest_specdec.observed import DecodeLine

CASES = Path(__file__).parent.parent / "data" / "cases"
AT = "[2026-04-15 22:13:40"


def only(line: str) -> DecodeLine:
    (found,) = parse(line + "\n").decode
    return found


PLAIN = ", #token: 108, token usage: 0.00"
RATE = "gen throughput (token/s): 178.86"


@pytest.mark.parametrize(
    ("line", "accept_length", "cuda_graph"),
    [
        (f"{AT} TP0] Decode batch. #running-req: 1{PLAIN}, {RATE}, #queue-req: 0", None, None),
        (f"{AT} TP0] Decode batch. #running-req: 1{PLAIN}, accept len: 2.17, {RATE}, #queue-req: 0", 2.17, None),
        (
            (
                f"{AT} TP0] Decode batch. #running-req: 1{PLAIN}, accept len: 2.17, {RATE}, largest-len: 0, "
                "#queue-req: 0, "
            ),
            2.17,
            None,
        ),
        (
            f"{AT}] Decode batch. #running-req: 1{PLAIN}, accept len: 2.17, cuda graph: True, {RATE}, #queue-req: 0",
            2.17,
            True,
        ),
        (
            (
                f"{AT}] Decode batch. #running-req: 1{PLAIN}, cuda graph: False, {RATE}, #queue-req: 0, "
                "timestamp: 2025-07-19T23:29:33.123456"
            ),
            None,
            False,
        ),
        (
            f"{AT}] Decode batch. #running-req: 1{PLAIN}, accept len: 2.17, cuda graph: True, {RATE}, #queue-req: 0, ",
            2.17,
            True,
        ),
        (
            (
                f"{AT}] Decode batch [1234], #running-req: 1{PLAIN}, accept len: 2.17, accept rate: 0.54, "
                f"cuda graph: True, {RATE}, #queue-req: 0, "
            ),
            2.17,
            True,
        ),
        (
            (
                f"{AT}] Decode batch, #running-req: 1{PLAIN}, accept len: 2.17, accept rate: 0.39, cap len: 3.00, "
                f"block accept len: 2.50, cuda graph: True, {RATE}, #queue-req: 0, est. decode TFLOPS/s (per GPU): 4.20"
            ),
            2.17,
            True,
        ),
        (
            (
                f"{AT}.123 PP0 TP0 EP0] Decode batch, #running-req: 1, #full token: 2642688, full token usage: 1.00, "
                f"#swa token: 14592, swa token usage: 0.06, cuda graph: True, {RATE}, #queue-req: 0"
            ),
            None,
            True,
        ),
        (
            (
                f"{AT}] Decode batch, #running-req: 1, mamba num: 3, mamba usage: 0.10, cuda graph: True, {RATE}, "
                "pre-allocated usage: 0.00, #prealloc-req: 0, #transfer-req: 0, #retracted-req: 0, #queue-req: 0"
            ),
            None,
            True,
        ),
        (
            f"llm0-1  | {AT} TP0] Decode batch, #running-req: 1{PLAIN}, npu graph: True, {RATE}, #queue-req: 0",
            None,
            None,
        ),
    ],
    ids=["0.4.0", "0.4.2", "0.4.4", "0.4.6", "0.4.9", "0.5.1", "0.5.4", "0.5.18", "hybrid", "pd", "compose, npu"],
)
def test_the_decode_line_of_a_version_is_read(line: str, accept_length: float | None, cuda_graph: bool | None) -> None:
    assert only(line) == DecodeLine(
        rank="",
        running=1,
        queued=0,
        tok_s=178.86,
        accept_length=accept_length,
        cuda_graph=cuda_graph,
        steady=False,
    )


def test_a_line_without_its_end_is_read_as_far_as_it_goes() -> None:
    assert only(f"{AT}] Decode batch, #running-req: 3, gen throughput (token/s): n/a").tok_s is None
    assert only(f"{AT}] Decode batch, #running-req: 3").running == 3
    assert only(f"{AT}] Decode batch, ").running == 0


def test_a_captured_log_has_one_burst_after_each_prefill() -> None:
    """The first line counts the idle time in: 2.26 tok/s beside 20 to 28."""
    text = (CASES / "14-healthy-startup-and-decode.txt").read_text()

    span = parse(text)

    assert span.restarts == 2  # "Started server process" and the ready line, in a log from the start on
    assert span.retractions == ()
    assert [line.tok_s for line in span.decode if not line.steady] == [2.26, 24.51]
    assert [line.tok_s for line in span.decode if line.steady][:3] == [28.74, 20.16, 24.24]
    assert {line.cuda_graph for line in span.decode} == {None}


def test_a_retraction_is_seen_in_every_wording() -> None:
    span = parse((CASES / "49-kv-retract.txt").read_text())

    assert [line.partition(".")[0] for line in span.retractions] == ["Retract requests"]
    assert [(line.running, line.queued, line.cuda_graph) for line in span.decode] == [(4, 3, True), (3, 4, True)]
    old = parse(f"{AT} TP0] Decode out of memory happened. #retracted_reqs: 2, #new_token_ratio: 0.5 -> 0.9\n")
    assert len(old.retractions) == 1


def test_each_data_parallel_rank_has_bursts_of_its_own_and_tensor_parallel_ranks_are_one() -> None:
    ranks = ["DP0 TP0", "DP1 TP1", "DP0 TP0", "DP1 TP1", "TP0", "TP1", "TP0"]
    text = "".join(f"{AT} {rank}] Decode batch, #running-req: 8, {RATE}, #queue-req: 0\n" for rank in ranks)

    found = parse(text).decode

    assert [(line.rank, line.steady) for line in found] == [
        ("DP0", False),
        ("DP1", False),
        ("DP0", True),
        ("DP1", True),
        ("", False),
        ("", True),
    ]


def test_a_prefill_takes_steadiness_from_the_line_after_it_on_its_rank_only() -> None:
    decode = "Decode batch, #running-req: 8, #queue-req: 0"
    lines = ["DP0] " + decode, "DP1] " + decode, "DP0] Prefill batch, #new-seq: 1", "DP0] " + decode, "DP1] " + decode]

    found = parse("".join(f"{AT} {line}\n" for line in lines)).decode

    assert [line.steady for line in found] == [False, False, False, True]


def line(tok_s: float, accept_length: float | None = None, *, running: int = 1, steady: bool = True) -> DecodeLine:
    return DecodeLine(
        rank="",
        running=running,
        queued=0,
        tok_s=tok_s,
        accept_length=accept_length,
        cuda_graph=None,
        steady=steady,
    )


def test_decode_throughput_is_tokens_by_time_and_not_a_mean_of_rates() -> None:
    # As many steps at 100 and at 50 tok/s: 2 tokens in 0.01 + 0.02 s.
    assert decode_log.decode_tok_s([line(100.0), line(50.0), line(0.4, steady=False)]) == pytest.approx(2 / 0.03)
    # Of 4 tokens a step at 100 tok/s and 1 at 50: 5 tokens in 0.04 + 0.02 s.
    assert decode_log.decode_tok_s([line(100.0, 4.0), line(50.0, 1.0)]) == pytest.approx(5 / 0.06)


def test_decode_throughput_is_a_streams() -> None:
    assert decode_log.decode_tok_s([line(800.0, running=8)]) == pytest.approx(100.0)
    assert decode_log.decode_tok_s([line(0.4, steady=False), line(0.0)]) is None


def test_the_accept_length_of_lines_is_weighted_by_their_requests() -> None:
    assert decode_log.accept_length([line(1.0, 2.0, running=1), line(1.0, 4.0, running=3)]) == pytest.approx(3.5)
    assert decode_log.accept_length([line(1.0)]) is None
