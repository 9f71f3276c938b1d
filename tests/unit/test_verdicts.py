"""Decisions over looks, and a session's budget. How bounds are worked out is told in tests/fakes/judged.py."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from pytest_specdec import verdicts
from pytest_specdec.baseline import Baseline, MetricBaseline, gate_of, to_document
from pytest_specdec.decide import Decision, decide_all
from pytest_specdec.detectable import Rule
from pytest_specdec.model import RoundsByLaunch, Verdict
from pytest_specdec.verdicts import Budget
from tests.fakes.judged import IDENTITY, MISSED, PASSING, PROVENANCE, alarm, five, half_width, metric

SPEED, ACCEPT = "decode_tok_s", "accept_length"
BASELINES = {SPEED: five(SPEED, 100.0), ACCEPT: five(ACCEPT, 2.5)}
#: A loss of 1.9 % is surely one, within the tolerance of 2 %, and too much to pass: open at each of three looks.
OPEN = (98.1,)


def decided(
    budget: Budget,
    *,
    baselines: dict[str, MetricBaseline] | None = None,
    gated: str | None = None,
    **measured: RoundsByLaunch,
) -> dict[str, Decision]:
    """Decide on these metrics; all of them gate unless some are named."""
    against = BASELINES if baselines is None else baselines
    wanted = set(against) if gated is None else set(gated.split())
    return verdicts.decisions(measured, against, gated=wanted, budget=budget)


def test_what_is_decided_is_not_judged_again_when_another_metric_asks_for_more() -> None:
    at_first = decided(Budget(metrics=2), decode_tok_s=(OPEN,), accept_length=((2.5,),))
    later = decided(Budget(metrics=2), decode_tok_s=(OPEN, OPEN), accept_length=((2.5,), (1.0,)))

    assert at_first[SPEED].verdict is None
    assert at_first[ACCEPT].verdict is Verdict.PASS
    assert later[ACCEPT] == at_first[ACCEPT]


def test_a_regression_at_the_first_look_stays() -> None:
    found = decided(Budget(metrics=2), decode_tok_s=((80.0,), (120.0,), (120.0,)), accept_length=3 * ((2.5,),))

    assert (found[SPEED].verdict, found[SPEED].launches) == (Verdict.REGRESSION, 1)


def test_nothing_is_looked_at_before_the_launches_that_were_planned() -> None:
    later = decided(Budget(metrics=2, first_look=2), decode_tok_s=((80.0,), (120.0,)), accept_length=2 * ((2.5,),))

    assert (later[SPEED].launches, later[ACCEPT].launches) == (2, 2)
    assert later[SPEED].loss == pytest.approx(-math.log(80 * 120 / 100**2) / 2)


def test_fewer_launches_than_planned_are_judged_as_they_are() -> None:
    found = decided(Budget(metrics=2, first_look=5, max_launches=5), decode_tok_s=((50.0,),), accept_length=((2.5,),))

    assert (found[SPEED].verdict, found[SPEED].launches) == (Verdict.REGRESSION, 1)


@pytest.mark.parametrize(
    ("launches", "most", "verdict"),
    [
        (1, 3, None),
        (2, 3, None),
        (3, 3, Verdict.INCONCLUSIVE),
        (2, 2, Verdict.INCONCLUSIVE),
        (1, 1, Verdict.INCONCLUSIVE),
        (3, 4, None),
    ],
)
def test_an_answer_is_inconclusive_only_when_all_launches_are_spent(
    launches: int, most: int, verdict: Verdict | None
) -> None:
    found = decided(Budget(max_launches=most), baselines={SPEED: BASELINES[SPEED]}, decode_tok_s=launches * (OPEN,))[
        SPEED
    ]

    assert found.verdict is verdict
    assert 0 <= found.more <= most - launches
    assert (found.more == 0) is (verdict is not None)


def test_what_a_session_gates_shares_its_false_alarms() -> None:
    for gates in (1, 2, 10):
        found = decided(
            Budget(metrics=gates, max_launches=1),
            baselines={SPEED: BASELINES[SPEED]},
            decode_tok_s=((97.0,),),
        )[SPEED]
        assert found.low == pytest.approx(-math.log(0.97) - half_width(alarm(gates)))
        assert found.high == pytest.approx(-math.log(0.97) + half_width(PASSING))


def test_more_metrics_than_were_counted_share_by_their_own_number() -> None:
    found = decided(Budget(metrics=1, max_launches=1), decode_tok_s=((99.0,),), accept_length=((2.5,),))

    assert found[SPEED].low == pytest.approx(-math.log(0.99) - half_width(alarm(2)))


def test_a_floor_without_samples_takes_no_share_of_the_false_alarms() -> None:
    baselines = {SPEED: metric(SPEED, floor=50.0), ACCEPT: five(ACCEPT, 2.5)}

    found = decided(
        Budget(metrics=1, max_launches=1), baselines=baselines, decode_tok_s=((100.0,),), accept_length=((2.49,),)
    )

    assert found[SPEED].verdict is Verdict.PASS
    assert found[ACCEPT].low == pytest.approx(math.log(2.5 / 2.49) - half_width(alarm(1), 0.002))


def test_a_floor_without_samples_is_held_to_by_all_launches_there_are() -> None:
    """At first it is far from broken; with the launches that another metric asked for it is broken by far."""
    baselines = {SPEED: metric(SPEED, floor=80.0), ACCEPT: five(ACCEPT, 2.5)}

    found = decided(
        Budget(), baselines=baselines, decode_tok_s=((100.0,), (50.0,), (50.0,)), accept_length=3 * ((2.5,),)
    )

    assert (found[SPEED].verdict, found[SPEED].launches) == (Verdict.REGRESSION, 3)


def test_what_other_measurements_have_called_leaves_more_for_the_rest() -> None:
    found = decided(
        Budget(metrics=10, called=4, max_launches=1), baselines={SPEED: BASELINES[SPEED]}, decode_tok_s=((99.0,),)
    )[SPEED]

    assert found.low == pytest.approx(-math.log(0.99) - half_width(alarm(6)))


def test_a_call_leaves_more_for_the_other_metrics_and_promises_no_more_than_before() -> None:
    baselines = {SPEED: BASELINES[SPEED], ACCEPT: five(ACCEPT, 2.5, tolerance=0.0)}

    found = decided(
        Budget(metrics=2, max_launches=1), baselines=baselines, decode_tok_s=((80.0,),), accept_length=((2.49,),)
    )

    assert found[SPEED].verdict is Verdict.REGRESSION
    assert found[ACCEPT].low == pytest.approx(math.log(2.5 / 2.49) - half_width(alarm(1), 0.002))
    assert found[ACCEPT].margin == pytest.approx(half_width(alarm(2), 0.002) + half_width(MISSED, 0.002))


def test_a_call_at_an_earlier_look_leaves_more_for_the_later_ones() -> None:
    budget = Budget(metrics=2)
    found = decided(budget, decode_tok_s=(OPEN, OPEN), accept_length=((2.0,), (2.0,)))
    gate = gate_of(SPEED, BASELINES[SPEED])
    assert gate is not None

    assert (found[ACCEPT].verdict, found[ACCEPT].launches) == (Verdict.REGRESSION, 1)
    assert found[SPEED] == decide_all([(gate, (OPEN, OPEN))], Rule(max_launches=3), metrics=2, called=1)[0]
    assert found[SPEED] != decide_all([(gate, (OPEN, OPEN))], Rule(max_launches=3), metrics=2)[0]


@pytest.mark.parametrize("launches", [1, 2])
def test_an_advisory_metric_is_judged_once_by_what_there_is_with_an_error_of_its_own(launches: int) -> None:
    budget = Budget(metrics=10, called=3)

    speed = decided(budget, gated=ACCEPT, decode_tok_s=launches * ((97.0,),), accept_length=launches * ((2.5,),))[SPEED]

    # The last look of a plan that long; of one look that is nine tenths of 1 %.
    level = Rule(max_launches=launches).alarm_levels(5, launches)[-1]
    assert launches > 1 or level == pytest.approx(alarm(1))
    assert speed.launches == launches
    assert speed.low == pytest.approx(-math.log(0.97) - half_width(level, judged=launches))
    assert speed.verdict is Verdict.REGRESSION


def test_an_advisory_metric_is_never_left_open() -> None:
    for launches in (1, 2, 3):
        speed = decided(Budget(), gated="", decode_tok_s=launches * (OPEN,), accept_length=launches * ((2.5,),))[SPEED]
        assert (speed.verdict, speed.launches, speed.more) == (Verdict.INCONCLUSIVE, launches, 0)


@pytest.mark.parametrize("gated", ["decode_tok_s", ""])
@pytest.mark.parametrize("samples", [True, False])
def test_what_is_close_to_its_floor_asks_for_all_launches_whether_or_not_it_gates(gated: str, samples: bool) -> None:
    """Two standard errors of one launch are 1 % with samples; without, the prior's noise makes them more."""
    held = {SPEED: five(SPEED, 100.0, floor=99.5) if samples else metric(SPEED, floor=99.5)}

    at_first = decided(Budget(), baselines=held, gated=gated, decode_tok_s=((100.0,),))[SPEED]
    at_last = decided(Budget(), baselines=held, gated=gated, decode_tok_s=3 * ((100.0,),))[SPEED]
    below = decided(Budget(), baselines=held, gated=gated, decode_tok_s=3 * ((99.4,),))[SPEED]

    assert (at_first.verdict, at_first.more) == (None, 2)
    assert (at_last.verdict, at_last.launches) == (Verdict.PASS, 3)
    assert below.verdict is Verdict.REGRESSION


