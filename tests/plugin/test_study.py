"""The ledger of a study, from the results of a real session: a treatment beside its control, and what did not serve."""

from __future__ import annotations

import sys

from tests.plugin.conftest import TEST_B, Suite

CONTROLLED = TEST_B.replace('workload="smoke"', 'workload="smoke", control=A').replace("[B]", "[B, WRONG]")


def test_a_session_goes_into_the_ledger(suite: Suite) -> None:
    suite.write("WRONG = B.but('wrong', '--speculative-nm-steps 3')\n" + CONTROLLED)
    suite.run("--specdec-warmup=0", "--specdec-rounds=1")
    study = (sys.executable, "-m", "pytest_specdec.cli", "study")

    added = suite.pytester.run(*study, "add")
    shown = suite.pytester.run(*study)

    added.stdout.fnmatch_lines(["baselines/cpu-test/study.jsonl: 3 new, 0 as before, 0 there already"])
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.outlines if line.startswith("| ")]
    rows = {name: cells for name, *cells in table}
    for name in ("a", "b"):
        assert rows[name][0] == "smoke c1 o31"
        assert rows[name][2] == "pass", "held to its control, or with no metric that gates"
        assert rows[name][-1].startswith("[log](.specdec/logs/")
    assert rows["b"][1].startswith("a with --speculative-algorithm: (not set) -> NGRAM")
    assert float(rows["b"][5].split()[0].rstrip(",")) > 1
    assert rows["wrong"][1:3] == [
        "a with --speculative-algorithm: (not set) -> NGRAM; --speculative-nm-steps: (not set) -> 3",
        "failed: unknown-flag",
    ]
    assert rows["wrong"][-2:] == ["0.5.23", "-"]
