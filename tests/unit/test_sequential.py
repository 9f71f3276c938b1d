from __future__ import annotations

import itertools
import math

import pytest
from scipy.stats import multivariate_normal

from pytest_specdec import sequential
from pytest_specdec.quantiles import chi_square_midpoints, t_below, t_upper


def test_the_first_look_has_much_of_the_information_already() -> None:
    # 1 / (1/5 + 1/k) for k = 1, 2, 3 is 5/6, 10/7, 15/8.
    assert sequential.information_fractions(5, 3) == pytest.approx((4 / 9, 16 / 21, 1))


def test_one_look_spends_everything() -> None:
    assert sequential.levels_by_look(5, 1, 0.01, 3) == pytest.approx((0.01,))


def test_the_first_look_spends_its_share() -> None:
    assert sequential.levels_by_look(5, 3, 0.01, 3)[0] == pytest.approx(0.01 * (4 / 9) ** 3)


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0])
@pytest.mark.parametrize(("recorded", "looks"), [(1, 3), (5, 3), (5, 2)])
def test_all_looks_together_err_as_often_as_planned(recorded: int, looks: int, exponent: float) -> None:
    """Against scipy's multivariate normal: the correlation of looks i < j is sqrt(t_i / t_j)."""
    fractions = sequential.information_fractions(recorded, looks)
    bounds = [t_upper(level, math.inf) for level in sequential.nominal_levels(fractions, 0.01, exponent)]
    correlation = [[math.sqrt(min(a, b) / max(a, b)) for b in fractions] for a in fractions]

    for k in range(1, looks + 1):
        inside = multivariate_normal.cdf(bounds[:k], cov=[row[:k] for row in correlation[:k]], abseps=1e-8, releps=1e-8)
        assert 1 - inside == pytest.approx(0.01 * fractions[k - 1] ** exponent, rel=2e-3)


@pytest.mark.parametrize("fractions", [(0.5, 0.4, 1.0), (0.0, 1.0), (0.5, 0.9)])
def test_fractions_that_do_not_rise_to_one_are_refused(fractions: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="information fractions rise from above 0 to 1"):
        sequential.nominal_levels(fractions, 0.01, 1)


def test_holm_leaves_more_for_the_rest() -> None:
    assert [sequential.holm_level(0.01, 4, called) for called in range(4)] == pytest.approx(
        [0.0025, 0.01 / 3, 0.005, 0.01]
    )
    with pytest.raises(ValueError, match="of 2 metrics, 2 are called already: none is left to judge"):
        sequential.holm_level(0.01, 2, 2)


@pytest.mark.parametrize(
    ("level", "df", "expected"), [(0.01, 4, 3.74695), (0.05, 4, 2.13185), (0.01, math.inf, 2.32635)]
)
def test_quantiles_are_those_of_the_tables(level: float, df: float, expected: float) -> None:
    assert t_upper(level, df) == pytest.approx(expected, abs=1e-5)
    assert t_below(-expected, df) == pytest.approx(level, abs=1e-6)


def test_chi_square_midpoints_stand_for_the_distribution() -> None:
    values = chi_square_midpoints(4, 200)

    assert math.fsum(values) / 200 == pytest.approx(4, rel=0.01)
    assert all(a < b for a, b in itertools.pairwise(values))
    assert chi_square_midpoints(0, 200) == (0.0,)


@pytest.mark.parametrize(("level", "df"), [(0.0, 4.0), (1.0, 4.0), (0.01, 0.0)])
def test_no_quantile_where_there_is_none(level: float, df: float) -> None:
    with pytest.raises(ValueError, match="got"):
        t_upper(level, df)
