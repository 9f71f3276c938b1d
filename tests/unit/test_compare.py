from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec import compare
from pytest_specdec.baseline import Baseline, Identity, MetricBaseline, Provenance, read_baseline, write_baseline
from pytest_specdec.baseline_store import BaselineStore, Found, Lookup, updated
from pytest_specdec.metrics import METRICS
from pytest_specdec.model import Comparison, MetricVerdict, RoundsByLaunch, Sampling, Verdict, Violation

KEY = "eagle3-s3--chat--c1--o512"
NODE = "8x-rtx-pro-6000-blackwell"
PATH = Path("baselines") / NODE / f"{KEY}.json"
COMMAND = "pytest --update-baselines=new --gpu-host 'tests/perf/test_kimi_k2.py::test_throughput[eagle3-s3]'"
IDENTITY = Identity(
    model="/data/models/kimi-k2.5-int4",
    model_revision=None,
    draft="/data/eagle3/synth_100k",
    draft_revision=None,
    workload_hash="5f" * 32,
    sampling=Sampling().identity(),
    output_tokens=512,
    concurrency=1,
)
PROVENANCE = Provenance(
    source="program", recorded_at="2026-11-29T12:00:00+00:00", git_commit=None, command="pytest --update-baselines"
)
#: What gates at concurrency 1 on a GPU node, as measured when the baseline was recorded: 100 = 2.5 x 40.
GOOD: dict[str, RoundsByLaunch] = {
    "decode_tok_s": ((100.0,),),
    "accept_length": ((2.5,),),
    "verify_rate": ((40.0,),),
}


def metric(name: str, *launches: tuple[float, ...], **known: Any) -> MetricBaseline:
    gate = METRICS[name].gates(1)
    plain: dict[str, Any] = {"gate": gate, "tolerance": METRICS[name].default_tolerance, "floor": None}
    return MetricBaseline(
        direction=METRICS[name].direction, unit=METRICS[name].unit, launches=launches, **{**plain, **known}
    )


def lookup(
    *,
    metrics: dict[str, MetricBaseline] | None = None,
    identity: Identity = IDENTITY,
    provenance: Provenance = PROVENANCE,
    environment: dict[str, object] | None = None,
    **more: MetricBaseline,
) -> Lookup:
    """What one file with these metrics gives, over those of ``GOOD``."""
    entries = {**{name: metric(name, *launches) for name, launches in GOOD.items()}, **(metrics or {}), **more}
    stored = Baseline(identity=identity, environment=environment or {}, provenance=provenance, metrics=entries)
    found = {name: Found(metric=entry, path=PATH, baseline=stored) for name, entry in entries.items()}
    return Lookup(metrics=found, path=PATH, files=(PATH,))


NOTHING = Lookup(metrics={}, path=PATH, files=())


def judge(measured: dict[str, RoundsByLaunch], against: Lookup | None = None, **known: Any) -> Comparison:
    """Judge values that replace those of ``GOOD``."""
    plain: dict[str, Any] = {
        "violations": (),
        "identity": IDENTITY,
        "environment": {},
        "node": NODE,
        "drafting": True,
    }
    return compare.judge({**GOOD, **measured}, lookup() if against is None else against, **{**plain, **known})


def row(comparison: Comparison, name: str) -> MetricVerdict:
    (found,) = [entry for entry in comparison.metrics if entry.metric == name]
    return found


def text(comparison: Comparison, nearest: Sequence[str] = ()) -> str:
    return compare.failure_text(
        comparison, key=KEY, wanted_path=str(PATH), nearest_nodes=nearest, record_command=COMMAND
    )


@pytest.mark.parametrize(
    ("speed", "verdict"),
    [
        (100.0, Verdict.PASS),
        (98.01, Verdict.PASS),
        (97.99, Verdict.REGRESSION),
        (1.0, Verdict.REGRESSION),
        (102.0, Verdict.PASS),  # 100 / (1 - 0.02) = 102.04
        (102.1, Verdict.IMPROVEMENT),
    ],
)
def test_a_gated_metric_is_judged_by_its_tolerance(speed: float, verdict: Verdict) -> None:
    comparison = judge({"decode_tok_s": ((speed,),)})

    judged = row(comparison, "decode_tok_s")
    assert (comparison.verdict, judged.verdict) == (verdict, verdict)
    assert judged.gated
    assert (judged.value, judged.baseline, judged.unit) == (speed, 100.0, "tok/s")
    assert judged.change == pytest.approx(speed / 100 - 1)
    assert judged.allowed_low == pytest.approx(98.0)
    assert judged.allowed_high is None
    assert judged.source == str(PATH)


