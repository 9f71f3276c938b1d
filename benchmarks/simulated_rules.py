"""Our rule for many simulations at once, and the rules in use that it stands beside.

``tests/unit/test_verdict_power.py`` holds that ours answers as :func:`pytest_specdec.decide.decide` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from scipy import special, stats

from benchmarks.noise_models import ROUNDS, Floats
from pytest_specdec.detectable import Rule, as_loss, power_factor
from pytest_specdec.noise import FULL_DEGREES, PRIORS
from pytest_specdec.quantiles import t_upper

Bools: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

UNDECIDED, REGRESSION, PASS = 0, 1, 2


@dataclass(frozen=True)
class Setting:
    """The plan of a simulated judgement. ``tolerance`` is a fraction."""

    recorded: int = 5
    rule: Rule = field(default_factory=Rule)
    tolerance: float = 0.02
    smallest_sigma: float = 0.005
    full_degrees: int = FULL_DEGREES

    @property
    def prior_df(self) -> float:
        """Degrees of freedom that the prior adds."""
        return max(0.0, float(self.full_degrees - (self.recorded - 1)))


@dataclass(frozen=True)
class Judged:
    """What our rule answered in each simulation; ``detectable`` is the log loss printed for its baseline."""

    outcome: np.ndarray[tuple[int, ...], np.dtype[np.int_]]
    launches: Floats
    detectable: Floats

    def share(self, outcome: int) -> float:
        """Return how often our rule answered so."""
        return float(np.mean(self.outcome == outcome))


@dataclass(frozen=True)
class Spread:
    """The noise of many simulations at once: :class:`pytest_specdec.noise.Noise` for arrays."""

    setting: Setting
    squares: Floats
    degrees: int
    within_squares: Floats
    within_degrees: int

    @property
    def df(self) -> float:
        """Degrees of freedom of :attr:`launch_sd`, the prior's among them."""
        return self.degrees + self.setting.prior_df

    @property
    def within(self) -> Floats:
        """Standard deviation of a round within its launch."""
        return np.asarray(np.sqrt(self.within_squares / self.within_degrees))

    @property
    def launch_sd(self) -> Floats:
        """Standard deviation of a launch mean."""
        prior = PRIORS["tok/s"]
        grown = np.maximum(1.0, self.within**2 / prior.within_square)
        square = grown * (prior.between_square + prior.within_square / ROUNDS)
        return np.asarray(np.sqrt((self.setting.prior_df * square + self.squares) / self.df))

    def half_width(self, level: float, judged: int) -> Floats:
        """Return how far the observed difference lies above the true one with probability ``level``, at most."""
        scale = math.sqrt(1 / self.setting.recorded + 1 / judged)
        return np.asarray(
            np.maximum.reduce(
                [
                    t_upper(level, self.df) * self.launch_sd,
                    t_upper(level, self.within_degrees) * self.within / math.sqrt(ROUNDS),
                    np.full_like(self.squares, t_upper(level, math.inf) * self.setting.smallest_sigma),
                ]
            )
            * scale
        )


def spread(setting: Setting, recorded: Floats, judged: Floats | None = None) -> Spread:
    """Pool the spread of recorded launches with that of judged ones, each about its own mean."""
    parts = [recorded] if judged is None else [recorded, judged]
    return Spread(
        setting=setting,
        squares=np.asarray(sum(part.mean(axis=2).var(axis=1) * part.shape[1] for part in parts)),
        degrees=sum(part.shape[1] - 1 for part in parts),
        within_squares=np.asarray(sum((part.var(axis=2) * part.shape[2]).sum(axis=1) for part in parts)),
        within_degrees=sum(part.shape[1] * (part.shape[2] - 1) for part in parts),
    )


def detectable(setting: Setting, baseline: Spread) -> Floats:
    """Return the log loss that each baseline is said to see."""
    rule, judged = setting.rule, setting.rule.max_launches
    level = rule.alarm_levels(setting.recorded, judged)[-1]
    bound = np.maximum(baseline.half_width(level, judged), as_loss(setting.tolerance, "higher"))
    factor = power_factor(baseline.df, judged - 1, level, rule.power)
    return np.asarray(
        np.maximum(
            bound + baseline.half_width(1 - rule.power, judged),
            factor * baseline.launch_sd * math.sqrt(1 / setting.recorded + 1 / judged),
        )
    )


