"""Kept servers on a host behind SSH: they outlive the connection, are found again, and go when they should."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_specdec import containers, kept
from pytest_specdec.clock import SystemClock
from pytest_specdec.containers import ContainerProcess
from pytest_specdec.errors import HostError
from pytest_specdec.kept import Identity, KeptServer, LeasingHost
from pytest_specdec.lease import LeasedProcess
from pytest_specdec.leased_host import LeasedLocalHost
from pytest_specdec.stopping import stop_process
from tests.hosts.sshd import Sshd
from tests.hosts.test_containers import Docker, docker
from tests.hosts.test_session_over_ssh import gpu_box, gpu_suite, laptop, on_path
from tests.hosts.waiting import is_alive, wait_until
from tests.plugin.conftest import Suite
from tests.plugin.test_life_cycle import servers_of

__all__ = ["docker", "gpu_box", "laptop"]
Again = Callable[[], LeasingHost]


@pytest.fixture(params=["local", "ssh"])
def again(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Again]:
    """Make the same host anew, as another session does; records lie in a directory of the test's own."""
    monkeypatch.setenv("PYTEST_SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    made: list[LeasingHost] = []
    sshd = request.getfixturevalue("sshd") if request.param == "ssh" else None

    def again() -> LeasingHost:
        here = sshd is None
        made.append(LeasedLocalHost(lease_s=30) if here else request.getfixturevalue("ssh_to")(sshd, lease_s=30))
        return made[-1]

    yield again

    for host in made:
        host.close()


def identity(host: LeasingHost, **changed: str) -> Identity:
    environment = {**host.environ(), **changed}
    return Identity(spec_name="k", spec_hash="h" * 64, sglang_version="0.5.23", python="/py", environment=environment)


def leave(host: LeasingHost, tmp_path: Path, *, lease_s: float = 30) -> LeasedProcess:
    """Start something and keep it."""
    process = host.spawn(["sleep", "120"], env=host.environ(), cwd=None, log_path=tmp_path / "log")
    assert isinstance(process, LeasedProcess)
    record = kept.record_of(identity(host), port=1, log_path=str(tmp_path / "log"), started_unix_s=0.0, container=None)
    path = kept.directory_on(host) / f"{process.token}.json"
    process.keep(lease_s=lease_s, path=str(path), record=record)
    return process


def only(host: LeasingHost, pid: int) -> KeptServer:
    (server,) = [server for server in kept.kept_on(host) if server.pid == pid]
    return server


def test_what_is_kept_outlives_its_session_and_is_taken_by_the_next(again: Again, tmp_path: Path) -> None:
    first = again()
    pid = leave(first, tmp_path).pid
    first.close()
    assert is_alive(pid)

    second = again()
    server = only(second, pid)
    assert (server.state, server.differences(identity(second))) == ("kept", [])
    assert 20 < server.left_s <= 30
    process = second.adopt(server.token, server.directory)

    assert only(second, pid).state == "held"
    assert (process.pid, process.poll(), process.members()) == (pid, None, (pid,))
    process.signal(signal.SIGTERM)
    wait_until(lambda: process.poll() is not None and not process.members(), "the signal to be told")
    process.forget()
    assert not is_alive(pid)
    wait_until(lambda: not Path(server.directory).exists(), "the directory to go")
    assert all(one.pid != pid for one in kept.kept_on(second))


def test_whoever_took_it_ends_it_by_going(again: Again, tmp_path: Path) -> None:
    first = again()
    pid = leave(first, tmp_path).pid
    second = again()
    server = only(second, pid)
    second.adopt(server.token, server.directory)

    second.close()

    assert not is_alive(pid)


def test_only_one_can_take_it(again: Again, tmp_path: Path) -> None:
    first = again()
    pid = leave(first, tmp_path).pid
    server = only(first, pid)
    first.adopt(server.token, server.directory)
    second = again()

    with pytest.raises(HostError, match=r": the server can't be taken: somebody else holds it$"):
        second.adopt(server.token, server.directory)
    with pytest.raises(HostError, match=r": the lease can't be renewed: somebody else holds it$"):
        second.renew_kept(server.token, server.directory, 60)

    second.close()
    # What a stranger's channel says, its end included, is nothing to the holder's server.
    time.sleep(1.5)
    assert is_alive(pid)


def test_it_can_be_taken_and_kept_again(again: Again, tmp_path: Path) -> None:
    first = again()
    pid = leave(first, tmp_path).pid
    server = only(first, pid)
    process = first.adopt(server.token, server.directory)
    record = kept.record_of(identity(first), port=2, log_path="/log", started_unix_s=0.0, container=None)

    path = kept.directory_on(first) / f"{server.token}.json"
    process.keep(lease_s=40, path=str(path), record=record)
    first.close()

    second = again()
    after = only(second, pid)
    assert (after.state, after.port, after.token) == ("kept", 2, server.token)
    second.adopt(after.token, after.directory)


def test_when_its_lease_has_run_out_it_is_gone(again: Again, tmp_path: Path) -> None:
    host = again()
    process = leave(host, tmp_path, lease_s=1)
    server = only(host, process.pid)

    assert 0.5 < wait_until(lambda: not is_alive(process.pid), "the lease to run out") < 10

    wait_until(lambda: not Path(server.directory).exists(), "the directory to go")
    assert all(one.pid != process.pid for one in kept.kept_on(host))
    with pytest.raises(HostError, match=r": the server can't be taken: .*specdec-[0-9a-f]{16}: No such file"):
        host.adopt(server.token, server.directory)


def test_a_lease_can_be_renewed_by_who_does_not_take_it(again: Again, tmp_path: Path) -> None:
    host = again()
    pid = leave(host, tmp_path, lease_s=20).pid
    server = only(host, pid)

    host.renew_kept(server.token, server.directory, 600)

    after = only(host, pid)
    assert (after.state, 590 < after.left_s <= 600) == ("kept", True)
    host.adopt(server.token, server.directory)


def test_a_record_that_cannot_be_written_leaves_the_server_held(again: Again, tmp_path: Path) -> None:
    host = again()
    process = host.spawn(["sleep", "120"], env=host.environ(), cwd=None, log_path=tmp_path / "log")
    assert isinstance(process, LeasedProcess)

    with pytest.raises(HostError, match=r": the server can't be kept: .*Not a directory"):
        process.keep(lease_s=60, path="/proc/version/servers/x.json", record={})

    host.close()
    assert not is_alive(process.pid)


def test_what_has_lost_its_supervisor_is_ended_by_its_session(again: Again, tmp_path: Path) -> None:
    host = again()
    process = leave(host, tmp_path)
    server = only(host, process.pid)
    os.kill(server.content["supervisor"], signal.SIGKILL)
    wait_until(lambda: not is_alive(server.content["supervisor"]), "the kill")

    orphan = only(host, process.pid)
    assert orphan.state == "orphaned"
    kept.end_orphan(host, orphan)

    assert not is_alive(process.pid)
    assert all(one.pid != process.pid for one in kept.kept_on(host))
    assert not Path(server.directory).exists()


def test_a_session_from_a_laptop_adopts_what_the_one_before_kept(laptop: Suite, gpu_box: Sshd, tmp_path: Path) -> None:
    gpu_suite(laptop)
    # How fast this machine is today is no matter here.
    path = laptop.root / "test_suite.py"
    path.write_text(path.read_text().replace("specdec_benchmark()", "specdec_benchmark(check=False)"))
    env = {**on_path(laptop), "PYTEST_SPECDEC_KEEP_SERVERS": "60"}
    host = "--gpu-host=gpu-box"
    assert laptop.run(host, "--update-baselines", "--specdec-launches=1", env=env).ret == 0
    (server,) = servers_of(laptop)

    # A close answer would ask for a launch of its own.
    result = laptop.run(host, "-v", "--specdec-max-launches=1", env=env)

    assert result.ret == 0
    assert "adopted the kept server" in result.stdout.str()
    assert (laptop.launches, servers_of(laptop)) == (1, [server])
    logs = sorted((laptop.root / ".specdec" / "logs").glob("*gpu*.log"))
    assert len(logs) == 2
    assert all("ready to roll" in log.read_text() for log in logs)

    told = command(laptop, "--json", host)
    (listed,) = [one for one in json.loads(told.stdout)["servers"] if one["pid"] == server]
    adopted = command(laptop, "adopt", listed["id"], host)
    assert f"forward:  ssh -N -L {listed['port']}:127.0.0.1:{listed['port']} gpu-box" in adopted.stdout
    assert "measure:  pytest --gpu-host=gpu-box --specdec-keep-servers -k gpu" in adopted.stdout
    assert command(laptop, "stop", listed["id"], host).returncode == 0
    assert servers_of(laptop) == []


def command(laptop: Suite, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **on_path(laptop), "PYTEST_SPECDEC_CACHE": str(laptop.root / "cache")}
    line = [sys.executable, "-m", "pytest_specdec.cli", "servers", *words]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=False)