@pytest.mark.parametrize(
    ("ttft", "verdict"),
    [
        (200.0, Verdict.PASS),
        (209.9, Verdict.PASS),
        (210.1, Verdict.REGRESSION),
        (190.1, Verdict.PASS),
        (189.9, Verdict.IMPROVEMENT),  # 200 x (1 - 0.05) = 190
    ],
)
def test_for_a_metric_where_lower_is_better_more_is_worse(ttft: float, verdict: Verdict) -> None:
    comparison = judge({"ttft_ms": ((ttft,),)}, lookup(ttft_ms=metric("ttft_ms", (200.0,), gate=True)))

    judged = row(comparison, "ttft_ms")
    assert (comparison.verdict, judged.verdict) == (verdict, verdict)
    assert judged.allowed_low is None
    assert judged.allowed_high == pytest.approx(210.0)


def test_the_value_is_the_geometric_mean_over_launches_of_median_rounds() -> None:
    comparison = judge({"decode_tok_s": ((99.0, 100.0, 1.0), (121.0,))})

    assert row(comparison, "decode_tok_s").value == pytest.approx(math.sqrt(99 * 121))


def test_each_metric_has_a_tolerance_of_its_own_from_the_file() -> None:
    wide = lookup(decode_tok_s=metric("decode_tok_s", (100.0,), tolerance=0.1))

    assert judge({"decode_tok_s": ((91.0,),)}, wide).verdict is Verdict.PASS
    assert judge({"decode_tok_s": ((89.0,),)}, wide).verdict is Verdict.REGRESSION


def test_a_tolerance_of_zero_allows_the_rounding_of_the_file_only() -> None:
    exact = lookup(accept_length=metric("accept_length", (3.33333,), tolerance=0.0))
    rounded_up = lookup(accept_length=metric("accept_length", (1.23457,), tolerance=0.0))

    assert judge({"accept_length": ((10 / 3,),)}, exact).verdict is Verdict.PASS
    assert judge({"accept_length": ((1.234566,),)}, rounded_up).verdict is Verdict.PASS
    assert judge({"accept_length": ((3.3333,),)}, exact).verdict is Verdict.REGRESSION
    assert judge({"accept_length": ((3.3334,),)}, exact).verdict is Verdict.IMPROVEMENT


def test_an_advisory_metric_is_compared_and_never_fails() -> None:
    comparison = judge({"ttft_ms": ((900.0,),)}, lookup(ttft_ms=metric("ttft_ms", (200.0,))))

    judged = row(comparison, "ttft_ms")
    assert (judged.verdict, judged.gated) == (Verdict.REGRESSION, False)
    assert judged.change == pytest.approx(3.5)
    assert comparison.verdict is Verdict.PASS
    assert "+350.0 %  regression (advisory)" in text(comparison)


def test_an_advisory_improvement_is_not_the_verdict() -> None:
    comparison = judge({"ttft_ms": ((100.0,),)}, lookup(ttft_ms=metric("ttft_ms", (200.0,))))

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


def test_a_floor_is_judged_on_the_geometric_mean_over_launches() -> None:
    floored = lookup(decode_tok_s=metric("decode_tok_s", floor=89.5))

    # 80 alone is below; sqrt(80 * 100.2) is 89.53, and their arithmetic mean would be 90.1.
    assert judge({"decode_tok_s": ((80.0,), (100.2,))}, floored).verdict is Verdict.PASS
    assert judge({"decode_tok_s": ((80.0,), (100.0,))}, floored).verdict is Verdict.REGRESSION


def test_a_value_within_tolerance_but_below_the_floor_is_a_regression() -> None:
    comparison = judge({"decode_tok_s": ((99.0,),)}, lookup(decode_tok_s=metric("decode_tok_s", (100.0,), floor=99.5)))

    assert comparison.verdict is Verdict.REGRESSION
    assert row(comparison, "decode_tok_s").reason == "decode_tok_s 99 tok/s is below its floor 99.5"


