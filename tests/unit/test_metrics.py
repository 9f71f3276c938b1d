from __future__ import annotations

import dataclasses

import pytest

from pytest_specdec.metrics import (
    METRICS,
    accept_histogram,
    accept_length,
    decode_tok_s,
    round_metrics,
    verify_rate,
)
from pytest_specdec.model import RequestSample
from tests.fakes.samples import one_round, sample

#: 10 tokens after the first chunk in 2 s: 5 tok/s = 2.5 tokens a step x 2 steps a second.
A = sample(
    "a",
    sent_s=0.0,
    first_token_s=0.5,
    last_token_s=2.5,
    completion_tokens=12,
    first_chunk_tokens=2,
    verify_steps=4,
    arrivals=((0.5, 2), (2.5, 12)),
)
#: 12 tokens after the first chunk in 2 s: 6 tok/s = 2 tokens a step x 3 steps a second.
B = sample(
    "b",
    sent_s=1.0,
    first_token_s=1.25,
    last_token_s=3.25,
    completion_tokens=13,
    first_chunk_tokens=1,
    verify_steps=6,
    arrivals=((1.25, 1), (3.25, 13)),
)


def test_a_round_gives_every_metric_by_its_formula() -> None:
    assert round_metrics(one_round(A, B, wall_s=5.0), 1) == pytest.approx(
        {
            "decode_tok_s": 5.5,  # the median of 5 and 6
            "system_tok_s": 23 / 2.75,  # from 0.5 s, when the first token was there, to 3.25 s
            "output_tok_s": 5.0,  # 25 tokens in 5 s
            "ttft_ms": 375.0,  # the median of 500 and 250
            "tpot_ms": (200.0 + 2000 / 12) / 2,
            "e2e_ms": 2375.0,  # the median of 2500 and 2250
            "accept_length": 2.2,  # (10 + 12) / (4 + 6)
            "accept_length_sglang": 2.5,  # (12 + 13) / (4 + 6)
            "verify_rate": 2.5,  # 5.5 / 2.2
        }
    )


def test_every_metric_of_a_round_is_in_the_table() -> None:
    due = [dataclasses.replace(one, scheduled_s=one.sent_s) for one in (A, B, A)]

    assert set(round_metrics(one_round(*due), 1)) >= set(round_metrics(one_round(A, B), 1)) - {"system_tok_s"}
    assert set(round_metrics(one_round(A, B), 1)) | {"ttft_scheduled_ms"} == set(METRICS)
    assert all(name == spec.name for name, spec in METRICS.items())


def test_an_open_loop_is_full_from_its_first_answer_to_the_last_arrival() -> None:
    def stream(due_s: float) -> RequestSample:
        """One token at 0.5, 1.0, 1.5 and 2.0 s after it was sent, which was when it was due."""
        times = (due_s + 0.5, due_s + 1.0, due_s + 1.5, due_s + 2.0)
        return sample(
            f"due-{due_s}",
            scheduled_s=due_s,
            sent_s=due_s,
            first_token_s=times[0],
            last_token_s=times[-1],
            arrivals=tuple(zip(times, range(1, 5), strict=True)),
        )

    found = round_metrics(one_round(*(stream(float(due)) for due in range(7))), 7)

    # From 2 s to 6 s; a request a second brings four tokens a second.
    assert found["system_tok_s"] == pytest.approx(4.0)


def test_an_open_loop_too_short_to_fill_has_no_system_throughput() -> None:
    found = round_metrics(one_round(*(dataclasses.replace(one, scheduled_s=one.sent_s) for one in (A, B))), 1)

    assert "system_tok_s" not in found


def test_the_time_to_the_first_token_counts_from_the_moment_the_request_was_due_as_well() -> None:
    late = dataclasses.replace(A, scheduled_s=0.0, sent_s=0.25)

    found = round_metrics(one_round(late), 1)

    assert (found["ttft_ms"], found["ttft_scheduled_ms"]) == (250.0, 500.0)
    assert "ttft_scheduled_ms" not in round_metrics(one_round(A), 1)


@pytest.mark.parametrize("stream", [A, B])
def test_decode_speed_of_a_stream_is_accept_length_times_verify_rate(stream: RequestSample) -> None:
    speed, length, rate = decode_tok_s(stream), accept_length(stream), verify_rate(stream)

    assert length is not None
    assert rate is not None
    assert speed == pytest.approx(length * rate)


def test_the_identity_holds_for_the_round_too() -> None:
    found = round_metrics(one_round(A, B, sample("c", verify_steps=11)), 1)

    assert found["decode_tok_s"] == pytest.approx(found["accept_length"] * found["verify_rate"])


def test_the_number_of_chunks_changes_nothing() -> None:
    more_chunks = dataclasses.replace(A, chunks=99)

    assert round_metrics(one_round(A), 1) == round_metrics(one_round(more_chunks), 1)


