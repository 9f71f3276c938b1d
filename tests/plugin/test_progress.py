"""What a person sees of a launch, and what the next session knows of it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.plugin.conftest import Suite

#: The exit code of a session whose tests only borrowed a server.
NOTHING_MEASURED = 13
TEST_A = """
@pytest.mark.parametrize("sglang_server", [A], indirect=True)
def test_a(sglang_server):
    assert sglang_server.url
"""


def test_a_launch_says_where_its_time_went_and_the_next_plan_tells_its_cost(suite: Suite) -> None:
    suite.write(TEST_A)

    first = suite.run().stdout
    second = suite.run().stdout

    first.fnmatch_lines(
        ["specdec plan: 1 server spec, 0 measurements, 1 launch", "specdec: a: ready after * s: imports *"]
    )
    second.fnmatch_lines(
        [
            "specdec plan: 1 server spec, 0 measurements, 1 launch, about * s of loading",
            "  a: 1 launch of about * s; server only",
        ]
    )


def test_the_results_hold_the_seconds_of_each_phase(suite: Suite) -> None:
    suite.write(
        '@pytest.mark.specdec(workload="chat", output_tokens=8)\n'
        '@pytest.mark.parametrize("sglang_server", [A], indirect=True)\n'
        "def test_a(specdec_benchmark):\n    specdec_benchmark(check=False)\n"
    )

    assert suite.run("--specdec-rounds=1", "--specdec-launches=1").ret == 0

    (launch,) = suite.results["measurements"][0]["launches"]
    assert "imports" in launch["phase_s"]
    assert abs(sum(launch["phase_s"].values()) - launch["ready_s"]) < 0.1


def test_a_broken_history_is_no_obstacle(suite: Suite) -> None:
    suite.write(TEST_A)
    history = suite.root / "cache" / "launches.json"
    history.parent.mkdir()
    history.write_text("{", encoding="utf-8")

    assert suite.run().ret == NOTHING_MEASURED
    assert len(json.loads(history.read_text())["launches"]) == 1


def test_on_a_terminal_a_launch_has_one_line_that_rewrites_itself(suite: Suite) -> None:
    path = suite.write(TEST_A)
    said = on_a_terminal(suite, path)

    assert "\rspecdec: a: imports after " in said
    assert "\nspecdec: a: imports after " not in said
    assert "specdec: a: ready after " in said
    assert "1 passed" in said


def on_a_terminal(suite: Suite, path: Path) -> str:
    """Run pytest on a pseudo-terminal; returns all that it wrote there."""
    ours, theirs = pty.openpty()
    cache = suite.root / "cache"
    env = {**os.environ, "PYTEST_SPECDEC_PYTHON": str(suite.python), "PYTEST_SPECDEC_CACHE": str(cache)}
    words = [sys.executable, "-m", "pytest", "-p", "no:randomly", str(path)]
    with subprocess.Popen(words, env=env, stdin=theirs, stdout=theirs, stderr=theirs, cwd=suite.root) as session:
        os.close(theirs)
        said = b""
        while True:
            try:
                said += os.read(ours, 65536)
            except OSError:  # what Linux says at the end of a terminal
                break
        assert session.wait(timeout=60) == NOTHING_MEASURED
    os.close(ours)
    return said.decode().replace("\r\n", "\n")
