from __future__ import annotations

import math

import pytest

from pytest_specdec import noise
from pytest_specdec.noise import PRIORS, Noise

TOK_S = PRIORS["tok/s"]
#: Launch means (logs) of 4.58, 4.60, 4.62, 4.64, 4.66: mean 4.62, sum of squares 0.004, variance 0.001.
LEVELS = (4.58, 4.60, 4.62, 4.64, 4.66)


def launch(level: float, spread: float = 0.01) -> list[float]:
    """Three rounds about a level (log): their sum of squares is 2 spread^2."""
    return [math.exp(level - spread), math.exp(level), math.exp(level + spread)]


def five(spread: float = 0.01) -> Noise:
    return noise.estimate([launch(level, spread) for level in LEVELS], prior=TOK_S, smallest_sigma=0.001)


def test_five_launches_speak_alone() -> None:
    known = five()

    assert known.mean == pytest.approx(4.62)
    assert (known.prior_df, known.df) == (0, 4)
    assert known.launch_sd == pytest.approx(math.sqrt(0.001))
    assert known.within == pytest.approx(0.01)  # 2 * 0.0001 a launch, 10 in all over 10 degrees
    assert known.between == pytest.approx(math.sqrt(0.001 - 0.0001 / 3))
    assert known.basis() == "noise from 5 recorded launches"


def test_the_between_component_is_never_negative() -> None:
    known = five(spread=0.2)

    assert known.within**2 / 3 > known.launch_sd**2
    assert known.between == 0


def test_one_launch_rests_on_the_prior() -> None:
    known = noise.estimate([launch(4.6)], prior=TOK_S, smallest_sigma=0.005)

    # sigma 2.7 %, half of its variance between launches, three rounds: 0.0003645 * (1 + 1/3).
    assert known.launch_sd == pytest.approx(math.sqrt(0.0003645 * 4 / 3))
    assert known.df == 4
    assert "1 recorded launch: too few to tell the noise, so 4 of 4 degrees of freedom are a prior" in known.basis()
    assert "(sigma 2.7%, 50% of its variance between launches)" in known.basis()


def test_the_prior_fills_up_what_three_launches_lack() -> None:
    known = noise.estimate([launch(level) for level in LEVELS[:3]], prior=TOK_S, smallest_sigma=0.005)

    # Means 4.58, 4.60, 4.62: a sum of squares of 0.0008 with 2 degrees, and 2 of the prior's 0.000486.
    assert known.launch_sd**2 == pytest.approx((2 * 0.000486 + 0.0008) / 4)


def test_a_prior_grows_with_rounds_that_are_noisier_than_it_expects() -> None:
    quiet = noise.estimate([launch(4.6, 0.001)], prior=TOK_S, smallest_sigma=0.005)
    loud = noise.estimate([launch(4.6, 0.1)], prior=TOK_S, smallest_sigma=0.005)

    assert quiet.launch_sd == pytest.approx(math.sqrt(0.0003645 * 4 / 3))
    # Two degrees of the rounds' 0.01, two of the prior's 0.0003645.
    assert loud.launch_sd == pytest.approx(math.sqrt((0.02 + 2 * 0.0003645) / 4 * 4 / 3))


def test_judged_launches_add_their_own_spread_and_not_their_level() -> None:
    pooled = five().with_judged([launch(4.0), launch(4.2)])

    assert pooled.df == 5
    assert pooled.launch_sd**2 == pytest.approx((0.004 + 0.02) / 5)
    assert pooled.mean == five().mean
    assert five().with_judged([launch(1.0)]).launch_sd == pytest.approx(five().launch_sd)


def test_more_rounds_make_a_launch_mean_steadier_by_the_within_part_only() -> None:
    known = five()
    between_square = 0.001 - 0.0001 / 3

    assert known.variance_ratio(3) == 1
    assert known.variance_ratio(30) == pytest.approx((between_square + 0.0001 / 30) / 0.001)


def test_the_difference_has_the_variances_of_both_means() -> None:
    assert five().difference_sd(3, 3) == pytest.approx(math.sqrt(0.001 * (1 / 5 + 1 / 3)))


