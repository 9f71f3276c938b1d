"""Outcomes and exit codes, as a continuous integration job sees them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from tests.plugin.conftest import TEST_B, Suite

TEST_A = TEST_B.replace("[B]", "[A]").replace("test_b", "test_a")
SCHEMA = json.loads(resources.files("pytest_specdec").joinpath("schemas/results.schema.json").read_text("utf-8"))
PLAIN = "def test_plain():\n    assert True\n"


@pytest.fixture
def recorded(suite: Suite) -> Suite:
    suite.write(TEST_B)
    assert suite.run("--update-baselines", "--specdec-launches=1").ret == 0
    return suite


@pytest.mark.parametrize("how", ["start", "flag"])
def test_a_server_that_does_not_start_is_infrastructure(suite: Suite, how: str) -> None:
    suite.write(TEST_B)

    result = suite.run(env={"FAKE_DIE": how})

    assert result.ret == 12
    text = result.stdout.str()
    assert "INFRASTRUCTURE" in text
    assert "--speculative-algorithm NGRAM" in text, "the command is shown"
    if how == "flag":
        assert "unrecognized arguments: --no-such-flag" in text
        assert "exit code 2" in text
    else:
        assert "OSError: no such model: /nowhere" in text
        assert "exit code 1" in text
    assert "Traceback (most recent call last)" not in text.split("pytest_specdec")[0]
    (failure,) = suite.results["failures"]
    assert failure["diagnosis"] == {"start": "unknown-failure", "flag": "flag-unrecognized"}[how]
    assert (failure["sglang_version"], failure["launch"]) == ("0.5.23", 0)
    assert len(failure["spec_hash"]) == 64
    assert Path(failure["log_path"]).read_text(encoding="utf-8").strip()


def test_a_failed_launch_is_paid_once_for_all_tests_of_the_spec(suite: Suite) -> None:
    suite.write(TEST_B + TEST_B.replace("test_b", "test_again").replace("31", "16"))

    result = suite.run(env={"FAKE_DIE": "start"})

    assert result.ret == 12
    result.assert_outcomes(failed=2)
    assert suite.launches == 1


def test_a_server_that_dies_while_serving_is_infrastructure_with_its_last_words(suite: Suite) -> None:
    suite.write(TEST_B)

    result = suite.run(env={"FAKE_DIE": "generate"})

    assert result.ret == 12
    assert "an illegal memory access was encountered" in result.stdout.str()


def test_a_python_without_sglang_is_told_in_one_line_with_the_remedy(suite: Suite) -> None:
    suite.write(TEST_B)

    result = suite.run("--specdec-python=/nowhere/python")

    assert result.ret == 12
    result.stdout.fnmatch_lines(["*/nowhere/python*"])
    assert "--specdec-python" in result.stdout.str()


def test_a_drafting_server_that_does_not_count_verify_steps_is_invalid(suite: Suite) -> None:
    suite.write(TEST_B)

    result = suite.run(env={"FAKE_NO_VERIFY_CT": "1"})

    assert result.ret == 11
    assert "missing-spec-verify-ct" in result.stdout.str()
    assert "INVALID" in result.stdout.str()


def test_nothing_accepted_is_not_drafting(suite: Suite) -> None:
    suite.write(TEST_B)

    result = suite.run(env={"FAKE_ACCEPT": "1"})

    assert result.ret == 11
    assert "not-drafting" in result.stdout.str()


def test_an_ordinary_failure_beside_ours_exits_one(suite: Suite) -> None:
    suite.write(TEST_B + "def test_plain():\n    assert False\n")

    assert suite.run().ret == 1


def test_infrastructure_outranks_a_missing_baseline(suite: Suite) -> None:
    broken = "\nX = B.but('x', env={'FAKE_DIE': 'start'})\n"
    suite.write(broken + TEST_B.replace("[B]", "[B, X]"))

    result = suite.run()

    result.assert_outcomes(failed=2)
    assert result.ret == 12


def test_tests_of_ours_that_measure_nothing_exit_thirteen(suite: Suite) -> None:
    suite.write(
        "@pytest.mark.parametrize('sglang_server', [A], indirect=True)\n"
        "def test_url(sglang_server):\n    assert sglang_server.url.startswith('http://')\n"
    )

    assert suite.run().ret == 13


def test_collect_only_starts_nothing_and_exits_zero(suite: Suite) -> None:
    suite.write(TEST_B)

    result = suite.run("--collect-only")

    assert result.ret == 0
    assert suite.launches == 0
    result.stdout.fnmatch_lines(["*specdec plan: 1 server spec, 1 measurement, 1 launch*"])


def test_a_suite_without_such_tests_is_left_alone(suite: Suite) -> None:
    (suite.root / "test_plain.py").write_text(PLAIN)

    result = suite.run()

    assert result.ret == 0
    assert "specdec" not in result.stdout.str().split("collected")[1]
    assert not (suite.root / ".specdec").exists()


def test_gpu_specs_are_skipped_without_a_gpu_host_and_the_option_is_named(suite: Suite) -> None:
    suite.write(
        "GPU = ServerSpec.from_command('gpu', 'python -m sglang.launch_server --model-path /m')\n"
        + TEST_B.replace("[B]", "[GPU]")
    )

    result = suite.run("-rs")

    assert result.ret == 0
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*--gpu-host*"])
    assert suite.launches == 0


def test_cpu_specs_are_skipped_on_a_gpu_host_and_that_is_no_success(suite: Suite) -> None:
    suite.write(TEST_B)

    result = suite.run("--gpu-host", "-rs")

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*b is made for the CPU engine: give --specdec-device=cpu*"])
    assert result.ret == 13


def test_a_run_that_was_told_a_device_and_measured_nothing_is_no_success(suite: Suite) -> None:
    suite.write(
        "GPU = ServerSpec.from_command('gpu', 'python -m sglang.launch_server --model-path /m')\n"
        + TEST_B.replace("[B]", "[GPU]")
    )

    result = suite.run("--specdec-device=cpu")

    result.assert_outcomes(skipped=1)
    assert result.ret == 13


def test_a_gpu_host_without_a_driver_is_infrastructure(suite: Suite) -> None:
    suite.write(
        "GPU = ServerSpec.from_command('gpu', 'python -m sglang.launch_server --model-path /m')\n"
        + TEST_B.replace("[B]", "[GPU]")
    )
    (suite.root / "no-tools").mkdir()

    result = suite.run("--gpu-host", env={"PATH": str(suite.root / "no-tools"), "PYTEST_SPECDEC_NODE": ""})

    assert result.ret == 12
    assert "nvidia-smi" in result.stdout.str()
    assert suite.launches == 0


def test_a_standin_is_measured_under_its_own_name(suite: Suite) -> None:
    suite.write(
        "GPU = ServerSpec.from_command('gpu', 'python -m sglang.launch_server --model-path /m', "
        "cpu_standin=B)\n" + TEST_B.replace("[B]", "[GPU]")
    )

    assert suite.run("--update-baselines", "--specdec-launches=1").ret == 0

    assert suite.baseline("gpu@cpu-standin--smoke--c1--o31").exists()
    assert suite.results["measurements"][0]["server"] == "gpu@cpu-standin"


def test_a_waived_rule_does_not_invalidate_and_is_printed(suite: Suite) -> None:
    waiving = TEST_B.replace('"smoke",', '"smoke", waive=["not-drafting"],')
    suite.write(waiving)

    result = suite.run("--update-baselines", "--specdec-launches=1", env={"FAKE_ACCEPT": "1"})

    assert result.ret == 0
    assert "waived" in result.stdout.str()
    assert "not-drafting" in result.stdout.str()


def test_junit_properties_carry_verdict_and_figures(recorded: Suite) -> None:
    recorded.run("--junitxml=junit.xml", "-o", "junit_family=xunit1")

    case = ET.parse(recorded.root / "junit.xml").getroot().find(".//testcase")  # our own file
    assert case is not None
    properties = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert properties["specdec_measurement"] == "b--smoke--c1--o31"
    assert properties["specdec_verdict"] in {"pass", "improvement"}
    assert properties["specdec_accept_length"] == "3.0"


def test_the_table_and_the_report_are_named_at_the_end(recorded: Suite) -> None:
    result = recorded.run()

    result.stdout.fnmatch_lines(["*decode tok/s*accept length*verdict*", "b *smoke c1 o31*3.000*", "*report.html*"])
    assert (recorded.root / ".specdec" / "report.html").read_text().startswith("<!doctype html>")
    assert list((recorded.root / ".specdec" / "logs").glob("*b*.log"))


def test_rounds_are_on_disk_one_line_each(recorded: Suite) -> None:
    recorded.run("--specdec-rounds=3", "--specdec-warmup=2")

    rows = [json.loads(line) for line in (recorded.root / ".specdec" / "rounds.jsonl").read_text().splitlines()]
    assert [row["round"]["warmup"] for row in rows] == [True, True, False, False, False]
    for row in rows:
        assert row["metrics"]["accept_length"] == 3.0
        # Four prompts of 30 tokens after the first, three a verify step, two of them drafts that were right.
        assert row["accept_histogram"] == [0, 0, 40]
        assert len(row["round"]["requests"]) == 4
    jsonschema.validate(recorded.results, SCHEMA)
    for row in rows:
        jsonschema.validate(row, {**SCHEMA, "$ref": "#/$defs/roundEntry", "required": [], "properties": {}})


def test_measured_rounds_are_told_in_the_fields_of_bench_serving(recorded: Suite) -> None:
    recorded.run("--specdec-rounds=3", "--specdec-warmup=2")

    rows = [json.loads(line) for line in (recorded.root / ".specdec" / "serving.jsonl").read_text().splitlines()]
    (entry,) = recorded.results["measurements"]
    assert [row["tag"] for row in rows] == [entry["key"]] * 3
    assert [row["median_ttft_ms"] for row in rows] == pytest.approx(
        entry["metrics"]["ttft_ms"]["rounds_by_launch"][0], rel=1e-12
    )
    assert {(row["completed"], row["total_output_tokens"], row["accept_length"]) for row in rows} == {(4, 124, 3.0)}


def test_check_false_leaves_the_verdict_to_the_test(suite: Suite) -> None:
    suite.write(
        TEST_B.replace(
            "specdec_benchmark()\n",
            "result = specdec_benchmark(check=False)\n"
            "    assert str(result.verdict) == 'no-baseline'\n"
            "    assert result.accept_length.value == pytest.approx(3.0)\n",
        )
    )

    assert suite.run().ret == 0


def test_the_failure_of_a_user_assertion_keeps_its_traceback(recorded: Suite) -> None:
    recorded.write(TEST_B.replace("specdec_benchmark()\n", "result = specdec_benchmark()\n    assert result is None\n"))

    result = recorded.run()

    assert result.ret == 1
    result.stdout.fnmatch_lines(["*assert result is None*"])


def test_a_server_with_an_api_key_is_measured_and_the_key_is_not_written_down(suite: Suite) -> None:
    suite.write("KEYED = B.but('keyed', '--api-key sk-4711')\n" + TEST_B.replace("[B]", "[KEYED]"))

    result = suite.run("--update-baselines", "--specdec-launches=1")

    assert result.ret == 0
    written = [path for path in (suite.root / ".specdec").rglob("*") if path.is_file()]
    written.append(suite.baseline("keyed--smoke--c1--o31"))
    assert not [path for path in written if "sk-4711" in path.read_text()]


def test_the_report_directory_stays_out_of_version_control(recorded: Suite) -> None:
    assert (recorded.root / ".specdec" / ".gitignore").read_text().splitlines()[-1] == "*"


def test_on_github_the_step_summary_shows_the_table(recorded: Suite) -> None:
    recorded.run(env={"GITHUB_STEP_SUMMARY": str(recorded.root / "summary.md")})

    text = (recorded.root / "summary.md").read_text()
    assert "### Speculative decoding on `cpu-test`" in text
    assert "| b | smoke c1 o31 |" in text


@pytest.mark.parametrize("name", ["SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN"])
def test_simulated_acceptance_is_invalid_by_either_name_and_never_a_baseline(suite: Suite, name: str) -> None:
    waiving = TEST_B.replace('"smoke",', '"smoke", waive=["simulated-acceptance"],')
    suite.write(TEST_B + waiving.replace("test_b", "test_waiving").replace("31", "21"))

    result = suite.run("--update-baselines", "--specdec-launches=1", env={name: "2.5"})

    assert result.ret == 11
    assert f"acceptance is simulated ({name}=2.5)" in result.stdout.str()
    assert not (suite.root / "baselines").exists()


@pytest.mark.parametrize("taken", ["rounds.jsonl", "serving.jsonl", "results.json", "report.html"])
def test_results_that_cannot_be_written_are_told_with_where_and_what_would_do(suite: Suite, taken: str) -> None:
    suite.write(TEST_B + TEST_B.replace("test_b", "test_b_again"))
    # A directory where a file is to be written: what a full disk does, for a user with any rights.
    (suite.root / ".specdec" / taken / "x").mkdir(parents=True)

    result = suite.run("--update-baselines", "--specdec-launches=1")

    text = result.stdout.str()
    assert f"{taken}" in text
    assert "what was measured can't be written: Is a directory. Free space below " in text
    assert "--specdec-report=DIR" in text
    assert "INTERNALERROR" not in text + result.stderr.str()
    assert "Traceback" not in text
    assert result.ret == (0 if taken == "report.html" else 12)
    assert suite.launches == 1
