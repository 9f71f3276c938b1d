"""Experiments that are known to fail, as tests: they pass while they fail in the known way."""

from __future__ import annotations

import datetime as dt
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.plugin.conftest import TEST_B, Suite

CASES = Path(__file__).parent.parent / "data" / "cases"
BODY = "    pytest.fail('the body ran')\n"


def dead(
    marker: str,
    spec: str = "B",
    *,
    name: str = "test_dead",
    measures: bool = True,
    body: str = BODY,
) -> str:
    """A test with a dead_end marker."""
    said = '@pytest.mark.specdec(workload="smoke", output_tokens=31)\n' if measures else ""
    return (
        f'\n@pytest.mark.dead_end({marker}, reason="known since May")\n{said}'
        f'@pytest.mark.parametrize("sglang_server", [{spec}], indirect=True)\n'
        f"def {name}({'specdec_benchmark' if measures else 'sglang_server'}):\n{body}"
    )


def dying(case: str, name: str = "x") -> str:
    """A spec whose server prints a recorded log and dies."""
    return f"B.but({name!r}, env={{'FAKE_LOG': {str(CASES / case)!r}}})"


OOM = dying("16-oom-weight-load.txt")


@pytest.mark.parametrize("measures", [True, False], ids=["measurement", "server only"])
def test_a_launch_that_fails_as_expected_holds(suite: Suite, measures: bool) -> None:
    suite.write(dead('"oom-weights", link="https://example.org/7"', OOM, measures=measures))

    result = suite.run("-v", "--junitxml=junit.xml", "-o", "junit_family=xunit1")

    assert result.ret == 0
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*::test_dead[[]x] DEAD-END *"])
    today = dt.datetime.now(dt.timezone.utc).date().isoformat()
    result.stdout.fnmatch_lines(
        [
            f"dead end x: holds: oom-weights, in phase weights ({today}, SGLang 0.5.23, cpu-test)",
            "  expected oom-weights: known since May (https://example.org/7)",
        ]
    )
    (entry,) = suite.results["dead_ends"]
    assert (entry["nodeid"], entry["server"]) == ("test_suite.py::test_dead[x]", "x")
    assert [entry[name] for name in ("expected", "outcome", "seen")] == ["oom-weights", "holds", "oom-weights"]
    assert (entry["reason"], entry["versions"]) == ("known since May", None)
    assert (entry["sglang_version"], entry["node"], entry["metrics"]) == ("0.5.23", "cpu-test", {})
    assert "--speculative-algorithm NGRAM" in entry["command"]
    assert "out of memory" in Path(entry["log_path"]).read_text()
    assert dt.datetime.fromisoformat(entry["at"]).utcoffset() == dt.timedelta(0)
    assert suite.results["failures"] == suite.results["measurements"] == []
    assert suite.launches == 1
    case = ET.parse(suite.root / "junit.xml").getroot().find(".//testcase")  # our own file
    assert case is not None
    properties = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert (properties["specdec_dead_end"], properties["specdec_dead_end_at"]) == ("holds", entry["at"])
    page = (suite.root / ".specdec" / "report.html").read_text()
    assert "<h2>Dead ends</h2>" in page
    assert 'href="https://example.org/7"' in page


@pytest.mark.parametrize("expected", ["unknown-flag", "flag-unrecognized"])
def test_a_refusal_of_the_preflight_holds_by_either_name(suite: Suite, expected: str) -> None:
    suite.write(dead(f'"{expected}"', "B.but('x', '--no-such-flag')"))

    result = suite.run()

    assert result.ret == 0
    result.stdout.re_match_lines([r"(test_suite\.py )?d +\[100%\]"])
    assert suite.launches == 0
    (entry,) = suite.results["dead_ends"]
    assert (entry["outcome"], entry["seen"], entry["log_path"]) == ("holds", "unknown-flag", None)


