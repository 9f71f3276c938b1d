from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

import pytest

from pytest_specdec import noise
from pytest_specdec.decide import Decision, Gate, decide, decide_all
from pytest_specdec.detectable import Rule, as_loss
from pytest_specdec.model import Direction, Verdict
from pytest_specdec.noise import PRIORS

RULE = Rule()
#: Five launches whose means differ by 1 % steps: a launch sd of 1.58 %.
BASELINE = [[100 * math.exp(step)] * 3 for step in (-0.02, -0.01, 0.0, 0.01, 0.02)]
#: Rounds that vary a little, so that a launch is not constant.
ROUNDS = (0.999, 1.0, 1.001)


def gate(
    launches: Sequence[Sequence[float]] = BASELINE,
    *,
    direction: Direction = "higher",
    tolerance: float = 0.02,
    floor: float | None = None,
) -> Gate:
    prior = PRIORS["tok/s" if direction == "higher" else "ms"]
    return Gate(
        direction=direction,
        tolerance=tolerance,
        noise=noise.estimate(launches, prior=prior, smallest_sigma=0.005) if launches else None,
        prior=prior,
        smallest_sigma=0.005,
        floor=floor,
    )


def accept_gate(launches: Sequence[Sequence[float]], tolerance: float = 0.01) -> Gate:
    prior = PRIORS["tok/step"]
    return Gate(
        direction="higher",
        tolerance=tolerance,
        noise=noise.estimate(launches, prior=prior, smallest_sigma=0.002),
        prior=prior,
        smallest_sigma=0.002,
        counts_accepted=True,
    )


def launch(value: float) -> list[float]:
    return [value * factor for factor in ROUNDS]


def apart(value: float, launches: int) -> list[list[float]]:
    """Return launches that differ as the baseline's do."""
    return [launch(value * math.exp(step)) for step in (0.0, 0.02, -0.02)][:launches]


def first_decided(gate: Gate, value: float, launches: int = 3) -> Decision:
    """Judge launches about a value one by one until something is decided."""
    for k in range(1, launches + 1):
        decision = decide(gate, apart(value, k), RULE)
        if decision.verdict is not None:
            return decision
        assert 1 <= decision.more <= launches - k
    raise AssertionError("the last look decides")


def test_the_same_value_passes_at_the_first_look() -> None:
    ten = [[100 * math.exp(0.01 * math.sin(i))] * 3 for i in range(10)]

    decision = decide(gate(ten), [launch(math.exp(noise.log_mean(ten)))], RULE)

    assert decision.verdict is Verdict.PASS
    assert (decision.launches, decision.more) == (1, 0)
    assert decision.loss == pytest.approx(0, abs=1e-5)
    assert decision.low is not None
    assert decision.high is not None
    assert decision.margin is not None
    assert decision.low < 0 < decision.high < decision.margin


def test_a_big_loss_is_a_regression_with_its_size_and_least() -> None:
    decision = first_decided(gate(), 70)

    assert decision.verdict is Verdict.REGRESSION
    assert decision.reason.startswith("worse by 30.0%, at least ")


def test_the_bounds_are_students_t_at_the_look_s_level() -> None:
    decision = decide(gate(), [launch(95)], RULE)
    noise_ = gate().noise
    assert noise_ is not None
    assert decision.loss is not None
    assert decision.low is not None

    level = RULE.alarm_levels(5, 3)[0]
    assert decision.loss == pytest.approx(-math.log(0.95), abs=1e-6)
    width = noise_.with_judged([launch(95)]).half_width(level, 1, 3)
    assert decision.loss - decision.low == pytest.approx(width)


def test_a_close_answer_asks_for_another_launch_and_ends_inconclusive() -> None:
    margin = decide(gate(), [launch(100)], RULE).margin
    assert margin is not None
    close = 100 * math.exp(-0.45 * margin)

    looks = [decide(gate(), apart(close, k), RULE).verdict for k in (1, 2)]
    assert looks == [None, None]
    assert decide(gate(), apart(close, 3), RULE).verdict is Verdict.INCONCLUSIVE
    undecided = decide(gate(), [launch(close)], RULE)
    assert "not surely; a loss could be" in undecided.reason


