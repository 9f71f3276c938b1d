"""Beside pytest-benchmark, its oldest supported release and the newest, and beside other benchmark plug-ins."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests.plugin.conftest import TEST_B, Suite
from tests.plugin.packages import installed

TWO = TEST_B.replace("[B]", "[A, B]").replace("specdec_benchmark()", "specdec_benchmark(check=False)")
A_FIXTURE_OF_THAT_NAME = """
import pytest

@pytest.fixture
def benchmark():
    return lambda function: function()
"""


def oldest() -> str:
    """The oldest release that the package allows."""
    (found,) = (r for r in importlib.metadata.requires("pytest-specdec") or () if r.startswith("pytest-benchmark"))
    return found.removeprefix("pytest-benchmark>=")


@pytest.fixture(params=["oldest", "newest"])
def release(request: pytest.FixtureRequest) -> str:
    return oldest() if request.param == "oldest" else importlib.metadata.version("pytest-benchmark")


@pytest.fixture
def beside(release: str) -> dict[str, str]:
    """The environment in which pytest finds that release."""
    if release == importlib.metadata.version("pytest-benchmark"):
        return {}
    return {"PYTHONPATH": str(installed(f"pytest-benchmark=={release}", "py-cpuinfo==9.0.0"))}


def entries(suite: Suite) -> list[dict[str, Any]]:
    """What pytest-benchmark wrote to ``entries.json``; older releases leave the file empty when there is nothing."""
    path = suite.root / "entries.json"
    text = path.read_text() if path.exists() else ""
    found: list[dict[str, Any]] = json.loads(text)["benchmarks"] if text else []
    return found


def wall_s(suite: Suite, key: str) -> list[float]:
    """The seconds of the measured rounds of a measurement, as ``rounds.jsonl`` has them."""
    rows = [json.loads(line) for line in (suite.root / ".specdec" / "rounds.jsonl").read_text().splitlines()]
    return [row["round"]["wall_s"] for row in rows if row["key"] == key and not row["round"]["warmup"]]


def compare(suite: Suite, *args: str, env: Mapping[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "compare", *args],
        cwd=suite.root,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_round_is_a_duration_and_its_rates_go_along(suite: Suite, release: str, beside: dict[str, str]) -> None:
    suite.write(TWO)

    result = suite.run("--specdec-launches=2", "--benchmark-json=entries.json", env=beside)

    assert result.ret == 0, result.stdout.str()
    result.stdout.fnmatch_lines(
        [f"benchmark: {release} *", "*benchmark 'smoke--c1--o31 on cpu-test': 2 tests*", "b--smoke--c1--o31 *"]
    )
    found = {entry["fullname"]: entry for entry in entries(suite)}
    assert list(found) == ["cpu-test/a--smoke--c1--o31", "cpu-test/b--smoke--c1--o31"]
    entry = found["cpu-test/b--smoke--c1--o31"]
    assert entry["stats"]["data"] == wall_s(suite, "b--smoke--c1--o31")
    assert (entry["stats"]["rounds"], entry["extra_info"]["launches"]) == (4, 2)
    assert entry["params"] == {"server": "b", "workload": "smoke", "concurrency": 1, "output_tokens": 31}
    measured = suite.results["measurements"][1]["metrics"]
    for rate in ("decode_tok_s", "system_tok_s", "output_tok_s", "accept_length", "verify_rate"):
        assert entry["extra_info"][rate] == pytest.approx(measured[rate]["value"])
    assert entry["extra_info"]["verdict"] == "no-baseline"
    assert "accept_length" not in found["cpu-test/a--smoke--c1--o31"]["extra_info"]


def test_saved_runs_are_compared(suite: Suite, beside: dict[str, str]) -> None:
    suite.write(TWO)

    assert suite.run("--benchmark-save=first", env=beside).ret == 0
    second = suite.run("--benchmark-autosave", "--benchmark-compare", env=beside)

    second.stdout.re_match_lines_random([r"b--smoke--c1--o31 \(NOW\) ", r"b--smoke--c1--o31 \(0001_first\) "])
    by_work = compare(suite, env=beside)
    assert len(re.findall(r"^[ab]--smoke--c1--o31 \(000[12]_", by_work, re.MULTILINE)) == 4
    assert len(re.findall("benchmark 'smoke--c1--o31 on cpu-test': 4 tests", by_work)) == 1
    by_server = compare(suite, "--group-by=param:server", env=beside)
    assert re.findall("benchmark '(server=.)': 2 tests", by_server) == ["server=a", "server=b"]


@pytest.mark.parametrize(
    "args",
    [
        ("-n", "2", "--benchmark-json=entries.json"),
        ("--benchmark-disable", "--benchmark-json=entries.json"),
        ("--benchmark-skip", "--benchmark-json=entries.json"),
        ("-p", "no:benchmark"),
    ],
    ids=["n2", "disable", "skip", "absent"],
)
def test_without_it_its_table_is_absent_and_nothing_else_changes(
    suite: Suite, beside: dict[str, str], args: tuple[str, ...]
) -> None:
    suite.write(TEST_B)

    result = suite.run(*args, env=beside)

    assert result.ret == 11
    assert suite.launches == 1
    result.stdout.fnmatch_lines(["*speculative decoding*", "b *smoke c1 o31* 3.000 * no-baseline"])
    result.stdout.no_fnmatch_line("*on cpu-test': * tests*")
    assert entries(suite) == []


def test_an_invalid_run_is_nothing_to_compare_with(suite: Suite, beside: dict[str, str]) -> None:
    suite.write(TWO.replace("[A, B]", "[A, B.but('c', env={'FAKE_NO_FLUSH': '1'})]"))

    suite.run("--benchmark-json=entries.json", env=beside)

    assert [entry["verdict"] for entry in suite.results["measurements"]] == ["pass", "invalid"]
    assert [entry["name"] for entry in entries(suite)] == ["a--smoke--c1--o31"]


def test_what_was_measured_is_written_when_its_file_cannot_be(suite: Suite, beside: dict[str, str]) -> None:
    (suite.root / "conftest.py").write_text(
        "def pytest_benchmark_update_json(output_json):\n    raise OSError('no space left')\n"
    )
    suite.write(TEST_B)

    result = suite.run("--update-baselines", "--specdec-launches=1", "--benchmark-json=entries.json", env=beside)

    assert result.ret != 0
    assert "no space left" in result.stderr.str()
    assert suite.baseline("b--smoke--c1--o31").exists()
    assert suite.results["baseline_changes"] != []


def test_a_benchmark_fixture_of_someone_else_is_left_alone(suite: Suite) -> None:
    (suite.root / "conftest.py").write_text(A_FIXTURE_OF_THAT_NAME)
    suite.write(TWO + "def test_theirs(benchmark):\n    assert benchmark(lambda: 3) == 3\n")

    result = suite.run("-p", "no:benchmark")

    result.assert_outcomes(passed=3)


@pytest.fixture
def codspeed() -> dict[str, str]:
    packages = ("pytest-codspeed==5.0.4", "rich==15.0.0", "markdown-it-py==4.3.0", "mdurl==0.1.2")
    return {"PYTHONPATH": str(installed(*packages))}


def test_codspeed_that_is_not_asked_for_changes_nothing(suite: Suite, codspeed: dict[str, str]) -> None:
    suite.write(TWO)

    result = suite.run("--benchmark-json=entries.json", env=codspeed)

    assert result.ret == 0
    result.stdout.fnmatch_lines(["plugins: *codspeed-*"])
    assert len(entries(suite)) == 2


def test_codspeed_takes_pytest_benchmark_away_and_our_results_stay(suite: Suite, codspeed: dict[str, str]) -> None:
    """It runs only tests marked ``benchmark``, each many times: a stored result is what they get, from one launch."""
    suite.write(TEST_B.replace("()\n", "(check=False)\n").replace("\n@", "\n@pytest.mark.benchmark\n@", 1))

    result = suite.run("--codspeed", "--codspeed-max-rounds=3", "--benchmark-json=entries.json", env=codspeed)

    assert result.ret == 0, result.stdout.str()
    assert suite.launches == 1
    result.stdout.fnmatch_lines(["*1 benchmarked*", "b *smoke c1 o31* 3.000 * no-baseline"])
    assert entries(suite) == []
