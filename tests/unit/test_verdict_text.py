"""What a failed test shows. How the bounds below are worked out is told in tests/fakes/judged.py."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_specdec import verdict_text
from pytest_specdec.model import Comparison, RoundsByLaunch, Violation
from pytest_specdec.verdicts import Budget
from tests.fakes.judged import KEY, NOTHING, PATH, five, judge, lookup, metric, row

COMMAND = "pytest --update-baselines=new --gpu-host 'tests/perf/test_kimi_k2.py::test_throughput[eagle3-s3]'"
SLOW: dict[str, RoundsByLaunch] = {"decode_tok_s": ((50.0,),)}
ADVISORY = " (advisory)"
LOOSENING = "--specdec-allow-loosening"


def text(comparison: Comparison, nearest: Sequence[str] = ()) -> str:
    return verdict_text.failure_text(
        comparison, key=KEY, wanted_path=str(PATH), nearest_nodes=nearest, record_command=COMMAND
    )


def test_the_text_of_a_regression() -> None:
    """Bounds with sigma 0.5 % (acceptance 0.2 %), five launches recorded and one judged; levels as for two gates.

    Decode speed: 12.0 % lost, 1.3 % for a pass and 1.4 % for an alarm beside it; 2.9 % is to be caught.
    """
    comparison = judge(
        {
            "decode_tok_s": ((88.0,),),
            "accept_length": ((2.2125,),),
            "verify_rate": ((39.76,),),
            "ttft_ms": ((195.0,),),
        },
        lookup(
            decode_tok_s=five("decode_tok_s", 100.0, floor=89.5),
            ttft_ms=five("ttft_ms", 200.0),
            environment={"sglang_version": "0.5.20"},
        ),
        environment={"sglang_version": "0.5.23"},
        notes=["waived degenerate-output: 3 of 8 answers repeat"],
    )

    assert text(comparison) == "\n".join(
        [
            f"REGRESSION: {KEY}: decode_tok_s 88, floor 89.5",
            "",
            "  metric                  value  baseline   change             between              limit  verdict",
            "  decode_tok_s tok/s      88.00     100.0  -12.0 %  -13.1 % to -10.7 %  2.9 %, floor 89.5  regression",
            "  ttft_ms ms              195.0     200.0   -2.5 %    -3.8 % to -1.2 %              6.0 %  pass"
            + ADVISORY,
            "  accept_length tok/step  2.212     2.500  -11.5 %  -12.0 % to -11.0 %              1.4 %  regression",
            "  verify_rate step/s      39.76     40.00   -0.6 %    -1.9 % to +0.7 %              2.9 %  pass"
            + ADVISORY,
            "",
            # ln(89.5 / 88) is 0.0169, and a standard error 0.005.
            (f"  decode_tok_s 88 is below its floor 89.5, by 3.4 standard errors (tok/s; set by a person in {PATH})"),
            "  accept_length: worse by 11.5%, at least 11.0% (1 launch)",
            (
                "  decode tok/s -12.0 % = accept length -11.5 % (-12.0 % to -11.0 %) x verify rate -0.6 % (-1.9 % to "
                "+0.7 %): the drafter got worse (fewer draft tokens are right), not the engine"
            ),
            "  the environment differs from the baseline's:",
            "    sglang_version: 0.5.20 -> 0.5.23",
            *(f"  {note}" for note in comparison.notes),
            f"  baseline: {PATH}",
            f"  a loss that is meant is recorded with --update-baselines {LOOSENING}, and reviewed as a diff",
        ]
    )
    assert comparison.notes[0] == "waived degenerate-output: 3 of 8 answers repeat"


def test_the_text_of_a_close_answer_says_what_would_tell_more() -> None:
    """A loss of 1.9 %, of three launches: 0.9 % for a pass beside it, and 2.6 % is to be caught."""
    comparison = judge({"decode_tok_s": 3 * ((98.1,),)}, budget=Budget(metrics=2))

    lines = text(comparison).splitlines()
    assert lines[0] == f"INCONCLUSIVE: {KEY}"
    assert (
        "  decode_tok_s: surely worse, by 1.9%, which is within the tolerance, but a loss could be 2.8%, and this gate "
        "is to catch 2.6% (3 launches)"
    ) in lines
    assert lines[-2:] == [
        "  the answer is too close to call: more launches tell more, of the baseline too (--specdec-max-launches=N,",
        "  --update-baselines --specdec-launches=N); specdec_inconclusive = warn makes this a warning",
    ]
    assert LOOSENING not in text(comparison)


def test_an_advisory_loss_is_marked_and_gives_no_reason() -> None:
    said = text(judge({"ttft_ms": ((900.0,),)}, lookup(ttft_ms=five("ttft_ms", 200.0))))

    assert "+350.0 %" in said
    assert "regression (advisory)\n" in said
    assert "ttft_ms: worse" not in said
    assert said.startswith(f"PASS: {KEY}\n")


@pytest.mark.parametrize(
    ("value", "floor", "said"),
    [(88.2, 89.5, "88.2"), (89.4996, 89.5, "89.4996"), (89.49999, 89.5, "89.49999"), (89.486, 89.487, "89.486")],
)
def test_a_value_close_to_its_floor_is_written_so_that_it_is_seen_to_be_below(
    value: float, floor: float, said: str
) -> None:
    comparison = judge({"decode_tok_s": ((value,),)}, lookup(decode_tok_s=metric("decode_tok_s", floor=floor)))

    assert row(comparison, "decode_tok_s").reason.startswith(f"{said} is below its floor {floor}, by ")
    assert text(comparison).startswith(f"REGRESSION: {KEY}: decode_tok_s {said}, floor {floor}\n")


def test_broken_rules_come_first() -> None:
    broken = Violation(rule="metric-missing", reason="decode_tok_s has no usable value: it was not measured")
    other = Violation(rule="output-length", reason="a request stopped after 20 of 512 tokens")

    said = text(judge({"decode_tok_s": ()}, violations=(other, other)))

    assert said.startswith(
        f"INVALID: {KEY}: output-length, metric-missing\n\n"
        f"  output-length: {other.reason}\n  output-length: {other.reason}\n  metric-missing: {broken.reason}\n\n"
    )
    assert LOOSENING not in said


def test_a_loss_without_a_floor_is_told_in_the_first_line() -> None:
    assert text(judge(SLOW)).startswith(f"REGRESSION: {KEY}: decode_tok_s 50.00, was 100.0\n")


def test_a_refused_update_names_the_option_once() -> None:
    refused = judge(SLOW, notes=[f"not recorded: give {LOOSENING} to write it"])

    assert text(refused).count(LOOSENING) == 1
    assert text(judge(SLOW)).count(LOOSENING) == 1


def test_the_accept_length_of_sglang_is_left_out_of_the_text_unless_it_decides() -> None:
    measured: dict[str, RoundsByLaunch] = {"accept_length_sglang": ((2.6,),)}
    floored = lookup(accept_length_sglang=metric("accept_length_sglang", floor=2.7))

    assert "accept_length_sglang" not in text(judge(measured))
    assert "accept_length_sglang tok/step" in text(judge(measured, floored))


def test_a_broken_floor_alone_has_no_command_that_would_move_it() -> None:
    said = text(judge({"decode_tok_s": ((89.0,),)}, lookup(decode_tok_s=metric("decode_tok_s", floor=89.5))))

    assert said.startswith("REGRESSION")
    assert "--update-baselines" not in said
    assert f"(tok/s; set by a person in {PATH})" in said


def test_the_text_of_a_missing_baseline_names_path_neighbours_and_the_command() -> None:
    said = text(judge({}, NOTHING), nearest=("8x-b200", "8x-h200"))

    assert said.startswith(f"NO-BASELINE: {KEY}\n")
    assert said.endswith(
        f"  there is no baseline for decode_tok_s, accept_length: {PATH}\n"
        "  other nodes have one: 8x-b200, 8x-h200\n"
        "  record it with:\n"
        f"    {COMMAND}"
    )
    assert "  no node has one\n" in text(judge({}, NOTHING))


def test_only_the_metrics_without_a_baseline_are_missing() -> None:
    said = text(judge({}, lookup(without=("decode_tok_s",))))

    assert f"  there is no baseline for decode_tok_s: {PATH}\n" in said
