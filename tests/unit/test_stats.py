from __future__ import annotations

import math

import pytest

from pytest_specdec import stats


def test_the_median_of_an_even_count_is_between_the_middle_two() -> None:
    assert stats.median([4.0, 1.0, 3.0, 2.0]) == 2.5


def test_the_geometric_mean_is_that_of_ratios() -> None:
    assert stats.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_the_geometric_mean_of_equal_values_is_that_value_to_the_last_digit() -> None:
    assert stats.geometric_mean([89.5, 89.5, 89.5]) == 89.5


def test_the_geometric_mean_with_a_zero_is_zero() -> None:
    assert stats.geometric_mean([0.0, 5.0]) == 0.0


@pytest.mark.parametrize("values", [[-1.0, 2.0], [math.nan, 2.0], [math.inf, 2.0]])
def test_the_geometric_mean_of_what_has_none_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="the geometric mean needs finite values of at least 0, got"):
        stats.geometric_mean(values)


def test_the_mean_of_launches_counts_each_launch_once() -> None:
    # sqrt(2 * 8) is 4, and sqrt(4 * 9) is 6; over all rounds it would be 5.2.
    assert stats.mean_of_launches([[2.0, 8.0], [9.0]]) == pytest.approx(6.0)
    with pytest.raises(ValueError, match="the geometric mean of no values"):
        stats.mean_of_launches([[1.0], []])


@pytest.mark.parametrize(("q", "expected"), [(0.0, 10.0), (0.5, 25.0), (0.9, 37.0), (1.0, 40.0)])
def test_a_quantile_lies_between_order_statistics(q: float, expected: float) -> None:
    # Position q * 3 in 10, 20, 30, 40: 2.7 at q = 0.9.
    assert stats.quantile([40.0, 10.0, 30.0, 20.0], q) == pytest.approx(expected)


def test_a_quantile_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a quantile is asked for between 0 and 1, got 95"):
        stats.quantile([1.0], 95)


def test_nothing_has_no_median_mean_or_quantile() -> None:
    with pytest.raises(ValueError, match="the median of no values"):
        stats.median([])
    with pytest.raises(ValueError, match="the geometric mean of no values"):
        stats.geometric_mean([])
    with pytest.raises(ValueError, match="a quantile of no values"):
        stats.quantile([], 0.5)


def launches(*logs: tuple[float, ...]) -> list[list[float]]:
    return [[math.exp(value) for value in launch] for launch in logs]


def test_noise_is_split_into_within_and_between_launches() -> None:
    # Means 1 and 5, deviations of 1: MSW = (1+1+1+1)/2 = 2; MSB = 2*4 + 2*4 = 16; n0 = 2; between^2 = (16-2)/2 = 7.
    split = stats.variance_components(launches((0.0, 2.0), (4.0, 6.0)))

    assert split.within == pytest.approx(math.sqrt(2))
    assert split.between == pytest.approx(math.sqrt(7))


def test_launches_of_unequal_length_are_weighted() -> None:
    # N = 5, means 1 and 4, grand mean 11/5: MSW = ((1 + 0 + 1) + (0 + 0)) / (5 - 2) = 2/3.
    # MSB = 3*(1.2)^2 + 2*(1.8)^2 = 4.32 + 6.48 = 10.8; n0 = 5 - 13/5 = 2.4; between^2 = (10.8 - 2/3)/2.4.
    split = stats.variance_components(launches((0.0, 1.0, 2.0), (4.0, 4.0)))

    assert split.within == pytest.approx(math.sqrt(2 / 3))
    assert split.between == pytest.approx(math.sqrt((10.8 - 2 / 3) / 2.4))


def test_launches_that_differ_less_than_their_rounds_have_no_noise_of_their_own() -> None:
    split = stats.variance_components(launches((0.0, 2.0), (0.0, 2.0)))

    assert split.within == pytest.approx(math.sqrt(2))
    assert split.between == 0.0


def test_one_launch_tells_nothing_about_noise_between_launches() -> None:
    split = stats.variance_components(launches((0.0, 2.0)))

    assert split.within == pytest.approx(math.sqrt(2))
    assert split.between is None


def test_single_rounds_tell_nothing_about_noise_within_a_launch() -> None:
    # MSB = (1 + 1) / 1 = 2, n0 = 1.
    split = stats.variance_components(launches((0.0,), (2.0,)))

    assert split.within is None
    assert split.between == pytest.approx(math.sqrt(2))


def test_no_launches_tell_nothing() -> None:
    split = stats.variance_components([])

    assert (split.within, split.between) == (None, None)
