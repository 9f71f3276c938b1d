"""The lease of a server behind SSH: who holds it, how it comes back, and what ends with it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_specdec import ServerSpec
from pytest_specdec.client import ServerClient
from pytest_specdec.clock import SystemClock
from pytest_specdec.errors import HostError
from pytest_specdec.lease import LeasedProcess
from pytest_specdec.server import RunningServer, launch
from pytest_specdec.ssh import SshHost
from tests.hosts.sshd import ALIAS, Sshd
from tests.hosts.waiting import is_alive, processes_with, wait_for, wait_until

SshTo = Callable[..., SshHost]
FAKES = Path(__file__).parent.parent / "fakes"
ROOT = FAKES.parent.parent
#: A closed lease channel or a local kill ends servers within that.
PROMISED_S = 10.0


@pytest.fixture
def pids_path(tmp_path: Path) -> Iterator[Path]:
    """Where servers write their process ids; those that a failed test leaves are killed."""
    path = tmp_path / "pids"
    yield path
    for pid in living(path):
        os.kill(pid, signal.SIGKILL)


def living(pids_path: Path) -> list[int]:
    return [pid for pid in map(int, pids_path.read_text().split()) if is_alive(pid)] if pids_path.exists() else []


def start(host: SshHost, pids_path: Path, *, ignore_term: bool = False) -> LeasedProcess:
    """Start a leader with a child in its session and one that left it."""
    disposition = "SIG_IGN" if ignore_term else "SIG_DFL"
    code = (
        "import os, signal, subprocess, sys, time\n"
        f"signal.signal(signal.SIGTERM, signal.{disposition})\n"
        "words = ['sleep', '120']\n"
        "children = [subprocess.Popen(words), subprocess.Popen(words, start_new_session=True)]\n"
        "with open(sys.argv[1] + '.new', 'w') as file:\n"
        "    print(os.getpid(), *(child.pid for child in children), file=file)\n"
        "os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
        "time.sleep(120)\n"
    )
    argv = [sys.executable, "-S", "-c", code, str(pids_path)]
    process = host.spawn(argv, env=host.environ(), cwd=None, log_path=pids_path.with_suffix(".log"))
    wait_for(pids_path, "\n")
    assert len(living(pids_path)) == 3
    return process


def supervisor_of(process: LeasedProcess) -> int:
    return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])


def directory_of(process: LeasedProcess) -> Path:
    """The supervisor's, where the lease is taken up again."""
    return Path(f"/proc/{supervisor_of(process)}/cwd").readlink()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), "the kill")


def master_of(host: SshHost) -> int:
    (master,) = processes_with(str(host.connection.directory), "ControlMaster=yes")
    return master


def test_a_closed_lease_channel_ends_the_group(sshd: Sshd, ssh_to: SshTo, pids_path: Path) -> None:
    host = ssh_to(sshd, lease_s=60)
    process = start(host, pids_path)
    supervisor = supervisor_of(process)

    process.forget()

    assert wait_until(lambda: not living(pids_path), "the group to end") < PROMISED_S
    wait_until(lambda: not is_alive(supervisor), "the supervisor to end")


def test_a_killed_lease_channel_ends_the_group(own_sshd: Sshd, ssh_to: SshTo, pids_path: Path) -> None:
    host = ssh_to(own_sshd, lease_s=60)
    process = start(host, pids_path)

    kill(process.wire.pid)

    assert wait_until(lambda: not living(pids_path), "the group to end") < PROMISED_S


def test_close_ends_what_runs(sshd: Sshd, ssh_to: SshTo, pids_path: Path) -> None:
    host = ssh_to(sshd)
    process = start(host, pids_path)
    supervisor = supervisor_of(process)

    host.close()

    assert living(pids_path) == []
    assert not is_alive(supervisor)
    assert processes_with(str(host.connection.directory)) == []


