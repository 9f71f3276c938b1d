"""The README's promises, run as a user would: in processes of their own, in a scratch directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.fixture
def scratch(tmp_path: Path, engine_python: str) -> Path:
    """A copy of the perf suite without any baseline."""
    shutil.copytree(REPOSITORY / "tests" / "perf", tmp_path / "tests" / "perf")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = --import-mode=importlib\n")
    return tmp_path


def run(directory: Path, *command: str, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command with a cache, and so a host lock, of its own: this pytest session may hold a server meanwhile."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        command,
        cwd=directory,
        env={
            **clean,
            "PYTEST_SPECDEC_PYTHON": os.environ["PYTEST_SPECDEC_PYTHON"],
            "PYTEST_SPECDEC_CACHE": str(cache or directory / "cache"),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def pytest_in(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    words = ["tests/perf", "--specdec-device=cpu", "-k", "tiny-standalone", "-p", "no:randomly"]
    return run(directory, sys.executable, "-m", "pytest", *words, *args)


def test_a_second_run_passes_against_the_first_and_a_raised_floor_fails(scratch: Path) -> None:
    recorded = pytest_in(scratch, "--update-baselines", "--specdec-launches=1")
    assert recorded.returncode == 0, recorded.stdout
    (path,) = (scratch / "baselines").glob("cpu-*/tiny-standalone--smoke--c1--o64.json")

    again = pytest_in(scratch)
    assert again.returncode == 0, again.stdout

    stored = json.loads(path.read_text())
    speed = stored["metrics"]["decode_tok_s"]
    speed["floor"] = 100 * max(max(rounds) for rounds in speed["launches"])
    path.write_text(json.dumps(stored))
    failed = pytest_in(scratch)

    assert failed.returncode == 1, failed.stdout
    assert f"is below its floor {speed['floor']:g}" in failed.stdout
    assert str(path) in failed.stdout
    report = scratch / ".specdec" / "report.html"
    assert str(report) in failed.stdout
    assert report.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--no-such-flag", ["nothing was started", "unknown-flag", "SGLang 0.5.23"]),
        (
            "--model-path /nowhere/model",
            ["nothing was started", "model-path: --model-path /nowhere/model is not there"],
        ),
        (
            "--speculative-algorithm EAGLE9 --speculative-draft-model-path tiny:target",
            ["nothing was started", "draft-flags", "EAGLE9"],
        ),
        (
            "--max-total-tokens 1",
            ["it died after", "exit code -9", "AssertionError: max_running_request is zero", ".specdec/logs/"],
        ),
    ],
    ids=["wrong flag", "wrong model", "wrong algorithm", "dies while loading"],
)
def test_a_launch_that_cannot_work_tells_why(scratch: Path, flags: str, said: list[str]) -> None:
    (scratch / "test_wrong.py").write_text(
        "import pytest\n"
        "from pytest_specdec import ServerSpec\n"
        f"WRONG = ServerSpec.tiny('wrong', {flags!r})\n"
        "@pytest.mark.specdec(workload='smoke', output_tokens=8)\n"
        "@pytest.mark.parametrize('sglang_server', [WRONG], indirect=True)\n"
        "def test_wrong(specdec_benchmark):\n    specdec_benchmark()\n"
    )

    failed = run(scratch, sys.executable, "-m", "pytest", "test_wrong.py", "--specdec-device=cpu")

    assert failed.returncode == 12, failed.stdout
    for text in [*said, flags.split(maxsplit=1)[0]]:
        assert text in failed.stdout


def test_the_demo_finds_a_drafter_that_got_worse(engine_python: str, tmp_path: Path) -> None:
    """The demo's first run must pass for its second one to have anything to fail against."""
    done = run(REPOSITORY, str(REPOSITORY / "scripts" / "demo"), "--regression", cache=tmp_path)

    assert done.returncode == 1, done.stdout + done.stderr
    first, second = done.stdout.split("== 2 of 2")
    assert "2 passed" in first
    assert "REGRESSION: tiny-standalone--smoke--c1--o64: accept_length" in second
    assert "the drafter got worse" in second
    assert "report.html" in second
