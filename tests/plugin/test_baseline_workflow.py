"""A baseline's life: missing, recorded, passed against, regressed from, updated, held by a floor."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.plugin.conftest import TEST_B, Suite

KEY = "b--smoke--c1--o31"


@pytest.fixture
def recorded(suite: Suite) -> Suite:
    suite.write(TEST_B)
    result = suite.run("--update-baselines", "--specdec-launches=1")
    assert result.ret == 0
    return suite


def test_a_missing_baseline_fails_with_the_command_that_records_one(suite: Suite) -> None:
    suite.write(TEST_B)

    result = suite.run()

    assert result.ret == 11
    text = result.stdout.str()
    assert f"baselines/cpu-test/{KEY}.json" in text
    assert "pytest --update-baselines=new" in text
    assert "test_suite.py::test_b[b]" in text
    assert "NO-BASELINE" in text
    assert not suite.baseline(KEY).exists()


def test_recording_spreads_a_measurement_over_five_launches(suite: Suite) -> None:
    suite.write(TEST_B)

    result = suite.run("--update-baselines", "--specdec-rounds=1", "--specdec-warmup=0")

    assert result.ret == 0
    assert suite.launches == 5
    stored = json.loads(suite.baseline(KEY).read_text())
    assert len(stored["metrics"]["accept_length"]["launches"]) == 5


def test_what_was_written_can_be_handed_over_with_the_report(recorded: Suite) -> None:
    handed_over = recorded.root / ".specdec" / "baselines" / "cpu-test" / f"{KEY}.json"

    assert handed_over.read_bytes() == recorded.baseline(KEY).read_bytes()


def test_a_second_run_passes_against_what_the_first_recorded(recorded: Suite) -> None:
    result = recorded.run()

    assert result.ret == 0
    result.assert_outcomes(passed=1)
    (measured,) = recorded.results["measurements"]
    assert measured["verdict"] in {"pass", "improvement"}
    assert measured["metrics"]["accept_length"]["value"] == pytest.approx(3.0)


def test_a_recorded_file_holds_identity_environment_and_provenance(recorded: Suite) -> None:
    stored = json.loads(recorded.baseline(KEY).read_text())

    assert stored["schema_version"] == 2
    assert stored["identity"]["output_tokens"] == 31
    assert stored["identity"]["concurrency"] == 1
    assert len(stored["identity"]["workload_hash"]) == 64
    assert stored["environment"]["sglang_version"] == "0.5.23"
    assert stored["provenance"]["source"] == "program"
    assert "--update-baselines" in stored["provenance"]["command"]
    accept = stored["metrics"]["accept_length"]
    assert (accept["gate"], accept["direction"], accept["tolerance"]) == (True, "higher", 0.01)
    assert accept["launches"] == [[3.0, 3.0]]
    assert stored["metrics"]["decode_tok_s"]["gate"] is False, "CPU throughput is advisory"


def test_a_lost_draft_token_is_a_regression_that_blames_the_drafter(recorded: Suite) -> None:
    result = recorded.run(env={"FAKE_ACCEPT": "2"})

    assert result.ret == 1
    text = result.stdout.str()
    for expected in ("REGRESSION", "accept_length", "2.000", "3.000", "-33.3 %", "drafter"):
        assert expected in text
    assert "pytest_specdec/" not in text.split("REGRESSION")[1].split("short test summary")[0]


def test_a_regression_is_not_written_over_its_baseline_without_leave(recorded: Suite) -> None:
    before = recorded.baseline(KEY).read_bytes()

    refused = recorded.run("--update-baselines", "--specdec-launches=1", env={"FAKE_ACCEPT": "2"})

    assert refused.ret == 1
    assert "--specdec-allow-loosening" in refused.stdout.str()
    assert recorded.baseline(KEY).read_bytes() == before

    allowed = recorded.run(
        "--update-baselines", "--specdec-launches=1", "--specdec-allow-loosening", env={"FAKE_ACCEPT": "2"}
    )

    assert allowed.ret == 0
    stored = json.loads(recorded.baseline(KEY).read_text())
    assert stored["metrics"]["accept_length"]["launches"] == [[2.0, 2.0]]


def set_floor(suite: Suite, metric: str, floor: float) -> None:
    path = suite.baseline(KEY)
    stored = json.loads(path.read_text())
    stored["metrics"][metric]["floor"] = floor
    path.write_text(json.dumps(stored))


def test_a_floor_above_the_measured_value_fails_the_build_and_is_named(recorded: Suite) -> None:
    set_floor(recorded, "decode_tok_s", 1e6)

    result = recorded.run()

    assert result.ret == 1
    text = result.stdout.str()
    assert "floor" in text
    assert "decode_tok_s" in text
    assert f"{KEY}.json" in text


def test_an_update_keeps_the_floor(recorded: Suite) -> None:
    set_floor(recorded, "accept_length", 1.5)

    assert recorded.run("--update-baselines", "--specdec-launches=1").ret == 0

    stored = json.loads(recorded.baseline(KEY).read_text())
    assert stored["metrics"]["accept_length"]["floor"] == 1.5


def test_update_new_leaves_files_that_exist(recorded: Suite) -> None:
    before = recorded.baseline(KEY).read_bytes()
    recorded.write(TEST_B.replace("[B]", "[B, B.but('c', '--tp 2')]"))

    result = recorded.run("--update-baselines=new", "--specdec-launches=1")

    assert result.ret == 0
    assert recorded.baseline(KEY).read_bytes() == before
    assert recorded.baseline("c--smoke--c1--o31").exists()


def test_an_invalid_run_writes_no_baseline(suite: Suite) -> None:
    suite.write(TEST_B)

    result = suite.run("--update-baselines", "--specdec-launches=1", env={"FAKE_STOP_AT": "20"})

    assert result.ret == 11
    assert "output-length" in result.stdout.str()
    assert not suite.baseline(KEY).exists()


def test_a_test_that_fails_for_a_reason_of_its_own_writes_no_baseline(suite: Suite) -> None:
    suite.write(TEST_B.replace("specdec_benchmark()\n", "specdec_benchmark()\n    assert False\n"))

    result = suite.run("--update-baselines", "--specdec-launches=1")

    assert result.ret == 1
    assert not suite.baseline(KEY).exists()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda text: text[: len(text) // 2], KEY),
        (lambda text: text.replace('"tolerance": 0.01', '"tolerance": NaN'), "NaN"),
        (lambda text: text.replace('"tolerance": 0.01', '"tolerance": -1'), "tolerance"),
        (lambda text: text.replace('"schema_version": 2', '"schema_version": 99'), "99"),
    ],
)
def test_a_broken_baseline_file_never_disables_the_gate(
    recorded: Suite, spoil: Callable[[str], str], said: str
) -> None:
    path = recorded.baseline(KEY)
    spoiled = spoil(path.read_text())
    path.write_text(spoiled)

    result = recorded.run(env={"FAKE_ACCEPT": "2"})

    assert result.ret == 1
    assert said in result.stdout.str()
    assert path.read_text() == spoiled


def test_another_workload_under_the_same_name_is_refused(recorded: Suite) -> None:
    path = recorded.baseline(KEY)
    path.write_text(path.read_text().replace('"workload_hash": "', '"workload_hash": "0'))

    result = recorded.run()

    assert result.ret == 11
    assert "workload_hash" in result.stdout.str()
    assert json.loads(path.read_text())["identity"]["workload_hash"].startswith("0")


def test_another_identity_is_recorded_when_asked_for_and_said(recorded: Suite) -> None:
    set_floor(recorded, "accept_length", 1.5)
    path = recorded.baseline(KEY)
    path.write_text(path.read_text().replace('"workload_hash": "', '"workload_hash": "0'))

    result = recorded.run("--update-baselines", "--specdec-launches=1")

    assert result.ret == 0
    assert "its identity changed: workload_hash" in result.stdout.str()
    stored = json.loads(path.read_text())
    assert len(stored["identity"]["workload_hash"]) == 64
    assert stored["metrics"]["accept_length"]["floor"] == 1.5


def test_a_node_behind_an_alias_gets_a_file_of_its_own_with_the_floor(recorded: Suite) -> None:
    set_floor(recorded, "accept_length", 1.5)
    (recorded.root / "baselines" / "cpu-test").rename(recorded.root / "baselines" / "short")
    (recorded.root / "baselines" / "nodes.toml").write_text('[aliases]\n"cpu-te*" = "short"\n')
    shared = recorded.root / "baselines" / "short" / f"{KEY}.json"
    before = shared.read_bytes()

    assert recorded.run().ret == 0, "the alias is where it is looked up"
    assert recorded.run("--update-baselines", "--specdec-launches=1").ret == 0

    assert shared.read_bytes() == before
    assert json.loads(recorded.baseline(KEY).read_text())["metrics"]["accept_length"]["floor"] == 1.5


def test_update_new_records_a_node_that_only_has_what_holds_on_every_node(recorded: Suite) -> None:
    (recorded.root / "baselines" / "cpu-test").rename(recorded.root / "baselines" / "any")
    recorded.counter.unlink()

    result = recorded.run("--update-baselines=new", "--specdec-launches=2", "--specdec-max-launches=3")

    assert (result.ret, recorded.launches) == (0, 2)
    stored = json.loads((recorded.root / "baselines" / "any" / f"{KEY}.json").read_text())
    assert len(stored["metrics"]["accept_length"]["launches"]) == 2
