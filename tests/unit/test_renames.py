"""Flags of older and newer SGLang versions: what is translated, for which version, and that the table is true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec.renames import RENAMES, RETIRED, Rename, translate, version_of
from pytest_specdec.spec import ServerSpec

DUMP = Path(__file__).parents[1] / "data" / "args_0.5.23.json"


def parser_0523() -> dict[str, Any]:
    """Every spelling that 0.5.23's own parser has, with its option."""
    return {flag: entry for entry in json.loads(DUMP.read_text(encoding="utf-8")) for flag in entry["opts"]}


def spec(args: str) -> ServerSpec:
    return ServerSpec("kimi", "/models/kimi", args=args)


def test_the_first_contract_runs_on_0_5_23() -> None:
    control = spec("--tp 8 --cuda-graph-max-bs 128 --disable-custom-all-reduce")

    found, notices = translate(control, "0.5.23")

    assert found.args == ("--tp", "8", "--cuda-graph-max-bs-decode", "128", "--disable-custom-all-reduce")
    assert found.name == "kimi"
    assert notices == ("for SGLang 0.5.23, --cuda-graph-max-bs 128 became --cuda-graph-max-bs-decode 128",)


@pytest.mark.parametrize(
    ("version", "flag"),
    [
        ("0.5.13", "--cuda-graph-max-bs"),
        ("0.5.19", "--cuda-graph-max-bs"),
        ("0.5.19.post2", "--cuda-graph-max-bs"),
        ("0.5.20rc1", "--cuda-graph-max-bs-decode"),
        ("0.5.20", "--cuda-graph-max-bs-decode"),
        ("0.6", "--cuda-graph-max-bs-decode"),
        ("0.0.0.dev1+g1a2b3c", "--cuda-graph-max-bs-decode"),
    ],
)
def test_a_flag_is_translated_where_it_is_gone_and_only_there(version: str, flag: str) -> None:
    found, notices = translate(spec("--cuda-graph-max-bs 128"), version)

    assert found.args == (flag, "128")
    assert len(notices) == (flag != "--cuda-graph-max-bs")


def test_a_new_name_is_translated_back_for_an_older_version() -> None:
    newer = spec("--cuda-graph-bs-decode 1 2 4")

    assert translate(newer, "0.5.13")[0].args == ("--cuda-graph-bs", "1", "2", "4")
    assert translate(newer, "0.5.15")[0] is newer


def test_a_value_that_took_a_flags_place_is_not_translated_back() -> None:
    newer = spec("--moe-a2a-backend deepep")

    assert translate(newer, "0.4.6")[0] is newer


def test_a_spec_without_old_flags_is_returned_itself() -> None:
    control = spec("--tp 8 --mem-fraction-static 0.8")

    assert translate(control, "0.5.23") == (control, ())
    assert translate(control, "0.5.23")[0] is control


def test_underscores_are_the_same_flag() -> None:
    assert translate(spec("--cuda_graph_max_bs 8"), "0.5.23")[0].args == ("--cuda-graph-max-bs-decode", "8")


def test_a_bare_flag_becomes_a_value() -> None:
    found, notices = translate(spec("--tp 4 --enable-ep-moe --enable-deepep-moe"), "0.5.23")

    assert found.args == ("--tp", "4", "--ep-size", "4", "--moe-a2a-backend", "deepep")
    assert notices[0] == "for SGLang 0.5.23, --enable-ep-moe became --ep-size 4"


def test_what_the_spec_already_says_is_not_said_twice() -> None:
    found, notices = translate(spec("--ep 2 --enable-ep-moe"), "0.5.23")

    assert found.args == ("--ep", "2")
    assert notices == ("for SGLang 0.5.23, --enable-ep-moe is left out: --ep-size is given already",)


def test_two_old_flags_for_one_new_one_give_it_once() -> None:
    found, notices = translate(spec("--disable-piecewise-cuda-graph --enable-breakable-cuda-graph"), "0.5.23")

    assert found.args == ("--cuda-graph-backend-prefill", "disabled")
    assert notices[1].endswith("is left out: --cuda-graph-backend-prefill is given already")


def test_a_flag_that_did_nothing_is_left_out_and_says_why() -> None:
    found, notices = translate(spec("--tp 2 --enable-piecewise-cuda-graph"), "0.5.23")

    assert found.args == ("--tp", "2")
    assert notices == (
        "for SGLang 0.5.23, --enable-piecewise-cuda-graph is left out: these graphs are on by default since 0.5.10",
    )


def test_a_stand_in_keeps_its_name_and_everything_else_stays() -> None:
    cpu = ServerSpec("cpu", "m", args="--device cpu --stream-output", env={"A": "b"}, cwd="/d", launcher="nice -n 5")
    standin = ServerSpec("gpu", "m", cpu_standin=cpu).standin()
    assert standin is not None

    found, _ = translate(standin, "0.5.23")

    assert found.name == "gpu@cpu-standin"
    assert found.args == ("--device", "cpu", "--incremental-streaming-output")
    assert (found.env, found.cwd, found.launcher, found.model) == ({"A": "b"}, "/d", ("nice", "-n", "5"), "m")


@pytest.mark.parametrize("rename", RENAMES, ids=lambda rename: rename.old)
def test_the_table_is_true_of_0_5_23(rename: Rename) -> None:
    parser = parser_0523()

    assert f"--{rename.old}" not in parser
    if rename.new is not None:
        option = parser[f"--{rename.new}"]
        takes_none = option["nargs"] == "0"
        assert takes_none == (rename.value is None and rename.old.startswith(("enable-", "stream-")))
        if rename.value not in (None, "@tp") and option["choices"]:
            assert rename.value in option["choices"]


@pytest.mark.parametrize("flag", sorted(RETIRED))
def test_retired_flags_are_gone_and_point_at_flags_that_exist(flag: str) -> None:
    parser = parser_0523()

    assert f"--{flag}" not in parser
    assert all(word.rstrip(";,") in parser for word in RETIRED[flag].split() if word.startswith("--"))


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.5.23", (0, 5, 23)), ("0.4.6.post5", (0, 4, 6)), ("v0.5.3rc0", (0, 5, 3)), (" 1.0 ", (1, 0, 0))],
)
def test_versions_are_read(text: str, version: tuple[int, int, int]) -> None:
    assert version_of(text) == version


@pytest.mark.parametrize("text", ["0.0.0.dev0", "main", ""])
def test_a_checkout_without_tags_is_newer_than_all(text: str) -> None:
    assert version_of(text) > version_of("99.0")
