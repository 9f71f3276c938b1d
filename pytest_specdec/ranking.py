"""The best of several points, what can't be told from it, and which points deserve another launch. Pure functions.

On the log scale of noise.py, better is larger. One variance of a launch mean is pooled over all points, each about
its own mean, with the prior completing few degrees of freedom. A point is called worse when its mean lies below the
best one's by more than a bound at level error / (points - 1) / looks. A point that is truly the best is then called
worse with probability ``error`` at most, over all comparisons and looks together (Gupta 1965, Technometrics 7:225,
with Bonferroni's bound in the place of his tables). See docs/sweeps.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pytest_specdec.detectable import as_fraction
from pytest_specdec.model import Direction, RoundsByLaunch
from pytest_specdec.noise import Noise, Prior, estimate, harmonic_rounds, log_mean
from pytest_specdec.quantiles import t_upper
from pytest_specdec.stats import unusable

Word = Literal["best", "not-distinguishable", "worse", "failed", "not-measured"]
#: At the last of this many looks every point that is left has as many launches.
LOOKS: Final = 3
TOLERANCE: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a sweep: the values of its rounds by launch, or why it has none. Empty: not measured yet."""

    name: str
    launches: RoundsByLaunch = ()
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a point stands. ``value`` in the metric's unit with ``low`` and ``high``, None without a measurement.

    The intervals of all points hold together, so that of the best one too. ``behind`` is the fraction that is lost
    against the best point, at least ``behind_least`` (below 0: perhaps none) and ``behind_most`` at most.
    """

    name: str
    word: Word
    launches: int
    value: float | None = None
    low: float | None = None
    high: float | None = None
    behind: float | None = None
    behind_least: float | None = None
    behind_most: float | None = None
    reason: str = ""

    @property
    def contends(self) -> bool:
        """Whether it may be the best point."""
        return self.word in ("best", "not-distinguishable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """All points in the order they were given in. ``best`` is None when none was measured."""

    rows: tuple[Standing, ...]
    best: Standing | None
    confidence: float
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Further:
    """Which points get one more launch (none: the sweep is done), and why."""

    names: tuple[str, ...]
    reason: str


class _Spread:
    """The noise of a launch mean, pooled over points, and bounds that follow from it."""

    def __init__(self, measured: Sequence[Point], *, prior: Prior, smallest_sigma: float) -> None:
        each = [estimate(point.launches, prior=prior, smallest_sigma=smallest_sigma) for point in measured]
        degrees = sum(noise.degrees for noise in each)
        self.noise: Noise = dataclasses.replace(
            each[0],
            launches=degrees + 1,  # what the prior goes by
            rounds=len(each) / math.fsum(1 / noise.rounds for noise in each),
            degrees=degrees,
            squares=math.fsum(noise.squares for noise in each),
            within_degrees=sum(noise.within_degrees for noise in each),
            within_squares=math.fsum(noise.within_squares for noise in each),
            constant=all(noise.constant for noise in each),
        )

    def half_width(self, level: float, *points: Point) -> float:
        """Bound the mean of one point, or the difference of two; the widest of three counts, as in noise.py."""
        noise = self.noise
        launches = math.sqrt(math.fsum(1 / len(point.launches) for point in points))
        smallest = t_upper(level, math.inf) * noise.smallest_sigma * launches
        if noise.constant:
            return smallest
        rounds = math.fsum(1 / (len(point.launches) * harmonic_rounds(point.launches)) for point in points)
        return max(
            smallest,
            t_upper(level, noise.df) * noise.launch_sd * launches,
            t_upper(level, noise.within_df) * noise.within * math.sqrt(rounds),
        )


def rank(
    points: Sequence[Point],
    direction: Direction,
    *,
    prior: Prior,
    smallest_sigma: float,
    confidence: float = 0.95,
    looks: int = 1,
) -> Ranking:
    """Rank points by one metric; with ``looks`` above 1 the promise holds over so many rankings of a growing sweep.

    A point with a launch that has no usable value (not above 0) has failed. Raises ValueError for no point, a
    confidence outside 0 to 1, or looks below 1.
    """
    if not points or not 0 < confidence < 1 or looks < 1:
        raise ValueError("a ranking needs a point, a confidence between 0 and 1, and at least one look")
    points = [_checked(point) for point in points]
    measured = [point for point in points if point.launches]
    if not measured:
        return Ranking(rows=tuple(map(_unmeasured, points)), best=None, confidence=confidence, basis="")
    sign = 1 if direction == "higher" else -1
    spread = _Spread(measured, prior=prior, smallest_sigma=smallest_sigma)
    means = {point.name: sign * log_mean(point.launches) for point in measured}
    best = max(measured, key=lambda point: means[point.name])
    error = (1 - confidence) / looks
    others = max(1, len(measured) - 1)

    def standing(point: Point) -> Standing:
        if not point.launches:
            return _unmeasured(point)
        mean = means[point.name]
        own = spread.half_width(error / (2 * len(measured)), point)
        behind = means[best.name] - mean
        width = 0.0 if point is best else spread.half_width(error / others, point, best)
        ends = sorted(math.exp(sign * (mean + side * own)) for side in (-1, 1))
        return Standing(
            name=point.name,
            word="best" if point is best else "worse" if behind > width else "not-distinguishable",
            launches=len(point.launches),
            value=math.exp(sign * mean),
            low=ends[0],
            high=ends[1],
            behind=as_fraction(behind, direction),
            behind_least=as_fraction(behind - width, direction),
            behind_most=as_fraction(behind + width, direction),
        )

    return Ranking(
        rows=tuple(map(standing, points)), best=standing(best), confidence=confidence, basis=_basis(spread.noise)
    )


def _checked(point: Point) -> Point:
    lacking = unusable(point.launches) if point.launches and point.failure is None else None
    failure = point.failure or lacking
    return point if failure is None else dataclasses.replace(point, launches=(), failure=failure)


def _unmeasured(point: Point) -> Standing:
    word: Word = "not-measured" if point.failure is None else "failed"
    return Standing(name=point.name, word=word, launches=0, reason=point.failure or "")


def _basis(noise: Noise) -> str:
    if noise.constant:
        return noise.basis()
    said = f"noise of a launch {noise.launch_sd:.1%}, {noise.degrees} degrees of freedom from the launches"
    return said + (f" and {noise.prior_df:g} from the prior" if noise.prior_df else "")


def further_launches(
    points: Sequence[Point],
    direction: Direction,
    *,
    prior: Prior,
    smallest_sigma: float,
    confidence: float = 0.95,
    looks: int = LOOKS,
    tolerance: float = TOLERANCE,
) -> Further:
    """Say which points need one more launch, given all results so far: asked once after each pass over the points.

    A point that is clearly worse needs none, nor one that failed. When all that are left differ by less than
    ``tolerance`` (a fraction), or have had ``looks`` launches, the sweep is done.
    """
    fresh = tuple(point.name for point in points if not point.launches and point.failure is None)
    if fresh:
        return Further(names=fresh, reason="not measured yet")
    ranking = rank(points, direction, prior=prior, smallest_sigma=smallest_sigma, confidence=confidence, looks=looks)
    if ranking.best is None:
        return Further(names=(), reason="every point failed")
    left = [row for row in ranking.rows if row.contends]
    if len(left) == 1:
        return Further(names=(), reason=f"{ranking.best.name} is the best point: every other one is worse")
    if all((row.behind_most or 0.0) < tolerance for row in left):
        return Further(names=(), reason=f"the {len(left)} points that are left differ by less than {tolerance:.0%}")
    least = min(row.launches for row in left)
    if least >= looks:
        return Further(names=(), reason=f"{len(left)} points can't be told apart by {looks} launches each")
    # Those that had fewer launches first, so that all are compared on equal terms.
    names = tuple(row.name for row in left if row.launches == least)
    return Further(names=names, reason=f"{len(left)} of {len(points)} points may be the best")
