"""Numbers about numbers: pure functions, without a word about servers or files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def median(values: Sequence[float]) -> float:
    """Return the middle value; the mean of the two middle ones for an even count. Raises ValueError on none."""
    if not values:
        raise ValueError("the median of no values")
    return statistics.median(values)


def unusable(launches: Sequence[Sequence[float]]) -> str | None:
    """Name the first launch or round without a usable value (finite, above 0); None when there is none."""
    if not launches:
        return "it was not measured"
    for i, launch in enumerate(launches, start=1):
        if not launch:
            return f"launch {i} has no value"
        for j, value in enumerate(launch, start=1):
            if not math.isfinite(value) or value <= 0:
                return f"round {j} of launch {i} is {value:g}"
    return None


def geometric_mean(values: Sequence[float]) -> float:
    """Return exp(mean(log x)); 0.0 when a value is 0. Raises ValueError on none, on a negative or a non-number.

    The mean of ratios: throughput losses multiply, so launches are averaged on the log scale.
    """
    if not values:
        raise ValueError("the geometric mean of no values")
    if any(not math.isfinite(value) or value < 0 for value in values):
        raise ValueError(f"the geometric mean needs finite values of at least 0, got {list(values)}")
    if min(values) == max(values):
        return values[0]  # without the last digit that exp(log(x)) can lose
    if 0.0 in values:
        return 0.0
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def mean_of_launches(launches: Sequence[Sequence[float]]) -> float:
    """Return the geometric mean over launches of each launch's geometric mean; raises as :func:`geometric_mean`."""
    return geometric_mean([geometric_mean(launch) for launch in launches])


def quantile(values: Sequence[float], q: float) -> float:
    """Return the q-quantile (0 <= q <= 1) by linear interpolation between order statistics (R's type 7)."""
    if not values:
        raise ValueError("a quantile of no values")
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile is asked for between 0 and 1, got {q}")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


@dataclass(frozen=True, slots=True)
class Components:
    """Standard deviations on the log scale, so about fractions; None where there is too little to tell."""

    within: float | None
    between: float | None


def variance_components(launches: Sequence[Sequence[float]]) -> Components:
    """Split the noise of positive values into within-launch and between-launch standard deviation (log scale).

    One-way random effects, unbalanced, by the method of moments (Searle, Casella, McCulloch: Variance
    Components, 1992, section 3.6): with N values in k launches of n_i, group means m_i and grand mean m,
    MSW = sum_ij (x_ij - m_i)^2 / (N - k), MSB = sum_i n_i (m_i - m)^2 / (k - 1),
    n0 = (N - sum n_i^2 / N) / (k - 1), between^2 = max(0, (MSB - MSW) / n0), within^2 = MSW.
    """
    groups = [[math.log(value) for value in launch if value > 0] for launch in launches]
    groups = [group for group in groups if group]
    total, k = sum(len(group) for group in groups), len(groups)
    if total <= k:
        within_square = None
    else:
        within_square = math.fsum((x - statistics.fmean(group)) ** 2 for group in groups for x in group) / (total - k)
    within = None if within_square is None else math.sqrt(within_square)
    if k < 2:
        return Components(within, None)
    grand = math.fsum(x for group in groups for x in group) / total
    msb = math.fsum(len(group) * (statistics.fmean(group) - grand) ** 2 for group in groups) / (k - 1)
    n0 = (total - math.fsum(len(group) ** 2 for group in groups) / total) / (k - 1)
    return Components(within, math.sqrt(max(0.0, (msb - (within_square or 0.0)) / n0)))
