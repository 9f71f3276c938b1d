"""How noisy a metric is: the spread between launches, within them, and how well either is known.

Everything is on the log scale, where a standard deviation of 0.02 is about 2 %. The model of one round's value is
log x = mean + launch effect + round effect, both normal, both of mean 0. The replicate is the launch: what is
judged is the mean of launch means, so what is needed is the variance of one launch mean,
v = between^2 + within^2 / rounds. It is estimated by the unweighted means analysis (Searle, Casella, McCulloch:
Variance Components, 1992, section 4): the sample variance of the launch means, which for equal rounds is exactly a
chi-square variable, whatever the two components are. The components are told apart only to show them, and to carry
the variance over to another number of rounds.

With less than :data:`FULL_DEGREES` degrees of freedom a stated prior makes up the difference, as in a moderated
variance (Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3:3): v = (d0 v0 + sum of squares) / (d0 + d), where d0 is what
the recorded launches lack. From five launches on they speak alone. See docs/verdicts.md for why.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pytest_specdec.quantiles import t_upper

#: A variance with fewer degrees of freedom than this is completed by the prior; five launches have as many.
FULL_DEGREES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is assumed about the noise of a kind of metric before it has been measured often enough.

    ``sigma`` is the standard deviation of one round of one launch (log scale), ``between_share`` the part of its
    variance that lies between launches, ``source`` says where the figures come from.
    """

    sigma: float
    between_share: float
    source: str

    @property
    def between_square(self) -> float:
        """The variance between launches."""
        return self.sigma**2 * self.between_share

    @property
    def within_square(self) -> float:
        """The variance between rounds of one launch."""
        return self.sigma**2 * (1 - self.between_share)


