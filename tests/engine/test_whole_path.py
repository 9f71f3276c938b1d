"""The README's promises, run as a user would: in processes of their own, in a scratch directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parent.parent.parent
SLOW_ENGINE = Path(__file__).parent / "slow_engine"


KEY = "tiny-standalone--smoke--c1--o64"


def copied(directory: Path) -> Path:
    """A copy of the perf suite without any baseline."""
    shutil.copytree(REPOSITORY / "tests" / "perf", directory / "tests" / "perf")
    (directory / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = --import-mode=importlib\n")
    return directory


@pytest.fixture
def scratch(tmp_path: Path, engine_python: str) -> Path:
    return copied(tmp_path)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, engine_python: str) -> Path:
    """The same with a baseline that one launch recorded."""
    directory = copied(tmp_path_factory.mktemp("recorded"))
    done = pytest_in(directory, "--update-baselines", "--specdec-launches=1")
    assert done.returncode == 0, done.stdout
    return directory


def run(
    directory: Path, *command: str, cache: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command with a cache, and so a host lock, of its own: this pytest session may hold a server meanwhile."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        command,
        cwd=directory,
        env={
            **clean,
            "PYTEST_SPECDEC_PYTHON": os.environ["PYTEST_SPECDEC_PYTHON"],
            "PYTEST_SPECDEC_CACHE": str(cache or directory / "cache"),
            **(env or {}),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def pytest_in(directory: Path, *args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    words = ["tests/perf", "--specdec-device=cpu", "-k", "tiny-standalone", "-p", "no:randomly"]
    return run(directory, sys.executable, "-m", "pytest", *words, *args, env=env)


def baselines_of(recorded: Path, directory: Path, change: Callable[[dict[str, Any]], None]) -> tuple[Path, Path]:
    """Copy the recorded baselines and change the metrics of one; the directory and the file."""
    shutil.copytree(recorded / "baselines", directory / "baselines")
    (path,) = (directory / "baselines").glob(f"cpu-*/{KEY}.json")
    stored = json.loads(path.read_text())
    change(stored["metrics"])
    path.write_text(json.dumps(stored))
    return directory / "baselines", path


@pytest.fixture
def keeping(recorded: Path) -> Iterator[Path]:
    """The recorded suite; a server that a test leaves up is ended behind it."""
    yield recorded
    stopped = run(recorded, sys.executable, "-m", "pytest_specdec.cli", "servers", "stop", "--all")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr


def test_unchanged_code_passes_ten_times_out_of_ten_and_a_raised_floor_fails(keeping: Path, tmp_path: Path) -> None:
    """Each run judges against the recording; they share one server, kept from run to run."""
    recorded = keeping
    for _ in range(10):
        again = pytest_in(recorded, "--specdec-keep-servers")
        assert again.returncode == 0, again.stdout
        (measured,) = json.loads((recorded / ".specdec" / "results.json").read_text())["measurements"]
        (accept,) = [row for row in measured["judged"] if row["metric"] == "accept_length"]
        assert (accept["gated"], accept["verdict"]) == (True, "pass")
        # Exactly, but for a near tie in the logits that falls the other way once in a while.
        assert accept["change"] == pytest.approx(0.0, abs=0.01)

    speed = measured["metrics"]["decode_tok_s"]["value"]
    baselines, path = baselines_of(recorded, tmp_path, lambda m: m["decode_tok_s"].update(floor=100 * speed))
    failed = pytest_in(recorded, f"--specdec-baselines={baselines}")

    assert failed.returncode == 1, failed.stdout
    assert f"is below its floor {100 * speed:g}" in failed.stdout
    assert str(path) in failed.stdout
    report = recorded / ".specdec" / "report.html"
    assert str(report) in failed.stdout
    assert report.exists()


DEAD_ENDS = """
import pytest
from pytest_specdec import ServerSpec

TOO_SMALL = ServerSpec.tiny("too-small", "--max-total-tokens 1")
RENAMED = ServerSpec.tiny("renamed", "--speculative-nm-steps 3")


@pytest.mark.dead_end("kv-pool-too-small", reason="no room for a request")
@pytest.mark.specdec(workload="smoke", output_tokens=32)
@pytest.mark.parametrize("sglang_server", [TOO_SMALL], indirect=True)
def test_dies_while_it_loads(specdec_benchmark):
    pytest.fail("the body ran")