def test_a_server_that_dies_while_it_is_measured_holds(suite: Suite) -> None:
    suite.write(dead('"illegal-memory-access"', "B.but('x', env={'FAKE_DIE': 'generate'})"))

    result = suite.run()

    assert result.ret == 0
    (entry,) = suite.results["dead_ends"]
    assert (entry["outcome"], entry["seen"]) == ("holds", "illegal-memory-access")
    assert suite.results["failures"] == []


def test_another_failure_is_an_ordinary_failure_with_both_diagnoses_and_the_log(suite: Suite) -> None:
    suite.write(dead('"oom-cuda-graph-capture"', OOM))

    result = suite.run("-v")

    assert result.ret == 1
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*DEAD-END-DIFFERS*",
            "x: this dead end fails differently",
            "  expected:  oom-cuda-graph-capture",
            "  seen:      oom-weights, in phase weights",
            "  reason:    known since May",
            "*  | *out of memory*",
        ]
    )
    (entry,) = suite.results["dead_ends"]
    assert (entry["outcome"], entry["seen"]) == ("differs", "oom-weights")
    assert [failure["server"] for failure in suite.results["failures"]] == ["x"]


def test_a_dead_end_that_works_is_revived_with_its_figures_and_no_baseline(suite: Suite) -> None:
    suite.write(dead('"oom-weights"'))

    result = suite.run("-v", "--update-baselines")

    assert result.ret == 1
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*REVIVED*",
            "b: REVIVED: this dead end works",
            "  seen:      it works: decode_tok_s * tok/s",
            "*    decode_tok_s  * tok/s, rounds * to *",
            "*    accept_length  3.000 tok/step, *",
        ]
    )
    assert "the body ran" not in result.stdout.str()
    assert suite.launches == 1, "nothing is recorded, so that one launch will do"
    assert not (suite.root / "baselines").exists()
    (entry,) = suite.results["dead_ends"]
    assert (entry["outcome"], entry["seen"], entry["metrics"]["accept_length"]) == ("revived", None, 3.0)
    assert suite.results["measurements"] == []


def test_a_server_that_comes_up_without_a_measurement_is_revived(suite: Suite) -> None:
    suite.write(dead('"oom-weights"', measures=False))

    result = suite.run()

    assert result.ret == 1
    result.stdout.fnmatch_lines(["  seen:      it came up, ready after * s"])


@pytest.mark.parametrize(
    ("limit", "concurrency", "code", "outcome"),
    [(1e6, 1, 0, "holds"), (1, 1, 1, "revived"), (1e6, 2, 0, "holds"), (1, 2, 1, "revived")],
)
def test_a_dead_end_by_slowness(suite: Suite, limit: float, concurrency: int, code: int, outcome: str) -> None:
    text = dead(f"None, slower_than={limit}")
    suite.write(text.replace('"smoke"', f'"smoke", concurrency={concurrency}'))

    assert suite.run().ret == code

    (entry,) = suite.results["dead_ends"]
    assert entry["outcome"] == outcome
    assert entry["expected"] == f"not above {limit:g} tok/s"
    assert ("system_tok_s" if concurrency > 1 else "decode_tok_s") in entry["detail"]


def test_an_invalid_measurement_tells_nothing_of_a_dead_end(suite: Suite) -> None:
    suite.write(dead("None, slower_than=1e6"))

    result = suite.run(env={"FAKE_NO_VERIFY_CT": "1"})

    assert result.ret == 11
    result.stdout.fnmatch_lines(["*whether this dead end works can't be told", "*missing-spec-verify-ct*"])
    assert suite.results["dead_ends"] == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kv-retraction", "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 4"),
        (
            "custom-all-reduce-unavailable",
            "CustomAllreduce is disabled because it's not supported on more than two PCIe-only GPUs.",
        ),
    ],
)
def test_what_its_log_says_of_a_server_that_serves_counts(suite: Suite, name: str, said: str) -> None:
    suite.write(dead(f'"{name}"', f"B.but('x', env={{'FAKE_SAY': {said!r}}})"))

    result = suite.run()

    assert result.ret == 0, result.stdout.str()
    assert suite.results["dead_ends"][0]["seen"] == name


