"""Servers in containers, on this machine and behind SSH: client and container end together, whatever ends them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pytest_specdec.clock import SystemClock
from pytest_specdec.containers import ContainerProcess, own_pids, start
from pytest_specdec.hosts import Host, LocalHost
from pytest_specdec.ssh import SshHost
from pytest_specdec.stopping import stop_process
from tests.hosts.sshd import ALIAS, Sshd
from tests.hosts.waiting import is_alive, wait_until

FAKES = Path(__file__).parent.parent / "fakes"
ROOT = FAKES.parent.parent
#: A first process with a child; neither heeds SIGTERM when told so.
SERVER = (
    "import signal, subprocess, sys, time\n"
    "if sys.argv[1] == 'stubborn': signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    "print('up', flush=True)\n"
    "time.sleep(600)\n"
)


class HurriedClock(SystemClock):
    """Time that runs ten times as fast, for the waits that are long on purpose."""

    def monotonic(self) -> float:
        return super().monotonic() * 10

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / 10)


class Docker:
    """The stand-in on a PATH, and its containers."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "containers"
        (self.root / "jobs").mkdir(parents=True)
        self.log = directory / "logs" / "server.log"
        tool = directory / "bin" / "docker"
        tool.parent.mkdir()
        tool.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKES / "docker.py"} "$@"\n')
        tool.chmod(0o755)
        self.env = {"PATH": f"{tool.parent}:{os.environ['PATH']}", "FAKE_DOCKER_ROOT": str(self.root)}
        self.seen: set[int] = set()
        words = [sys.executable, str(FAKES / "docker.py"), "daemon"]
        self.daemon = subprocess.Popen(words, env={**os.environ, **self.env}, start_new_session=True)

    def words(self, how: str = "willing", *options: str) -> list[str]:
        return ["docker", "run", *options, "image", sys.executable, "-S", "-c", SERVER, how]

    def processes(self) -> list[int]:
        """The living processes of all containers that were ever seen, with what watches over them."""
        for path in self.root.glob("*/pid"):
            # It may end at any moment.
            with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
                shim = psutil.Process(int(path.read_text().split()[1]))
                self.seen |= {shim.pid, *(child.pid for child in shim.children(recursive=True))}
        return [pid for pid in sorted(self.seen) if is_alive(pid)]

    def wait_until_up(self) -> None:
        wait_until(lambda: self.log.exists() and b"up" in self.log.read_bytes(), "the container")
        assert len(self.processes()) == 3

    def left(self) -> list[str]:
        """What is left of containers and their id files."""
        containers = [path for path in self.root.glob("*/") if path.is_dir() and path.name != "jobs"]
        return [path.name for path in (*containers, *self.log.parent.glob("*.cid"))]


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[Docker]:
    docker = Docker(tmp_path / "docker")
    yield docker
    left = docker.processes()
    docker.daemon.kill()
    docker.daemon.wait()
    for pid in left:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=["local", "ssh"])
def host(request: pytest.FixtureRequest) -> Host:
    if request.param == "local":
        return LocalHost()
    shared: SshHost = request.getfixturevalue("ssh_host")
    return shared


@pytest.fixture
def server(host: Host, docker: Docker) -> Iterator[Callable[..., ContainerProcess]]:
    """Start a container; what a test leaves is ended."""
    started: list[ContainerProcess] = []

    def server(how: str = "willing", *options: str, **env: str) -> ContainerProcess:
        words = docker.words(how, *options)
        process = start(
            host,
            words,
            launcher=4 + len(options) - 1,
            env={**host.environ(), **docker.env, **env},
            cwd=None,
            log_path=docker.log,
        )
        assert isinstance(process, ContainerProcess)
        started.append(process)
        docker.wait_until_up()
        return process

    yield server

    for process in started:
        (docker.root / "down").unlink(missing_ok=True)
        stop_process(process, HurriedClock(), what="the container")


@pytest.mark.parametrize("options", [(), ("--rm",)], ids=["kept", "rm"])
def test_a_server_stops_with_its_container(
    server: Callable[..., ContainerProcess], docker: Docker, options: tuple[str, ...]
) -> None:
    process = server("willing", *options)

    assert stop_process(process, SystemClock(), what="it").how == "term"
    assert process.poll() == 128 + signal.SIGTERM, "the client's exit code is the container's"
    assert docker.processes() == []
    assert docker.left() == []


def test_a_container_that_ignores_sigterm_is_killed(server: Callable[..., ContainerProcess], docker: Docker) -> None:
    process = server("stubborn")

    assert stop_process(process, HurriedClock(), what="it").how == "kill"
    assert docker.processes() == []
    assert docker.left() == []


def test_a_client_that_passes_nothing_on_leaves_nothing(
    server: Callable[..., ContainerProcess], docker: Docker
) -> None:
    process = server("stubborn", FAKE_DOCKER_ORPHAN="1")

    stop_process(process, HurriedClock(), what="it")

    assert docker.processes() == []
    assert docker.left() == []


def test_a_container_outlives_its_killed_client_and_is_seen_and_ended(
    server: Callable[..., ContainerProcess], docker: Docker
) -> None:
    process = server()
    first = process.container_pids()
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: process.poll() is not None, "the client's end")

    assert len(first) == 2
    assert set(first) < set(docker.processes())
    assert process.members() == first
    assert stop_process(process, SystemClock(), what="it").how == "term"
    assert docker.processes() == []
    assert docker.left() == []


def test_the_processes_of_a_server_are_those_on_both_sides(server: Callable[..., ContainerProcess]) -> None:
    process = server()

    assert own_pids(process) == {*process.members(), *process.container_pids()}
    assert len(own_pids(process)) == 3


HARNESS = """
import json, os, sys, time
from pathlib import Path
from pytest_specdec.containers import start
from pytest_specdec.hosts import LocalHost
from pytest_specdec.ssh import SshHost
asked = json.loads(sys.argv[1])
there = asked["ssh"]
host = SshHost(there, ssh_options=asked["options"], runtime_dir=Path(asked["run"])) if there else LocalHost()
process = start(
    host, asked["words"], launcher=asked["launcher"], env={**host.environ(), **asked["env"]}, cwd=None,
    log_path=Path(asked["log"]),
)
print(process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["willing", "stubborn"])
@pytest.mark.parametrize("client", ["lives", "killed too"])
@pytest.mark.parametrize("where", ["local", "ssh"])
def test_a_killed_harness_takes_client_and_container_along_within_ten_seconds(
    docker: Docker, tmp_path: Path, sshd: Sshd, where: str, client: str, how: str
) -> None:
    words = docker.words(how)
    asked = {"words": words, "launcher": words.index("image") + 1, "env": docker.env, "log": str(docker.log)}
    asked |= {"ssh": ALIAS if where == "ssh" else None, "options": sshd.options, "run": str(tmp_path / "run")}
    argv = [sys.executable, "-c", HARNESS, json.dumps(asked)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT) as harness:
        assert harness.stdout is not None
        pid = int(harness.stdout.readline())
        docker.wait_until_up()

        harness.kill()
        if client != "lives":
            os.kill(pid, signal.SIGKILL)

        took_s = wait_until(lambda: not docker.processes() and not is_alive(pid) and not docker.left(), "the end")
    assert took_s < 10
