"""Tests of hosts run against a real sshd; without one they fail."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec.ssh import SshHost
from tests.hosts.sshd import ALIAS, Sshd, make_sshd, noisy_settings


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A server that every test may connect to, and none may end."""
    server = make_sshd(tmp_path_factory.mktemp("sshd") / "s")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def noisy_sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A server with a banner, and with start-up files that print."""
    directory = tmp_path_factory.mktemp("noisy")
    server = make_sshd(directory / "s", *noisy_settings(directory / "noise"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def ssh_host(sshd: Sshd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHost]:
    """A host that tests share, so that not each of them connects."""
    host = SshHost(ALIAS, ssh_options=sshd.options, runtime_dir=tmp_path_factory.mktemp("run"))
    yield host
    host.close()


@pytest.fixture(scope="session")
def noisy_host(noisy_sshd: Sshd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHost]:
    """The same, behind a banner and start-up files that print."""
    host = SshHost(ALIAS, ssh_options=noisy_sshd.options, runtime_dir=tmp_path_factory.mktemp("run"))
    yield host
    host.close()


@pytest.fixture
def start_sshd(tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    """Start a server for one test, with further lines of sshd_config."""
    servers: list[Sshd] = []

    def start_sshd(*settings: str) -> Sshd:
        server = make_sshd(tmp_path / "sshd", *settings)
        servers.append(server)
        server.start()
        return server

    yield start_sshd

    for server in servers:
        server.stop()


@pytest.fixture
def own_sshd(start_sshd: Callable[..., Sshd]) -> Sshd:
    """A server for one test, which may do with it what it likes."""
    return start_sshd()


@pytest.fixture
def ssh_to(tmp_path: Path) -> Iterator[Callable[..., SshHost]]:
    """Make hosts behind a server; they are closed afterwards."""
    hosts: list[SshHost] = []
    numbers = itertools.count()

    def ssh_to(server: Sshd, **settings: Any) -> SshHost:
        runtime_dir = tmp_path / f"run{next(numbers)}"
        host = SshHost(ALIAS, ssh_options=server.options, runtime_dir=runtime_dir, **settings)
        hosts.append(host)
        return host

    yield ssh_to

    for host in hosts:
        host.close()