@pytest.mark.parametrize(
    ("value", "floor", "said"),
    [(88.2, 89.5, "88.2"), (89.4996, 89.5, "89.4996"), (89.49999, 89.5, "89.49999"), (89.486, 89.487, "89.486")],
)
def test_a_value_close_to_its_floor_is_written_so_that_it_is_seen_to_be_below(
    value: float, floor: float, said: str
) -> None:
    comparison = judge({"decode_tok_s": ((value,),)}, lookup(decode_tok_s=metric("decode_tok_s", floor=floor)))

    assert row(comparison, "decode_tok_s").reason == f"decode_tok_s {said} tok/s is below its floor {floor}"
    assert text(comparison).startswith(f"REGRESSION: {KEY}: decode_tok_s {said}, floor {floor}\n")


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
    comparison = judge({"decode_tok_s": launches})

    reason = f"decode_tok_s has no usable value: {said}"
    assert comparison.verdict is Verdict.INVALID
    assert comparison.violations == (Violation(rule="metric-missing", reason=reason),)
    assert row(comparison, "decode_tok_s").value is None
    assert text(comparison).startswith(f"INVALID: {KEY}: metric-missing\n\n  metric-missing: {reason}\n")


def test_a_gated_metric_that_nobody_measured_is_invalid() -> None:
    measured = {name: launches for name, launches in GOOD.items() if name != "accept_length"}

    comparison = compare.judge(
        measured, lookup(), violations=(), identity=IDENTITY, environment={}, node=NODE, drafting=True
    )

    assert comparison.verdict is Verdict.INVALID
    assert comparison.violations[0].reason == "accept_length has no usable value: it was not measured"


def test_a_metric_with_a_floor_is_invalid_without_a_value_even_when_advisory() -> None:
    comparison = judge({"ttft_ms": ((math.nan,),)}, lookup(ttft_ms=metric("ttft_ms", floor=300.0)))

    assert comparison.verdict is Verdict.INVALID


def test_an_advisory_metric_without_a_value_is_no_matter() -> None:
    comparison = judge({"ttft_ms": ((math.nan,),)}, lookup(ttft_ms=metric("ttft_ms", (200.0,))))

    assert comparison.verdict is Verdict.PASS
    assert row(comparison, "ttft_ms").reason == "ttft_ms has no usable value: round 1 of launch 1 is nan"


def test_a_drafter_that_got_lost_does_not_take_its_gate_with_it() -> None:
    measured: dict[str, RoundsByLaunch] = {"decode_tok_s": ((100.0,),)}

    comparison = compare.judge(
        measured, lookup(), violations=(), identity=IDENTITY, environment={}, node=NODE, drafting=False
    )

    assert comparison.verdict is Verdict.INVALID
    assert comparison.violations[0].reason == "accept_length has no usable value: it was not measured"


def test_a_server_that_never_drafted_needs_no_accept_length() -> None:
    measured: dict[str, RoundsByLaunch] = {"decode_tok_s": ((100.0,),)}
    full = lookup()
    control = dataclasses.replace(full, metrics={"decode_tok_s": full.metrics["decode_tok_s"]})

    comparison = compare.judge(
        measured, control, violations=(), identity=IDENTITY, environment={}, node=NODE, drafting=False
    )

    assert comparison.verdict is Verdict.PASS
    assert [entry.metric for entry in comparison.metrics] == ["decode_tok_s"]


def test_a_gated_metric_found_in_no_file_is_no_baseline() -> None:
    full = lookup()
    partial = dataclasses.replace(full, metrics={"accept_length": full.metrics["accept_length"]})

    comparison = judge({}, partial)

    assert comparison.verdict is Verdict.NO_BASELINE
    assert row(comparison, "decode_tok_s").verdict is Verdict.NO_BASELINE
    assert row(comparison, "accept_length").verdict is Verdict.PASS
    assert f"there is no baseline for decode_tok_s: {PATH}\n" in text(comparison)


def test_a_gated_metric_with_neither_samples_nor_a_floor_is_no_baseline() -> None:
    comparison = judge({}, lookup(decode_tok_s=metric("decode_tok_s")))

    assert comparison.verdict is Verdict.NO_BASELINE
    assert row(comparison, "decode_tok_s").reason == "its baseline has neither samples nor a floor"


def test_an_advisory_metric_without_a_baseline_is_shown_only() -> None:
    comparison = judge({"e2e_ms": ((5000.0,),)})

    judged = row(comparison, "e2e_ms")
    assert (judged.value, judged.verdict, judged.source) == (5000.0, None, None)
    assert comparison.verdict is Verdict.PASS


