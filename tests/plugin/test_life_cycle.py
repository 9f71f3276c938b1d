"""Nothing is left behind, whatever ends the session."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.plugin.conftest import TEST_B, Suite


def servers_of(suite: Suite) -> list[int]:
    """Processes that were started with this suite's fake engine."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "status"]):
        environ = process.info["environ"] or {}
        if environ.get("FAKE_COUNTER") == str(suite.counter) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def wait_for(what: Callable[[], bool], *, deadline_s: float = 30) -> None:
    end = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < end, f"waited {deadline_s:g} s"
        time.sleep(0.05)


def start(suite: Suite, *args: str, **env: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:randomly", *args],
        cwd=suite.root,
        env={
            **clean,
            "PYTEST_SPECDEC_PYTHON": str(suite.python),
            "PYTEST_SPECDEC_CACHE": str(suite.root / "cache"),
            "PYTEST_SPECDEC_NODE": "cpu-test",
            **env,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("death", ["hang", ""], ids=["while launching", "while serving"])
def test_an_interrupt_ends_the_server(suite: Suite, number: signal.Signals, death: str) -> None:
    body = "import time; specdec_benchmark(check=False); time.sleep(60)\n"
    suite.write(TEST_B.replace("specdec_benchmark()\n", body))
    session = start(suite, FAKE_DIE=death)
    wait_for(lambda: bool(servers_of(suite)))
    if not death:
        wait_for((suite.root / ".specdec" / "results.json").exists)

    session.send_signal(number)
    session.communicate(timeout=40)

    assert session.returncode != 0
    wait_for(lambda: not servers_of(suite), deadline_s=5)


def test_a_kill_of_the_session_ends_even_a_server_that_ignores_sigterm_within_ten_seconds(suite: Suite) -> None:
    body = "import time; specdec_benchmark(check=False); time.sleep(60)\n"
    suite.write(TEST_B.replace("specdec_benchmark()\n", body))
    session = start(suite, FAKE_DIE="stubborn")
    wait_for((suite.root / ".specdec" / "results.json").exists)
    assert servers_of(suite)

    session.kill()
    killed = time.monotonic()
    session.communicate(timeout=20)
    wait_for(lambda: not servers_of(suite), deadline_s=12)

    assert time.monotonic() - killed < 10


def held_by_a_worker(suite: Suite, *args: str, **env: str) -> tuple[subprocess.Popen[str], int]:
    """Start a session whose worker has a server up and sleeps; returns it, and the worker's process id."""
    path = suite.root / "test_suite.py"
    pid_path = suite.root / "worker.pid"
    # xdist gives the test to the next worker when this one is gone: there it does nothing.
    sleeping = (
        "import os, pathlib, time\n"
        f"    told = pathlib.Path({str(pid_path)!r})\n"
        "    if not told.exists():\n"
        "        specdec_benchmark(check=False)\n"
        "        told.write_text(f'{os.getpid()}.')\n"
        "        time.sleep(60)\n"
    )
    path.write_text(path.read_text().replace("specdec_benchmark()\n", sleeping))
    session = start(suite, "-n", "1", *args, **env)
    wait_for(lambda: pid_path.exists() and pid_path.read_text().endswith("."), deadline_s=60)
    return session, int(pid_path.read_text().rstrip("."))


def test_a_kill_of_an_xdist_worker_ends_its_server_within_ten_seconds(suite: Suite) -> None:
    suite.write(TEST_B)
    session, worker = held_by_a_worker(suite, FAKE_DIE="stubborn")
    assert worker != session.pid
    assert servers_of(suite)

    os.kill(worker, signal.SIGKILL)
    killed = time.monotonic()
    wait_for(lambda: not servers_of(suite), deadline_s=12)

    assert time.monotonic() - killed < 10
    said, _ = session.communicate(timeout=40)
    assert session.returncode == 1
    assert "crashed" in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 2), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_session_that_ends_after_round_3_of_5_keeps_three(suite: Suite, number: signal.Signals, code: int) -> None:
    suite.write(TEST_B.replace("output_tokens=31", "output_tokens=300"))
    rounds, serving = (suite.root / ".specdec" / name for name in ("rounds.jsonl", "serving.jsonl"))
    session = start(suite, "--specdec-rounds=5", "--specdec-warmup=0")
    wait_for(lambda: serving.exists() and len(serving.read_text().splitlines()) == 3)

    session.send_signal(number)
    session.communicate(timeout=40)

    assert session.returncode == code
    kept = [json.loads(line) for line in rounds.read_text().splitlines()]
    assert [row["round"]["index"] for row in kept] == [0, 1, 2]
    assert {len(row["round"]["requests"]) for row in kept} == {4}
    wait_for(lambda: not servers_of(suite), deadline_s=10)


def test_a_passing_session_leaves_no_process_port_or_lock(suite: Suite) -> None:
    suite.write(TEST_B)

    assert suite.run("--update-baselines", "--specdec-launches=1").ret == 0

    assert not servers_of(suite)
    again = start(suite)
    assert again.wait(timeout=60) == 0, "the host's lock is free"
    assert again.stdout is not None
    again.stdout.close()


def test_a_server_that_ignores_sigterm_is_killed(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.write(TEST_B)

    result = suite.run("--update-baselines", "--specdec-launches=1", env={"FAKE_DIE": "stubborn"})

    assert result.ret == 0
    assert not servers_of(suite)


def test_a_hang_is_reported_with_its_phase_and_the_last_lines(suite: Suite) -> None:
    suite.write(TEST_B)

    result = suite.run("--specdec-startup-timeout=2", env={"FAKE_DIE": "hang"})

    assert result.ret == 12
    text = result.stdout.str()
    assert "waited for the server to be ready until nothing showed progress for 2 s" in text
    assert "--specdec-startup-timeout" in text
    assert "last phase weights" in text
    assert "Load weight begin" in text
    assert not servers_of(suite)


def test_a_second_session_waits_for_the_host(suite: Suite, tmp_path: Path) -> None:
    suite.write(TEST_B.replace("output_tokens=31", "output_tokens=200"))
    first = start(suite, "--specdec-rounds=4", "--specdec-report=one")
    wait_for(lambda: bool(servers_of(suite)))

    second = start(suite, "--specdec-rounds=1", "--specdec-report=two")
    said, _ = second.communicate(timeout=60)
    first.communicate(timeout=60)

    assert f"(process {first.pid}, b) measures there" in said
    assert suite.launches == 2


def test_results_are_written_even_when_the_last_server_cannot_be_ended(suite: Suite) -> None:
    suite.write(TEST_B + TEST_B.replace("test_b", "test_b_again"))
    (suite.root / "conftest.py").write_text(
        "from pytest_specdec import served\n"
        "from pytest_specdec.errors import LaunchError\n"
        "stop = served.ServedHere.stop\n"
        "def survive(self):\n"
        "    stop(self)\n"
        "    raise LaunchError('b: processes 7, 8 survive SIGKILL')\n"
        "served.ServedHere.stop = survive\n"
    )

    result = suite.run("-x")

    assert result.ret == 12
    assert "specdec: b: processes 7, 8 survive SIGKILL" in result.stdout.str()
    assert "INTERNALERROR" not in result.stdout.str()
    assert len(suite.results["measurements"]) == 1
    assert [failure["reason"] for failure in suite.results["failures"]] == ["b: processes 7, 8 survive SIGKILL"]