@pytest.mark.parametrize(
    ("versions", "ordinary"), [("<0.5.15", True), (">=0.5.3,<0.6", False)], ids=["outside", "inside"]
)
def test_outside_of_its_versions_it_is_an_ordinary_test(suite: Suite, versions: str, ordinary: bool) -> None:
    suite.write(dead(f'"oom-weights", versions="{versions}"', body="    specdec_benchmark()\n"))

    result = suite.run("--update-baselines", "--specdec-launches=1")

    assert result.ret == (0 if ordinary else 1)
    assert suite.baseline("b--smoke--c1--o31").exists() is ordinary
    (entry,) = suite.results["dead_ends"]
    assert entry["outcome"] == ("outside-versions" if ordinary else "revived")
    note = f"SGLang 0.5.23 is outside of {versions}: an ordinary test"
    assert (note in result.stdout.str()) is ordinary
    assert len(suite.results["measurements"]) == ordinary


def test_a_fixture_that_asks_for_the_server_ends_there(suite: Suite) -> None:
    suite.write(
        "\n@pytest.fixture\ndef client(sglang_server):\n    return sglang_server.url\n"
        + dead('"oom-weights"', OOM, measures=False).replace("(sglang_server)", "(client)")
    )

    result = suite.run("-v")

    assert result.ret == 0
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*DEAD-END*"])


def test_other_tests_of_its_server_fail_as_infrastructure(suite: Suite) -> None:
    suite.write(f"\nX = {OOM}\n" + dead('"oom-weights"', "X") + TEST_B.replace("[B]", "[X]"))

    result = suite.run()

    assert result.ret == 12
    result.assert_outcomes(passed=1, failed=1)
    assert suite.launches == 1
    assert len(suite.results["failures"]) == 1


def test_what_says_nothing_of_the_experiment_is_infrastructure(suite: Suite) -> None:
    suite.write(dead('"oom-weights"') + dead('"oom-weights"', dying("09-port-in-use.txt"), name="test_port"))

    assert suite.run("--specdec-python=/nowhere/python").ret == 12
    assert suite.results["dead_ends"] == []

    assert suite.run("-k", "port").ret == 12
    assert suite.results["dead_ends"] == []


def test_beside_ordinary_tests_under_xdist(suite: Suite) -> None:
    suite.write(
        dead('"oom-weights"', OOM)
        + dead('"unknown-flag"', "B.but('y', '--no-such-flag')", name="test_y")
        + TEST_B.replace("specdec_benchmark()\n", "specdec_benchmark(check=False)\n")
    )

    result = suite.run("-n", "2", "-p", "no:benchmark", "-v")

    assert result.ret == 0
    result.assert_outcomes(passed=3)
    assert result.stdout.str().count(" DEAD-END ") == 2
    assert [(entry["server"], entry["outcome"]) for entry in suite.results["dead_ends"]] == [
        ("x", "holds"),
        ("y", "holds"),
    ]
    assert len(suite.results["measurements"]) == 1


def test_check_finds_the_expected_problem_good(suite: Suite) -> None:
    suite.write(dead('"unknown-flag"', "B.but('x', '--no-such-flag')"))

    result = suite.run("--specdec-check")

    assert result.ret == 0
    result.stdout.fnmatch_lines(["x: 1 problem*", "*as its dead end expects*"])


def test_collect_only_launches_nothing_and_skips_stay_skips(suite: Suite) -> None:
    gpu = "ServerSpec.from_command('gpu', 'python -m sglang.launch_server --model-path /m')"
    suite.write(dead('"oom-weights"', OOM) + dead('"oom-weights"', gpu, name="test_gpu"))

    assert suite.run("--collect-only").ret == 0
    assert suite.launches == 0
    suite.run("-k", "gpu").assert_outcomes(skipped=1, deselected=1)
    assert suite.launches == 0


def test_an_unknown_name_is_a_usage_error_with_what_is_near(suite: Suite) -> None:
    suite.write(dead('"flashinfer-no-arch"'))

    result = suite.run()

    assert result.ret == 4
    assert "there is no 'flashinfer-no-arch': did you mean flashinfer-no-arch-list" in result.stderr.str()
