"""From values and baselines to a verdict. How the bounds below are worked out is told in tests/fakes/judged.py."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from pytest_specdec import compare
from pytest_specdec.baseline import read_baseline, write_baseline
from pytest_specdec.baseline_store import BaselineStore, Lookup, updated
from pytest_specdec.model import Comparison, RoundsByLaunch, Verdict, Violation
from pytest_specdec.verdicts import Budget
from tests.fakes.judged import (
    DOCUMENT,
    GOOD,
    IDENTITY,
    KEY,
    MISSED,
    NODE,
    NOTHING,
    PASSING,
    PATH,
    PROVENANCE,
    alarm,
    five,
    half_width,
    judge,
    lookup,
    metric,
    row,
)


@pytest.mark.parametrize(
    ("speed", "verdict"),
    [
        (100.0, Verdict.PASS),
        (98.5, Verdict.PASS),
        (98.3, Verdict.INCONCLUSIVE),  # a loss of 1.7 % could be 3.0 %, and 2.9 % is to be caught
        (98.01, Verdict.INCONCLUSIVE),
        (97.99, Verdict.REGRESSION),
        (1.0, Verdict.REGRESSION),
        (102.0, Verdict.PASS),  # 100 / (1 - 0.02) = 102.04
        (102.1, Verdict.IMPROVEMENT),
    ],
)
def test_a_gated_metric_is_judged_by_its_noise_and_its_tolerance(speed: float, verdict: Verdict) -> None:
    comparison = judge({"decode_tok_s": ((speed,),)})

    judged = row(comparison, "decode_tok_s")
    loss = math.log(100 / speed)
    margin = -math.log(0.98) + half_width(MISSED)  # the tolerance is more than the noise of an alarm: 1.4 %
    assert (comparison.verdict, judged.verdict) == (verdict, verdict)
    assert judged.gated
    assert (judged.value, judged.baseline, judged.unit) == (speed, 100.0, "tok/s")
    assert judged.change == pytest.approx(speed / 100 - 1)
    assert judged.change_low == pytest.approx(math.exp(-loss - half_width(PASSING)) - 1)
    assert judged.change_high == pytest.approx(math.exp(-loss + half_width(alarm())) - 1)
    assert judged.catches == pytest.approx(1 - math.exp(-margin))
    assert judged.launches == 1
    assert judged.source == str(PATH)


@pytest.mark.parametrize(
    ("ttft", "verdict"),
    [
        (200.0, Verdict.PASS),
        (209.0, Verdict.PASS),
        (209.9, Verdict.INCONCLUSIVE),
        (210.1, Verdict.REGRESSION),
        (190.6, Verdict.PASS),
        (190.3, Verdict.IMPROVEMENT),  # 200 / (1 + 0.05) = 190.48
    ],
)
def test_for_a_metric_where_lower_is_better_more_is_worse(ttft: float, verdict: Verdict) -> None:
    comparison = judge(
        {"ttft_ms": ((ttft,),)},
        lookup(ttft_ms=five("ttft_ms", 200.0, gate=True)),
        budget=Budget(metrics=3, max_launches=1),
    )

    judged = row(comparison, "ttft_ms")
    loss = math.log(ttft / 200)
    assert (comparison.verdict, judged.verdict) == (verdict, verdict)
    assert judged.change_low == pytest.approx(math.exp(loss - half_width(alarm(3))) - 1)
    assert judged.change_high == pytest.approx(math.exp(loss + half_width(PASSING)) - 1)
    assert judged.catches == pytest.approx(math.exp(math.log(1.05) + half_width(MISSED)) - 1)


def test_the_value_is_the_geometric_mean_over_launches_of_their_geometric_means() -> None:
    comparison = judge({"decode_tok_s": ((80.0, 125.0), (121.0,))}, budget=Budget(first_look=2, max_launches=2))

    assert row(comparison, "decode_tok_s").value == pytest.approx(110.0)  # sqrt(80 * 125) is 100, sqrt(100 * 121)


def test_the_value_is_that_of_the_launches_by_which_a_metric_was_decided() -> None:
    """Acceptance passes at once; a loss of 1.9 % is surely one, within the tolerance, and could be more than 2.6 %."""
    comparison = judge(
        {"decode_tok_s": 3 * ((98.1,),), "accept_length": ((2.5,), (2.5,), (2.0,))}, budget=Budget(metrics=2)
    )

    accept, speed = row(comparison, "accept_length"), row(comparison, "decode_tok_s")
    assert (accept.verdict, accept.launches, accept.value) == (Verdict.PASS, 1, 2.5)
    assert (speed.verdict, speed.launches) == (Verdict.INCONCLUSIVE, 3)
    assert speed.value == pytest.approx(98.1)


def test_each_metric_has_a_tolerance_of_its_own_from_the_file() -> None:
    wide = lookup(decode_tok_s=five("decode_tok_s", 100.0, tolerance=0.1))

    assert judge({"decode_tok_s": ((91.0,),)}, wide).verdict is Verdict.PASS
    assert judge({"decode_tok_s": ((89.0,),)}, wide).verdict is Verdict.REGRESSION


def test_a_tolerance_of_zero_leaves_the_noise_only() -> None:
    exact = lookup(accept_length=five("accept_length", 3.33333, tolerance=0.0))
    beyond = half_width(alarm(), 0.002)

    def verdict(value: float) -> Verdict:
        return judge({"accept_length": ((value,),)}, exact).verdict

    assert verdict(10 / 3) is Verdict.PASS
    assert verdict(3.33) is Verdict.PASS
    assert verdict(3.33333 * math.exp(-0.99 * beyond)) is Verdict.INCONCLUSIVE
    assert verdict(3.33333 * math.exp(-1.01 * beyond)) is Verdict.REGRESSION
    assert verdict(3.33333 * math.exp(0.99 * beyond)) is Verdict.PASS
    assert verdict(3.33333 * math.exp(1.01 * beyond)) is Verdict.IMPROVEMENT


def test_an_advisory_metric_is_compared_and_never_fails() -> None:
    comparison = judge({"ttft_ms": ((900.0,),)}, lookup(ttft_ms=five("ttft_ms", 200.0)))

    judged = row(comparison, "ttft_ms")
    assert (judged.verdict, judged.gated) == (Verdict.REGRESSION, False)
    assert judged.change == pytest.approx(3.5)
    assert comparison.verdict is Verdict.PASS
    assert compare.calls(comparison) == 0


def test_an_advisory_improvement_is_not_the_verdict() -> None:
    comparison = judge({"ttft_ms": ((100.0,),)}, lookup(ttft_ms=five("ttft_ms", 200.0)))

    assert row(comparison, "ttft_ms").verdict is Verdict.IMPROVEMENT
    assert comparison.verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("name", "floor", "value", "verdict"),
    [
        ("decode_tok_s", 89.5, 89.5, Verdict.PASS),
        ("decode_tok_s", 89.5, 89.49, Verdict.REGRESSION),
        ("ttft_ms", 300.0, 300.0, Verdict.PASS),
        ("ttft_ms", 300.0, 300.1, Verdict.REGRESSION),
    ],
)
@pytest.mark.parametrize("gate", [True, False])
def test_a_floor_without_samples_is_literal_and_holds_whether_or_not_the_metric_gates(
    name: str, floor: float, value: float, verdict: Verdict, gate: bool
) -> None:
    comparison = judge({name: ((value,),)}, lookup(metrics={name: metric(name, floor=floor, gate=gate)}))

    judged = row(comparison, name)
    assert (comparison.verdict, judged.verdict) == (verdict, verdict)
    assert compare.breaks_floor(judged) is (verdict is Verdict.REGRESSION)
    assert (judged.floor, judged.baseline, judged.change) == (floor, None, None)
    assert (judged.change_low, judged.change_high, judged.catches) == (None, None, None)
    assert compare.calls(comparison) == 0


@pytest.mark.parametrize("gate", [True, False])
def test_what_is_close_to_its_floor_asks_for_all_launches_first(gate: bool) -> None:
    floored = lookup(decode_tok_s=metric("decode_tok_s", floor=89.5, gate=gate))

    at_first, after_three = (
        judge({"decode_tok_s": launches * ((89.4,),)}, floored, budget=Budget()) for launches in (1, 3)
    )

    assert row(at_first, "decode_tok_s").verdict is Verdict.INCONCLUSIVE
    assert (at_first.verdict, at_first.more) == (Verdict.INCONCLUSIVE if gate else Verdict.PASS, 2)
    assert (after_three.verdict, after_three.more) == (Verdict.REGRESSION, 0)


def test_a_floor_is_judged_on_the_geometric_mean_over_launches() -> None:
    floored = lookup(decode_tok_s=metric("decode_tok_s", floor=89.5))
    two = Budget(first_look=2, max_launches=2)

    # 80 alone is below; sqrt(80 * 100.2) is 89.53, and their arithmetic mean would be 90.1.
    assert judge({"decode_tok_s": ((80.0,), (100.2,))}, floored, budget=two).verdict is Verdict.PASS
    assert judge({"decode_tok_s": ((80.0,), (100.0,))}, floored, budget=two).verdict is Verdict.REGRESSION


def test_a_value_that_passes_but_is_below_its_floor_is_a_regression() -> None:
    comparison = judge({"decode_tok_s": ((99.0,),)}, lookup(decode_tok_s=five("decode_tok_s", 100.0, floor=99.5)))

    assert comparison.verdict is Verdict.REGRESSION
    # ln(99.5 / 99) is 0.00504, and the standard error of one launch the smallest sigma, 0.005.
    assert row(comparison, "decode_tok_s").reason == "99 is below its floor 99.5, by 1.0 standard errors"
    assert compare.calls(comparison) == 0, "a floor is outside the session's budget"


@pytest.mark.parametrize(
    ("launches", "said"),
    [
        (((100.0, math.nan, 100.0),), "round 2 of launch 1 is nan"),
        (((100.0,), (math.inf,)), "round 1 of launch 2 is inf"),
        (((0.0,),), "round 1 of launch 1 is 0"),
        (((100.0,), ()), "launch 2 has no value"),
        ((), "it was not measured"),
    ],
)
def test_a_gated_metric_without_a_usable_value_is_invalid_and_named(launches: RoundsByLaunch, said: str) -> None:
    comparison = judge({"decode_tok_s": launches}, budget=Budget())

    reason = f"decode_tok_s has no usable value: {said}"
    assert comparison.verdict is Verdict.INVALID
    assert comparison.violations == (Violation(rule="metric-missing", reason=reason),)
    assert row(comparison, "decode_tok_s").value is None
    assert comparison.more == 0


def test_a_gated_metric_that_nobody_measured_is_invalid() -> None:
    comparison = judge({}, without=("accept_length",))

    assert comparison.verdict is Verdict.INVALID
    assert comparison.violations[0].reason == "accept_length has no usable value: it was not measured"


def test_a_metric_with_a_floor_is_invalid_without_a_value_even_when_advisory() -> None:
    comparison = judge({"ttft_ms": ((math.nan,),)}, lookup(ttft_ms=metric("ttft_ms", floor=300.0)))

    assert comparison.verdict is Verdict.INVALID


def test_an_advisory_metric_without_a_value_is_no_matter() -> None:
    comparison = judge({"ttft_ms": ((math.nan,),)}, lookup(ttft_ms=five("ttft_ms", 200.0)))

    assert comparison.verdict is Verdict.PASS
    assert row(comparison, "ttft_ms").reason == "ttft_ms has no usable value: round 1 of launch 1 is nan"


def test_a_drafter_that_got_lost_does_not_take_its_gate_with_it() -> None:
    comparison = judge({}, without=("accept_length", "verify_rate"), drafting=False)

    assert comparison.verdict is Verdict.INVALID
    assert comparison.violations[0].reason == "accept_length has no usable value: it was not measured"


def test_a_server_that_never_drafted_needs_no_accept_length() -> None:
    halves = ("accept_length", "verify_rate")

    comparison = judge({}, lookup(without=halves), without=halves, drafting=False)

    assert comparison.verdict is Verdict.PASS
    assert [entry.metric for entry in comparison.metrics] == ["decode_tok_s"]


def test_a_gated_metric_found_in_no_file_is_no_baseline() -> None:
    comparison = judge({}, lookup(without=("decode_tok_s", "verify_rate")))

    assert comparison.verdict is Verdict.NO_BASELINE
    assert row(comparison, "decode_tok_s").verdict is Verdict.NO_BASELINE
    assert row(comparison, "accept_length").verdict is Verdict.PASS


def test_a_gated_metric_with_neither_samples_nor_a_floor_is_no_baseline() -> None:
    comparison = judge({}, lookup(decode_tok_s=metric("decode_tok_s")))

    assert comparison.verdict is Verdict.NO_BASELINE
    assert row(comparison, "decode_tok_s").reason == "its baseline has neither samples nor a floor"


def test_an_advisory_metric_without_a_baseline_is_shown_only() -> None:
    comparison = judge({"e2e_ms": ((5000.0,),)})

    judged = row(comparison, "e2e_ms")
    assert (judged.value, judged.verdict, judged.source, judged.launches) == (5000.0, None, None, 0)
    assert comparison.verdict is Verdict.PASS


def test_on_a_cpu_node_throughput_is_advisory_and_acceptance_is_not() -> None:
    comparison = judge({}, NOTHING, node="cpu-epyc-16c")

    gated = [entry.metric for entry in comparison.metrics if entry.gated]
    assert gated == ["accept_length"]
    assert comparison.verdict is Verdict.NO_BASELINE


def test_above_concurrency_1_the_system_throughput_gates() -> None:
    comparison = judge({}, NOTHING, identity=dataclasses.replace(IDENTITY, concurrency=16))

    assert [entry.metric for entry in comparison.metrics if entry.gated] == ["system_tok_s", "accept_length"]


def test_at_a_request_rate_the_pace_of_a_stream_gates_since_the_system_throughput_follows_the_rate() -> None:
    at_four = dataclasses.replace(IDENTITY, concurrency=16, request_rate=4.0)

    comparison = judge({"system_tok_s": ((400.0,),)}, NOTHING, identity=at_four)

    assert [entry.metric for entry in comparison.metrics if entry.gated] == ["decode_tok_s", "accept_length"]


def test_it_is_said_when_nothing_gates() -> None:
    advisory = lookup(
        decode_tok_s=five("decode_tok_s", 100.0, gate=False), accept_length=five("accept_length", 2.5, gate=False)
    )

    on_cpu = judge({}, NOTHING, without=("accept_length", "verify_rate"), node="cpu-epyc-16c", drafting=False)

    assert on_cpu.notes == (
        "no metric gates here: throughput on a CPU node is advisory, and the server does not draft",
    )
    assert judge({}, advisory).notes == ("no metric gates here: all are advisory",)
    assert not any("gates here" in note for note in judge({}).notes)


def test_it_is_said_of_each_gated_metric_what_its_baseline_sees_and_of_each_floor_how_safe_it_is() -> None:
    floored = lookup(
        decode_tok_s=five("decode_tok_s", 100.0, floor=89.5),
        ttft_ms=five("ttft_ms", 200.0, floor=300.0),
        e2e_ms=metric("e2e_ms", floor=9000.0),
    )

    notes = judge({"ttft_ms": ((200.0,),), "e2e_ms": ((5000.0,),)}, floored, notes=["waived: x"]).notes

    assert [note.split(" a ")[0].split(" of ")[0] for note in notes] == [
        "waived: x",
        "decode_tok_s: with this baseline and 1 launch",
        "decode_tok_s: unchanged code breaks the floor",
        "accept_length: with this baseline and 1 launch",
        "ttft_ms: unchanged code breaks the ceiling",
    ]


def test_what_is_far_better_than_its_baseline_makes_it_stale() -> None:
    better, far = judge({"decode_tok_s": ((103.0,),)}), judge({"decode_tok_s": ((110.0,),)})

    # Stale: a gain of 9.5 % less 1.4 % for the noise is more than the 2.9 % that are to be caught.
    assert (row(better, "decode_tok_s").stale, row(far, "decode_tok_s").stale) == (False, True)
    assert not any("stale" in note for note in better.notes)
    assert [note.split(",")[0] for note in far.notes if "stale" in note] == ["decode_tok_s: better by 10.0%"]


RULE = Violation(rule="output-length", reason="a request stopped after 20 of 512 tokens")
SLOW: dict[str, RoundsByLaunch] = {"decode_tok_s": ((50.0,),)}
FAST: dict[str, RoundsByLaunch] = {"decode_tok_s": ((150.0,),)}
#: A loss that a first look of three can't tell: 1.7 %.
CLOSE: dict[str, RoundsByLaunch] = {"decode_tok_s": ((98.3,),)}
NO_SAMPLES_BUT_A_FLOOR = lookup(decode_tok_s=metric("decode_tok_s", floor=89.5), accept_length=metric("accept_length"))


@pytest.mark.parametrize(
    ("measured", "against", "violations", "verdict"),
    [
        (SLOW, lookup(), (RULE,), Verdict.INVALID),
        (FAST, lookup(), (RULE,), Verdict.INVALID),
        (SLOW, lookup(accept_length=metric("accept_length")), (), Verdict.REGRESSION),
        (SLOW, NO_SAMPLES_BUT_A_FLOOR, (), Verdict.REGRESSION),
        (FAST, lookup(accept_length=metric("accept_length")), (), Verdict.NO_BASELINE),
        (CLOSE, lookup(accept_length=metric("accept_length")), (), Verdict.NO_BASELINE),
        ({**CLOSE, "accept_length": ((2.0,),)}, lookup(), (), Verdict.REGRESSION),
        ({**CLOSE, "accept_length": ((3.0,),)}, lookup(), (), Verdict.INCONCLUSIVE),
        ({**FAST, "accept_length": ((2.0,),)}, lookup(), (), Verdict.REGRESSION),
        (FAST, lookup(), (), Verdict.IMPROVEMENT),
    ],
    ids=[
        "invalid before regression",
        "invalid before improvement",
        "regression before no-baseline",
        "a broken floor before no-baseline",
        "no-baseline before improvement",
        "no-baseline before inconclusive",
        "regression before inconclusive",
        "inconclusive before improvement",
        "regression before improvement",
        "improvement before pass",
    ],
)  # fmt: skip  # a case a line
def test_the_worst_that_is_known_is_the_verdict(
    measured: dict[str, RoundsByLaunch], against: Lookup, violations: tuple[Violation, ...], verdict: Verdict
) -> None:
    comparison = judge(measured, against, violations=violations)

    assert comparison.verdict is verdict
    assert comparison.violations == violations


@pytest.mark.parametrize(
    ("measured", "against", "violations", "more"),
    [
        (CLOSE, lookup(), (), True),
        (FAST, lookup(), (), False),
        (SLOW, lookup(), (), False),
        (CLOSE, lookup(), (RULE,), False),
        ({**CLOSE, "accept_length": ((2.0,),)}, lookup(), (), False),
        ({**CLOSE, "accept_length": ((math.nan,),)}, lookup(), (), False),
        (CLOSE, lookup(accept_length=metric("accept_length")), (), False),
        (CLOSE, lookup(decode_tok_s=five("decode_tok_s", 100.0, gate=False)), (), False),
        (CLOSE, lookup(decode_tok_s=five("decode_tok_s", 100.0, gate=False, floor=50.0)), (), False),
        (CLOSE, lookup(identity=dataclasses.replace(IDENTITY, output_tokens=256)), (), False),
    ],
    ids=[
        "close",
        "clear",
        "worse",
        "a broken rule",
        "another metric is worse",
        "another metric has no value",
        "another metric has no baseline",
        "close, but advisory",
        "close, but advisory and far from its floor",
        "another identity",
    ],
)  # fmt: skip  # a case a line
def test_more_launches_are_worth_spending_only_on_an_answer_that_could_still_change(
    measured: dict[str, RoundsByLaunch], against: Lookup, violations: tuple[Violation, ...], more: bool
) -> None:
    comparison = judge(measured, against, violations=violations, budget=Budget(metrics=2))

    assert (comparison.more > 0) is more
    assert comparison.more <= 2


def test_what_is_called_is_counted_for_the_session_where_it_rests_on_its_budget() -> None:
    gated_latency = lookup(ttft_ms=five("ttft_ms", 200.0, gate=True))

    assert compare.calls(judge({})) == 0
    assert compare.calls(judge({**SLOW, "accept_length": ((2.0,),)})) == 2
    assert compare.calls(judge({"ttft_ms": ((300.0,),)}, gated_latency)) == 1
    assert compare.calls(judge({"ttft_ms": ((100.0,),)}, gated_latency)) == 0
    sure_and_below = judge(SLOW, lookup(decode_tok_s=five("decode_tok_s", 100.0, floor=89.5)))
    assert compare.calls(sure_and_below) == 1


def test_another_identity_is_invalid_and_the_field_is_named() -> None:
    comparison = judge({}, identity=dataclasses.replace(IDENTITY, output_tokens=256))

    assert comparison.verdict is Verdict.INVALID
    assert comparison.violations == (
        Violation(
            rule="identity",
            reason=f"output_tokens is 256, and {PATH} was recorded with 512: values of different measurements can't be "
            "compared; give this one another name, or delete that file and record again",
        ),
    )


def test_what_a_document_does_not_know_is_said_each_time() -> None:
    against = lookup(identity=dataclasses.replace(IDENTITY, model=None, sampling=None), provenance=DOCUMENT)

    comparison = judge({}, against)

    assert comparison.verdict is Verdict.PASS
    assert comparison.notes[0] == (
        f"not known, so not compared with {PATH.name}: model, model_revision, draft_revision, sampling"
    )


def test_only_what_the_program_recorded_is_an_environment_to_differ_from() -> None:
    changed = judge({}, lookup(environment={"sglang_version": "0.5.20"}), environment={"sglang_version": "0.5.23"})
    unknown = judge({}, lookup(provenance=DOCUMENT), environment={"sglang_version": "0.5.23"})

    assert [str(change) for change in changed.environment_changes] == ["sglang_version: 0.5.20 -> 0.5.23"]
    assert unknown.environment_changes == ()


def test_classes_of_task_are_compared_with_those_that_the_baseline_kept() -> None:
    against = lookup(categories={"code": {"accept_length": (4.0, 1.0), "verify_rate": (40.0, 40.0)}})

    (change,) = judge({}, against, categories={"code": {"accept_length": 1.0, "verify_rate": 44.0}}).categories

    assert change.category == "code"
    assert change.accept_length == pytest.approx(-0.5)  # the geometric mean of 4 and 1 is 2
    assert change.verify_rate == pytest.approx(0.1)


def test_the_whole_life_of_a_baseline(tmp_path: Path) -> None:
    """Missing, recorded, passed against, regressed from, held by a floor, updated with the floor kept."""
    store = BaselineStore(tmp_path, NODE)
    path = tmp_path / NODE / f"{KEY}.json"

    def launched(speed: float, launches: int) -> dict[str, RoundsByLaunch]:
        return {**{name: launches * each for name, each in GOOD.items()}, "decode_tok_s": launches * ((speed,),)}

    def measure(speed: float) -> Comparison:
        return judge(launched(speed, 3), store.lookup(KEY), budget=Budget(metrics=2))

    def record(speed: float) -> None:
        files, changes = updated(
            store.lookup(KEY),
            launched(speed, 5),
            identity=IDENTITY,
            environment={},
            provenance=PROVENANCE,
            node=NODE,
        )
        assert not any(change.loosened for change in changes)
        for file, recorded in files.items():
            write_baseline(file, recorded)

    assert measure(100.0).verdict is Verdict.NO_BASELINE

    record(100.0)
    assert measure(100.0).verdict is Verdict.PASS
    assert measure(97.0).verdict is Verdict.REGRESSION
    assert measure(104.0).verdict is Verdict.IMPROVEMENT

    stored = read_baseline(path)
    floored = dataclasses.replace(stored.metrics["decode_tok_s"], floor=99.0)
    write_baseline(path, dataclasses.replace(stored, metrics={**stored.metrics, "decode_tok_s": floored}))
    held = measure(98.5)
    assert held.verdict is Verdict.REGRESSION
    assert row(held, "decode_tok_s").source == str(path)
    assert row(held, "decode_tok_s").reason.startswith("98.5 is below its floor 99, by ")

    record(110.0)
    assert read_baseline(path).metrics["decode_tok_s"].floor == 99.0
    assert measure(110.0).verdict is Verdict.PASS
    assert measure(100.0).verdict is Verdict.REGRESSION


def test_a_metric_that_can_mean_nothing_never_gates_whatever_the_file_says() -> None:
    worse: dict[str, RoundsByLaunch] = {"accept_length": ((1.2,),)}

    found = judge(worse, never_gated=frozenset({"accept_length"}))

    assert row(found, "accept_length").gated is False
    assert found.verdict is Verdict.PASS
    assert judge(worse).verdict is Verdict.REGRESSION


def test_without_a_budget_a_measurement_is_judged_as_the_only_one_of_its_session() -> None:
    alone = judge({}, budget=None)

    assert row(alone, "decode_tok_s") == row(judge({}, budget=Budget()), "decode_tok_s")
