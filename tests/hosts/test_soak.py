"""Fifty starts of a server that something kills at a random moment: afterwards nothing of them is left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pytest

from pytest_specdec.host_locks import HostLocks
from tests.hosts.sshd import ALIAS, Sshd
from tests.hosts.test_containers import Docker
from tests.hosts.waiting import is_alive, wait_until
from tests.plugin.conftest import TEST_B, Suite

CYCLES: Final = 50
AT_ONCE: Final = 5
#: Servers are gone within ten seconds; what remains is for a busy machine.
GONE_WITHIN_S: Final = 15.0
ROOT: Final = Path(__file__).parent.parent.parent
MARK: Final = "SPECDEC_SOAK"

#: A start of one server, which then waits for the word to stop it.
HARNESS = """
import json, os, sys
from pathlib import Path
from pytest_specdec import ServerSpec
from pytest_specdec.client import ServerClient
from pytest_specdec.clock import SystemClock
from pytest_specdec.hosts import LocalHost
from pytest_specdec.server import launch
from pytest_specdec.ssh import SshHost
asked = json.loads(sys.argv[1])
host = LocalHost()
if asked["ssh"]:
    host = SshHost(asked["ssh"], ssh_options=asked["options"], runtime_dir=Path(asked["run"]))
server = launch(
    host,
    ServerSpec("soak", "/models/m", env=asked["env"], launcher=asked["launcher"], python=asked["python"]),
    python=asked["python"], clock=SystemClock(), log_path=Path(asked["log"]), client_factory=ServerClient,
    startup_timeout_s=60, startup_limit_s=60, extra_env={}, on_progress=lambda _line: None,
)
print(server.process.pid, flush=True)
sys.stdin.readline()
server.stop()
if asked["ssh"]:
    host.close()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """Where a server is started, and what is killed with which signal, how long after the start or its readiness."""

    number: int
    where: str
    target: str
    signal: signal.Signals
    when: str
    delay_s: float


def planned(source: random.Random) -> list[Cycle]:
    """Fifty cycles: most are cheap, each kind is there."""
    wheres = ["local"] * 28 + ["container"] * 8 + ["ssh"] * 8 + ["pytest"] * 6
    cycles = []
    for number, where in enumerate(wheres[:CYCLES]):
        whole = where == "pytest" or source.random() < 0.6
        target = "harness" if whole else source.choice(["server", "guard", "nothing"])
        cycles.append(
            Cycle(
                number=number,
                where=where,
                target=target,
                signal=source.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]),
                when=source.choice(["after the start", "when ready"]) if whole else "when ready",
                delay_s=source.uniform(0, 1.5 if where in ("ssh", "pytest") else 0.7),
            )
        )
    source.shuffle(cycles)
    return cycles


def bearers(mark: str) -> list[psutil.Process]:
    """Living processes with this mark in their environment."""
    found = []
    for process in psutil.process_iter(["environ", "status"]):
        value = (process.info["environ"] or {}).get(MARK, "")
        if value.startswith(mark) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