def test_a_launch_without_a_usable_value_undoes_what_was_decided() -> None:
    before = decided(Budget(metrics=2), decode_tok_s=(OPEN,), accept_length=((2.5,),))
    after = decided(Budget(metrics=2), decode_tok_s=(OPEN, OPEN), accept_length=((2.5,), (math.nan,)))

    assert before[ACCEPT].verdict is Verdict.PASS
    assert set(after) == {SPEED}


def test_there_is_nothing_to_decide_without_samples_a_floor_or_a_value() -> None:
    assert decided(Budget(), baselines={SPEED: metric(SPEED)}, decode_tok_s=((100.0,),)) == {}
    assert decided(Budget()) == {}
    assert decided(Budget(), baselines={}, decode_tok_s=((100.0,),)) == {}
    assert gate_of(SPEED, metric(SPEED)) is None


@pytest.mark.parametrize(
    ("name", "counts"), [("accept_length", True), ("accept_length_sglang", True), ("decode_tok_s", False)]
)
def test_of_an_accept_length_one_means_that_nothing_was_accepted(name: str, counts: bool) -> None:
    gate = gate_of(name, five(name, 1.01))

    assert gate is not None
    assert gate.counts_accepted is counts


def sees(name: str, baseline: MetricBaseline, budget: Budget) -> str | None:
    return verdicts.what_it_sees(name, baseline, rounds=1, budget=budget)