def test_what_is_surely_worse_but_within_the_tolerance_is_no_regression() -> None:
    quiet = [[100.0 + 0.01 * i] * 3 for i in range(20)]

    decision = first_decided(gate(quiet, tolerance=0.05), 97)

    assert decision.verdict is Verdict.PASS
    assert decision.low is not None
    assert decision.low > 0


def test_nothing_gets_better_by_a_larger_loss() -> None:
    """From pass over inconclusive to regression, never back."""
    order = [Verdict.IMPROVEMENT, Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.REGRESSION]
    met = [first_decided(gate(), 120 * 0.998**i).verdict for i in range(200)]

    ranks = [order.index(verdict) for verdict in met if verdict is not None]
    assert ranks == sorted(ranks)
    assert set(met) == set(order)


@pytest.mark.parametrize("factor", [0.7, 0.93, 0.97, 1.0, 1.05, 1.3])
def test_directions_mirror_each_other(factor: float) -> None:
    prior = PRIORS["tok/s"]
    higher = gate()
    flipped = [[1 / value for value in rounds] for rounds in BASELINE]
    lower = dataclasses.replace(
        gate(flipped, direction="lower"),
        noise=noise.estimate(flipped, prior=prior, smallest_sigma=0.005),
        tolerance=math.expm1(as_loss(0.02, "higher")),
    )
    value = launch(100 * factor)

    one, other = decide(higher, [value], RULE), decide(lower, [[1 / x for x in value]], RULE)

    assert one.verdict == other.verdict
    assert one.loss == pytest.approx(other.loss)
    assert one.low == pytest.approx(other.low)
    assert one.high == pytest.approx(other.high)


def test_better_is_an_improvement_and_far_better_means_a_stale_baseline() -> None:
    twenty = gate([[100 * math.exp(0.01 * math.sin(i))] * 3 for i in range(20)])
    better, far = decide(twenty, [launch(104)], RULE), decide(gate(), [launch(250)], RULE)

    assert better.verdict is Verdict.IMPROVEMENT
    assert not better.stale
    assert far.verdict is Verdict.IMPROVEMENT
    assert far.stale
    assert far.reason.startswith("better by 150.0%, so much that the baseline is stale")


@pytest.mark.parametrize(
    ("judged", "reason"),
    [
        ([], "it was not measured"),
        ([[]], "launch 1 has no value"),
        ([[1.0], [1.0, math.nan]], "round 2 of launch 2 is nan"),
        ([[math.inf]], "round 1 of launch 1 is inf"),
        ([[0.0]], "round 1 of launch 1 is 0"),
    ],
)
def test_what_is_no_measurement_is_invalid(judged: list[list[float]], reason: str) -> None:
    decision = decide(gate(), judged, RULE)

    assert decision.verdict is Verdict.INVALID
    assert decision.reason == reason


def test_a_gate_that_holds_to_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="a gate has a baseline with samples, or a floor, or both"):
        decide(gate([]), [launch(100)], RULE)


def test_greedy_acceptance_is_held_to_the_smallest_sigma() -> None:
    greedy = accept_gate([[3.1] * 5] * 5)

    assert decide(greedy, [[3.1] * 5], RULE).verdict is Verdict.PASS
    assert decide(greedy, [[3.0] * 5], RULE).verdict is Verdict.REGRESSION


def test_near_one_no_more_than_half_of_what_was_accepted_is_within_the_tolerance() -> None:
    assert accept_gate([[3.0] * 5] * 5).allowed_loss() == pytest.approx(-math.log(0.99))
    assert accept_gate([[1.01] * 5] * 5).allowed_loss() == pytest.approx(math.log(1.01 / 1.005))
    assert accept_gate([[1.0] * 5] * 5).allowed_loss() == 0


def test_what_is_allowed_is_told_as_a_fraction_too() -> None:
    assert gate(tolerance=0.02).allowed_fraction() == pytest.approx(0.02)
    assert gate(tolerance=0.05, direction="lower").allowed_fraction() == pytest.approx(0.05)
    assert accept_gate([[1.01] * 5] * 5).allowed_fraction() == pytest.approx(0.005 / 1.01)


