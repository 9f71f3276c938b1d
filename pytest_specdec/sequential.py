"""Several looks under one error budget: the levels of a group sequential test.

After each judged launch the data are looked at again. With n recorded and k judged launches the information about
the loss is 1 / (1/n + 1/k): the first look already has a good part of it, since the recorded launches are there
throughout. The estimates at successive looks have the canonical joint distribution of group sequential designs
(Jennison and Turnbull: Group Sequential Methods, 2000, section 3.1), so a spending function (Lan and DeMets 1983,
Biometrika 70:659) says how much of an error may be used up by each look, and the recursion of Armitage, McPherson
and Rowe (1969, J. R. Stat. Soc. A 132:235) turns that into a nominal level for each. A level is then applied to
Student's t instead of the normal distribution (Jennison and Turnbull, section 4.4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, TypeAlias

from pytest_specdec.quantiles import t_upper

if TYPE_CHECKING:
    import numpy as np

    FloatArray: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

_GRID: Final = 257  # points from the boundary down, for Simpson's rule
_DEPTH: Final = 8.0  # standard deviations below the mean that the grid reaches


def information_fractions(recorded: int, looks: int) -> tuple[float, ...]:
    """Return the information at each look (1, 2, ... judged launches) as a fraction of that at the last."""
    information = [1 / (1 / recorded + 1 / k) for k in range(1, looks + 1)]
    return tuple(value / information[-1] for value in information)


def power_spending(error: float, exponent: float, fraction: float) -> float:
    """Return what may be spent of ``error`` by that fraction of the information: error * fraction ** exponent.

    Kim and DeMets 1987, Biometrika 74:149. An exponent of 1 spends early, of 3 late.
    """
    return error * math.pow(fraction, exponent)


@lru_cache(maxsize=256)
def nominal_levels(fractions: tuple[float, ...], error: float, exponent: float) -> tuple[float, ...]:
    """Return each look's nominal one-sided level, so that all looks together err with probability ``error``.

    ``fractions`` rise to 1. The level of the first look is what is spent on it; a later one is larger than its
    share, because what crosses then would mostly have crossed before.
    """
    import numpy as np  # noqa: PLC0415  # loaded when first asked
    from scipy import special  # noqa: PLC0415  # loaded when first asked

    if list(fractions) != sorted(set(fractions)) or fractions[0] <= 0 or not math.isclose(fractions[-1], 1):
        raise ValueError(f"information fractions rise from above 0 to 1, got {list(fractions)}")
    levels: list[float] = []
    spent = 0.0
    # The score process: s = z * sqrt(fraction) has independent normal increments of variance step.
    points: FloatArray | None = None
    weights: FloatArray | None = None
    previous = step = 0.0
    for fraction in fractions:
        total = power_spending(error, exponent, fraction)
        root = math.sqrt(fraction)
        if points is None or weights is None:
            bound = t_upper(total, math.inf) * root
        else:
            step = math.sqrt(fraction - previous)
            crossing = partial(_crossing, points, weights, step)
            bound = _solve(crossing, target=total - spent, scale=root)
        levels.append(float(special.ndtr(-bound / root)))
        grid = np.linspace(-_DEPTH * root, bound, _GRID)
        if points is None or weights is None:
            density = np.exp(-0.5 * (grid / root) ** 2) / (root * math.sqrt(2 * math.pi))
        else:
            apart = (grid[:, None] - points[None, :]) / step
            density = (np.exp(-0.5 * apart**2) @ weights) / (step * math.sqrt(2 * math.pi))
        simpson = np.where(np.arange(_GRID) % 2 == 1, 4.0, 2.0)
        simpson[[0, -1]] = 1.0
        points, weights = grid, density * simpson * (grid[1] - grid[0]) / 3
        previous, spent = fraction, total
    return tuple(levels)


def _crossing(points: FloatArray, weights: FloatArray, step: float, bound: float) -> float:
    """Return the probability that the score process, not stopped so far, ends its next step above ``bound``."""
    from scipy import special  # noqa: PLC0415  # loaded when first asked

    return float((weights * special.ndtr((points - bound) / step)).sum())


def _solve(crossing: Callable[[float], float], *, target: float, scale: float) -> float:
    low, high = -_DEPTH * scale, 5 * _DEPTH * scale
    for _ in range(80):
        middle = (low + high) / 2
        if crossing(middle) > target:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def holm_level(session_error: float, metrics: int, rejected: int = 0) -> float:
    """Return the error that each metric left may spend when ``rejected`` of ``metrics`` are called already.

    Holm's step-down rule (1979, Scand. J. Stat. 6:65), which also holds over several looks when each metric spends
    by its own function (Maurer and Bretz 2013, Stat. Biopharm. Res. 5:311).
    """
    if not 0 <= rejected < metrics:
        raise ValueError(f"of {metrics} metrics, {rejected} are called already: none is left to judge")
    return session_error / (metrics - rejected)


def levels_by_look(recorded: int, looks: int, error: float, exponent: float) -> tuple[float, ...]:
    """Return the nominal level of each look at 1, 2, ... ``looks`` judged launches against ``recorded`` ones."""
    return nominal_levels(information_fractions(recorded, looks), error, exponent)