def leave_container(host: LeasingHost, docker: Docker, *, lease_s: float = 30) -> int:
    """Start a container and keep it."""
    env = {**host.environ(), **docker.env}
    process = containers.start(host, docker.words(), launcher=3, env=env, cwd=None, log_path=docker.log)
    docker.wait_until_up()
    assert isinstance(process, ContainerProcess)
    assert isinstance(process.client, LeasedProcess)
    known = {"port": 1, "log_path": str(docker.log), "started_unix_s": 0.0, "container": process.as_json()}
    path = kept.directory_on(host) / f"{process.client.token}.json"
    process.client.keep(lease_s=lease_s, path=str(path), record=kept.record_of(identity(host), **known))
    return process.pid


def test_a_kept_container_is_taken_with_its_client_and_ends_with_it(again: Again, docker: Docker) -> None:
    pid = leave_container(again(), docker)
    host = again()
    server = only(host, pid)

    client = host.adopt(server.token, server.directory)
    process = containers.taken_over(client, host, server.content["container"], env={**host.environ(), **docker.env})

    assert len(containers.own_pids(process)) > len(client.members())
    assert stop_process(process, SystemClock(), what="it").how == "term"
    assert docker.processes() == []
    kept.await_gone(host, server, clock=SystemClock())
    assert docker.left() == []


def test_a_kept_container_ends_with_its_lease(again: Again, docker: Docker) -> None:
    host = again()
    pid = leave_container(host, docker, lease_s=1)
    server = only(host, pid)

    wait_until(lambda: not docker.processes(), "the lease to run out")

    kept.await_gone(host, server, clock=SystemClock())
    assert docker.left() == []


def test_a_container_whose_supervisor_is_gone_is_ended_too(again: Again, docker: Docker) -> None:
    host = again()
    pid = leave_container(host, docker)
    server = only(host, pid)
    for doomed in (server.content["supervisor"], pid):
        # The client too would pass a signal on.
        os.kill(doomed, signal.SIGSTOP if doomed == pid else signal.SIGKILL)
    wait_until(lambda: only(host, pid).state == "orphaned", "the kill")
    # The stand-in is not on everybody's PATH.
    control = ["env", *(f"{name}={value}" for name, value in docker.env.items()), "docker"]
    content = {**server.content, "container": {**server.content["container"], "control": control}}

    kept.end_orphan(host, dataclasses.replace(only(host, pid), content=content))

    wait_until(lambda: not docker.processes(), "the container to end")
    assert docker.left() == []
