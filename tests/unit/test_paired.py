from __future__ import annotations

import math
import random

import pytest

from pytest_specdec import noise
from pytest_specdec.noise import PRIORS
from pytest_specdec.paired import Block, PairedRatio, paired_ratio

TOK_S = PRIORS["tok/s"]


def block(a1: float, b1: float, b2: float, a2: float) -> Block:
    return Block(
        control_first=[math.exp(a1)],
        treatment_first=[math.exp(b1)],
        treatment_second=[math.exp(b2)],
        control_second=[math.exp(a2)],
    )


def ratio(*blocks: Block, **more: object) -> PairedRatio:
    return paired_ratio(blocks, "higher", prior=TOK_S, smallest_sigma=0.001, **more)  # type: ignore[arg-type]


def test_the_ratio_and_its_interval_by_hand() -> None:
    found = ratio(block(0.00, 0.31, 0.29, 0.02), block(0.01, 0.30, 0.32, -0.01))

    # Blocks 0.30 - 0.01 and 0.31 - 0; legs differ by 0.02 four times: 4 x 0.0004 / 2 over 4 degrees, and no prior.
    assert found.df == 4
    assert found.launch_sd == pytest.approx(math.sqrt(0.0002))
    width = 2.77645 * math.sqrt(0.0002 / 2)
    assert math.log(found.ratio) == pytest.approx(0.30)
    assert math.log(found.low) == pytest.approx(0.30 - width, rel=1e-5)
    assert math.log(found.high) == pytest.approx(0.30 + width, rel=1e-5)
    assert found.conclusive


def test_one_block_is_completed_by_the_prior() -> None:
    found = ratio(block(0.00, 0.31, 0.29, 0.02))

    # Two degrees of its own, two of the prior: one round a launch has the whole 2.7 %.
    assert found.df == 4
    assert found.launch_sd == pytest.approx(math.sqrt((2 * 0.027**2 + 0.0004) / 4))


def test_a_steady_drift_does_not_shift_the_ratio() -> None:
    drift = 0.01

    found = ratio(block(0, 0.3 + drift, 0.3 + 2 * drift, 3 * drift))

    assert math.log(found.ratio) == pytest.approx(0.3)


def test_above_one_is_better_whichever_way_the_metric_runs() -> None:
    faster = block(0.0, -0.2, -0.2, 0.0)

    found = paired_ratio([faster], "lower", prior=PRIORS["ms"], smallest_sigma=0.001)

    assert math.log(found.ratio) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("legs", "name"), [(block(0, 0.3, 0.3, 0.5), "control"), (block(0, 0.1, 0.4, 0.0), "treatment")]
)
def test_launches_of_one_spec_that_disagree_make_it_inconclusive(legs: Block, name: str) -> None:
    found = ratio(legs)

    assert not found.conclusive
    assert found.reason.startswith(f"two {name} launches of a block differ by ")


def test_a_baseline_s_noise_narrows_the_interval_and_judges_the_legs() -> None:
    quiet = noise.estimate([[math.exp(4 + 0.001 * i)] for i in range(20)], prior=TOK_S, smallest_sigma=0.001)
    legs = block(0.00, 0.301, 0.299, 0.002)

    assert ratio(legs, noise=quiet).high - ratio(legs, noise=quiet).low < ratio(legs).high - ratio(legs).low
    assert ratio(legs, noise=quiet).conclusive
    assert not ratio(block(0.0, 0.3, 0.3, 0.05), noise=quiet).conclusive


def test_legs_that_never_vary_have_the_smallest_sigma() -> None:
    found = ratio(block(0.0, 0.3, 0.3, 0.0))

    assert math.log(found.high / found.ratio) == pytest.approx(1.95996 * 0.001, rel=1e-4)


def test_the_interval_covers_the_ratio_as_often_as_it_says() -> None:
    random_, count, covered = random.Random(7), 2000, 0  # a seed makes this repeat
    for _ in range(count):
        blocks = [block(*(level + random_.gauss(0, 0.03) for level in (0.0, 0.3, 0.3, 0.0))) for _ in range(2)]
        found = ratio(*blocks)
        covered += found.low <= math.exp(0.3) <= found.high

    assert covered / count == pytest.approx(0.95, abs=3 * math.sqrt(0.95 * 0.05 / count))


def test_no_block_and_no_confidence_are_refused() -> None:
    with pytest.raises(ValueError, match="a ratio needs at least one block of four launches"):
        ratio()
    with pytest.raises(ValueError, match="confidence lies between 0 and 1, got 95"):
        ratio(block(0, 0, 0, 0), confidence=95)