def test_what_a_baseline_sees_is_said_with_what_it_rests_on() -> None:
    # The tolerance of 2 % in front of what one in twenty misses of 0.5 % noise: 0.0202 + 1.645 x 0.00365.
    seen = 1 - 0.98 * math.exp(-half_width(MISSED, judged=3))

    assert f"{seen:.1%}" == "2.6%"
    assert sees(SPEED, BASELINES[SPEED], Budget()) == (
        "decode_tok_s: with this baseline and up to 3 launches a 2.6% loss is caught 95% of the time (the values never "
        "varied; the smallest sigma, 0.5%, stands for their noise)"
    )


@pytest.mark.parametrize("launches", [1, 5])
def test_the_detectable_change_in_a_file_is_the_one_that_is_printed(launches: int) -> None:
    """Of an accept length of 1.01 half of what was accepted may be lost, not 1 %, which is all of it."""
    near_one = metric(ACCEPT, *launches * ((1.01, 1.01),))
    stored = Baseline(identity=IDENTITY, environment={}, provenance=PROVENANCE, metrics={ACCEPT: near_one})

    seen, said = to_document(stored)["metrics"][ACCEPT]["detectable_change"], sees(ACCEPT, near_one, Budget())

    assert said is not None
    assert f" a {seen:.1%} loss is caught" in said