@pytest.mark.dead_end("unknown-flag", reason="a flag of another version")
@pytest.mark.parametrize("sglang_server", [RENAMED], indirect=True)
def test_is_refused_before(sglang_server):
    pytest.fail("the body ran")
"""


def test_dead_ends_hold(tmp_path: Path, engine_python: str) -> None:
    (tmp_path / "test_dead.py").write_text(DEAD_ENDS)

    done = run(tmp_path, sys.executable, "-m", "pytest", "-v", "-p", "no:randomly", "--rootdir=.")

    assert done.returncode == 0, done.stdout
    assert done.stdout.count(" DEAD-END ") == 2
    entries = json.loads((tmp_path / ".specdec" / "results.json").read_text())["dead_ends"]
    assert [(entry["outcome"], entry["seen"]) for entry in entries] == [
        ("holds", "kv-pool-too-small"),
        ("holds", "unknown-flag"),
    ]


def test_a_slower_engine_is_blamed_on_the_engine(recorded: Path, tmp_path: Path) -> None:
    """SGLang's own plug-in hooks put a sleep before each step: the same tokens, later."""

    def on_a_quiet_node(metrics: dict[str, Any]) -> None:
        """Gate the speed, with the noise of five launches within 1 %: one launch here shows too little."""
        for name in ("decode_tok_s", "verify_rate"):
            mean = metrics[name].pop("mean")
            metrics[name]["launches"] = [[mean * (1 + spread)] for spread in (0.0, 0.005, -0.005, 0.01, -0.01)]
        metrics["decode_tok_s"]["gate"] = True

    baselines, _ = baselines_of(recorded, tmp_path, on_a_quiet_node)

    slow = pytest_in(recorded, f"--specdec-baselines={baselines}", env={"PYTHONPATH": str(SLOW_ENGINE)})

    assert slow.returncode == 1, slow.stdout
    assert "REGRESSION" in slow.stdout
    assert "the engine got slower, not the drafter" in slow.stdout
    (measured,) = json.loads((recorded / ".specdec" / "results.json").read_text())["measurements"]
    assert measured["cause"] == "engine"
    assert measured["split"]["accept_length"] == pytest.approx(0.0, abs=0.01)
    assert measured["split"]["verify_rate"] < -0.2


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
    assert "the drafter got worse (fewer draft tokens are right), not the engine" in second
    assert "report.html" in second


def test_a_study_tries_its_dead_ends_ranks_its_sweep_and_writes_its_ledger(engine_python: str, tmp_path: Path) -> None:
    """The study of `scripts/demo --study`, without the block of four launches."""
    report, baselines = tmp_path / "report", tmp_path / "baselines"
    words = ["examples/study", "--specdec-device=cpu", "-k", "not beside_none", "-p", "no:cacheprovider"]
    places = [f"--specdec-report={report}", f"--specdec-baselines={baselines}"]
    command = [sys.executable, "-m", "pytest", *words, *places, "--specdec-study", "--specdec-max-launches=1"]

    done = run(REPOSITORY, *command, cache=tmp_path / "cache")

    assert done.returncode == 1, done.stdout
    document = json.loads((report / "results.json").read_text())
    dead_ends = {entry["server"]: entry for entry in document["dead_ends"]}
    # Slower than 40 tok/s is for a machine like the one that the study was written on.
    slow = "holds" if dead_ends["too-deep"]["metrics"]["decode_tok_s"] <= 40 else "revived"
    assert {server: (entry["outcome"], entry["seen"]) for server, entry in dead_ends.items()} == {
        "steps-alone": ("holds", "draft-flags"),
        "too-deep": (slow, None),
        "old-flag": ("revived", None),
    }
    assert len(list((report / "logs").iterdir())) == 4, "what the preflight refuses is not launched"
    (sweep,) = document["sweeps"]
    assert [point["name"] for point in sweep["points"] if point["word"] == "best"] == ["draft_steps-3_draft-tokens-4"]
    shown = run(REPOSITORY, sys.executable, "-m", "pytest_specdec.cli", "study", f"--baselines={baselines}")
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.stdout.splitlines()]
    outcomes = {cells[0]: cells[3] for cells in table if len(cells) > 3}
    assert outcomes["steps-alone"].startswith("dead end")
    assert {"too-deep", "old-flag", "draft_steps-1_draft-tokens-2"} < outcomes.keys()