def test_nothing_accepted_any_more_is_a_regression_however_small_the_step() -> None:
    barely = accept_gate([[1.002] * 5] * 5)

    decision = decide(barely, [[1.0] * 5], RULE)

    assert decision.verdict is Verdict.REGRESSION
    assert decision.reason == "nothing is accepted any more: the accept length is 1.0"
    assert decide(accept_gate([[1.0] * 5] * 5), [[1.0] * 5], RULE).verdict is Verdict.PASS


def test_a_floor_that_is_close_spends_the_whole_budget_and_is_then_literal() -> None:
    held = gate(floor=99.0)

    assert [decide(held, [launch(99.5)] * k, RULE).verdict for k in (1, 2)] == [None, None]
    assert decide(held, [launch(99.5)], RULE).more == 2
    kept, broken = decide(held, [launch(99.5)] * 3, RULE), decide(held, [launch(98.999)] * 3, RULE)
    assert kept.verdict is Verdict.PASS
    assert broken.verdict is Verdict.REGRESSION
    assert broken.reason.startswith("98.999 is below its floor 99, by ")


def test_a_floor_that_is_far_broken_needs_no_second_launch() -> None:
    assert decide(gate(floor=99.0), [launch(85)], RULE).verdict is Verdict.REGRESSION


def test_a_floor_without_samples_is_judged_alone() -> None:
    held = gate([], floor=89.5)

    assert decide(held, [launch(100)], RULE).verdict is Verdict.PASS
    assert decide(held, [launch(89.6)], RULE).verdict is None
    assert decide(held, [launch(89.6)] * 3, RULE).verdict is Verdict.PASS
    assert decide(held, [launch(89.4)] * 3, RULE).verdict is Verdict.REGRESSION


def test_a_value_equal_to_its_floor_keeps_it() -> None:
    assert decide(gate([], floor=89.5), [[89.5] * 5] * 3, RULE).verdict is Verdict.PASS


def test_holm_gives_the_rest_what_a_called_metric_leaves() -> None:
    bad, middling = (gate(), [launch(60)] * 3), (gate(), [launch(96.56)] * 3)
    alone = decide_all([middling], RULE, metrics=2)[0]
    together = decide_all([bad, middling], RULE)

    assert together[0].verdict is Verdict.REGRESSION
    assert alone.low is not None
    assert together[1].low is not None
    assert together[1].low > alone.low
    assert together[1].margin == alone.margin
    assert decide_all([middling], RULE, metrics=2, called=1)[0].low == together[1].low


def test_a_floor_gives_the_others_no_more_room() -> None:
    floored = (gate([], floor=99.0), [launch(60)] * 3)
    middling = (gate(), [launch(96.56)] * 3)

    together = decide_all([floored, middling], RULE)

    assert together[0].verdict is Verdict.REGRESSION
    assert together[1].low == decide_all([middling], RULE, metrics=2)[0].low


def test_more_metrics_than_the_session_has_are_refused() -> None:
    with pytest.raises(ValueError, match="1 metrics to judge and 1 called are more than the 1 of the session"):
        decide_all([(gate(), [launch(100)])], RULE, metrics=1, called=1)
    assert decide_all([], RULE) == []


def draw(random_: random.Random, launches: int, sigma: float = 0.027) -> list[list[float]]:
    """Draw launches of three rounds, half of the variance between launches."""
    part = sigma * math.sqrt(0.5)
    levels = [random_.gauss(0, part) for _ in range(launches)]
    return [[100 * math.exp(level + random_.gauss(0, part)) for _ in range(3)] for level in levels]


def test_unchanged_code_is_called_a_regression_once_in_a_hundred_times() -> None:
    random_, count, alarms = random.Random(5), 3000, 0  # a seed makes this repeat
    for _ in range(count):
        against, judged = gate(draw(random_, 5)), draw(random_, 3)
        for k in (1, 2, 3):
            verdict = decide(against, judged[:k], RULE).verdict
            if verdict is not None:
                alarms += verdict is Verdict.REGRESSION
                break

    # 30 are expected at 1 %; a rule that errs 2 % of the time would give 60, beyond this bound.
    assert alarms <= count * 0.01 + 3 * math.sqrt(count * 0.01 * 0.99)
