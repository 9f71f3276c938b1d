"""What a baseline can see: the loss that is called a regression 95 % of the time, and what would see a smaller one."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pytest_specdec.model import Direction
from pytest_specdec.noise import Noise
from pytest_specdec.quantiles import chi_square_midpoints, t_upper
from pytest_specdec.sequential import levels_by_look

#: The false-alarm budget is kept for the later looks, where most of the information is; the pass budget goes evenly.
ALARM_EXPONENT: Final = 3.0
PASS_EXPONENT: Final = 1.0
#: Levels are computed for the normal distribution and applied to Student's t, which at few degrees of freedom errs a
#: twentieth more often than planned (benchmarks/verdict_power.py); so a tenth of the budget is not spent.
_KEPT_BACK: Final = 0.1
_MOST_LAUNCHES: Final = 128  # nobody records more; beyond it the answer is "a quieter node"
_MIDPOINTS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The promises of a judgement.

    ``error``: probability that unchanged code is called a regression, for this metric over all its looks.
    ``pass_error``: that a loss as large as the detectable change is passed. ``power``: that it is called a
    regression. ``max_launches``: the most that are judged.
    """

    error: float = 0.01
    pass_error: float = 0.01
    power: float = 0.95
    max_launches: int = 3

    def __post_init__(self) -> None:
        for name in ("error", "pass_error"):
            if not 0 < getattr(self, name) < 0.5:
                raise ValueError(f"{name} lies between 0 and 0.5, got {getattr(self, name)}")
        if not 0.5 < self.power < 1:
            raise ValueError(f"power lies between 0.5 and 1, got {self.power}")
        if self.max_launches < 1:
            raise ValueError(f"max_launches is at least 1, got {self.max_launches}")

    def alarm_levels(self, recorded: int, looks: int) -> tuple[float, ...]:
        """Return each look's level for calling a regression."""
        return levels_by_look(recorded, looks, self.error * (1 - _KEPT_BACK), ALARM_EXPONENT)

    def pass_levels(self, recorded: int, looks: int) -> tuple[float, ...]:
        """Return each look's level for passing."""
        return levels_by_look(recorded, looks, self.pass_error * (1 - _KEPT_BACK), PASS_EXPONENT)


def as_loss(tolerance: float, direction: Direction) -> float:
    """Return a fraction that may be lost (higher is better) or added (lower is better) as a log loss."""
    return -math.log1p(-tolerance) if direction == "higher" else math.log1p(tolerance)


def as_fraction(loss: float, direction: Direction) -> float:
    """Return a log loss as the fraction that is lost (higher is better) or added (lower is better)."""
    return -math.expm1(-loss) if direction == "higher" else math.expm1(loss)


def detectable_change(noise: Noise, rule: Rule, *, rounds: float, tolerance: float) -> float:
    """Return the log loss that is called a regression with probability ``rule.power``, before anything is judged.

    ``rounds``: a judged launch's. ``tolerance``: log loss that is never called a regression. With estimated noise the
    promise is marginal: over baselines, not for each. It is that of the last look, which an earlier call can only
    raise, and an early pass lowers by less.
    """
    judged = rule.max_launches
    level = rule.alarm_levels(noise.launches, judged)[-1]
    miss = noise.half_width(1 - rule.power, judged, rounds)
    by_floors = max(noise.half_width(level, judged, rounds), tolerance) + miss
    if noise.constant:
        return by_floors
    factor = power_factor(noise.df, judged - 1, level, rule.power)
    return max(by_floors, factor * noise.launch_sd * noise.scale(judged, rounds))


@lru_cache(maxsize=1024)
def power_factor(df: float, more: int, level: float, power: float) -> float:
    """Return x with P(Z + x s > t s') = power: a loss of x s that exceeds its bound.

    s^2 is the baseline's variance (``df`` degrees of freedom) over the true one, s'^2 that with the judged launches'
    own spread (``more`` degrees) pooled in, Z normal, t the bound at ``level``. Solved over equally likely
    values of the two chi-square variables.
    """
    import numpy as np  # noqa: PLC0415  # loaded when first asked
    from scipy import special  # noqa: PLC0415  # loaded when first asked

    recorded = np.array(chi_square_midpoints(df, _MIDPOINTS))[:, None]
    judged = np.array(chi_square_midpoints(more, _MIDPOINTS))[None, :]
    before = np.sqrt(recorded / df)
    bound = t_upper(level, df + more) * np.sqrt((recorded + judged) / (df + more))
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        if float(np.mean(special.ndtr(middle * before - bound))) < power:
            low = middle
        else:
            high = middle
    return high


def launches_needed(noise: Noise, rule: Rule, *, rounds: float, tolerance: float, loss: float) -> int | None:
    """Return how many launches, recorded and as many judged, see a log loss; None when 128 don't.

    The noise is taken to be what it is estimated as, known better with each launch.
    """

    def sees(launches: int) -> bool:
        planned = dataclasses.replace(
            noise, launches=launches, degrees=launches - 1, squares=noise.launch_sd**2 * (launches - 1)
        )
        wider = dataclasses.replace(rule, max_launches=launches)
        return detectable_change(planned, wider, rounds=rounds, tolerance=tolerance) <= loss

    high = 1
    while not sees(high):
        high *= 2  # a plan of many looks takes a while to compute, so the search starts with few
        if high > _MOST_LAUNCHES:
            return None
    low = high // 2 + 1
    while low < high:
        middle = (low + high) // 2
        if sees(middle):
            high = middle
        else:
            low = middle + 1
    return high


def sentence(
    noise: Noise, rule: Rule, *, rounds: float, tolerance: float, direction: Direction, wanted: float = 0.03
) -> str:
    """Say what this baseline can see, and what a change of ``wanted`` (a fraction) would take.

    ``tolerance`` is a fraction too.
    """
    allowed = as_loss(tolerance, direction)
    seen = as_fraction(detectable_change(noise, rule, rounds=rounds, tolerance=allowed), direction)
    what = "loss" if direction == "higher" else "increase"
    up_to = "1 launch" if rule.max_launches == 1 else f"up to {rule.max_launches} launches"
    said = f"with this baseline and {up_to} a {seen:.1%} {what} is caught {rule.power:.0%} of the time"
    if seen <= wanted:
        return said
    target = as_loss(wanted, direction)
    if target <= allowed:
        return f"{said}; {wanted:.0%} is within the tolerance of {tolerance:.0%}"
    launches = launches_needed(noise, rule, rounds=rounds, tolerance=allowed, loss=target)
    if launches is None:
        return f"{said}; {wanted:.0%} needs a quieter node: {_MOST_LAUNCHES} launches of this one don't show it"
    return f"{said}; {wanted:.0%} needs about {launches} recorded and {launches} judged launches, or a quieter node"
