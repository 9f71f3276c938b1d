"""The ledger of a study, from the results of real sessions."""

from __future__ import annotations

import sys

from tests.plugin.conftest import TEST_B, Suite


def test_a_session_with_a_measured_server_and_a_failed_one_goes_into_the_ledger(suite: Suite) -> None:
    wrong = "WRONG = B.but('wrong', '--speculative-nm-steps 3')\n"
    suite.write(wrong + TEST_B.replace("[B]", "[B, WRONG]"))
    suite.run("--update-baselines", "--specdec-launches=1")
    study = (sys.executable, "-m", "pytest_specdec.cli", "study")

    added = suite.pytester.run(*study, "add")
    shown = suite.pytester.run(*study)

    added.stdout.fnmatch_lines(["baselines/cpu-test/study.jsonl: 2 new, 0 as before, 0 there already"])
    shown.stdout.re_match_lines_random(
        [
            r"\| b +\| smoke c1 o31 +\| .*\| 0\.5\.23 +\| \[log\]\(\.specdec/logs/.*-b-0-\d+\.log\) \|",
            r"\| wrong +\| - +\| - +\| failed: unknown-flag +\| .*\| 0\.5\.23 +\| - +\|",
        ]
    )