def test_on_a_cpu_node_throughput_is_advisory_and_acceptance_is_not() -> None:
    comparison = judge({}, NOTHING, node="cpu-epyc-16c")

    gated = [entry.metric for entry in comparison.metrics if entry.gated]
    assert gated == ["accept_length"]
    assert comparison.verdict is Verdict.NO_BASELINE


def test_above_concurrency_1_the_system_throughput_gates() -> None:
    comparison = judge({}, NOTHING, identity=dataclasses.replace(IDENTITY, concurrency=16))

    assert [entry.metric for entry in comparison.metrics if entry.gated] == ["system_tok_s", "accept_length"]


def test_it_is_said_when_nothing_gates() -> None:
    measured: dict[str, RoundsByLaunch] = {"decode_tok_s": ((100.0,),)}
    advisory = lookup(
        decode_tok_s=metric("decode_tok_s", (100.0,), gate=False),
        accept_length=metric("accept_length", (2.5,), gate=False),
    )

    on_cpu = compare.judge(
        measured, NOTHING, violations=(), identity=IDENTITY, environment={}, node="cpu-epyc-16c", drafting=False
    )

    assert on_cpu.notes == (
        "no metric gates here: throughput on a CPU node is advisory, and the server does not draft",
    )
    assert judge({}, advisory).notes == ("no metric gates here: all are advisory",)
    assert judge({}).notes == ()


RULE = Violation(rule="output-length", reason="a request stopped after 20 of 512 tokens")
SLOW: dict[str, RoundsByLaunch] = {"decode_tok_s": ((50.0,),)}
FAST: dict[str, RoundsByLaunch] = {"decode_tok_s": ((150.0,),)}
NO_SAMPLES_BUT_A_FLOOR = lookup(decode_tok_s=metric("decode_tok_s", floor=89.5), accept_length=metric("accept_length"))