@pytest.mark.parametrize("how", ["ssh is killed", "the host drops it"])
def test_a_lost_connection_comes_back_within_the_lease(
    own_sshd: Sshd, ssh_to: SshTo, pids_path: Path, how: str
) -> None:
    host = ssh_to(own_sshd, lease_s=6)
    process = start(host, pids_path)
    lost = process.wire

    if how == "ssh is killed":
        kill(master_of(host))
    else:
        own_sshd.drop_connections()

    wait_until(lambda: process.wire is not lost, "the lease to be taken up again")
    # Longer than the lease: it is renewed.
    time.sleep(6.5)
    assert len(living(pids_path)) == 3
    assert (process.poll(), process.ending) == (None, None)
    assert sorted(process.members()) == sorted(living(pids_path))
    process.signal(signal.SIGTERM)
    wait_until(lambda: process.poll() is not None and not process.members(), "the signal to be told")
    assert process.poll() == -signal.SIGTERM
    assert living(pids_path) == []


def test_a_signal_does_not_wait_for_the_next_heartbeat(own_sshd: Sshd, ssh_to: SshTo, pids_path: Path) -> None:
    host = ssh_to(own_sshd, lease_s=600)
    process = start(host, pids_path)
    kill(master_of(host))
    wait_until(lambda: not process.wire.is_up, "the channel to end")

    process.signal(signal.SIGKILL)

    assert wait_until(lambda: process.poll() is not None and not process.members(), "the end") < 4
    assert living(pids_path) == []


def test_after_the_lease_the_host_ends_the_group(own_sshd: Sshd, ssh_to: SshTo, pids_path: Path) -> None:
    host = ssh_to(own_sshd, lease_s=2)
    process = start(host, pids_path)
    directory = directory_of(process)

    own_sshd.stop()

    took_s = wait_until(lambda: not living(pids_path), "the group to end")
    assert 1 < took_s < 2 + PROMISED_S
    with pytest.raises(HostError, match=r"^gpu-box: the connection was lost, and with it the server, .* after 2 s "):
        wait_until(lambda: process.poll() is not None, "the loss to be told")
    assert process.members() == ()
    process.signal(signal.SIGKILL)
    wait_until(lambda: not directory.exists(), "the host to be tidy")


def test_a_server_that_is_gone_when_the_connection_comes_back_is_told(
    own_sshd: Sshd, ssh_to: SshTo, pids_path: Path
) -> None:
    host = ssh_to(own_sshd, lease_s=2)
    process = start(host, pids_path)
    own_sshd.stop()
    wait_until(lambda: not living(pids_path), "the group to end")

    own_sshd.start()

    with pytest.raises(HostError, match=r"the connection was lost, and with it the server"):
        wait_until(lambda: process.poll() is not None, "the loss to be told")


def test_what_ignores_sigterm_is_killed(sshd: Sshd, ssh_to: SshTo, pids_path: Path) -> None:
    host = ssh_to(sshd)
    process = start(host, pids_path, ignore_term=True)

    process.forget()

    assert 2 < wait_until(lambda: not living(pids_path), "the group to end") < PROMISED_S


def test_the_host_is_left_tidy(sshd: Sshd, ssh_to: SshTo, pids_path: Path) -> None:
    host = ssh_to(sshd)
    process = start(host, pids_path)
    directory = directory_of(process)
    assert directory.parent == Path(tempfile.gettempdir())
    assert directory.stat().st_mode & 0o077 == 0
    assert [path.name for path in directory.iterdir()] == ["lease.sock"]

    process.forget()

    wait_until(lambda: not directory.exists(), "the directory to be removed")


def test_no_secret_is_on_a_command_line(sshd: Sshd, ssh_to: SshTo, tmp_path: Path) -> None:
    host = ssh_to(sshd)
    secret = "hf_" + "secret" * 3
    env = {**host.environ(), "HF_TOKEN": secret}

    process = host.spawn(["sleep", "60"], env=env, cwd=None, log_path=tmp_path / "log")

    assert f"HF_TOKEN={secret}" in Path(f"/proc/{process.pid}/environ").read_text()
    assert processes_with(secret) == []
    assert len(processes_with("pytest-specdec", "exec(base64")) >= 1
    process.forget()


