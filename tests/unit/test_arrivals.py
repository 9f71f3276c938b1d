from __future__ import annotations

import itertools

import pytest

from pytest_specdec.arrivals import arrival_times


def test_arrivals_are_the_same_on_every_call() -> None:
    assert arrival_times(50, 4.0) == arrival_times(50, 4.0)


def test_the_first_arrives_at_once_and_more_requests_do_not_move_those_before() -> None:
    assert arrival_times(3, 2.0) == arrival_times(5, 2.0)[:3]
    assert arrival_times(3, 2.0)[0] == 0.0


def test_a_rate_twice_as_high_halves_every_gap() -> None:
    assert arrival_times(20, 8.0) == pytest.approx([at / 2 for at in arrival_times(20, 4.0)])


def test_gaps_are_exponential_with_the_mean_that_the_rate_says() -> None:
    times = arrival_times(20_001, 5.0)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]

    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)

    # Of an exponential distribution the standard deviation is the mean; equal gaps would have none.
    assert mean == pytest.approx(0.2, rel=0.03)
    assert variance**0.5 == pytest.approx(0.2, rel=0.05)
