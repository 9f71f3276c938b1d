"""Hooks for conftest files and other plug-ins, and the neighbours that must not be disturbed."""

from __future__ import annotations

from tests.plugin.conftest import TEST_B, Suite


def test_a_conftest_adapts_specs_before_the_plan(suite: Suite) -> None:
    (suite.root / "conftest.py").write_text(
        "def pytest_specdec_adapt_spec(spec, config):\n    return spec.but(spec.name, env={'FAKE_ACCEPT': '2'})\n"
    )
    suite.write(TEST_B)

    suite.run()

    assert suite.results["measurements"][0]["metrics"]["accept_length"]["value"] == 2.0


def test_a_conftest_is_told_each_result_once(suite: Suite) -> None:
    (suite.root / "conftest.py").write_text(
        "def pytest_specdec_result(result, config):\n"
        "    with open('told.txt', 'a') as file:\n"
        "        print(result.measurement.key, result.verdict, result.accept_length.value, file=file)\n"
    )
    suite.write(TEST_B + TEST_B.replace("test_b", "test_same"))

    suite.run()

    assert (suite.root / "told.txt").read_text() == "b--smoke--c1--o31 no-baseline 3.0\n"


def test_reruns_do_not_launch_again(suite: Suite) -> None:
    suite.write(TEST_B)

    result = suite.run("--reruns=2")

    assert result.ret == 11
    assert suite.launches == 1


def test_stopping_at_the_first_failure_keeps_what_was_measured(suite: Suite) -> None:
    suite.write(TEST_B.replace("[B]", "[B, A]"))

    result = suite.run("-x")

    assert result.ret == 11
    assert [entry["server"] for entry in suite.results["measurements"]] == ["b"]


def test_quiet_runs_say_nothing_while_measuring(suite: Suite) -> None:
    suite.write(TEST_B)

    assert "specdec: launching b" in suite.run().stdout.str()
    assert "specdec: launching b" not in suite.run("-q").stdout.str()
