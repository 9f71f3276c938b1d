"""The probe as a process of its own, as a host runs it: with a torch that counts for nothing, and one that fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_specdec import comm_probe

SITE = Path(__file__).parents[1] / "fakes" / "site"
SOURCE = Path(comm_probe.__file__).read_text(encoding="utf-8")


def words(**more: Any) -> list[str]:
    request = {
        "backend": "gloo",
        "world_size": 2,
        "calls": 5,
        "message_bytes": 64,
        "graph": True,
        "rounds": 3,
        "warmup": 1,
        "timeout_s": 30,
        **more,
    }
    return [sys.executable, "-c", SOURCE, json.dumps(request)]


def start(tmp_path: Path, env: dict[str, str], *, front: tuple[str, ...] = (), **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*front, *words(**more)],
        env={**os.environ, "PYTHONPATH": str(SITE), "TMPDIR": str(tmp_path), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=60)
    (line,) = [line for line in out.splitlines() if line.startswith(comm_probe.MARK)]
    told: dict[str, Any] = json.loads(line.removeprefix(comm_probe.MARK))
    return told


def ranks_of(process: subprocess.Popen[str], count: int) -> list[psutil.Process]:
    """The ranks, as soon as there are so many."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        ranks = psutil.Process(process.pid).children()
        if len(ranks) == count:
            return ranks
        time.sleep(0.02)
    raise AssertionError(f"there never were {count} ranks")


def test_a_round_has_one_value_and_it_is_a_call_s_microseconds(tmp_path: Path) -> None:
    told = answer(start(tmp_path, {"FAKE_ALL_REDUCE_US": "2000"}))

    assert told["rounds_us"] == pytest.approx([2000.0] * 3)
    assert told["torch_version"] == "2.14.1+fake"
    assert not list(tmp_path.iterdir()), "where the ranks met is gone"


def test_a_round_on_gpus_is_one_graph_with_all_its_calls(tmp_path: Path) -> None:
    told = answer(start(tmp_path, {"FAKE_ALL_REDUCE_US": "2000"}, backend="nccl"))

    assert told["rounds_us"] == pytest.approx([2000.0] * 3)
    assert told["nccl_version"] == "2.27.5"


def test_a_sum_that_is_wrong_is_no_latency(tmp_path: Path) -> None:
    told = answer(start(tmp_path, {"FAKE_SUM": "1"}))

    assert told["error"].endswith("RuntimeError: the all-reduce of 1 to 2 gave 4.0, not 3")


def test_what_a_rank_raises_is_told(tmp_path: Path) -> None:
    told = answer(start(tmp_path, {"FAKE_TORCH": "raise"}))

    assert "ImportError: libcudart.so.13: cannot open shared object file" in told["error"]


def test_a_rank_that_is_killed_ends_the_others(tmp_path: Path) -> None:
    assert answer(start(tmp_path, {"FAKE_TORCH": "die"})) == {"error": "a rank ended with exit code -9"}


def test_the_deadline_ends_ranks_that_hang_and_clears_up(tmp_path: Path) -> None:
    process = start(tmp_path, {"FAKE_TORCH": "hang"}, timeout_s=1)
    ranks = ranks_of(process, 2)

    assert answer(process) == {"error": "not done after 1 s"}
    assert not psutil.wait_procs(ranks, timeout=5)[1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_end_with_the_process_that_started_them(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, {"FAKE_TORCH": "hang"})
    ranks = ranks_of(process, 2)

    process.send_signal(number)
    process.communicate(timeout=20)

    assert not psutil.wait_procs(ranks, timeout=5)[1]


def test_all_end_with_the_process_that_asked_for_them(tmp_path: Path) -> None:
    asking = (sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])")
    process = start(tmp_path, {"FAKE_TORCH": "hang"}, front=asking)
    (script,) = ranks_of(process, 1)
    deadline = time.monotonic() + 20
    while len(script.children()) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    ranks = script.children()

    process.kill()
    process.communicate(timeout=20)

    assert len(ranks) == 2
    assert not psutil.wait_procs([script, *ranks], timeout=5)[1]
    assert not list(tmp_path.iterdir()), "it had the time to clear up"
