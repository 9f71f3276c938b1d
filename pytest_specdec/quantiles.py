"""Quantiles and tails of the normal, Student's t and chi-square distributions, from scipy, loaded when first asked.

One door to scipy.special: importing the plug-in must stay quick, and infinite degrees of freedom (a variance that
is known) are the normal distribution here.
"""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache(maxsize=4096)
def t_upper(level: float, df: float) -> float:
    """Return the value that Student's t with ``df`` degrees of freedom exceeds with probability ``level``.

    ``df`` may be fractional, or infinite for the normal distribution. Raises ValueError outside 0 < level < 1, df > 0.
    """
    from scipy import special  # noqa: PLC0415  # loaded when first asked

    if not 0 < level < 1:
        raise ValueError(f"a level lies between 0 and 1, got {level}")
    if not df > 0:
        raise ValueError(f"degrees of freedom are above 0, got {df}")
    return -float(special.ndtri(level) if math.isinf(df) else special.stdtrit(df, level))


def t_below(value: float, df: float) -> float:
    """Return the probability that Student's t with ``df`` degrees of freedom (infinite: normal) is below ``value``."""
    from scipy import special  # noqa: PLC0415  # loaded when first asked

    if not df > 0:
        raise ValueError(f"degrees of freedom are above 0, got {df}")
    return float(special.ndtr(value) if math.isinf(df) else special.stdtr(df, value))


@lru_cache(maxsize=64)
def chi_square_midpoints(df: float, count: int) -> tuple[float, ...]:
    """Return ``count`` values of equal probability that stand for a chi-square variable: its midpoint quantiles.

    With no degrees of freedom the variable is 0.
    """
    from scipy import special  # noqa: PLC0415  # loaded when first asked

    if df == 0:
        return (0.0,)
    return tuple(float(2 * special.gammaincinv(df / 2, (i + 0.5) / count)) for i in range(count))
