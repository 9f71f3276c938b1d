"""A round under the names that scripts for SGLang's bench_serving read."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_specdec.serving_fields import serving_fields
from tests.fakes.samples import measurement, one_round, sample

MEASUREMENT = measurement("one", "two", concurrency=2)
STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")
#: 40 tokens each, 39 after the first: 1 s and 3.9 s, so 1000 / 39 and 100 ms a token.
FAST = sample("p1", prompt_tokens=10)
SLOW = sample("p2", prompt_tokens=30, first_token_s=2.0, last_token_s=5.9, done_s=6.0, verify_steps=26)


def test_the_fields_are_those_of_bench_serving() -> None:
    """What it writes of a run of its own (0.5.23), less data sets, ``server_info``, chunk gaps and tokenising again."""
    statistics = [f"{which}_{of}_ms" for of in ("e2e_latency", "ttft", "tpot") for which in STATISTICS]

    assert set(serving_fields(MEASUREMENT, one_round(FAST))) == {
        "tag",
        "backend",
        "dataset_name",
        "request_rate",
        "max_concurrency",
        "duration",
        "completed",
        "total_input_tokens",
        "total_output_tokens",
        "request_throughput",
        "input_throughput",
        "output_throughput",
        "total_throughput",
        "concurrency",
        "accept_length",
        *statistics,
    }


def test_figures_are_those_of_the_round() -> None:
    got = serving_fields(MEASUREMENT, one_round(FAST, SLOW, wall_s=8.0))

    assert (got["tag"], got["dataset_name"], got["max_concurrency"]) == (MEASUREMENT.key, "w", 2)
    assert (got["duration"], got["completed"], got["request_rate"]) == (8.0, 2, None)
    assert (got["total_input_tokens"], got["total_output_tokens"]) == (40, 80)
    assert (got["request_throughput"], got["input_throughput"]) == (0.25, 5.0)
    assert (got["output_throughput"], got["total_throughput"]) == (10.0, 15.0)
    assert (got["mean_ttft_ms"], got["median_ttft_ms"], got["std_ttft_ms"]) == (1500.0, 1500.0, 500.0)
    assert got["median_tpot_ms"] == pytest.approx((1000 / 39 + 100) / 2)
    assert got["p90_e2e_latency_ms"] == pytest.approx(2000 + 0.9 * 3900)
    # 2 s and 5.9 s of requests in 8 s.
    assert got["concurrency"] == pytest.approx(7.9 / 8)
    assert got["accept_length"] == pytest.approx(78 / 39)


def test_a_request_that_failed_counts_for_nothing_and_a_rate_is_told() -> None:
    failed = sample("p2", error="HTTP 500")
    at_four = dataclasses.replace(MEASUREMENT, request_rate=4.0)

    got = serving_fields(at_four, one_round(FAST, failed))

    assert (got["completed"], got["total_output_tokens"], got["request_rate"]) == (1, 40, 4.0)


def test_what_no_request_told_is_none() -> None:
    got = serving_fields(MEASUREMENT, one_round(sample("p1", error="HTTP 500")))

    assert (got["completed"], got["request_throughput"], got["concurrency"]) == (0, 0.0, 0.0)
    assert (got["mean_ttft_ms"], got["p99_tpot_ms"], got["accept_length"]) == (None, None, None)