@pytest.mark.parametrize(
    ("metrics", "called", "said"), [(1, 0, "2.2%"), (10, 0, "2.6%"), (10, 9, "2.6%"), (0, 0, "2.2%")]
)
def test_what_a_baseline_sees_is_said_for_its_share_of_the_session_before_anything_is_called(
    metrics: int, called: int, said: str
) -> None:
    noise_alone = five(SPEED, 100.0, tolerance=0.0)
    seen = half_width(alarm(max(1, metrics))) + half_width(MISSED)

    text = sees(SPEED, noise_alone, Budget(metrics=metrics, called=called, max_launches=1))

    assert f"{1 - math.exp(-seen):.1%}" == said
    assert text is not None
    assert f"with this baseline and 1 launch a {said} loss is caught" in text


def test_near_one_it_is_half_of_what_was_accepted_that_may_be_lost() -> None:
    seen = max(math.log(1.01 / 1.005), half_width(alarm(1), 0.002)) + half_width(MISSED, 0.002)

    text = sees(ACCEPT, five(ACCEPT, 1.01), Budget(max_launches=1))

    assert text is not None
    assert f" a {1 - math.exp(-seen):.1%} loss is caught" in text
    assert f"{1 - math.exp(-seen):.1%}" == "0.9%", "with a tolerance of 1 % it would be 1.4 %"


def test_where_lower_is_better_it_is_an_increase_that_is_seen() -> None:
    seen = 1.05 * math.exp(half_width(MISSED, judged=3)) - 1

    text = sees("ttft_ms", five("ttft_ms", 200.0), Budget())

    assert text is not None
    assert f" a {seen:.1%} increase is caught 95% of the time; 3% is within the tolerance of 5% (" in text


def test_without_samples_nothing_is_known_to_be_seen() -> None:
    assert sees(SPEED, metric(SPEED, floor=89.5), Budget()) is None
    assert sees(SPEED, metric(SPEED), Budget()) is None


def odds(name: str, baseline: MetricBaseline, launches: int) -> str | None:
    return verdicts.floor_odds(name, baseline, rounds=1, budget=Budget(metrics=7, max_launches=launches))


def test_the_odds_of_a_floor_are_those_of_unchanged_code() -> None:
    sd = 0.005 * math.sqrt(1 / 5 + 1)
    risk, safe = NormalDist().cdf(-math.log(100 / 99) / sd), 100 * math.exp(-NormalDist().inv_cdf(0.99) * sd)

    assert (f"{risk:.2g}", f"{safe:.4g}") == ("0.033", "98.73")
    assert odds(SPEED, five(SPEED, 100.0, floor=99.0), 1) == (
        "decode_tok_s: unchanged code breaks the floor of 99 tok/s in 0.033 of runs, or fewer; at 98.73 it would be "
        "one in a hundred"
    )


def test_the_odds_of_a_ceiling_are_those_of_the_other_side() -> None:
    sd = 0.005 * math.sqrt(1 / 5 + 1)
    risk, safe = NormalDist().cdf(-math.log(202 / 200) / sd), 200 * math.exp(NormalDist().inv_cdf(0.99) * sd)

    said = odds("ttft_ms", five("ttft_ms", 200.0, floor=202.0), 1)

    assert said is not None
    assert f"breaks the ceiling of 202 ms in {risk:.2g} of runs, or fewer; at {safe:.4g} it" in said


def test_a_floor_that_is_close_is_broken_by_the_last_look_only() -> None:
    """Before it, only what is two standard errors below: of one launch 1 %. The chances are added."""
    room, of_one, of_two = math.log(100 / 99), 0.005 * math.sqrt(1 / 5 + 1), 0.005 * math.sqrt(1 / 5 + 1 / 2)
    risk = NormalDist().cdf(-(room + 2 * 0.005) / of_one) + NormalDist().cdf(-room / of_two)

    said = odds(SPEED, five(SPEED, 100.0, floor=99.0), 2)

    assert said is not None
    assert f" in {risk:.2g} of runs" in said


def test_without_a_floor_or_samples_there_are_no_odds() -> None:
    assert odds(SPEED, BASELINES[SPEED], 3) is None
    assert odds(SPEED, metric(SPEED, floor=89.5), 3) is None