_THROUGHPUT: Final = Prior(
    sigma=0.027,
    between_share=0.5,
    source="19 identical runs gave 295 to 339 tok/s, sigma 2.7 % (sglang#24928); half between launches is assumed",
)
#: By unit, which tells throughput, latency and acceptance apart.
PRIORS: Final[Mapping[str, Prior]] = MappingProxyType(
    {
        "tok/s": _THROUGHPUT,
        "step/s": _THROUGHPUT,
        "req/s": _THROUGHPUT,
        "share": Prior(
            sigma=0.05,
            between_share=0.5,
            source="assumed: as for latencies, whose limits decide which requests a share of goodput counts",
        ),
        "ms": Prior(
            sigma=0.05,
            between_share=0.5,
            source="assumed: about twice throughput's, since a round's time to first token is that of few requests",
        ),
        "tok/step": Prior(
            sigma=0.005,
            between_share=0.5,
            source="assumed: with greedy sampling acceptance is a count that repeats but for near ties in the logits",
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The noise of one metric as a baseline knows it, and later the judged launches too.

    ``mean`` is the log of the geometric mean over recorded launches. ``squares`` and ``degrees`` are the sum of
    squares of launch means (at ``rounds`` rounds a launch) about their own mean and its degrees of freedom;
    ``within_squares`` and ``within_degrees`` the same for rounds within their launch. The prior comes on top.
    ``constant``: no value ever differed from another, so ``smallest_sigma`` is all the noise there is; should judged
    values differ after all, it takes the prior's place.
    """

    mean: float
    launches: int
    rounds: float
    squares: float
    degrees: int
    within_squares: float
    within_degrees: int
    constant: bool
    smallest_sigma: float
    prior: Prior

    @property
    def prior_df(self) -> float:
        """Degrees of freedom that the prior adds: what the recorded launches lack to :data:`FULL_DEGREES`."""
        return max(0.0, float(FULL_DEGREES - (self.launches - 1)))

    @property
    def df(self) -> float:
        """Degrees of freedom of :attr:`launch_sd`, the prior's among them; infinite for a constant metric."""
        return math.inf if self.constant else self.degrees + self.prior_df

    @property
    def launch_sd(self) -> float:
        """Standard deviation of one launch mean at ``rounds`` rounds, without the smallest sigma."""
        if self.constant:
            return 0.0
        return math.sqrt((self.prior_df * self._prior_square + self.squares) / self.df)

    @property
    def within_df(self) -> float:
        """Degrees of freedom of :attr:`within`, the prior's among them; infinite for a constant metric."""
        return math.inf if self.constant else float(max(self.within_degrees, FULL_DEGREES))

    @property
    def within(self) -> float:
        """Standard deviation of a round within its launch."""
        if self.constant:
            return 0.0
        lacking = max(0, FULL_DEGREES - self.within_degrees)
        return math.sqrt((lacking * self.prior.within_square + self.within_squares) / self.within_df)

    @property
    def between(self) -> float:
        """Standard deviation between launches; 0 when the rounds alone explain how launches differ."""
        return math.sqrt(max(0.0, self.launch_sd**2 - self.within**2 / self.rounds))

    @property
    def _prior_square(self) -> float:
        """The prior's variance of a launch mean, raised where the rounds are noisier than it expects."""
        expected = self.prior.within_square
        scale = max(1.0, self.within**2 / expected) if expected > 0 else 1.0
        return scale * (self.prior.between_square + expected / self.rounds)

    def variance_ratio(self, rounds: float) -> float:
        """Return the variance of a launch mean at that many rounds over the one at the recorded number."""
        if rounds == self.rounds or self.constant:
            return 1.0
        between_square = self.between**2
        at_recorded = between_square + self.within**2 / self.rounds
        return (between_square + self.within**2 / rounds) / at_recorded if at_recorded > 0 else 1.0

    def scale(self, judged: int, rounds: float) -> float:
        """Return the standard deviation of baseline mean minus mean of ``judged`` launches, in launch_sd."""
        return math.sqrt(1 / self.launches + self.variance_ratio(rounds) / judged)

    def difference_sd(self, judged: int, rounds: float) -> float:
        """Return the predictive standard deviation of baseline mean minus the mean of ``judged`` launches."""
        return max(
            self._smallest(judged), self.launch_sd * self.scale(judged, rounds), self._rounds_alone(judged, rounds)
        )

    def half_width(self, level: float, judged: int, rounds: float) -> float:
        """Return how far the observed difference lies above the true one with probability ``level``, at most.

        The largest of three: Student's t on the launches; on the rounds, which no launch mean can be steadier than;
        and the smallest sigma, taken as known. ``level`` is below one half.
        """
        smallest = t_upper(level, math.inf) * self._smallest(judged)
        if self.constant:
            return smallest
        return max(
            smallest,
            t_upper(level, self.df) * self.launch_sd * self.scale(judged, rounds),
            t_upper(level, self.within_df) * self._rounds_alone(judged, rounds),
        )

    def _smallest(self, judged: int) -> float:
        return self.smallest_sigma * math.sqrt(1 / self.launches + 1 / judged)

    def _rounds_alone(self, judged: int, rounds: float) -> float:
        return self.within * math.sqrt(1 / (self.launches * self.rounds) + 1 / (judged * rounds))

    def with_judged(self, launches: Sequence[Sequence[float]]) -> Noise:
        """Return the noise with the spread of the judged launches about their own mean pooled in.

        ``launches`` are values, not logs. Unchanged noise is assumed, as in any two-sample t test; the difference
        of the two means does not enter.
        """
        logs = _logs(launches)
        means = [statistics.fmean(launch) for launch in logs]
        ratio = self.variance_ratio(harmonic_rounds(launches))
        seen = sum(len(launch) for launch in logs)
        steady = len({value for launch in launches for value in launch}) == 1
        # One recorded value can't show that it never varies, but judged ones that don't vary speak for it.
        unsure = self.launches == 1 and self.within_degrees == 0 and seen > 1
        return dataclasses.replace(
            self,
            squares=self.squares + _squares(means) / ratio,
            degrees=self.degrees + len(means) - 1,
            within_squares=self.within_squares + math.fsum(_squares(launch) for launch in logs),
            within_degrees=self.within_degrees + seen - len(logs),
            constant=steady and (self.constant or unsure),
        )

    def basis(self) -> str:
        """Say in a clause what the noise rests on."""
        if self.constant:
            return f"the values never varied; the smallest sigma, {self.smallest_sigma:.1%}, stands for their noise"
        count = "1 recorded launch" if self.launches == 1 else f"{self.launches} recorded launches"
        if self.prior_df == 0:
            return f"noise from {count}"
        return (
            f"{count}: too few to tell the noise, so {self.prior_df:g} of {FULL_DEGREES} degrees of freedom are a "
            f"prior (sigma {self.prior.sigma:.1%}, {self.prior.between_share:.0%} of its variance between launches)"
        )


def estimate(launches: Sequence[Sequence[float]], *, prior: Prior, smallest_sigma: float) -> Noise:
    """Estimate the noise of recorded launches, each a list of its rounds' values (not logs).

    Raises ValueError for no launch, an empty one, or a value that is not a finite number above 0.
    """
    logs = _logs(launches)
    means = [statistics.fmean(launch) for launch in logs]
    values = [value for launch in launches for value in launch]
    constant = len(values) > 1 and len(set(values)) == 1
    if constant:
        # That it stood still over several rounds says more than what its kind does elsewhere.
        prior = Prior(sigma=smallest_sigma, between_share=1.0, source="values that never varied when recorded")
    return Noise(
        mean=statistics.fmean(means),
        launches=len(logs),
        rounds=harmonic_rounds(launches),
        squares=_squares(means),
        degrees=len(logs) - 1,
        within_squares=math.fsum(_squares(launch) for launch in logs),
        within_degrees=len(values) - len(logs),
        constant=constant,
        smallest_sigma=smallest_sigma,
        prior=prior,
    )


def log_mean(launches: Sequence[Sequence[float]]) -> float:
    """Return the log of the value that is judged: the geometric mean over launches of each launch's geometric mean.

    Raises ValueError for no launch, an empty one, or a value that is not a finite number above 0.
    """
    return statistics.fmean(statistics.fmean(launch) for launch in _logs(launches))


def harmonic_rounds(launches: Sequence[Sequence[float]]) -> float:
    """Return the harmonic mean of rounds a launch: what unequal launches are worth together."""
    counts = {len(launch) for launch in launches}
    if len(counts) == 1:
        return float(counts.pop())  # without the last digit that a sum can add
    return len(launches) / math.fsum(1 / len(launch) for launch in launches)


def _logs(launches: Sequence[Sequence[float]]) -> list[list[float]]:
    if not launches or any(not launch for launch in launches):
        raise ValueError("noise needs at least one launch, and at least one round in each")
    for launch in launches:
        for value in launch:
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"noise needs finite values above 0, got {value!r}")
    return [[math.log(value) for value in launch] for launch in launches]


def _squares(values: Sequence[float]) -> float:
    if min(values) == max(values):
        return 0.0  # without the last digit that a mean can lose
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values)
