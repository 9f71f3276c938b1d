"""What is known before a launch: nothing is started for a flag that SGLang's own parser refuses."""

from __future__ import annotations

import sys

import pytest

from tests.plugin.conftest import TEST_B, Suite


def test_an_unknown_flag_is_refused_before_the_launch_with_the_nearest_name(suite: Suite) -> None:
    suite.write("WRONG = B.but('wrong', '--speculative-nm-steps 3')\n" + TEST_B.replace("[B]", "[WRONG]"))

    result = suite.run()

    assert result.ret == 12
    text = result.stdout.str()
    assert "wrong: the preflight found a problem, for SGLang 0.5.23; nothing was started" in text
    assert "--speculative-num-steps" in text
    assert [(one["server"], one["diagnosis"]) for one in suite.results["failures"]] == [("wrong", "unknown-flag")]
    assert suite.launches == 0


def test_a_model_that_is_not_there_is_refused_before_the_launch(suite: Suite) -> None:
    suite.write("WRONG = B.but('wrong', '--model-path /nowhere/model')\n" + TEST_B.replace("[B]", "[WRONG]"))

    result = suite.run()

    assert result.ret == 12
    assert "model-path: --model-path /nowhere/model is not there" in result.stdout.str()
    assert suite.launches == 0


def test_a_flag_of_an_older_sglang_is_translated_with_a_notice(suite: Suite) -> None:
    suite.write("OLD = B.but('old', '--cuda-graph-max-bs 128')\n" + TEST_B.replace("[B]", "[OLD]"))

    result = suite.run("--update-baselines", "--specdec-launches=1")

    assert result.ret == 0
    assert "specdec: old: " in result.stdout.str()
    assert "--cuda-graph-max-bs-decode" in result.stdout.str()
    assert "--cuda-graph-max-bs-decode 128" in suite.counter.read_text()


@pytest.mark.parametrize("command", [("-m", "pytest", "--specdec-check"), ("-m", "pytest_specdec.cli", "check")])
def test_check_tells_of_every_spec_and_starts_nothing(suite: Suite, command: tuple[str, ...]) -> None:
    suite.write("WRONG = B.but('wrong', '--no-such-flag')\n" + TEST_B.replace("[B]", "[A, B, WRONG]"))
    arguments = ("-p", "no:randomly")
    environment = {
        "PYTEST_SPECDEC_PYTHON": str(suite.python),
        "PYTEST_SPECDEC_CACHE": str(suite.root / "cache"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        result = suite.pytester.run(sys.executable, *command, *arguments)

    assert result.ret == 12
    result.stdout.fnmatch_lines(["a: ok*", "b: ok*", "wrong: *problem*", "*--no-such-flag*"])
    assert suite.launches == 0


def test_check_of_good_specs_exits_zero(suite: Suite) -> None:
    suite.write(TEST_B)

    result = suite.run("--specdec-check")

    assert result.ret == 0
    result.stdout.fnmatch_lines(["b: ok*"])
    assert suite.launches == 0
