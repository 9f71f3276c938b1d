"""Sweeps: which specs there are, what they are called, and which points are refused."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_specdec import ServerSpec, sweep
from pytest_specdec.errors import SpecError

CONTROL = ServerSpec.from_command(
    "kimi", "NCCL_ALGO=Ring python -m sglang.launch_server --model-path /m --tp 8 --cuda-graph-max-bs 128"
)
CHAIN = CONTROL.but(
    "eagle3",
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path /d"
    " --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
)
STEPS, TOPK, TOKENS = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"


def names(points: list[ServerSpec]) -> list[str]:
    return [point.name for point in points]


def shapes(points: list[ServerSpec]) -> list[tuple[str | None, ...]]:
    return [tuple(point.first(flag) for flag in (STEPS, TOPK, TOKENS)) for point in points]


def test_one_flag_gives_a_point_a_value_and_the_control_stands_for_its_own() -> None:
    points = sweep(CONTROL, "--cuda-graph-max-bs", [512, 256, 128, 64])

    swept = "kimi_cuda-graph-max-bs-"
    assert names(points) == [f"{swept}512", f"{swept}256", "kimi", f"{swept}64"]
    assert points[2] is CONTROL
    assert [point.first("--cuda-graph-max-bs") for point in points] == ["512", "256", "128", "64"]
    assert all(point.get("--tp") == ("8",) for point in points)


def test_a_product_has_every_combination_the_last_flag_fastest() -> None:
    points = sweep(CONTROL, {"--cuda-graph-max-bs": [64, 32], "--mem-fraction-static": [0.78, 0.92]}, name="k")

    assert names(points) == [
        "k_cuda-graph-max-bs-64_mem-fraction-static-0.78",
        "k_cuda-graph-max-bs-64_mem-fraction-static-0.92",
        "k_cuda-graph-max-bs-32_mem-fraction-static-0.78",
        "k_cuda-graph-max-bs-32_mem-fraction-static-0.92",
    ]


def test_a_bare_flag_is_on_or_off() -> None:
    on, off = sweep(CONTROL, "--enable-mscclpp", [True, False])

    assert (on.name, on.get("--enable-mscclpp")) == ("kimi_enable-mscclpp-on", ())
    assert off is CONTROL


def test_a_flag_of_the_control_is_left_out_by_none() -> None:
    (point,) = sweep(CONTROL, "--cuda-graph-max-bs", [None])

    assert point.name == "kimi_cuda-graph-max-bs-off"
    assert not point.has("--cuda-graph-max-bs")


def test_a_name_without_dashes_is_a_variable() -> None:
    points = sweep(CONTROL, "NCCL_ALGO", ["Tree", "Ring", None])

    assert names(points) == ["kimi_nccl-algo-tree", "kimi", "kimi_nccl-algo-off"]
    assert [point.env.get("NCCL_ALGO") for point in points] == ["Tree", "Ring", None]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (-1, "kimi_x-minus-1"),
        ("/data/EAGLE3/synth_100k", "kimi_x-data-eagle3-synth-100k"),
        ('{"a": 1}', "kimi_x-a-1"),
        ("--", "kimi_x-none"),
        (1e-05, "kimi_x-1e-05"),
    ],
)
def test_names_keep_to_the_rule_of_spec_names(value: Any, name: str) -> None:
    (point,) = sweep(CONTROL, "--x", [value])

    assert point.name == name
    assert point.first("--x") == str(value)


def test_a_chain_has_one_more_draft_token_than_steps_whatever_the_control_has() -> None:
    points = sweep(CHAIN, STEPS, [1, 3, 5])

    assert names(points) == ["eagle3_steps-1_draft-tokens-2", "eagle3", "eagle3_steps-5_draft-tokens-6"]
    assert shapes(points) == [("1", "1", "2"), ("3", "1", "4"), ("5", "1", "6")]


def test_in_a_product_with_top_k_the_points_of_a_chain_are_one() -> None:
    points = sweep(CHAIN, {STEPS: [2, 3], TOPK: [1, 2], TOKENS: [4, 6]})

    assert shapes(points) == [
        ("2", "1", "3"),
        ("2", "2", "4"),
        ("2", "2", "6"),
        ("3", "1", "4"),
        ("3", "2", "4"),
        ("3", "2", "6"),
    ]
    assert points[3] is CHAIN


def test_top_k_alone_keeps_the_control_s_draft_tokens_in_a_tree() -> None:
    assert shapes(sweep(CHAIN, TOPK, [1, 4])) == [("3", "1", "4"), ("3", "4", "4")]


def test_other_spellings_are_known() -> None:
    assert shapes(sweep(CHAIN, {"--speculative_num_steps": [2], "--speculative-num-draft": [3]})) == [("2", "1", "3")]


def test_draft_tokens_of_ngram_are_free() -> None:
    ngram = CONTROL.but("ngram", "--speculative-algorithm NGRAM")

    assert [point.first(TOKENS) for point in sweep(ngram, TOKENS, [4, 8])] == ["4", "8"]


@pytest.mark.parametrize(
    ("control", "over", "message"),
    [
        (CHAIN, {TOKENS: [4, 8]}, "3 steps have 4 draft tokens and never 8; sweep --speculative-num-steps, or"),
        (CHAIN, {STEPS: [2, 3], TOKENS: [4]}, "2 steps have 3 draft tokens and never 4"),
        (CHAIN, {TOPK: [2], STEPS: [1], TOKENS: [8]}, "1 steps with --speculative-eagle-topk 2 draft at most 3 tokens"),
        (CHAIN, {TOPK: [2], TOKENS: [None]}, "without --speculative-num-draft-tokens: SGLang ends with a TypeError"),
        (CONTROL, {STEPS: [1, 2]}, "no --speculative-algorithm: the server would run without drafting"),
        (CONTROL, {"cuda graph": [1]}, "a flag begins with two dashes, and a variable is a name"),
        (CONTROL, {"--x": []}, r"sweep of --x: expected a list of values, got \[\]"),
        (CONTROL, {"--x": "512"}, "expected a list of values, got '512'"),
        (CONTROL, {}, "no flag to sweep"),
        (CONTROL, {"--x": ["a/b", "a-b"]}, "two points of the sweep of kimi are called kimi_x-a-b"),
    ],
)
def test_what_can_not_be_is_refused_with_what_would_do(control: ServerSpec, over: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        sweep(control, over)


def test_values_belong_to_one_flag() -> None:
    with pytest.raises(SpecError, match=r"no values; write sweep\(control, '--x', \[1, 2, 4\]\)"):
        sweep(CONTROL, "--x")
    with pytest.raises(SpecError, match="values belong to one flag"):
        sweep(CONTROL, {"--x": [1]}, [2])


def test_six_tokens_fit_into_two_steps_of_top_k_two() -> None:
    # 2 in the first step, 4 in the second, and the one that was verified before.
    assert shapes(sweep(CHAIN, {STEPS: [2], TOPK: [2], TOKENS: [7]})) == [("2", "2", "7")]
    with pytest.raises(SpecError, match="2 steps with --speculative-eagle-topk 2 draft at most 7 tokens"):
        sweep(CHAIN, {STEPS: [2], TOPK: [2], TOKENS: [8]})