def test_accept_length_is_pooled_and_not_a_mean_of_means() -> None:
    # 100 steps of 1 token and 1 step of 4: 104 / 101, where the mean of the two would be 2.5.
    slow = sample("slow", completion_tokens=101, verify_steps=100)
    fast = sample("fast", completion_tokens=5, verify_steps=1)

    assert round_metrics(one_round(slow, fast), 1)["accept_length"] == pytest.approx(104 / 101)


def test_nothing_accepted_is_exactly_one() -> None:
    found = round_metrics(one_round(sample(completion_tokens=40, verify_steps=39)), 1)

    assert found["accept_length"] == 1.0
    assert found["accept_length_sglang"] == pytest.approx(40 / 39)


def test_one_request_without_a_verify_count_takes_acceptance_from_the_round() -> None:
    found = round_metrics(one_round(A, dataclasses.replace(B, verify_steps=None)), 1)

    assert not {"accept_length", "accept_length_sglang", "verify_rate"} & set(found)
    assert found["decode_tok_s"] == 5.5


def test_a_server_that_made_no_verify_step_has_no_accept_length() -> None:
    assert "accept_length" not in round_metrics(one_round(sample(verify_steps=0)), 1)


def test_failed_requests_count_for_nothing() -> None:
    failed = sample("failed", error="HTTP 500", completion_tokens=0, first_token_s=99.0, verify_steps=None)

    assert round_metrics(one_round(A, B, failed), 1) == round_metrics(one_round(A, B), 1)


def test_a_round_in_which_everything_failed_has_no_metrics() -> None:
    assert round_metrics(one_round(sample(error="HTTP 500")), 1) == {}


def test_one_chunk_for_everything_has_a_time_to_first_token_and_no_speed() -> None:
    found = round_metrics(one_round(sample(first_token_s=1.0, last_token_s=1.0, first_chunk_tokens=40)), 1)

    assert found["ttft_ms"] == 1000.0
    assert not {"decode_tok_s", "tpot_ms", "verify_rate", "accept_length"} & set(found)


def test_system_throughput_counts_the_tokens_that_arrive_while_every_slot_is_busy() -> None:
    # Both slots have a token at 1.0 s; p3 follows p1; from 4.5 s, when p2 is done, only p3 runs.
    p1 = sample("p1", first_token_s=1.0, last_token_s=3.0, arrivals=((1.0, 1), (2.0, 5), (3.0, 9)))
    p2 = sample("p2", first_token_s=0.5, last_token_s=4.5, arrivals=((0.5, 1), (1.5, 3), (2.5, 5), (4.5, 9)))
    p3 = sample("p3", first_token_s=3.5, last_token_s=5.0, arrivals=((3.5, 1), (5.0, 9)))

    found = round_metrics(one_round(p1, p2, p3, wall_s=5.0), 2)

    # 8 of p1, 8 of p2, 1 of p3 in 3.5 s.
    assert found["system_tok_s"] == pytest.approx(17 / 3.5)


def test_without_a_time_when_every_slot_is_busy_there_is_no_system_throughput() -> None:
    p1 = sample("p1", first_token_s=0.5, last_token_s=1.0, arrivals=((0.5, 1), (1.0, 9)))
    p2 = sample("p2", first_token_s=1.5, last_token_s=2.0, arrivals=((1.5, 1), (2.0, 9)))

    assert "system_tok_s" not in round_metrics(one_round(p1, p2), 2)
    assert "system_tok_s" not in round_metrics(one_round(p1, p2), 3)


def test_histograms_are_summed_over_requests_and_rounds() -> None:
    one = one_round(sample(accept_histogram=(1, 2)), sample(accept_histogram=(0, 1, 4)))
    two = one_round(sample(accept_histogram=(5,)), sample(accept_histogram=None, error="HTTP 500"))

    assert accept_histogram((one, two)) == (6, 3, 4)


def test_a_request_without_a_histogram_takes_it_from_all() -> None:
    assert accept_histogram((one_round(sample(), sample(accept_histogram=None)),)) is None
    assert accept_histogram(()) is None


@pytest.mark.parametrize(
    ("concurrency", "gated"), [(1, {"decode_tok_s", "accept_length"}), (16, {"system_tok_s", "accept_length"})]
)
def test_what_gates_by_default_depends_on_the_concurrency(concurrency: int, gated: set[str]) -> None:
    assert {name for name, spec in METRICS.items() if spec.gates(concurrency)} == gated


@pytest.mark.parametrize(
    ("name", "unit", "direction", "tolerance"),
    [
        ("decode_tok_s", "tok/s", "higher", 0.02),
        ("system_tok_s", "tok/s", "higher", 0.02),
        ("accept_length", "tok/step", "higher", 0.01),
        ("ttft_ms", "ms", "lower", 0.05),
        ("verify_rate", "step/s", "higher", 0.02),
    ],
)
def test_the_table_says_unit_direction_and_tolerance(name: str, unit: str, direction: str, tolerance: float) -> None:
    spec = METRICS[name]

    assert (spec.unit, spec.direction, spec.default_tolerance) == (unit, direction, tolerance)
    assert spec.smallest_sigma > 0
