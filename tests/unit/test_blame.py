"""What a loss is put down to. How the bounds below are worked out is told in tests/fakes/judged.py."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_specdec import blame
from pytest_specdec.model import Comparison, Verdict
from pytest_specdec.verdicts import Budget
from tests.fakes.judged import five, judge, lookup, metric, row

OLD: dict[str, object] = {"sglang_version": "0.5.20", "gpu_power_limit_w": 600.0, "driver_version": "580.95"}
NOTHING_DIFFERS: dict[str, object] = {}
NEW_ENGINE: dict[str, object] = {"sglang_version": "0.5.23"}
LESS_POWER: dict[str, object] = {"gpu_power_limit_w": 450.0}
FEWER_STEPS: dict[str, object] = {"args.speculative_num_steps": 1}
OTHER_TEMPLATE: dict[str, object] = {"chat_template_hash": "0123456789ab"}


def halves(
    accept_length: float, verify_rate: float, changed: dict[str, object] | None = None, **more: Any
) -> Comparison:
    """Judge an accept length of 2.5 that became this, and a verify rate of 40; the speed is their product."""
    measured = {
        "decode_tok_s": ((accept_length * verify_rate,),),
        "accept_length": ((accept_length,),),
        "verify_rate": ((verify_rate,),),
    }
    distinct: float = more.pop("distinct", 0.9)
    against = lookup(environment=OLD, distinct_share=five("distinct_share", 0.9))
    environment = {**OLD, **(changed or {})}
    return judge({**measured, "distinct_share": ((distinct,),)}, against, environment=environment, **more)


def test_a_change_of_decode_throughput_is_split_into_accept_length_and_verify_rate() -> None:
    comparison = halves(2.0, 36.0)

    assert comparison.split == pytest.approx((-0.2, -0.1))
    accept, rate = comparison.split or (0.0, 0.0)
    assert (1 + accept) * (1 + rate) - 1 == pytest.approx(2.0 * 36 / 100 - 1)


@pytest.mark.parametrize(
    ("accept_length", "verify_rate", "changed", "cause"),
    [
        (2.5, 40.0, NEW_ENGINE, None),
        (2.75, 44.0, NEW_ENGINE, None),
        (2.2, 40.0, NOTHING_DIFFERS, "drafter"),
        (2.2, 40.0, NEW_ENGINE, "drafter"),
        (2.2, 40.0, FEWER_STEPS, "drafter"),
        (2.2, 40.0, LESS_POWER, "drafter"),
        (2.2, 40.0, OTHER_TEMPLATE, "workload"),
        (2.2, 40.0, {**OTHER_TEMPLATE, **FEWER_STEPS}, "drafter"),
        (2.5, 35.0, NOTHING_DIFFERS, "engine"),
        (2.5, 35.0, NEW_ENGINE, "engine"),
        (2.5, 35.0, LESS_POWER, "machine"),
        (2.5, 35.0, {"driver_version": "590.00"}, "machine"),
        (2.5, 35.0, {**LESS_POWER, **OTHER_TEMPLATE}, "machine"),
        (2.5, 35.0, {**LESS_POWER, **NEW_ENGINE}, "engine"),
        (2.0, 36.0, LESS_POWER, "drafter"),  # 20 % of acceptance, 10 % of speed
        (2.25, 32.0, LESS_POWER, "machine"),  # the other way round
        (2.75, 35.0, NOTHING_DIFFERS, "engine"),  # more is right, and slower for it
    ],
)
def test_the_likeliest_kind_is_that_of_the_half_that_lost_most(
    accept_length: float, verify_rate: float, changed: dict[str, object], cause: str | None
) -> None:
    assert halves(accept_length, verify_rate, changed).cause == cause


@pytest.mark.parametrize(
    ("distinct", "cause"), [(0.9, "drafter"), (0.86, "drafter"), (0.85, "workload"), (0.95, "workload")]
)
def test_text_that_repeats_itself_more_or_less_than_it_did_is_another_text(distinct: float, cause: str) -> None:
    assert halves(2.2, 40.0, distinct=distinct).cause == cause


def test_another_text_is_no_reason_for_a_slower_engine() -> None:
    assert halves(2.5, 35.0, OTHER_TEMPLATE, distinct=0.5).cause == "engine"


def test_a_half_that_lost_no_more_than_its_noise_and_its_tolerance_is_not_to_blame() -> None:
    # 1 % and 0.6 % of acceptance (sigma 0.2 %), 2 % and 1.3 % of speed (0.5 %).
    assert halves(2.5 * 0.991, 40.0 * 0.981).cause is None


def test_where_the_speed_is_surely_worse_and_neither_half_is_the_larger_loss_is_the_likelier() -> None:
    # Launches 4 % apart: a standard deviation of 6.3 %, so that a lost 5 % of the verify rate is not sure.
    unsure = tuple((40 * math.exp(0.04 * step),) for step in (-2, -1, 0, 1, 2))
    against = lookup(verify_rate=metric("verify_rate", *unsure))

    comparison = judge({"decode_tok_s": ((95.0,),), "verify_rate": ((38.0,),)}, against)

    rate = row(comparison, "verify_rate")
    assert rate.change == pytest.approx(-0.05)
    assert rate.change_high is not None
    assert rate.change_high > 0
    assert comparison.cause == "engine"
    assert judge({"verify_rate": ((38.0,),)}, against).cause is None, "no speed is worse"


def test_a_half_that_is_surely_worse_is_likelier_than_a_larger_loss_that_is_not_sure() -> None:
    # Launches 8 % apart: 12.6 %, so that a lost 15 % is not sure.
    unsure = tuple((40 * math.exp(0.08 * step),) for step in (-2, -1, 0, 1, 2))

    comparison = judge(
        {"decode_tok_s": ((74.8,),), "accept_length": ((2.2,),), "verify_rate": ((34.0,),)},
        lookup(verify_rate=metric("verify_rate", *unsure)),
    )

    assert comparison.split == pytest.approx((-0.12, -0.15))
    assert comparison.cause == "drafter"


PLAIN = ("accept_length", "verify_rate")


@pytest.mark.parametrize(
    ("speed", "changed", "cause"),
    [(99.0, NEW_ENGINE, None), (90.0, NEW_ENGINE, "engine"), (90.0, LESS_POWER, "machine"), (110.0, LESS_POWER, None)],
)
def test_without_drafting_a_slower_decode_is_the_engine_or_the_machine(
    speed: float, changed: dict[str, object], cause: str | None
) -> None:
    comparison = judge(
        {"decode_tok_s": ((speed,),)},
        lookup(environment=OLD, without=PLAIN),
        environment={**OLD, **changed},
        without=PLAIN,
        drafting=False,
    )

    assert (comparison.split, comparison.cause) == (None, cause)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (NEW_ENGINE, "the server does not draft, and the engine got slower"),
        (
            LESS_POWER,
            "the server does not draft, and the machine got slower: only the hardware or its state differs",
        ),
    ],
)
def test_of_a_server_that_does_not_draft_no_drafter_is_spoken_of(changed: dict[str, object], said: str) -> None:
    comparison = judge(
        {"decode_tok_s": ((90.0,),)},
        lookup(environment=OLD, without=PLAIN),
        environment={**OLD, **changed},
        without=PLAIN,
        drafting=False,
    )

    assert blame.lines(comparison) == [said]


@pytest.mark.parametrize(
    ("measured", "known"),
    [
        ((), ("decode_tok_s", "accept_length")),
        ((), ("decode_tok_s",)),
        (("accept_length", "verify_rate"), ("decode_tok_s", "accept_length", "verify_rate")),
    ],
    ids=["the baseline lacks the rate", "the baseline lacks both halves", "the drafter got lost"],
)
def test_where_a_half_is_not_known_a_loss_is_put_down_to_nothing(
    measured: tuple[str, ...], known: tuple[str, ...]
) -> None:
    lacking = tuple(name for name in (*PLAIN, "decode_tok_s") if name not in known)

    comparison = judge(
        {"decode_tok_s": ((70.0,),), "accept_length": ((1.9,),)}, lookup(without=lacking), without=measured
    )

    assert row(comparison, "decode_tok_s").verdict is Verdict.REGRESSION
    assert (comparison.split, comparison.cause, blame.lines(comparison)) == (None, None, [])


def test_a_regression_of_a_latency_alone_makes_no_half_the_likelier() -> None:
    unsure = tuple((40 * math.exp(0.04 * step),) for step in (-2, -1, 0, 1, 2))
    against = lookup(verify_rate=metric("verify_rate", *unsure), ttft_ms=five("ttft_ms", 200.0, gate=True))

    comparison = judge({"verify_rate": ((38.0,),), "ttft_ms": ((300.0,),)}, against)

    assert comparison.verdict is Verdict.REGRESSION
    assert comparison.cause is None


def test_nothing_is_said_of_what_is_not_worse() -> None:
    assert blame.lines(halves(2.5, 40.0)) == []
    assert blame.lines(halves(3.0, 44.0)) == []


#: Five launches recorded and one judged. Of acceptance 0.5 % for a pass; for an alarm 0.6 %, or 0.5 % where the speed
#: is called and leaves it the whole budget. Of the verify rate, which is advisory, 1.3 % on either side.
@pytest.mark.parametrize(
    ("accept_length", "verify_rate", "changed", "said"),
    [
        (
            2.2125,
            39.76,
            NEW_ENGINE,
            (
                "decode tok/s -12.0 % = accept length -11.5 % (-12.0 % to -11.0 %) x verify rate -0.6 % (-1.9 % to "
                "+0.7 %): the drafter got worse (fewer draft tokens are right), not the engine"
            ),
        ),
        (
            2.2125,
            39.76,
            OTHER_TEMPLATE,
            (
                "decode tok/s -12.0 % = accept length -11.5 % (-12.0 % to -11.0 %) x verify rate -0.6 % (-1.9 % to "
                "+0.7 %): fewer draft tokens are right, and the text is another one: look at the workload before the "
                "drafter"
            ),
        ),
        (
            2.5,
            35.2,
            NEW_ENGINE,
            (
                "decode tok/s -12.0 % = accept length +0.0 % (-0.5 % to +0.5 %) x verify rate -12.0 % (-13.1 % to "
                "-10.9 %): the engine got slower, not the drafter"
            ),
        ),
        (
            2.5,
            35.2,
            LESS_POWER,
            (
                "decode tok/s -12.0 % = accept length +0.0 % (-0.5 % to +0.5 %) x verify rate -12.0 % (-13.1 % to "
                "-10.9 %): the machine got slower, not the drafter: only the hardware or its state differs"
            ),
        ),
        (
            2.0,
            36.0,
            NEW_ENGINE,
            # ln(0.8) is 68 % of ln(0.8) + ln(0.9).
            (
                "decode tok/s -28.0 % = accept length -20.0 % (-20.4 % to -19.5 %) x verify rate -10.0 % (-11.2 % to "
                "-8.8 %): both got worse; 68% of the loss is acceptance's, so it is likeliest the drafter"
            ),
        ),
    ],
)
def test_the_halves_are_told_with_their_bounds(
    accept_length: float, verify_rate: float, changed: dict[str, object], said: str
) -> None:
    assert blame.lines(halves(accept_length, verify_rate, changed, budget=Budget(metrics=2, max_launches=1))) == [said]


def test_a_slower_engine_around_which_nothing_differs_may_be_the_state_of_the_machine() -> None:
    (_, second) = blame.lines(halves(2.5, 35.0))

    assert second == (
        "nothing in the environment differs: see to the machine's state as well (clocks, neighbours, heat)"
    )
    assert len(blame.lines(halves(2.2, 40.0))) == 1, "it is no reason for a drafter that got worse"


def test_how_a_class_of_task_moved_is_told_where_both_sides_know_it() -> None:
    recorded = {
        "code": {"accept_length": 3.0, "verify_rate": 40.0},
        "prose": {"accept_length": 2.0},
        "gone": {"accept_length": 2.0},
    }
    measured = {
        "prose": {"accept_length": 1.0, "verify_rate": 40.0, "decode_tok_s": 40.0},
        "new": {"accept_length": 2.0},
        "code": {"accept_length": 3.3, "verify_rate": 20.0},
    }

    prose, code = blame.category_changes(recorded, measured)

    assert (prose.category, prose.accept_length, prose.verify_rate) == ("prose", -0.5, None)
    assert (code.category, code.verify_rate) == ("code", -0.5)
    assert code.accept_length == pytest.approx(0.1)
    assert blame.category_changes({}, measured) == ()


def classes(**accept_length: float) -> Comparison:
    """Judge a drafter that got worse, with what became of an accept length of 2.0 in each class of task."""
    recorded = {name: {"accept_length": (2.0, 2.0), "verify_rate": (40.0, 40.0)} for name in accept_length}
    measured = {name: {"accept_length": value, "verify_rate": 36.0} for name, value in accept_length.items()}
    return judge({"accept_length": ((2.0,),)}, lookup(categories=recorded), categories=measured)


def test_the_classes_of_task_that_moved_are_listed_the_worst_first() -> None:
    comparison = classes(prose=1.99, code=1.5, table=2.2)

    assert blame.lines(comparison)[-1] == (
        "by class of task: code accept length -25.0 %, verify rate -10.0 %; prose verify rate -10.0 %; "
        "table accept length +10.0 %, verify rate -10.0 %"
    )


def test_a_single_class_of_task_is_the_whole_and_is_not_told_again() -> None:
    assert not any("class of task" in line for line in blame.lines(classes(code=1.5)))


def test_classes_of_task_that_stayed_are_not_listed() -> None:
    recorded = {name: {"accept_length": (2.0,)} for name in ("code", "prose")}
    same = {name: {"accept_length": 2.0} for name in recorded}

    comparison = judge({"accept_length": ((2.0,),)}, lookup(categories=recorded), categories=same)

    assert comparison.cause == "drafter"
    assert not any("class of task" in line for line in blame.lines(comparison))