def test_a_bound_is_students_t_times_the_difference() -> None:
    # t with 4 degrees of freedom exceeds 3.7469 with probability 1 %.
    assert five().half_width(0.01, 3, 3) == pytest.approx(3.74695 * math.sqrt(0.001 * (1 / 5 + 1 / 3)), rel=1e-5)


def test_a_metric_that_never_varies_has_the_smallest_sigma() -> None:
    known = noise.estimate([[3.1] * 5] * 5, prior=PRIORS["tok/step"], smallest_sigma=0.002)

    assert known.constant
    assert math.isinf(known.df)
    assert known.half_width(0.01, 3, 5) == pytest.approx(2.32635 * 0.002 * math.sqrt(1 / 5 + 1 / 3), rel=1e-5)
    assert known.basis() == "the values never varied; the smallest sigma, 0.2%, stands for their noise"


def test_constancy_ends_when_a_judged_round_differs_and_the_level_alone_does_not_end_it() -> None:
    known = noise.estimate([[3.1] * 5] * 2, prior=PRIORS["tok/step"], smallest_sigma=0.002)

    assert known.with_judged([[2.9] * 5]).constant
    varied = known.with_judged([[3.1, 3.1, 3.1, 3.1, 3.0]])
    assert not varied.constant
    assert varied.prior_df == 3


def test_one_computed_value_is_taken_as_constant_when_the_judged_ones_are() -> None:
    computed = noise.estimate([[3.9375]], prior=PRIORS["tok/step"], smallest_sigma=0.002)

    assert not computed.constant
    assert computed.with_judged([[3.9375] * 5]).constant
    assert not computed.with_judged([[3.9375]]).constant


def test_noise_that_is_measured_but_tiny_is_floored_by_the_smallest_sigma() -> None:
    known = noise.estimate([launch(4.6 + 1e-6 * i, 1e-6) for i in range(5)], prior=TOK_S, smallest_sigma=0.005)

    assert known.difference_sd(1, 3) == pytest.approx(0.005 * math.sqrt(1.2))


def test_unequal_launches_count_by_their_harmonic_mean() -> None:
    assert noise.harmonic_rounds([[1.0], [1.0] * 3]) == pytest.approx(1.5)


def test_the_value_that_is_judged_weighs_launches_alike() -> None:
    assert noise.log_mean([[math.e], [1.0, 1.0, 1.0]]) == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_values_without_a_logarithm_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="noise needs finite values above 0, got"):
        noise.estimate([[1.0, bad]], prior=TOK_S, smallest_sigma=0.005)


@pytest.mark.parametrize("launches", [[], [[]], [[1.0], []]])
def test_no_launch_or_no_round_is_refused(launches: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="noise needs at least one launch, and at least one round in each"):
        noise.estimate(launches, prior=TOK_S, smallest_sigma=0.005)


def test_every_unit_of_a_metric_has_a_prior() -> None:
    from pytest_specdec.metrics import METRICS  # noqa: PLC0415  # the table is what is tested

    assert {spec.unit for spec in METRICS.values()} <= set(PRIORS)


def test_a_value_that_stood_still_is_not_taken_for_as_noisy_as_its_kind_when_a_judged_round_differs() -> None:
    """One flipped token in one round of three: the smallest sigma takes the prior's place, four degrees strong."""
    known = noise.estimate([[4.0] * 5] * 5, prior=PRIORS["tok/step"], smallest_sigma=0.002)

    judged = known.with_judged([[4.0, 4.0, 4.0], [4.0, 4.0, 3.98]])

    assert not judged.constant
    apart = math.log(4.0 / 3.98) / 3  # of the two launch means
    assert judged.df == 5  # four of the recorded launches, which all said 0, and one of the judged
    assert judged.launch_sd == pytest.approx(math.sqrt(apart**2 / 2 / 5))
    few = noise.estimate([[4.0] * 5], prior=PRIORS["tok/step"], smallest_sigma=0.002)
    assert few.with_judged([[4.0, 3.98]]).launch_sd == pytest.approx(0.002)