@pytest.mark.parametrize(
    ("measured", "against", "violations", "verdict"),
    [
        (SLOW, lookup(), (RULE,), Verdict.INVALID),
        (FAST, lookup(), (RULE,), Verdict.INVALID),
        (SLOW, lookup(accept_length=metric("accept_length")), (), Verdict.REGRESSION),
        (SLOW, NO_SAMPLES_BUT_A_FLOOR, (), Verdict.REGRESSION),
        (FAST, lookup(accept_length=metric("accept_length")), (), Verdict.NO_BASELINE),
        ({**FAST, "accept_length": ((2.0,),)}, lookup(), (), Verdict.REGRESSION),
        (FAST, lookup(), (), Verdict.IMPROVEMENT),
    ],
    ids=[
        "invalid before regression",
        "invalid before improvement",
        "regression before no-baseline",
        "a broken floor before no-baseline",
        "no-baseline before improvement",
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


def test_inconclusive_stands_between_a_regression_and_a_missing_baseline() -> None:
    plain = row(judge({}), "decode_tok_s")
    rows = {verdict: dataclasses.replace(plain, verdict=verdict) for verdict in Verdict}

    def overall(*verdicts: Verdict) -> Verdict:
        return compare._overall([rows[verdict] for verdict in verdicts], ())

    assert overall(Verdict.INCONCLUSIVE, Verdict.REGRESSION) is Verdict.REGRESSION
    assert overall(Verdict.NO_BASELINE, Verdict.INCONCLUSIVE, Verdict.IMPROVEMENT) is Verdict.INCONCLUSIVE


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
    document = Provenance(source="document", recorded_at=None, git_commit=None, command=None)
    against = lookup(identity=dataclasses.replace(IDENTITY, model=None, sampling=None), provenance=document)

    comparison = judge({}, against)

    assert comparison.verdict is Verdict.PASS
    assert comparison.notes == (
        f"not known, so not compared with {PATH.name}: model, model_revision, draft_revision, sampling",
    )


def test_a_change_of_decode_throughput_is_split_into_accept_length_and_verify_rate() -> None:
    comparison = judge({"decode_tok_s": ((72.0,),), "accept_length": ((2.0,),), "verify_rate": ((36.0,),)})

    assert comparison.split == pytest.approx((-0.2, -0.1))
    accept, rate = comparison.split or (0.0, 0.0)
    assert (1 + accept) * (1 + rate) - 1 == pytest.approx(row(comparison, "decode_tok_s").change)


@pytest.mark.parametrize(
    ("accept_length", "verify_rate", "said"),
    [
        (
            2.2125,
            39.76,
            (
                "decode tok/s -12.0 % = accept length -11.5 % x verify rate -0.6 %: the drafter got worse (fewer draft "
                "tokens are right), not the engine"
            ),
        ),
        (
            2.5,
            35.2,
            (
                "decode tok/s -12.0 % = accept length +0.0 % x verify rate -12.0 %: the engine or the machine got "
                "slower, not the drafter"
            ),
        ),
        (
            2.0,
            36.0,
            (
                "decode tok/s -28.0 % = accept length -20.0 % x verify rate -10.0 %: the drafter got worse, and "
                "the engine or the machine slower; 68% of the loss is the drafter's"
            ),
        ),
        (2.5, 39.6, None),
        (2.75, 40.0, None),
    ],
)
def test_the_half_that_got_worse_is_named(accept_length: float, verify_rate: float, said: str | None) -> None:
    comparison = judge({"accept_length": ((accept_length,),), "verify_rate": ((verify_rate,),)})

    assert compare.explain_split(comparison) == said
    assert said is None or f"\n  {said}\n" in text(comparison)


def test_there_is_no_split_when_the_baseline_lacks_a_half() -> None:
    full = lookup()
    without = {name: found for name, found in full.metrics.items() if name != "verify_rate"}

    comparison = judge(SLOW, dataclasses.replace(full, metrics=without))

    assert comparison.split is None
    assert compare.explain_split(comparison) is None


def test_differences_of_the_environment_are_sorted_and_readable() -> None:
    before: dict[str, object] = {
        "sglang_version": "0.5.20",
        "torch_version": "2.14.1",
        "args.tp_size": 8,
        "args.port": 30000,
        "env.NCCL_ALGO": "Tree",
        "gpu_power_limit_w": [600.0, 600.0],
    }
    after = {
        "sglang_version": "0.5.23",
        "torch_version": "2.14.1",
        "args.tp_size": 4,
        "args.port": 31000,
        "args.log_level": "",
        "gpu_power_limit_w": [600.0, 450.0],
    }

    assert compare.environment_changes([before], after) == (
        "args.log_level: (not set) -> ''",
        "args.tp_size: 8 -> 4",
        "env.NCCL_ALGO: Tree -> (not set)",
        "gpu_power_limit_w: [600.0, 600.0] -> [600.0, 450.0]",
        "sglang_version: 0.5.20 -> 0.5.23",
    )


def test_an_environment_that_was_written_and_read_back_has_no_differences(tmp_path: Path) -> None:
    environment: dict[str, object] = {"args.mem_fraction_static": 0.8837209302, "gpu_names": ("a", "b"), "ready": None}
    against = lookup(environment=environment).metrics["decode_tok_s"].baseline
    write_baseline(tmp_path / "a.json", against)

    assert compare.environment_changes([read_baseline(tmp_path / "a.json").environment], environment) == ()


def test_of_long_values_the_part_that_differs_is_shown() -> None:
    before = "python -m sglang.launch_server --model-path /models/k2 --tp 8 --max-running-requests 16 --log-level info"
    after = "python -m sglang.launch_server --model-path /models/k2 --tp 8 --max-running-requests 32 --log-level info"

    (changed,) = compare.environment_changes([{"command": before}], {"command": after})

    assert (
        changed == "command: ...ax-running-requests 16 --log-level info -> ...ax-running-requests 32 --log-level info"
    )


def test_long_values_that_differ_in_length_only_are_cut_to_a_line() -> None:
    (changed,) = compare.environment_changes([{"env.X": "a" * 100}], {"env.X": "a" * 300})

    assert changed == "env.X: ..." + "a" * 20 + " -> ..." + "a" * 80 + "..."


def test_only_what_the_program_recorded_is_an_environment_to_differ_from() -> None:
    document = Provenance(source="document", recorded_at=None, git_commit=None, command=None)

    changed = judge({}, lookup(environment={"sglang_version": "0.5.20"}), environment={"sglang_version": "0.5.23"})
    unknown = judge({}, lookup(provenance=document), environment={"sglang_version": "0.5.23"})

    assert changed.environment_changes == ("sglang_version: 0.5.20 -> 0.5.23",)
    assert unknown.environment_changes == ()


def test_the_text_of_a_regression() -> None:
    comparison = judge(
        {
            "decode_tok_s": ((88.0,),),
            "accept_length": ((2.2125,),),
            "verify_rate": ((39.76,),),
            "ttft_ms": ((190.0,),),
        },
        lookup(
            decode_tok_s=metric("decode_tok_s", (100.0,), floor=89.5),
            ttft_ms=metric("ttft_ms", (200.0,)),
            environment={"sglang_version": "0.5.20"},
        ),
        environment={"sglang_version": "0.5.23"},
        notes=["waived degenerate-output: 3 of 8 answers repeat"],
    )

    assert text(comparison) == "\n".join(
        [
            f"REGRESSION: {KEY}: decode_tok_s 88, floor 89.5",
            "",
            "  metric                  value  baseline               allowed   change  verdict",
            "  decode_tok_s tok/s      88.00     100.0  >= 98.00, floor 89.5  -12.0 %  regression",
            "  ttft_ms ms              190.0     200.0              <= 210.0   -5.0 %  pass (advisory)",
            "  accept_length tok/step  2.212     2.500              >= 2.475  -11.5 %  regression",
            "  verify_rate step/s      39.76     40.00              >= 39.20   -0.6 %  pass (advisory)",
            "",
            f"  decode_tok_s 88 tok/s is below its floor 89.5 tok/s (set by a person in {PATH})",
            (
                "  decode tok/s -12.0 % = accept length -11.5 % x verify rate -0.6 %: the drafter got worse (fewer "
                "draft tokens are right), not the engine"
            ),
            "  the environment differs from the baseline's:",
            "    sglang_version: 0.5.20 -> 0.5.23",
            "  waived degenerate-output: 3 of 8 answers repeat",
            f"  baseline: {PATH}",
            (
                "  a loss that is meant is recorded with --update-baselines --specdec-allow-loosening, and reviewed as "
                "a diff"
            ),
        ]
    )


def test_a_refused_update_names_the_option_once() -> None:
    refused = judge(SLOW, notes=["not recorded: give --specdec-allow-loosening to write it"])

    assert text(refused).count("--specdec-allow-loosening") == 1
    assert text(judge(SLOW)).count("--specdec-allow-loosening") == 1


def test_the_accept_length_of_sglang_is_left_out_of_the_text_unless_it_decides() -> None:
    measured: dict[str, RoundsByLaunch] = {"accept_length_sglang": ((2.6,),)}
    floored = lookup(accept_length_sglang=metric("accept_length_sglang", floor=2.7))

    assert "accept_length_sglang" not in text(judge(measured))
    assert "accept_length_sglang tok/step" in text(judge(measured, floored))


def test_a_broken_floor_alone_has_no_command_that_would_move_it() -> None:
    comparison = judge({"decode_tok_s": ((89.0,),)}, lookup(decode_tok_s=metric("decode_tok_s", floor=89.5)))

    assert comparison.verdict is Verdict.REGRESSION
    assert "--update-baselines" not in text(comparison)


def test_the_text_of_a_missing_baseline_names_path_neighbours_and_the_command() -> None:
    comparison = judge({}, NOTHING)

    said = text(comparison, nearest=("8x-b200", "8x-h200"))
    assert said.startswith(f"NO-BASELINE: {KEY}\n")
    assert said.endswith(
        f"  there is no baseline for decode_tok_s, accept_length: {PATH}\n"
        "  other nodes have one: 8x-b200, 8x-h200\n"
        "  record it with:\n"
        f"    {COMMAND}"
    )
    assert "  no node has one\n" in text(comparison)


def test_the_whole_life_of_a_baseline(tmp_path: Path) -> None:
    """Missing, recorded, passed against, regressed from, held by a floor, updated with the floor kept."""
    store = BaselineStore(tmp_path, NODE)
    path = tmp_path / NODE / f"{KEY}.json"

    def measure(speed: float) -> Comparison:
        measured: dict[str, RoundsByLaunch] = {"decode_tok_s": ((speed, speed, speed),)}
        return judge(measured, store.lookup(KEY))

    def record(speed: float) -> None:
        files, changes = updated(
            store.lookup(KEY),
            {**GOOD, "decode_tok_s": ((speed, speed, speed),)},
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
    assert measure(98.5).verdict is Verdict.REGRESSION
    assert f"(set by a person in {path})" in text(measure(98.5))

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