DRIVER = """
import json, sys, time
from pathlib import Path
from pytest_specdec.ssh import SshHost
alias, options, runtime_dir, up = sys.argv[1:]
host = SshHost(alias, ssh_options=json.loads(options), runtime_dir=Path(runtime_dir), lease_s=60)
process = host.spawn(["sleep", "120"], env=host.environ(), cwd=None, log_path=Path(up + ".log"))
host.url(host.free_port())
Path(up).write_text(f"{process.pid} {host.connection.directory} .")
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_when_the_test_run_is_killed_nothing_is_left_on_either_side(
    sshd: Sshd, tmp_path: Path, number: signal.Signals
) -> None:
    up = tmp_path / "up"
    words = [sys.executable, "-c", DRIVER, ALIAS, json.dumps(sshd.options), str(tmp_path / "run"), str(up)]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL) as driver:
        wait_for(up, ".")
        pid, directory = up.read_text().split()[:2]
        supervisor = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        driver.send_signal(number)
        driver.wait(10)

    took_s = wait_until(lambda: not is_alive(int(pid)), "the server to end")
    wait_until(lambda: not is_alive(supervisor) and not processes_with(directory), "the rest to end")
    assert took_s < PROMISED_S
    # Only SIGKILL leaves the private directory: nobody was left to remove it.
    assert Path(directory).exists() is (number == signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def begin(tmp_path: Path, pids_path: Path) -> Callable[..., RunningServer]:
    """Launch the fake SGLang on a host."""

    def begin(host: SshHost, **changed: object) -> RunningServer:
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKES / "fake_server_process.py"} "$@"\n')
        python.chmod(0o755)
        env = {"FAKE_PIDS": str(pids_path), **{key: str(value) for key, value in changed.items()}}
        return launch(
            host,
            ServerSpec("fake", "/models/m", env=env),
            python=str(python),
            clock=SystemClock(),
            log_path=tmp_path / "fake.log",
            client_factory=ServerClient,
            startup_timeout_s=5,
            startup_limit_s=60,
            extra_env={},
            on_progress=lambda _line: None,
        )

    return begin


def test_a_server_is_launched_and_served_and_stopped(
    sshd: Sshd, ssh_to: SshTo, begin: Callable[..., RunningServer], pids_path: Path
) -> None:
    server = begin(ssh_to(sshd), FAKE_STRAY="1")

    assert server.info.model_path == "/models/m"
    server.check_alive()
    assert len(living(pids_path)) == 3
    assert server.stop().how == "term"
    assert living(pids_path) == []


def test_a_connection_that_drops_in_mid_launch_does_not_end_it(
    own_sshd: Sshd, ssh_to: SshTo, begin: Callable[..., RunningServer], pids_path: Path
) -> None:
    host = ssh_to(own_sshd, lease_s=20)
    dropped: list[bool] = []

    def drop() -> None:
        wait_for(pids_path, " ")
        own_sshd.drop_connections()
        dropped.append(True)

    thread = threading.Thread(target=drop)
    thread.start()
    server = begin(host)
    thread.join()

    assert dropped
    assert len(living(pids_path)) == 2
    server.stop()
    assert living(pids_path) == []


def test_a_host_that_is_gone_in_mid_launch_is_named(
    own_sshd: Sshd, ssh_to: SshTo, begin: Callable[..., RunningServer], pids_path: Path
) -> None:
    host = ssh_to(own_sshd, lease_s=2)

    def leave() -> None:
        wait_for(pids_path, " ")
        own_sshd.stop()

    thread = threading.Thread(target=leave)
    thread.start()
    with pytest.raises(HostError, match=r"^gpu-box: "):
        begin(host, FAKE_MODE="hang")
    thread.join()

    wait_until(lambda: not living(pids_path), "the host to end the server")
