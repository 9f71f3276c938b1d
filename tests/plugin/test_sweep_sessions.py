"""A sweep in a session: every point once, those that may be the best again, and how they stand at the end."""

from __future__ import annotations

from tests.plugin.conftest import Suite

#: Three points whose speed is their own: 40, 20 and 20 ms a step.
SWEEP = """
from pytest_specdec import sweep
BASE = A.but('base', env={'FAKE_STEP_MS': '40'})

@pytest.mark.specdec(workload="smoke", output_tokens=10, rounds=1, warmup=0, sweep=True)
@pytest.mark.parametrize("sglang_server", sweep(BASE, "FAKE_STEP_MS", [40, 20, 21]), indirect=True)
def test_steps(specdec_benchmark):
    specdec_benchmark(check=False)
"""


def points(suite: Suite) -> dict[str, str]:
    (sweep,) = suite.results["sweeps"]
    return {row["name"]: row["word"] for row in sweep["points"]}


def launches(suite: Suite) -> dict[str, int]:
    (sweep,) = suite.results["sweeps"]
    return {row["name"]: row["launches"] for row in sweep["points"]}


def test_a_point_that_is_clearly_worse_takes_no_further_launch(suite: Suite) -> None:
    suite.write(SWEEP)

    result = suite.run()

    assert result.ret == 0
    assert (points(suite)["base"], launches(suite)["base"]) == ("worse", 1)
    assert launches(suite)["base_fake-step-ms-20"] == launches(suite)["base_fake-step-ms-21"] == suite.launches // 2 > 1
    text = result.stdout.str()
    assert "3 server specs, 3 measurements, 3 to 9 launches" in text
    assert "sweep test_suite.py::test_steps smoke--c1--o10: 3 points, ranked" in text
    assert "sweep test_suite.py::test_steps" in text
    assert "best: base_fake-step-ms-2" in text
    assert "<svg" in (suite.root / ".specdec" / "report.html").read_text()


def test_each_point_is_launched_once_when_told_so(suite: Suite) -> None:
    suite.write(SWEEP)

    assert suite.run("--specdec-max-launches=1").ret == 0

    assert set(launches(suite).values()) == {1}


def test_a_point_that_does_not_start_has_failed_and_the_others_are_ranked(suite: Suite) -> None:
    suite.write(SWEEP.replace('"FAKE_STEP_MS", [40, 20, 21]', '"FAKE_DIE", [None, "start"]'))

    result = suite.run("--specdec-max-launches=1")

    assert result.ret == 12
    assert points(suite) == {"base": "best", "base_fake-die-start": "failed"}


def test_with_workers_a_sweep_stays_on_one(suite: Suite) -> None:
    suite.write(SWEEP)

    assert suite.run("-n2", "--specdec-max-launches=1").ret == 0

    assert suite.launches == 3
    assert len(points(suite)) == 3


def test_a_test_of_one_point_is_no_sweep(suite: Suite) -> None:
    suite.write(SWEEP.replace("[40, 20, 21]", "[40]"))

    result = suite.run()

    assert (result.ret, suite.results["sweeps"]) == (0, [])
