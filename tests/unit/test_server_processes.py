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
from pytest_specdec.errors import LaunchError, ServerRequestError
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
        launcher: str = "",
        on_progress: Callable[[Progress], None] = lambda _told: None,
        **env: str,
    ) -> RunningServer:
        server = launch(
            LocalHost(),
            ServerSpec("fake", "/models/m", env={"FAKE_PIDS": str(pids_path), **env}, launcher=launcher),
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


#: Programs in front of Python, by what they do: become it; wait for it and pass no signal on; start it as a daemon
#: and wait beside it.
LAUNCHERS = {
    "becomes it": '#!/bin/sh\nexec "$@"\n',
    "waits and is deaf": f"#!{sys.executable}\n"
    "import signal, subprocess, sys\n"
    "child = subprocess.Popen(sys.argv[1:])\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "sys.exit(child.wait())\n",
    "leaves its session": '#!/bin/sh\nsetsid "$@" &\nwait\n',
    "makes it a daemon": f"#!{sys.executable}\n"
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        os.execvp(sys.argv[1], sys.argv[1:])\n"
    "    os._exit(0)\n"
    "time.sleep(600)\n",
}


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / "launcher"
    path.write_text(LAUNCHERS[request.param], encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_what_a_launcher_starts_ends_with_it(
    start: Callable[..., RunningServer], pids_path: Path, launcher: str
) -> None:
    server = start(HurriedClock(), timeout_s=600, launcher=launcher, FAKE_STRAY="1")
    assert len(living(pids_path)) == 3

    server.stop()

    assert living(pids_path) == []


def test_what_a_launcher_starts_ends_with_a_killed_process(
    tmp_path: Path, python: Path, pids_path: Path, launcher: str
) -> None:
    words = [sys.executable, "-c", DRIVER, str(python), str(tmp_path / "fake.log"), str(pids_path), "serve", launcher]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as driver:
        assert driver.stdout is not None
        while driver.stdout.readline().strip() != "now":
            assert driver.poll() is None
        assert len(living(pids_path)) == 2

        driver.kill()

    deadline = time.monotonic() + 10
    while living(pids_path):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_server_of_which_a_part_died_is_ended_while_a_request_waits_for_it(
    start: Callable[..., RunningServer], pids_path: Path
) -> None:
    server = start(HurriedClock(), FAKE_MODE="half-dead")
    began = time.monotonic()

    with pytest.raises(ServerRequestError) as asked, server.in_use():
        ServerClient(server.url).generate_once("a prompt", max_new_tokens=2, timeout_s=60.0)

    assert time.monotonic() - began < 20
    first, *shown = str(asked.value).splitlines()
    assert first.startswith(f"POST {server.url}/generate: failed after ")
    assert shown[0] == f"  log:       {server.log_path}"
    assert shown[-1].endswith(
        "Subprocess detokenizer (pid=1) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
    )
    deadline = time.monotonic() + 10  # the connection ends a moment before the last process does
    while living(pids_path):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(LaunchError, match="the rest had to be killed\\n") as caught:
        server.check_alive()
    assert "diagnosis: process-killed [scheduler_died]" in str(caught.value)


def test_a_server_that_is_well_is_left_alone_while_it_is_used(start: Callable[..., RunningServer]) -> None:
    server = start()

    with server.in_use():
        assert ServerClient(server.url).generate_once("a prompt", max_new_tokens=2).output_ids == (1, 2)

    server.check_alive()


DRIVER = """
import sys, time
from pathlib import Path
from pytest_specdec import ServerSpec
from pytest_specdec.client import ServerClient
from pytest_specdec.clock import SystemClock
from pytest_specdec.hosts import LocalHost
from pytest_specdec.server import launch
python, log_path, pids_path, mode, *launcher = sys.argv[1:]
server = launch(
    LocalHost(),
    ServerSpec("fake", "/models/m", env={"FAKE_PIDS": pids_path, "FAKE_MODE": mode}, launcher=launcher),
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
