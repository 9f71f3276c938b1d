"""Control and treatment, interleaved: the ratio with its interval, from blocks of four launches A B B A.

Within a block a steady drift cancels, since the two controls stand on both sides of the two treatments. What two
launches of one spec differ by is launch noise, and it is measured in the block itself: two degrees of freedom each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pytest_specdec.model import Direction
from pytest_specdec.noise import FULL_DEGREES, Noise, Prior, log_mean
from pytest_specdec.quantiles import t_upper

#: Legs of one spec that differ by more than launch noise does with this probability disagree.
_DISAGREE: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block in the order it ran: control, treatment, treatment, control; each the values of its rounds."""

    control_first: Sequence[float]
    treatment_first: Sequence[float]
    treatment_second: Sequence[float]
    control_second: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRatio:
    """Treatment over control, so that above 1 is better whichever way the metric runs.

    ``low`` and ``high`` bound it two-sided at ``confidence``. ``conclusive`` is False when launches of one spec
    disagree; ``reason`` says which. ``launch_sd`` (log scale) and ``df`` are what the interval rests on.
    """

    ratio: float
    low: float
    high: float
    confidence: float
    blocks: int
    launch_sd: float
    df: float
    conclusive: bool
    reason: str


def paired_ratio(
    blocks: Sequence[Block],
    direction: Direction,
    *,
    prior: Prior,
    smallest_sigma: float,
    noise: Noise | None = None,
    confidence: float = 0.95,
) -> PairedRatio:
    """Return the ratio of treatment to control over A B B A blocks (for lower-is-better metrics, control to treatment).

    ``noise`` is the control baseline's, when there is one: the legs are held to it, and it adds its degrees of
    freedom. Without it the prior makes up what two degrees a block lack to four. A drift makes legs differ, so it
    widens the interval but doesn't shift it. Raises ValueError for no block, or values that are not above 0.
    """
    if not blocks:
        raise ValueError("a ratio needs at least one block of four launches")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence lies between 0 and 1, got {confidence}")
    sign = 1 if direction == "higher" else -1
    estimates, controls, treatments, rounds = [], [], [], []
    for block in blocks:
        a1, b1, b2, a2 = (
            log_mean([leg])
            for leg in (block.control_first, block.treatment_first, block.treatment_second, block.control_second)
        )
        estimates.append(sign * ((b1 + b2) - (a1 + a2)) / 2)
        controls.append(a1 - a2)
        treatments.append(b1 - b2)
        rounds.append(min(len(block.control_first), len(block.treatment_first)))
    squares = math.fsum(difference**2 / 2 for difference in (*controls, *treatments))
    df: float = 2 * len(blocks)
    if noise is not None and not noise.constant:
        known_square, known_df = noise.launch_sd**2 * noise.variance_ratio(min(rounds)), noise.df
    else:
        known_square = prior.between_square + prior.within_square / min(rounds)
        known_df = 0.0 if noise is not None or squares == 0 else max(0.0, FULL_DEGREES - df)
    launch_sd = math.sqrt((known_df * known_square + squares) / (known_df + df))
    df += known_df
    tail = (1 - confidence) / 2
    width = max(t_upper(tail, df) * launch_sd, t_upper(tail, math.inf) * smallest_sigma) / math.sqrt(len(blocks))
    centre = math.fsum(estimates) / len(blocks)
    # Held to what was known before: legs that disagree would excuse themselves.
    if noise is not None and noise.constant:
        known_square = smallest_sigma**2
    allowed = t_upper(_DISAGREE / 2, noise.df if noise is not None else FULL_DEGREES) * math.sqrt(
        2 * max(known_square, smallest_sigma**2)
    )
    worst_control, worst_treatment = max(map(abs, controls)), max(map(abs, treatments))
    apart = [
        f"two {name} launches of a block differ by {math.expm1(worst):.1%}, and launch noise explains "
        f"{math.expm1(allowed):.1%}"
        for name, worst in (("control", worst_control), ("treatment", worst_treatment))
        if worst > allowed
    ]
    return PairedRatio(
        ratio=math.exp(centre),
        low=math.exp(centre - width),
        high=math.exp(centre + width),
        confidence=confidence,
        blocks=len(blocks),
        launch_sd=max(launch_sd, smallest_sigma),
        df=df,
        conclusive=not apart,
        reason="; ".join(apart) or "launches of one spec agree",
    )
