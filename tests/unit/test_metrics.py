from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pytest_specdec.metrics import (
    METRICS,
    accept_histogram,
    accept_length,
    acceptance_by_position,
    decode_tok_s,
    distinct_share,
    draft_tokens,
    launch_metrics,
    meets,
    round_metrics,
    verify_rate,
)
from pytest_specdec.model import GoodputLimits, RequestSample
from tests.fakes.samples import launch_record, one_round, sample

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
    found = round_metrics(
        one_round(A, B, wall_s=5.0), 1, num_draft_tokens=4, limits=GoodputLimits(ttft_ms=500, tpot_ms=180)
    )

    assert found == pytest.approx(
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
            "accept_rate": 0.4,  # (2.2 - 1) / (4 - 1)
            "goodput": 0.2,  # of both only b: a has 200 ms a token
            "goodput_share": 0.5,
            "distinct_share": 1.0,
        }
    )


def test_every_metric_is_in_the_table_as_one_of_a_round_or_of_a_launch() -> None:
    of_a_round = round_metrics(one_round(A, B), 1, num_draft_tokens=4, limits=GoodputLimits(e2e_ms=1))
    of_a_round |= round_metrics(one_round(*[dataclasses.replace(one, scheduled_s=0.0) for one in (A, B)]), 1)
    of_a_launch = launch_metrics([one_round(*[A] * 100)])

    assert set(of_a_round) == {name for name, spec in METRICS.items() if spec.per == "round"}
    assert set(of_a_launch) == {name for name, spec in METRICS.items() if spec.per == "launch"}
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
    ("streams", "gated"), [(1, {"decode_tok_s", "accept_length"}), (16, {"system_tok_s", "accept_length"})]
)
def test_what_gates_by_default_depends_on_the_number_of_streams(streams: int, gated: set[str]) -> None:
    assert {name for name, spec in METRICS.items() if spec.gates(streams)} == gated


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


def test_quantiles_are_those_of_all_rounds_of_a_launch() -> None:
    """Of 101 requests with 1, 2, ..., 101 ms to the first token, 90 % lie below the 91st, 99 % below the 100th."""
    requests = [sample(str(i), sent_s=0.0, first_token_s=i / 1000, last_token_s=2.0) for i in range(1, 102)]

    found = launch_metrics([one_round(*requests[:50]), one_round(*requests[50:])])

    assert found["ttft_p90_ms"] == pytest.approx(91.0)
    assert found["ttft_p99_ms"] == pytest.approx(100.0)
    assert found["e2e_p99_ms"] == pytest.approx(2000.0)


@pytest.mark.parametrize(("requests", "quantiles"), [(9, set()), (10, {"p90"}), (99, {"p90"}), (100, {"p90", "p99"})])
def test_a_quantile_that_too_few_requests_can_tell_is_absent(requests: int, quantiles: set[str]) -> None:
    found = launch_metrics([one_round(*[sample()] * requests, sample(error="late"))])

    assert {name.split("_")[1] for name in found} == quantiles
    assert launch_metrics([]) == {}


def test_a_request_without_a_token_after_the_first_chunk_has_no_time_per_token() -> None:
    at_once = sample(first_chunk_tokens=40, last_token_s=1.0)

    assert "tpot_p90_ms" not in launch_metrics([one_round(*[at_once] * 20)])
    assert meets(at_once, GoodputLimits(tpot_ms=1))


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        (GoodputLimits(ttft_ms=500), True),
        (GoodputLimits(ttft_ms=499), False),
        (GoodputLimits(tpot_ms=200), True),
        (GoodputLimits(tpot_ms=199), False),
        (GoodputLimits(e2e_ms=2500, ttft_ms=500, tpot_ms=200), True),
        (GoodputLimits(e2e_ms=2499, ttft_ms=500, tpot_ms=200), False),
    ],
)
def test_a_request_is_good_when_it_meets_every_limit(limits: GoodputLimits, good: bool) -> None:
    # 500 ms to the first token, 10 tokens in 2 s after it.
    assert meets(A, limits) is good


def test_in_an_open_loop_the_wait_for_a_slot_counts_for_goodput() -> None:
    queued = dataclasses.replace(A, scheduled_s=A.sent_s - 0.25)

    # 500 ms from sending to the first token, 750 ms from when it was due.
    assert meets(A, GoodputLimits(ttft_ms=700))
    assert not meets(queued, GoodputLimits(ttft_ms=700))
    assert meets(queued, GoodputLimits(ttft_ms=800))
    assert not meets(queued, GoodputLimits(e2e_ms=2600))
    assert meets(A, GoodputLimits(e2e_ms=2600))


def test_a_failed_request_is_not_good_and_was_sent() -> None:
    found = round_metrics(one_round(A, sample(error="late"), wall_s=4.0), 1, limits=GoodputLimits(ttft_ms=1000))

    assert (found["goodput"], found["goodput_share"]) == (0.25, 0.5)


def test_without_limits_there_is_no_goodput_and_without_draft_tokens_no_accept_rate() -> None:
    assert not {"goodput", "goodput_share", "accept_rate"} & set(round_metrics(one_round(A), 1))


@pytest.mark.parametrize(
    ("known", "tokens"),
    [
        ({"server_args": {"speculative_num_draft_tokens": 4}}, 4),
        ({"server_args": {"speculative_num_draft_tokens": 1}}, None),
        ({"server_args": {"speculative_num_draft_tokens": None}}, None),
        ({"server_args": {}}, None),
        ({"server_args": {"speculative_num_draft_tokens": 4}, "drafting": False}, None),
    ],
)
def test_draft_tokens_are_what_the_server_says(known: dict[str, Any], tokens: int | None) -> None:
    assert draft_tokens(launch_record(**known)) == tokens


def test_a_position_is_accepted_by_the_steps_that_took_it_of_those_that_reached_it() -> None:
    # 10 steps: 2 took none, 3 took one, 1 took two, 4 took all three.
    assert acceptance_by_position((2, 3, 1, 4)) == pytest.approx((8 / 10, 5 / 8, 4 / 5))
    # Mean right drafts a step is the sum over positions of the share of steps that took them.
    assert sum((0.8, 0.8 * 5 / 8, 0.4)) == pytest.approx((0 * 2 + 1 * 3 + 2 * 1 + 3 * 4) / 10)


def test_a_position_that_no_step_reached_is_not_known() -> None:
    assert acceptance_by_position((5, 0, 0)) == (0.0, None)
    assert acceptance_by_position((0, 0, 13)) == (1.0, 1.0)
    assert acceptance_by_position(()) == ()


def test_the_share_of_distinct_n_grams() -> None:
    # A cycle of 4 has 4 distinct 4-grams among 29.
    assert distinct_share((1, 2, 3, 4) * 8) == pytest.approx(4 / 29)
    assert distinct_share(range(32)) == 1.0
    assert distinct_share((1,) * 31) is None