def ours(setting: Setting, recorded: Floats, judged: Floats, loss: float | Floats | None = 0.0) -> Judged:
    """Apply our rule, launch by launch, to judged logs that are lower by ``loss``; None: by what is detectable."""
    n, looks = setting.recorded, setting.rule.max_launches
    promised = detectable(setting, spread(setting, recorded))
    lost = promised if loss is None else loss
    allowed = as_loss(setting.tolerance, "higher")
    alarm, passing = setting.rule.alarm_levels(n, looks), setting.rule.pass_levels(n, looks)
    outcome = np.zeros(len(recorded), dtype=np.int_)
    launches = np.zeros(len(recorded))
    for k in range(1, looks + 1):
        active = outcome == UNDECIDED
        launches += active
        now = spread(setting, recorded, judged[:, :k])
        d = recorded.mean(axis=(1, 2)) - judged[:, :k].mean(axis=(1, 2)) + lost
        worse = active & (d - now.half_width(alarm[k - 1], k) > 0) & (d > allowed)
        well = active & ~worse & (d + now.half_width(passing[k - 1], k) < np.maximum(promised, allowed))
        outcome[worse], outcome[well] = REGRESSION, PASS
    return Judged(outcome, launches, promised)


# The rules in use. Each tells, for judged logs that are lower by ``loss``, where it fails the build.


def single_run(recorded: Floats, judged: Floats) -> Bools:
    """One round against a floor 9 % below the baseline's mean."""
    return np.asarray(judged[:, 0, 0] < recorded.mean(axis=(1, 2)) + math.log(0.91))


def best_of_three(recorded: Floats, judged: Floats) -> Bools:
    """Three attempts, spread over the launches there are; one above a floor 5 % below the mean is enough."""
    launches = judged.shape[1]
    attempts = np.stack([judged[:, i % launches, i // launches] for i in range(3)], axis=1)
    return np.asarray(attempts.max(axis=1) < recorded.mean(axis=(1, 2)) + math.log(0.95))


def mean_within(recorded: Floats, judged: Floats) -> Bools:
    """The mean of all rounds, 5 % (pytest-benchmark's compare-fail)."""
    return np.asarray(judged.mean(axis=(1, 2)) < recorded.mean(axis=(1, 2)) + math.log(0.95))


def mann_whitney(recorded: Floats, judged: Floats) -> Bools:
    """Rounds as if independent, two-sided p < 0.002, and medians that differ by a factor of 1.1 (asv)."""
    before, after = recorded.reshape(len(recorded), -1), judged.reshape(len(judged), -1)
    far = np.median(before, axis=1) - np.median(after, axis=1) > math.log(1.1)
    fails = np.zeros(len(recorded), dtype=np.bool_)
    if far.any():
        test = stats.mannwhitneyu(before[far], after[far], axis=1, method="asymptotic")
        fails[far] = test.pvalue < 0.002
    return fails


def interval_rule(recorded: Floats, judged: Floats) -> Bools:
    """The 90 % interval of the log ratio (Welch, launches) beyond 10 %; at least three a side (inference-doctor).

    Reproduces its published figure: of five runs a side with a CV of 4 %, a 15 % drop is caught 65 % of the time.
    """
    if judged.shape[1] < 3:
        return np.zeros(len(recorded), dtype=np.bool_)
    before, after = recorded.mean(axis=2), judged.mean(axis=2)
    a, b = before.var(axis=1, ddof=1) / before.shape[1], after.var(axis=1, ddof=1) / after.shape[1]
    df = (a + b) ** 2 / (a**2 / (before.shape[1] - 1) + b**2 / (after.shape[1] - 1))
    low = before.mean(axis=1) - after.mean(axis=1) + special.stdtrit(df, 0.05) * np.sqrt(a + b)
    return np.asarray(low > -math.log(0.9))


@dataclass(frozen=True)
class Other:
    """A rule in use, with the fewest launches it takes and the rounds it looks at in each."""

    name: str
    fails: Callable[[Floats, Floats], Bools]
    least: int = 1
    rounds: int = ROUNDS


OTHERS: Final = (
    Other("single run, 9 % floor", single_run, rounds=1),
    Other("best of three, 5 % floor", best_of_three, rounds=3),
    Other("mean within 5 %", mean_within),
    Other("Mann-Whitney p<.002, x1.1", mann_whitney),
    Other("90 % interval beyond 10 %", interval_rule, least=3),
)


def at_launches(other: Other, recorded: Floats, judged: Floats, loss: float, launches: float) -> float:
    """Return how often a rule fails with a number of launches that may be a mean: a mixture of the whole numbers."""
    launches = max(launches, other.least)
    below = math.floor(launches)
    part = launches - below
    shares = [(below, 1 - part), (below + 1, part)] if part > 0 else [(below, 1.0)]
    if other.fails is single_run:
        shares = [(1, 1.0)]
    return sum(weight * float(np.mean(other.fails(recorded, judged[:, :k] - loss))) for k, weight in shares)
