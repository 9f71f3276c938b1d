"""A server's life with real processes: a script that behaves like SGLang's launch, real signals, real HTTP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pytest_specdec import ServerSpec
from pytest_specdec.client import ServerClient
from pytest_specdec.clock import Clock, SystemClock
from pytest_specdec.errors import LaunchError
from pytest_specdec.hosts import LocalHost
from pytest_specdec.progress import Progress
from pytest_specdec.server import RunningServer, launch

FAKES = Path(__file__).parent.parent / "fakes"
ROOT = FAKES.parent.parent


class HurriedClock(SystemClock):
    """Time that runs twenty times as fast, for the waits that are long on purpose."""

    def monotonic(self) -> float:
        return super().monotonic() * 20

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / 20)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A stand-in for the Python that has SGLang."""
    path = tmp_path / "bin" / "python"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKES / "fake_server_process.py"} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def pids_path(tmp_path: Path) -> Iterator[Path]:
    """Where the fake server writes its process ids; those that a failed test leaves are killed."""
    path = tmp_path / "pids"
    yield path
    for pid in living(path):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(tmp_path: Path, python: Path, pids_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Launch the fake server, as its environment says; it is stopped afterwards."""
    servers: list[RunningServer] = []

    def start(
        clock: Clock | None = None,
        *,
        timeout_s: float = 20,
        on_progress: Callable[[Progress], None] = lambda _told: None,
        **env: str,
    ) -> RunningServer:
        server = launch(
            LocalHost(),
            ServerSpec("fake", "/models/m", env={"FAKE_PIDS": str(pids_path), **env}),
            python=str(python),
            clock=clock or SystemClock(),
            log_path=tmp_path / "logs" / "fake.log",
            client_factory=ServerClient,
            startup_timeout_s=timeout_s,
            startup_limit_s=60,
            extra_env={},
            on_progress=on_progress,
        )
        servers.append(server)
        return server

    yield start

    for server in servers:
        server.stop()


def started(pids_path: Path) -> list[int]:
    """The ids of the fake server and its children."""
    return [int(word) for word in pids_path.read_text().split()] if pids_path.exists() else []


def living(pids_path: Path) -> list[int]:
    """Those of them that are left."""
    alive = []
    for pid in started(pids_path):
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                alive.append(pid)
        except psutil.NoSuchProcess:
            pass
    return alive


def test_a_server_starts_serves_and_is_gone_with_its_scheduler_after_stop(
    start: Callable[..., RunningServer], pids_path: Path
) -> None:
    server = start()

    assert server.url == f"http://127.0.0.1:{server.port}"
    assert (server.info.version, server.info.model_path, server.info.port) == ("0.5.23", "/models/m", server.port)
    server.check_alive()
    assert len(living(pids_path)) == 2

    assert server.stop().how == "term"
    assert living(pids_path) == []
    assert "fired up" in server.log_path.read_text()


def test_a_server_whose_log_lost_its_lines_is_ready_by_http(start: Callable[..., RunningServer]) -> None:
    server = start(FAKE_MODE="quiet")

    assert "fired up" not in server.log_path.read_text()
    server.stop()


@pytest.mark.parametrize(
    ("mode", "exit_code", "told"),
    [
        ("usage", 2, "  | sglang serve: error: unrecognized arguments: --no-such-flag"),
        ("raise", 1, "  | FileNotFoundError: /models/m/config.json is not there"),
    ],
)
def test_a_launch_that_dies_is_reported_and_leaves_nothing(
    start: Callable[..., RunningServer], pids_path: Path, mode: str, exit_code: int, told: str
) -> None:
    with pytest.raises(LaunchError) as caught:
        start(FAKE_MODE=mode)

    assert caught.value.exit_code == exit_code
    assert told in str(caught.value).splitlines()
    assert living(pids_path) == []


def test_a_taken_port_fails_at_once_and_leaves_nothing(start: Callable[..., RunningServer], pids_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"port \d+ was taken while it loaded: ERROR: .*address already in use"):
        start(FAKE_MODE="bind")

    assert living(pids_path) == []


def test_a_launch_that_hangs_is_ended(start: Callable[..., RunningServer], pids_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"nothing showed progress for \d s .* last phase weights"):
        start(FAKE_MODE="hang", timeout_s=1)

    assert living(pids_path) == []


def test_another_model_s_server_is_not_taken_for_ours(start: Callable[..., RunningServer], pids_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"another server answers on port .* it serves '/models/x'"):
        start(FAKE_MODEL="/models/x")

    assert living(pids_path) == []


def test_a_group_that_ignores_sigterm_is_killed(start: Callable[..., RunningServer], pids_path: Path) -> None:
    server = start(HurriedClock(), timeout_s=600, FAKE_IGNORE_TERM="1")

    assert server.stop().how == "kill"
    assert living(pids_path) == []


def test_a_child_that_left_the_session_is_ended_too(start: Callable[..., RunningServer], pids_path: Path) -> None:
    server = start(FAKE_STRAY="1")
    _, _, stray = started(pids_path)
    assert os.getsid(stray) != server.process.pid

    server.stop()

    assert living(pids_path) == []


def test_children_that_outlive_their_launcher_are_ended(start: Callable[..., RunningServer], pids_path: Path) -> None:
    server = start(FAKE_STRAY="1")
    os.kill(server.process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while server.process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)

    with pytest.raises(LaunchError, match="the server died while serving") as caught:
        server.check_alive()
    assert caught.value.exit_code == -signal.SIGKILL
    _, scheduler, stray = started(pids_path)
    assert living(pids_path) == [scheduler, stray]

    server.stop()

    assert living(pids_path) == []


DRIVER = """
import sys, time
from pathlib import Path
from pytest_specdec import ServerSpec
from pytest_specdec.client import ServerClient
from pytest_specdec.clock import SystemClock
from pytest_specdec.hosts import LocalHost
from pytest_specdec.server import launch
python, log_path, pids_path, mode = sys.argv[1:]
server = launch(
    LocalHost(),
    ServerSpec("fake", "/models/m", env={"FAKE_PIDS": pids_path, "FAKE_MODE": mode}),
    python=python, clock=SystemClock(), log_path=Path(log_path), client_factory=ServerClient,
    startup_timeout_s=60, startup_limit_s=60, extra_env={},
    on_progress=lambda told: print(told.phase == "weights" and mode == "hang" and "now", flush=True),
)
print("now", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("mode", ["hang", "serve"], ids=["while launching", "while ready"])
def test_an_interrupted_process_leaves_no_server(
    tmp_path: Path, python: Path, pids_path: Path, number: signal.Signals, mode: str
) -> None:
    words = [sys.executable, "-c", DRIVER, str(python), str(tmp_path / "fake.log"), str(pids_path), mode]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as driver:
        assert driver.stdout is not None
        while driver.stdout.readline().strip() != "now":
            assert driver.poll() is None
        assert len(living(pids_path)) == 2

        driver.send_signal(number)
        _, errors = driver.communicate(timeout=30)

    assert living(pids_path) == []
    assert "KeyboardInterrupt" in errors
