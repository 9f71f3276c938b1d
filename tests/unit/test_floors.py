from __future__ import annotations

import dataclasses
import math

import pytest

from pytest_specdec import floors, noise
from pytest_specdec.model import Direction
from pytest_specdec.noise import PRIORS
from pytest_specdec.quantiles import t_below

TOK_S = PRIORS["tok/s"]
BASELINE = noise.estimate(
    [[100 * math.exp(step)] * 3 for step in (-0.02, -0.01, 0.0, 0.01, 0.02)], prior=TOK_S, smallest_sigma=0.005
)


def test_the_standard_error_is_that_of_the_judged_launches() -> None:
    judged = [[95.0] * 3, [95.0] * 3]

    standing = floors.floor_standing(93.0, judged, "higher", noise=BASELINE, prior=TOK_S, smallest_sigma=0.005)

    assert standing is not None
    # The sum of squares stays 0.001; with the judged launches it has 5 degrees of freedom.
    error = math.sqrt(0.001 / 5) / math.sqrt(2)
    assert standing.standard_errors == pytest.approx(math.log(95 / 93) / error)
    assert (standing.broken, standing.close) == (False, False)


def test_a_ceiling_is_a_floor_for_what_should_be_low() -> None:
    standing = floors.floor_standing(50.0, [[60.0] * 3], "lower", noise=None, prior=PRIORS["ms"], smallest_sigma=0.005)

    assert standing is not None
    assert standing.broken
    assert standing.text.startswith("60 is above its ceiling 50, by ")


def test_there_is_no_standing_without_a_floor() -> None:
    assert floors.floor_standing(None, [[1.0]], "higher", noise=None, prior=TOK_S, smallest_sigma=0.005) is None


def test_the_risk_of_one_launch_is_students_t_of_the_room() -> None:
    risk = floors.floor_risk(BASELINE, 95.0, "higher", rounds=3, max_launches=1)

    assert risk == pytest.approx(t_below(math.log(95 / 100) / (BASELINE.launch_sd * math.sqrt(1.2)), 4))


def test_a_floor_at_the_mean_is_failed_half_of_the_time_or_a_little_more() -> None:
    assert 0.5 <= floors.floor_risk(BASELINE, 100.0, "higher", rounds=3, max_launches=3) < 0.7


@pytest.mark.parametrize("direction", ["higher", "lower"])
def test_the_safe_floor_is_the_one_with_that_risk(direction: Direction) -> None:
    floor = floors.safe_floor(BASELINE, direction, rounds=3, max_launches=3)

    assert (floor < 100) is (direction == "higher")
    assert floors.floor_risk(BASELINE, floor, direction, rounds=3, max_launches=3) == pytest.approx(0.01, rel=1e-6)


def test_a_noisier_baseline_has_a_lower_safe_floor() -> None:
    noisier = dataclasses.replace(BASELINE, squares=4 * BASELINE.squares)

    assert floors.safe_floor(noisier, "higher", rounds=3, max_launches=3) < floors.safe_floor(
        BASELINE, "higher", rounds=3, max_launches=3
    )


@pytest.mark.parametrize(
    ("value", "limit", "said"),
    [
        (88.2, 89.5, "88.2"),
        (89.4996, 89.5, "89.4996"),
        (89.50000000000001, 89.5, "89.50000000000001"),
        (89.5, 89.5, "89.5"),
        (300.04, 300.0, "300.04"),
        (12345.0, 12344.0, "12345"),
    ],
)
def test_a_value_is_written_with_as_many_digits_as_tell_it_from_its_limit(
    value: float, limit: float, said: str
) -> None:
    assert floors.apart(value, limit) == said