class Soak:
    """The cycles, each with a mark of its own, and where their files are."""

    def __init__(self, suite: Suite, docker: Docker, sshd: Sshd, directory: Path) -> None:
        self.suite = suite
        self.docker = docker
        self.sshd = sshd
        self.directory = directory
        self.tmp = directory / "t"
        self.tmp.mkdir()
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"

    def environ(self, cycle: Cycle) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        return {**clean, **self.docker.env, "TMPDIR": str(self.tmp), MARK: f"{self.mark}-{cycle.number}-"}

    def start(self, cycle: Cycle) -> subprocess.Popen[str]:
        env = self.environ(cycle)
        if cycle.where == "pytest":
            env |= {
                "PYTEST_SPECDEC_PYTHON": str(self.suite.python),
                "PYTEST_SPECDEC_CACHE": str(self.directory / "cache"),
                "PYTEST_SPECDEC_NODE": "cpu-test",
            }
            report = f"--specdec-report={self.directory / f'report-{cycle.number}'}"
            words = ["-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", "-n2", report]
            cwd = self.suite.root
        else:
            mark = {MARK: env[MARK]}
            launcher = ["docker", "run", "--network=host", "-e", f"{MARK}={env[MARK]}", "image"]
            asked = {
                "ssh": ALIAS if cycle.where == "ssh" else None,
                "options": self.sshd.options,
                "run": str(self.directory / "run"),
                "env": mark,
                "launcher": launcher if cycle.where == "container" else [],
                "python": str(self.suite.python),
                "log": str(self.docker.log.parent / f"{cycle.number}.log"),
            }
            words, cwd = ["-c", HARNESS, json.dumps(asked)], ROOT
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=cwd,
            env=env,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def run(self, cycle: Cycle) -> None:
        """Run one cycle; fails when something of it is left."""
        harness = self.start(cycle)
        try:
            pid = self._ready(cycle, harness) if cycle.when == "when ready" else None
            time.sleep(cycle.delay_s)
            if cycle.target == "harness":
                harness.send_signal(cycle.signal)
            elif cycle.target == "server" and pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, cycle.signal)
            elif cycle.target == "guard":
                for child in psutil.Process(harness.pid).children():
                    if any(word.endswith("guard.py") for word in child.cmdline()):
                        child.kill()
            # Whoever was not killed stops the server in order.
            with contextlib.suppress(subprocess.TimeoutExpired):
                harness.communicate("\n", timeout=60)
            mark = f"{self.mark}-{cycle.number}-"
            wait_until(lambda: not bearers(mark), f"the end of {cycle}", within_s=GONE_WITHIN_S)
        finally:
            if harness.poll() is None:
                harness.kill()
                harness.communicate()

    def _ready(self, cycle: Cycle, harness: subprocess.Popen[str]) -> int | None:
        assert harness.stdout is not None
        if cycle.where != "pytest":
            line = harness.stdout.readline()
            assert line, f"{cycle} got no server"
            return int(line)
        results = self.directory / f"report-{cycle.number}"
        # Sessions on one host wait for one another.
        wait_until(lambda: any(results.rglob("*.log")), f"a launch of {cycle}", within_s=60)
        return None


@pytest.fixture
def soak(pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory, start_sshd: Callable[..., Sshd]) -> Soak:
    directory = tmp_path_factory.mktemp("s")
    (directory / "there").mkdir()
    suite = Suite(pytester)
    suite.write(TEST_B)
    sshd = start_sshd(f"SetEnv TMPDIR={directory / 'there'}", "MaxStartups 100", "MaxSessions 100")
    return Soak(suite, Docker(directory / "docker"), sshd, directory)


def test_fifty_random_kills_leave_nothing(soak: Soak) -> None:
    seed = int(os.environ.get("SPECDEC_SOAK_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"repeat this soak with SPECDEC_SOAK_SEED={seed}")
    cycles = planned(random.Random(seed))
    assert len(cycles) == CYCLES
    began = time.monotonic()
    try:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for outcome in [threads.submit(soak.run, cycle) for cycle in cycles]:
                outcome.result()
        print(f"{CYCLES} cycles in {time.monotonic() - began:.1f} s")
        # What a killed owner leaves, the next one clears up.
        for number, where in enumerate(("ssh", "pytest"), CYCLES):
            last = Cycle(
                number=number, where=where, target="nothing", signal=signal.SIGKILL, when="when ready", delay_s=0
            )
            soak.run(last)
        assert_nothing_left(soak)
    finally:
        soak.docker.daemon.kill()
        soak.docker.daemon.wait()
        for process in bearers(soak.mark):
            process.kill()


def assert_nothing_left(soak: Soak) -> None:
    # Processes: of servers, launchers, guards, clients, and on the host behind SSH.
    assert bearers(soak.mark) == []
    assert soak.docker.processes() == []
    assert soak.sshd.process is not None
    sshd = psutil.Process(soak.sshd.process.pid)
    wait_until(lambda: not [child for child in sshd.children(recursive=True) if is_alive(child.pid)], "sshd's sessions")

    # Ports.
    for port in ports_used(soak):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0, f"port {port}"

    # Containers, id files, sockets, temporary directories.
    assert soak.docker.left() == []
    assert list((soak.directory / "run").iterdir()) == []
    wait_until(lambda: not any((soak.directory / "there").iterdir()), "the supervisors' directories")
    assert [path.name for path in soak.tmp.iterdir() if not path.name.startswith("pytest-of-")] == []

    # Locks.
    directory = soak.directory / "cache" / "locks"
    assert list(directory.glob("*.lock"))
    locks = HostLocks(directory, "the soak")
    assert locks.whole() is None
    locks.release()


def ports_used(soak: Soak) -> set[int]:
    """The ports on which servers said that they listen."""
    logs = [*soak.docker.log.parent.glob("*.log"), *soak.directory.glob("report-*/logs/*.log")]
    said = [word for path in logs for word in path.read_text(errors="replace").split() if word.startswith("http://")]
    ports = {int(word.rpartition(":")[2]) for word in said}
    assert len(ports) > CYCLES // 4
    return ports
