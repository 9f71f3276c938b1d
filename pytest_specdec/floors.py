"""Literal floors: whether one is kept, whether the answer is close, and how often unchanged code fails it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pytest_specdec.model import Direction
from pytest_specdec.noise import Noise, Prior, estimate, harmonic_rounds, log_mean
from pytest_specdec.quantiles import t_below

#: An estimate within this many standard errors of its floor is close: the whole budget is spent first.
CLOSE: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorStanding:
    """Where an estimate stands to its floor. ``standard_errors`` is the room above it (below 0: broken)."""

    floor: float
    value: float
    standard_errors: float
    broken: bool
    text: str

    @property
    def close(self) -> bool:
        """Whether more launches could change the answer."""
        return abs(self.standard_errors) < CLOSE


def floor_standing(
    floor: float | None,
    judged: Sequence[Sequence[float]],
    direction: Direction,
    *,
    noise: Noise | None,
    prior: Prior,
    smallest_sigma: float,
) -> FloorStanding | None:
    """Hold judged launches (values) to a floor; None without one. For lower-is-better metrics it is a ceiling.

    The floor is literal: what counts is the geometric mean over launches. The standard error only says whether it is
    close; without a baseline's noise it comes from the judged launches and the prior.
    """
    if floor is None:
        return None
    k = len(judged)
    centre = log_mean(judged)
    if noise is None:
        own = estimate(judged, prior=prior, smallest_sigma=smallest_sigma)
        launch_sd = own.launch_sd
    else:
        pooled = noise.with_judged(judged)
        launch_sd = pooled.launch_sd * math.sqrt(pooled.variance_ratio(harmonic_rounds(judged)))
    error = max(launch_sd, smallest_sigma) / math.sqrt(k)
    sign = 1 if direction == "higher" else -1
    room = sign * (centre - math.log(floor))
    value = math.exp(centre)
    # A value that equals its floor keeps it; the logarithm may lose a last digit.
    broken = room < 0 and not math.isclose(value, floor, rel_tol=1e-12)
    name = "floor" if direction == "higher" else "ceiling"
    side = ("below" if direction == "higher" else "above") if broken else "within"
    text = f"{apart(value, floor)} is {side} its {name} {floor:g}, by {abs(room) / error:.1f} standard errors"
    return FloorStanding(floor=floor, value=value, standard_errors=room / error, broken=broken, text=text)


def apart(value: float, limit: float) -> str:
    """Write a value with as many digits as show on which side of the limit it is: 89.4996 is below 89.5."""
    for digits in range(4, 17):
        text = f"{value:.{digits}g}"
        if float(text) != limit and (float(text) < limit) == (value < limit):
            return text
    return repr(value)


def floor_risk(noise: Noise, floor: float, direction: Direction, *, rounds: float, max_launches: int) -> float:
    """Return the probability that unchanged code fails the floor, from the baseline's mean and noise; at most.

    Looks before the last fail only what is not close. Their chances are added, though they overlap.
    """
    room = (1 if direction == "higher" else -1) * (noise.mean - math.log(floor))
    return min(1.0, _risk(noise, room, rounds=rounds, max_launches=max_launches))


def safe_floor(noise: Noise, direction: Direction, *, rounds: float, max_launches: int, risk: float = 0.01) -> float:
    """Return the floor that unchanged code fails with probability ``risk``, in the metric's unit."""
    low, high = 0.0, 100 * noise.difference_sd(1, rounds)
    for _ in range(80):
        middle = (low + high) / 2
        if _risk(noise, middle, rounds=rounds, max_launches=max_launches) > risk:
            low = middle
        else:
            high = middle
    return math.exp(noise.mean - high if direction == "higher" else noise.mean + high)


def _risk(noise: Noise, room: float, *, rounds: float, max_launches: int) -> float:
    total = 0.0
    launch_sd = max(noise.smallest_sigma, noise.launch_sd * math.sqrt(noise.variance_ratio(rounds)))
    for k in range(1, max_launches + 1):
        needed = room + (0.0 if k == max_launches else CLOSE * launch_sd / math.sqrt(k))
        total += t_below(-needed / noise.difference_sd(k, rounds), noise.df)
    return total
