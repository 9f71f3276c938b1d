"""What a session does about an answer that is too close to call: more launches, and an outcome of its own."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from tests.plugin.conftest import TEST_B, Suite

KEY = "b--smoke--c1--o31"
#: Against these launches, 3 tokens a step give or take 2.5 %, a server that accepts 2.73, 3.00 and 2.73 has lost 6 %:
#: that can neither be called nor ruled out.
CLOSE = [[3.0], [3.1], [2.9], [3.05], [2.95]]
ACCEPTS = {"FAKE_ACCEPT": "2.73,3,2.73"}
#: Against these 3 is a loss of a quarter that five launches make sure of.
HIGHER = [[4.0], [4.02], [3.98], [4.01], [3.99]]
#: Two measurements, of two specs.
TWO = TEST_B + TEST_B.replace("[B]", "[B.but('c', '--tp 2')]").replace("test_b", "test_c")


def set_launches(suite: Suite, launches: list[list[float]], *, key: str = KEY, **known: Any) -> None:
    """Replace what was recorded of the accept length."""
    path = suite.baseline(key)
    stored = json.loads(path.read_text())
    metric = stored["metrics"]["accept_length"]
    metric.pop("mean", None)
    stored["metrics"]["accept_length"] = {**metric, "launches": launches, **known}
    path.write_text(json.dumps(stored))


@pytest.fixture
def close(suite: Suite) -> Suite:
    suite.write(TEST_B)
    assert suite.run("--update-baselines", "--specdec-launches=1").ret == 0
    set_launches(suite, CLOSE)
    suite.counter.unlink()
    return suite


def verdicts(suite: Suite) -> list[str]:
    return [entry["verdict"] for entry in suite.results["measurements"]]


def test_a_close_answer_takes_more_launches_and_is_inconclusive_when_they_do_not_help(close: Suite) -> None:
    result = close.run(env=ACCEPTS)

    assert (result.ret, close.launches) == (10, 3)
    text = result.stdout.str()
    assert "1 server spec, 1 measurement, 1 to 3 launches" in text
    assert f"INCONCLUSIVE: {KEY}" in text
    assert "accept_length: worse by 6.1%, not surely; a loss could be" in text
    assert "(3 launches)" in text
    assert "--specdec-max-launches=N" in text
    assert "pytest_specdec/" not in text.split("INCONCLUSIVE")[1].split("short test summary")[0]
    (measured,) = close.results["measurements"]
    (row,) = [row for row in measured["judged"] if row["metric"] == "accept_length"]
    assert (row["verdict"], row["launches"]) == ("inconclusive", 3)
    assert row["change_low"] < row["change"] < 0 < row["change_high"]
    assert len(measured["metrics"]["accept_length"]["rounds_by_launch"]) == 3


def test_the_most_launches_are_the_users(close: Suite) -> None:
    assert (close.run("--specdec-max-launches=1", env=ACCEPTS).ret, close.launches) == (10, 1)


def test_a_clear_answer_takes_one_launch(close: Suite) -> None:
    set_launches(close, HIGHER)

    result = close.run()

    assert (result.ret, close.launches) == (1, 1)
    assert "accept_length: worse by 25.0%, at least" in result.stdout.str()


def test_only_the_measurement_that_is_close_is_measured_again(close: Suite) -> None:
    close.write(TEST_B + TEST_B.replace("31", "21").replace("test_b", "test_other"))
    assert close.run("--update-baselines=new", "--specdec-launches=1", env=ACCEPTS).ret == 10
    close.counter.unlink()

    result = close.run("-v", env=ACCEPTS)

    assert (result.ret, close.launches) == (10, 3)
    launches = {entry["key"]: len(entry["launches"]) for entry in close.results["measurements"]}
    assert launches == {KEY: 3, "b--smoke--c1--o21": 1}


def test_a_warning_takes_the_place_of_the_failure_when_asked_for(close: Suite) -> None:
    result = close.run("-o", "specdec_inconclusive=warn", env=ACCEPTS)

    assert result.ret == 0
    result.assert_outcomes(passed=1, warnings=1)
    assert f"{KEY}: inconclusive" in result.stdout.str()
    assert verdicts(close) == ["inconclusive"]


def test_what_was_measured_can_be_told_apart_in_junit(close: Suite) -> None:
    close.run("--junitxml=junit.xml", "-o", "junit_family=xunit1", env=ACCEPTS)

    case = ET.parse(close.root / "junit.xml").getroot().find(".//testcase")  # our own file
    assert case is not None
    properties = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert (properties["specdec_verdict"], properties["specdec_status"]) == ("inconclusive", "inconclusive")
    failure = case.find("failure")
    assert failure is not None
    assert (failure.text or "").startswith(f"INCONCLUSIVE: {KEY}")


@pytest.mark.parametrize(
    ("args", "launches"),
    [(("-p", "no:cacheprovider"), 3), (("-x",), 3), (("--reruns=2",), 3), (("-n2",), 3), (("-n1", "--dist=load"), 3)],
    ids=["no cache", "first failure", "reruns", "workers", "load"],
)
def test_the_outcome_is_the_same_whatever_runs_the_tests(close: Suite, args: tuple[str, ...], launches: int) -> None:
    result = close.run(*args, env=ACCEPTS)

    assert (result.ret, close.launches) == (10, launches)
    assert "INCONCLUSIVE" in result.stdout.str()
    assert verdicts(close) == ["inconclusive"]


def test_an_inconclusive_test_is_a_failed_one_to_run_again(close: Suite) -> None:
    close.write(TWO)
    assert close.run("--update-baselines=new", "--specdec-launches=1", env=ACCEPTS).ret == 10
    close.counter.unlink()
    assert close.run(env=ACCEPTS).ret == 10

    close.run("--lf", env=ACCEPTS)

    assert [entry["key"] for entry in close.results["measurements"]] == [KEY]


def test_nothing_is_recorded_from_an_inconclusive_run(close: Suite) -> None:
    before = close.baseline(KEY).read_bytes()

    result = close.run("--update-baselines", "--specdec-launches=2", "--specdec-allow-loosening", env=ACCEPTS)

    assert result.ret == 10
    assert "not recorded: an inconclusive run becomes no baseline" in result.stdout.str()
    assert close.baseline(KEY).read_bytes() == before


def test_a_close_floor_spends_every_launch_and_tells_its_odds(close: Suite) -> None:
    set_launches(close, [[3.0], [3.001], [2.999], [3.0005], [2.9995]], floor=3.0)

    result = close.run()

    assert (result.ret, close.launches) == (0, 3)
    assert "accept_length: unchanged code breaks the floor of 3 tok/step in " in result.stdout.str()
    assert "it would be one in a hundred" in result.stdout.str()


def test_a_floor_that_is_far_needs_one_launch(close: Suite) -> None:
    set_launches(close, [[3.0], [3.001], [2.999], [3.0005], [2.9995]], floor=1.5)

    assert (close.run().ret, close.launches) == (0, 1)


def test_what_a_baseline_can_see_is_told(close: Suite) -> None:
    set_launches(close, [[3.0]] * 5)

    result = close.run()

    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["accept_length: with this baseline and up to 3 launches a *% loss is caught 95% of the time*(*)"]
    )


def test_far_better_than_the_baseline_is_an_improvement_and_stale(close: Suite) -> None:
    set_launches(close, [[2.0]] * 5)

    result = close.run()

    assert (result.ret, close.launches) == (0, 1)
    assert verdicts(close) == ["improvement"]
    assert "the baseline is stale" in result.stdout.str()


def test_gated_metrics_of_the_whole_session_share_the_false_alarms(close: Suite) -> None:
    alone = close.run().stdout.str()
    names = [f"s{i}" for i in range(9)]
    specs = ", ".join(f"B.but('{name}', '--tp {i + 2}')" for i, name in enumerate(names))
    close.write(TEST_B + TEST_B.replace("[B]", f"[{specs}]").replace("test_b", "test_others"))
    for name in names:
        path = close.baseline(f"{name}--smoke--c1--o31")
        path.write_bytes(close.baseline(KEY).read_bytes())

    def caught(text: str) -> float:
        return float(text.split("up to 3 launches a ")[1].split("%", maxsplit=1)[0])

    among_ten = close.run("test_suite.py", "--collect-only").stdout.str()
    assert "10 server specs, 10 measurements, 10 to 30 launches" in among_ten
    assert caught(alone) < caught(close.run("--maxfail=1").stdout.str())


def test_with_workers_one_process_writes_the_baselines(suite: Suite) -> None:
    suite.write(TWO)

    result = suite.run("-n2", "--update-baselines", "--specdec-launches=1")

    assert result.ret == 0
    for key in (KEY, "c--smoke--c1--o31"):
        assert suite.baseline(key).exists()
        assert (suite.root / ".specdec" / "baselines" / "cpu-test" / f"{key}.json").exists()
        result.stdout.fnmatch_lines([f"{key}.json *accept_length * - * 3 * tok/step * new"])


def test_a_test_that_fails_in_one_worker_keeps_every_worker_from_recording(suite: Suite) -> None:
    suite.write(TEST_B + TEST_B.replace("test_b", "test_fails") + "    assert False\n")

    result = suite.run("-n2", "--dist=load", "--update-baselines", "--specdec-launches=1")

    assert result.ret == 1
    assert not suite.baseline(KEY).exists()
