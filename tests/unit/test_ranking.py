"""The best point, what can't be told from it, and which points get another launch."""

from __future__ import annotations

import math

import pytest

from benchmarks import sweep_stopping
from pytest_specdec import ranking
from pytest_specdec.model import Direction, RoundsByLaunch
from pytest_specdec.noise import PRIORS
from pytest_specdec.ranking import Further, Point, Ranking, Standing

TOK_S = PRIORS["tok/s"]


def point(name: str, *launch_logs: float) -> Point:
    """A point whose launches have one round each, given as logs."""
    return Point(name=name, launches=tuple((math.exp(log),) for log in launch_logs))


def steady(name: str, *launch_logs: float) -> Point:
    """The same with three rounds a launch that are close together."""
    return Point(name=name, launches=tuple(tuple(math.exp(log + x) for x in (0, 5e-4, -5e-4)) for log in launch_logs))


def ranked(*points: Point, direction: Direction = "higher", looks: int = 1, smallest_sigma: float = 0.001) -> Ranking:
    return ranking.rank(points, direction, prior=TOK_S, smallest_sigma=smallest_sigma, looks=looks)


def further(*points: Point, **more: float) -> Further:
    return ranking.further_launches(points, "higher", prior=TOK_S, smallest_sigma=0.001, **more)  # type: ignore[arg-type]


def row(found: Ranking, name: str) -> Standing:
    return next(row for row in found.rows if row.name == name)


# Launches of each point lie 0.04 apart: squares of 0.0008 and one degree each.
THREE = (point("a", 0.98, 1.02), point("b", 0.96, 1.00), point("c", 0.68, 0.72))


def test_intervals_and_bounds_by_hand() -> None:
    found = ranked(*THREE)

    # 0.0024 over 3 degrees, completed to 4 by a round of 2.7 %.
    sd = math.sqrt((0.0024 + 0.027**2) / 4)
    # t at 4 degrees: 3.9608 at 0.05/6 (three intervals, both sides), 2.7764 at 0.05/2 (two comparisons, one side).
    own, width = 3.9608 * sd * math.sqrt(1 / 2), 2.7764 * sd * math.sqrt(1 / 2 + 1 / 2)
    a, b, c = found.rows
    assert found.best == a
    assert (math.log(a.low or 0), math.log(a.high or 0)) == pytest.approx((1 - own, 1 + own), abs=1e-4)
    assert b.behind == pytest.approx(1 - math.exp(-0.02))
    assert b.behind_least == pytest.approx(1 - math.exp(width - 0.02), abs=1e-4)
    assert c.behind_least == pytest.approx(1 - math.exp(width - 0.3), abs=1e-4)
    assert [row.word for row in found.rows] == ["best", "not-distinguishable", "worse"]


def test_of_latencies_the_smallest_is_the_best() -> None:
    found = ranked(*THREE, direction="lower")

    assert [row.word for row in found.rows] == ["worse", "worse", "best"]
    assert row(found, "a").behind == pytest.approx(math.expm1(0.3))
    assert found.best is not None
    assert found.best.low is not None
    assert found.best.low < (found.best.value or 0) < (found.best.high or 0)


def test_failed_and_unmeasured_points_keep_their_places_and_count_for_nothing() -> None:
    broken = Point(name="oom", failure="cuda-graph-capture-oom")

    found = ranked(broken, *THREE, Point(name="later"), point("nan", math.inf))

    assert [row.word for row in found.rows][0::4] == ["failed", "not-measured"]
    assert row(found, "nan").word == "failed"
    assert row(found, "nan").reason == "round 1 of launch 1 is inf"
    assert [row(found, name) for name in "abc"] == list(ranked(*THREE).rows)


def test_without_a_measured_point_there_is_no_best() -> None:
    assert ranked(Point(name="oom", failure="x")).best is None


def test_one_point_is_the_best_with_an_interval() -> None:
    found = ranked(point("a", 1.0, 1.01))

    assert [row.word for row in found.rows] == ["best"]
    assert (found.rows[0].low or 0) < math.e < (found.rows[0].high or 0)


def test_a_metric_that_never_varies_has_the_smallest_sigma_as_its_noise() -> None:
    steady: list[RoundsByLaunch] = [((value, value), (value, value)) for value in (3.938, 3.937, 3.5)]

    found = ranked(*(Point(name=str(i), launches=each) for i, each in enumerate(steady)), smallest_sigma=0.002)

    assert [row.word for row in found.rows] == ["best", "not-distinguishable", "worse"]
    assert found.basis.startswith("the values never varied; the smallest sigma, 0.2%")


def test_more_looks_make_it_harder_to_be_called_worse() -> None:
    once, thrice = (row(ranked(*THREE, looks=looks), "c").behind_least or 0 for looks in (1, 3))

    assert thrice < once


@pytest.mark.parametrize(
    ("points", "names", "reason"),
    [
        ((*THREE, Point(name="later")), ("later",), "not measured yet"),
        (THREE, ("a", "b"), "2 of 3 points may be the best"),
        ((point("a", 1, 1.01), point("c", 0.5, 0.51)), (), "a is the best point: every other one is worse"),
        (tuple(steady(name, 1, 1.001) for name in "abcde"), (), "the 5 points that are left differ by less than 2%"),
        ((point("a", 1, 1.02, 1.04), point("b", 1, 1.03, 1)), (), "2 points can't be told apart by 3 launches each"),
        ((point("a", 1, 1.02), point("b", 1.03), point("c", 0.1)), ("b",), "2 of 3 points may be the best"),
        ((Point(name="a", failure="x"), Point(name="b", failure="y")), (), "every point failed"),
    ],
)
def test_another_launch_is_for_those_that_may_be_the_best(
    points: tuple[Point, ...], names: tuple[str, ...], reason: str
) -> None:
    assert further(*points) == Further(names=names, reason=reason)


def test_a_sweep_without_points_is_refused() -> None:
    with pytest.raises(ValueError, match="a ranking needs a point"):
        ranked()


@pytest.mark.parametrize("sigma", [0.01, 0.027])
def test_the_truly_best_point_is_kept_whatever_the_looks(sigma: float) -> None:
    # Of equals each is the best: the hardest case. 600 sweeps show a rate above 5 % by more than two standard errors.
    lost = sum(0 not in sweep_stopping.simulate([0.0] * 5, sigma=sigma, seed=seed).left for seed in range(600))

    assert lost / 600 < 0.05 + 2 * math.sqrt(0.05 * 0.95 / 600)


def test_points_that_are_far_behind_cost_one_or_two_launches() -> None:
    far = [0.0, 0.01, 0.2, 0.3, 1 - 38 / 89.5]

    sweeps = [sweep_stopping.simulate(far, sigma=0.01, seed=seed) for seed in range(50)]

    assert all(0 in sweep.left and not sweep.left & {2, 3, 4} for sweep in sweeps)
    assert sum(sweep.launches for sweep in sweeps) / 50 < 10, "of 15: three for each that is close, one for the others"
