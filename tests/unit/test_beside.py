"""What a control makes of a treatment's verdict, and the ratio of the two."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from pytest_specdec.beside import Beside, Speedup, control_moved, judged, ratios
from pytest_specdec.difference import Difference
from pytest_specdec.model import Comparison, MetricVerdict, Verdict, Violation
from pytest_specdec.paired import PairedRatio
from tests.fakes.judged import five, judge, lookup, metric, row

PASS, REGRESSION, IMPROVEMENT = Verdict.PASS, Verdict.REGRESSION, Verdict.IMPROVEMENT
INCONCLUSIVE, INVALID, NO_BASELINE = Verdict.INCONCLUSIVE, Verdict.INVALID, Verdict.NO_BASELINE
NOTHING_CHANGED = Difference(control="base", intended=("--ep-size: 1 -> 8",), effective=())
REASON = "two control launches of a block differ by 9.0%, and launch noise explains 2.0%"


def ratio(value: float = 1.5, *, conclusive: bool = True, **known: Any) -> PairedRatio:
    plain: dict[str, Any] = {
        "low": value * 0.98,
        "high": value * 1.02,
        "confidence": 0.95,
        "blocks": 1,
        "launch_sd": 0.01,
        "df": 4.0,
        "reason": "launches of one spec agree" if conclusive else REASON,
    }
    return PairedRatio(ratio=value, conclusive=conclusive, **{**plain, **known})


def beside(*, conclusive: bool = True, moved: bool = False, **measured: PairedRatio) -> Beside:
    return Beside(
        control="base",
        speed="decode_tok_s",
        ratios=measured or {"decode_tok_s": ratio(conclusive=conclusive)},
        difference=NOTHING_CHANGED,
        moved=moved,
    )


def comparison(verdict: Verdict, *, floor: float | None = None, change: float | None = None) -> Comparison:
    """A comparison with one gated metric of this verdict; ``floor`` is above its value of 100."""
    of_metric = MetricVerdict(
        metric="decode_tok_s",
        unit="tok/s",
        direction="higher",
        gated=True,
        value=100.0,
        baseline=None if verdict is NO_BASELINE else 100.0,
        change=change,
        change_low=None,
        change_high=None,
        catches=None,
        floor=floor,
        verdict=verdict,
        reason="because",
        launches=2,
        stale=False,
        source=None,
    )
    return Comparison(
        verdict=verdict,
        metrics=(of_metric,),
        violations=(Violation(rule="retraction", reason="1 request was retracted"),) if verdict is INVALID else (),
        baseline_path=None,
        split=None,
        environment_changes=(),
        notes=("a note",),
        more=1 if verdict is INCONCLUSIVE else 0,
    )


FINE = comparison(PASS)


@pytest.mark.parametrize("conclusive", [True, False])
def test_a_speed_up_that_is_not_conclusive_has_no_bound(conclusive: bool) -> None:
    low, high = (1.5 * 0.98, 1.5 * 1.02) if conclusive else (0.0, math.inf)

    assert beside(conclusive=conclusive).speedup == Speedup(
        metric="decode_tok_s",
        ratio=1.5,
        low=low,
        high=high,
        confidence=0.95,
        conclusive=conclusive,
        reason="launches of one spec agree" if conclusive else REASON,
    )


def test_without_the_speed_on_both_there_is_no_speed_up() -> None:
    assert beside(ttft_ms=ratio()).speedup is None


def test_the_ratios_are_said_with_their_intervals_and_the_difference() -> None:
    one = beside(
        ttft_ms=ratio(0.9, low=0.8, high=1.0125), decode_tok_s=ratio(1.5, low=1.4, high=1.6), e2e_ms=ratio(1.2)
    )

    assert one.lines() == [
        "beside base: decode_tok_s x1.500 (1.400 to 1.600); ttft_ms x0.900 (0.800 to 1.012)",
        "changed against base: --ep-size: 1 -> 8",
    ]


def test_a_ratio_that_is_not_conclusive_says_why_and_no_interval() -> None:
    one = beside(moved=True, conclusive=False)

    assert one.lines()[0] == f"beside base (control moved): decode_tok_s x1.500, not conclusive: {REASON}"


def test_where_nothing_was_measured_on_both_that_is_said() -> None:
    one = dataclasses.replace(beside(), ratios={})

    assert one.lines()[0] == "beside base: nothing was measured on both"


#: Verdict of the treatment, of the control (None: it moved), whether the ratio is conclusive; and what comes of it.
JUDGED = [
    # A control that stands leaves a conclusive answer as it is.
    *((verdict, PASS, True, verdict) for verdict in (PASS, REGRESSION, IMPROVEMENT, INCONCLUSIVE, INVALID)),
    (NO_BASELINE, PASS, True, PASS),
    # What the control itself lacks is told in its own verdict.
    *((PASS, control, True, PASS) for control in (INCONCLUSIVE, NO_BASELINE)),
    (NO_BASELINE, NO_BASELINE, True, PASS),
    (REGRESSION, NO_BASELINE, True, REGRESSION),
    # A control that moved makes the treatment's own comparison inconclusive, in either direction.
    *((verdict, REGRESSION, True, INCONCLUSIVE) for verdict in (PASS, REGRESSION, IMPROVEMENT, INCONCLUSIVE)),
    *((verdict, IMPROVEMENT, True, INCONCLUSIVE) for verdict in (PASS, REGRESSION, IMPROVEMENT)),
    (NO_BASELINE, REGRESSION, True, PASS),
    (INVALID, REGRESSION, True, INVALID),
    # An invalid control is no control.
    *((verdict, INVALID, True, INVALID) for verdict in (PASS, REGRESSION, IMPROVEMENT, NO_BASELINE, INVALID)),
    # Legs that disagree leave nothing but what is worse than its own baseline, or invalid.
    *((verdict, PASS, False, INCONCLUSIVE) for verdict in (PASS, IMPROVEMENT, INCONCLUSIVE, NO_BASELINE)),
    (REGRESSION, PASS, False, REGRESSION),
    (INVALID, PASS, False, INVALID),
    (PASS, INVALID, False, INVALID),
    (NO_BASELINE, REGRESSION, False, INCONCLUSIVE),
    (REGRESSION, REGRESSION, False, INCONCLUSIVE),
]


@pytest.mark.parametrize(("treatment", "control", "conclusive", "verdict"), JUDGED)
def test_a_verdict_is_what_its_control_leaves_of_it(
    treatment: Verdict, control: Verdict, conclusive: bool, verdict: Verdict
) -> None:
    of_control = comparison(control)

    found = judged(comparison(treatment), of_control, beside(conclusive=conclusive, moved=control_moved(of_control)))

    assert found.verdict is verdict


@pytest.mark.parametrize("conclusive", [True, False])
def test_a_broken_floor_stays_broken_whatever_the_control_did(conclusive: bool) -> None:
    found = judged(
        comparison(REGRESSION, floor=101.0), comparison(REGRESSION), beside(conclusive=conclusive, moved=True)
    )

    assert found.verdict is REGRESSION
    assert not any("control moved:" in note for note in found.notes)


def test_a_floor_that_is_kept_does_not_keep_the_verdict() -> None:
    found = judged(comparison(REGRESSION, floor=99.0), comparison(REGRESSION), beside(moved=True))

    assert found.verdict is INCONCLUSIVE


def test_the_notes_come_in_order_the_ratio_and_the_difference_last() -> None:
    found = judged(FINE, FINE, beside())

    assert found.notes == ("a note", *beside().lines())


def test_a_missing_baseline_is_noted_and_its_metrics_are_not_judged() -> None:
    found = judged(comparison(NO_BASELINE), FINE, beside())

    assert [one.verdict for one in found.metrics] == [None]
    assert found.notes[1] == "no baseline of its own: held to base only"


def test_a_control_that_moved_is_noted_with_how_far() -> None:
    found = judged(FINE, comparison(REGRESSION, change=-0.125), beside(moved=True))

    assert found.notes[1] == (
        "control moved: decode_tok_s -12.5 % from its baseline; so its own baseline can't tell whether the treatment "
        "changed or everything did. The ratio stands"
    )


def test_a_control_that_broke_an_advisory_floor_is_said_to_be_beyond_it() -> None:
    one = comparison(REGRESSION)
    advisory = dataclasses.replace(one, metrics=tuple(dataclasses.replace(entry, gated=False) for entry in one.metrics))

    assert judged(FINE, advisory, beside(moved=True)).notes[1].startswith("control moved: beyond its floor; so")


def test_an_invalid_control_is_a_violation_with_its_reasons() -> None:
    found = judged(FINE, comparison(INVALID), beside())

    assert found.violations == (
        Violation(rule="control", reason="base is invalid: retraction: 1 request was retracted"),
    )


def test_an_inconclusive_ratio_says_which_launches_disagree() -> None:
    found = judged(FINE, FINE, beside(conclusive=False))

    assert found.notes[1] == f"the ratio to base is inconclusive: {REASON}"


def test_a_speed_that_was_not_measured_on_both_is_inconclusive() -> None:
    found = judged(FINE, FINE, beside(ttft_ms=ratio()))

    assert found.verdict is INCONCLUSIVE
    assert found.notes[1] == "the ratio to base is inconclusive: decode_tok_s was not measured on both"


@pytest.mark.parametrize(("moved", "more"), [(False, 1), (True, 1)])
def test_an_open_answer_stays_open(moved: bool, more: int) -> None:
    assert judged(comparison(INCONCLUSIVE), FINE, beside(moved=moved)).more == more


def test_a_verdict_that_the_control_made_asks_for_no_launch() -> None:
    open_pass = dataclasses.replace(FINE, more=1)

    assert judged(open_pass, FINE, beside()).more == 1
    assert judged(open_pass, FINE, beside(moved=True)).more == 0


@pytest.mark.parametrize(("speed", "moved"), [(100.0, False), (80.0, True), (120.0, True)])
def test_a_control_moves_in_either_direction(speed: float, moved: bool) -> None:
    of_control = judge({"decode_tok_s": ((speed,),)}, lookup())

    assert row(of_control, "decode_tok_s").gated
    assert control_moved(of_control) is moved


def test_ratios_are_treatment_over_control_and_above_one_where_the_treatment_is_better() -> None:
    found = ratios(
        {"decode_tok_s": ((100.0,), (100.0,)), "ttft_ms": ((200.0,), (200.0,))},
        {"decode_tok_s": ((150.0,), (150.0,)), "ttft_ms": ((100.0,), (100.0,))},
        {},
    )

    assert {name: one.ratio for name, one in found.items()} == pytest.approx({"decode_tok_s": 1.5, "ttft_ms": 2.0})
    # Legs that never vary leave the smallest sigma, 0.5 %.
    width = 1.95996 * 0.005
    assert math.log(found["ttft_ms"].low / 2) == pytest.approx(-width, rel=1e-4)
    assert math.log(found["ttft_ms"].high / 2) == pytest.approx(width, rel=1e-4)


def test_the_legs_are_taken_in_the_order_they_ran() -> None:
    """A host that loses 2 % from launch to launch, A1 B1 B2 A2, does not shift the ratio."""
    lost = [100 * 0.98**i for i in range(4)]

    found = ratios({"decode_tok_s": ((lost[0],), (lost[3],))}, {"decode_tok_s": ((lost[1],), (lost[2],))}, {})

    assert found["decode_tok_s"].ratio == pytest.approx(1.0)


@pytest.mark.parametrize(
    "treatment",
    [{}, {"decode_tok_s": ((100.0,),)}, {"decode_tok_s": ((100.0,), ())}, {"decode_tok_s": ((0.0,), (1.0,))}],
)
def test_there_is_no_ratio_of_what_one_leg_lacks(treatment: dict[str, tuple[tuple[float, ...], ...]]) -> None:
    assert ratios({"decode_tok_s": ((100.0,), (100.0,))}, treatment, {}) == {}


def test_the_legs_are_held_to_the_noise_of_the_control_s_baseline() -> None:
    """Legs of the control 3 % apart: the prior for throughput explains that, a baseline that never varied does not."""
    control, treatment = {"decode_tok_s": ((100.0,), (103.0,))}, {"decode_tok_s": ((150.0,), (150.0,))}
    quiet = five("decode_tok_s", 100.0)

    assert ratios(control, treatment, {})["decode_tok_s"].conclusive
    assert ratios(control, treatment, {"decode_tok_s": metric("decode_tok_s", floor=50.0)})["decode_tok_s"].conclusive
    held = ratios(control, treatment, {"decode_tok_s": quiet})["decode_tok_s"]
    # 2.5758 is the normal quantile of half of 1 %, and sqrt(2) sigma the spread of a difference.
    explained = math.expm1(2.5758 * math.sqrt(2) * 0.005)
    assert not held.conclusive
    assert held.reason == f"two control launches of a block differ by 3.0%, and launch noise explains {explained:.1%}"
