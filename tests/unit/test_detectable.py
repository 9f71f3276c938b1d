from __future__ import annotations

import dataclasses
import math

import pytest

from pytest_specdec import detectable
from pytest_specdec.detectable import Rule
from pytest_specdec.noise import PRIORS, Noise


def known(launches: int = 5, sigma: float = 0.027, rounds: int = 5) -> Noise:
    """A baseline that has estimated sigma, half of its variance between launches, exactly."""
    square = sigma**2 / 2
    return Noise(
        mean=math.log(90),
        launches=launches,
        rounds=rounds,
        squares=square * (1 + 1 / rounds) * (launches - 1),
        degrees=launches - 1,
        within_squares=square * (rounds - 1) * launches,
        within_degrees=(rounds - 1) * launches,
        constant=False,
        smallest_sigma=0.005,
        prior=PRIORS["tok/s"],
    )


def seen(noise: Noise, rule: Rule = Rule(), rounds: float = 5, tolerance: float = 0.0) -> float:  # noqa: B008
    return detectable.detectable_change(noise, rule, rounds=rounds, tolerance=tolerance)


def test_with_the_noise_all_but_known_and_one_look_it_is_what_paper_says() -> None:
    """5.9 % with as good as known noise: (2.326 + 1.645) x 0.0209 x sqrt(1/5 + 1/3), one look, a full budget."""
    noise = dataclasses.replace(known(), squares=known().launch_sd ** 2 * 100_000, degrees=100_000)
    level = 0.01

    loss = detectable.power_factor(noise.df, 2, level, 0.95) * noise.launch_sd * noise.scale(3, 5)

    assert detectable.as_fraction(loss, "higher") == pytest.approx(0.0589, abs=2e-4)


def test_an_estimated_noise_costs_more_than_a_known_one() -> None:
    assert seen(known()) > seen(dataclasses.replace(known(), degrees=1000, squares=known().launch_sd ** 2 * 1000))


def test_more_launches_and_more_rounds_see_less() -> None:
    by_recorded = [seen(known(launches)) for launches in (5, 7, 10, 20)]
    by_judged = [seen(known(), Rule(max_launches=judged)) for judged in (1, 2, 3)]
    by_rounds = [seen(known(), rounds=rounds) for rounds in (1, 3, 5, 10)]

    for losses in (by_recorded, by_judged, by_rounds):
        assert losses == sorted(losses, reverse=True)


def test_a_smaller_share_of_the_budget_sees_less_well() -> None:
    assert seen(known(), Rule(error=0.001)) > seen(known(), Rule(error=0.01))


def test_the_tolerance_comes_before_what_is_seen() -> None:
    quiet = known(launches=20, sigma=0.001)

    # The smallest sigma, 0.5 %, rules: 0.02 + 1.645 x 0.005 x sqrt(1/20 + 1/3).
    assert seen(quiet, tolerance=0.02) == pytest.approx(0.02 + 1.64485 * 0.005 * math.sqrt(1 / 20 + 1 / 3), rel=1e-4)


def test_fractions_and_losses_are_each_other_in_both_directions() -> None:
    assert detectable.as_loss(0.5, "higher") == pytest.approx(math.log(2))
    assert detectable.as_loss(1.0, "lower") == pytest.approx(math.log(2))
    for direction in ("higher", "lower"):
        assert detectable.as_fraction(detectable.as_loss(0.03, direction), direction) == pytest.approx(0.03)


def test_launches_needed_is_the_least_that_sees_it() -> None:
    noise, rule = known(), Rule()
    needed = detectable.launches_needed(noise, rule, rounds=5, tolerance=0.0, loss=detectable.as_loss(0.03, "higher"))
    assert needed is not None

    # (2.33 + 1.64) x 0.0209 x sqrt(2/n) = 0.0305 at n = 15 with known noise; estimating it, and looking often, cost.
    assert 15 < needed <= 25
    for launches, expected in ((needed, True), (needed - 1, False)):
        at = seen(known(launches), Rule(max_launches=launches))
        assert (at <= detectable.as_loss(0.03, "higher")) is expected


def test_the_sentence_says_what_is_caught_and_what_three_percent_takes() -> None:
    said = detectable.sentence(known(), Rule(), rounds=5, tolerance=0.02, direction="higher")

    percent = detectable.as_fraction(seen(known(), tolerance=-math.log1p(-0.02)), "higher")
    assert said.startswith(f"with this baseline and up to 3 launches a {percent:.1%} loss is caught 95% of the time; ")
    assert said.endswith(" judged launches, or a quieter node")


def test_the_sentence_ends_early_when_all_is_well_or_nothing_helps() -> None:
    quiet, loud = known(sigma=0.002), known(sigma=0.3)

    assert ";" not in detectable.sentence(quiet, Rule(), rounds=5, tolerance=0.01, direction="higher")
    assert "increase" in detectable.sentence(quiet, Rule(), rounds=5, tolerance=0.01, direction="lower")
    assert detectable.sentence(loud, Rule(max_launches=1), rounds=5, tolerance=0.02, direction="higher").endswith(
        "3% needs a quieter node: 128 launches of this one don't show it"
    )
    assert detectable.sentence(known(), Rule(), rounds=5, tolerance=0.05, direction="higher").endswith(
        "3% is within the tolerance of 5%"
    )


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"error": 0.0}, "error lies between 0 and 0.5, got 0.0"),
        ({"pass_error": 1.0}, "pass_error lies between 0 and 0.5, got 1.0"),
        ({"power": 0.5}, "power lies between 0.5 and 1, got 0.5"),
        ({"max_launches": 0}, "max_launches is at least 1, got 0"),
    ],
)
def test_a_rule_that_promises_nonsense_is_refused(rule: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rule(**rule)  # type: ignore[arg-type]
