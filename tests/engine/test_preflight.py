"""The preflight on the real parser: what is asked, what is kept, and what is refused. No server is started."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec import engine_env
from pytest_specdec.clock import SystemClock
from pytest_specdec.hosts import Completed, LocalHost
from pytest_specdec.preflight import Preflight, check
from pytest_specdec.renames import RENAMES, RETIRED
from pytest_specdec.spec import ServerSpec

DUMP = Path(__file__).parents[1] / "data" / "args_0.5.23.json"
GOOD = "--device cpu --dtype float32 --max-total-tokens 16k --random-seed 0 --tp 1 --cuda-graph-max-bs 4"


class CountingHost(LocalHost):
    """This machine, with what the script was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: list[str] = []

    def run(self, argv: Any, *, env: Any = None, timeout_s: float = 60.0) -> Completed:
        self.questions.append(json.loads(argv[-1])["ask"])
        return super().run(argv, env=env, timeout_s=timeout_s)


class Checker:
    """Checks specs as a launch on the CPU engine would be checked, with one cache."""

    def __init__(self, python: str, cache_dir: Path) -> None:
        self.host = CountingHost()
        self.python = python
        self.cache_dir = cache_dir
        self.flags: set[str] = set()

    def __call__(self, args: str, *, model: str = "org/model", **fields: Any) -> Preflight:
        return check(
            self.host,
            ServerSpec("spec", model, args=args, **fields),
            python=self.python,
            env={**self.host.environ(), **engine_env.cpu_engine_environment(dict(os.environ))},
            cache_dir=self.cache_dir,
            device="cpu",
            clock=SystemClock(),
        )


@pytest.fixture(scope="module")
def checker(engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> Checker:
    """A checker whose cache has SGLang's answer to good flags, and every spelling that SGLang's parser has."""
    checker = Checker(engine_python, tmp_path_factory.mktemp("cache"))
    result = checker(GOOD)
    assert result.problems == ()
    assert result.notices == (
        f"for SGLang {result.sglang_version}, --cuda-graph-max-bs 4 became --cuda-graph-max-bs-decode 4",
    )
    assert checker.host.questions == ["look", "parse"]
    (kept,) = checker.cache_dir.glob("preflight/*.json")
    options = json.loads(kept.read_text(encoding="utf-8"))["options"]
    checker.flags = {flag for row in options for flag in row["flags"]}
    return checker


def test_the_table_of_renames_is_true_of_this_version(checker: Checker) -> None:
    flags = checker.flags

    assert not {f"--{rename.old}" for rename in RENAMES} & flags
    assert not {f"--{flag}" for flag in RETIRED} & flags
    assert {f"--{rename.new}" for rename in RENAMES if rename.new is not None} <= flags


def test_the_dump_that_unit_tests_use_is_this_parsers(checker: Checker) -> None:
    flags = checker.flags
    dumped = {flag for entry in json.loads(DUMP.read_text(encoding="utf-8")) for flag in entry["opts"]}

    # Help is left out, and a package beside SGLang adds options of its own where it is installed.
    assert dumped - flags == {"--help", "-h"}
    assert flags - dumped <= {"--metrics-host", "--metrics-port", "--servicer-impl"}


@pytest.mark.parametrize(
    "args",
    [
        f"{GOOD} --tp 2 --mem-frac 0.5 --enable-metrics",
        "--speculative-algorithm NGRAM --speculative-num-draft-tokens 4",
        "--speculative-algo EAGLE3 --speculative-draft-model org/d",
    ],
)
def test_other_good_flags_cost_no_import(checker: Checker, args: str) -> None:
    checker.host.questions.clear()

    assert checker(args).problems == ()
    assert checker.host.questions == ["look"]


def test_paths_are_looked_for_in_the_directory_of_the_launch(checker: Checker, tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "empty").mkdir()

    assert checker("--tp 1", model="./good", cwd=tmp_path).problems == ()
    for model, wrong in [("./empty", "is a directory without a config.json"), ("./gone", "is not there")]:
        (problem,) = checker("--tp 1", model=model, cwd=tmp_path).problems
        assert problem.rule == "model-path"
        assert problem.message.startswith(f"--model-path {model} {wrong}")


def test_bad_flags_are_all_found_at_once(checker: Checker) -> None:
    result = checker(
        "--dtype float33 --tp x --cuda-graph-maxbs-decode 3 --cuda-graph-max 4 --speculative-algorithm EAGLE9"
    )

    assert [problem.rule for problem in result.problems] == [
        "bad-value",
        "bad-value",
        "unknown-flag",
        "ambiguous-flag",
        "draft-flags",
    ]
    dtype, tensor_parallel, unknown, ambiguous, algorithm = (problem.message for problem in result.problems)
    assert dtype.startswith("--dtype is 'float33'; it takes auto, ")
    assert tensor_parallel == "--tp-size is 'x': invalid int value: 'x'"
    assert unknown.startswith("there is no --cuda-graph-maxbs-decode; nearest: --cuda-graph-max-bs-decode, ")
    assert ambiguous.startswith("--cuda-graph-max begins --cuda-graph-max-bs-decode, ")
    assert algorithm.startswith("--speculative-algorithm is EAGLE9, which this SGLang does not have; it has DFLASH, ")
