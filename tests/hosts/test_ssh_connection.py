"""Connections that can't be made, that are lost, and that come back."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_specdec.errors import HostError
from pytest_specdec.ssh import SshHost
from pytest_specdec.ssh_connection import last_words
from tests.hosts.sshd import ALIAS, Sshd, make_sshd, noisy_settings, write_config
from tests.hosts.waiting import is_alive, processes_with, wait_for, wait_until

SshTo = Callable[..., SshHost]


def ssh_of(host: SshHost, mark: str = "ControlPath") -> list[int]:
    """The ids of the processes on this machine that belong to a host."""
    return processes_with(str(host.connection.directory), mark)


def kill_master(host: SshHost) -> None:
    """Kill the ssh that holds the connection, as the out-of-memory killer would."""
    (master,) = ssh_of(host, "ControlMaster=yes")
    os.kill(master, signal.SIGKILL)
    wait_until(lambda: not is_alive(master), "ssh to be killed")


def test_nothing_is_started_before_the_first_call(sshd: Sshd, ssh_to: SshTo) -> None:
    host = ssh_to(sshd)

    assert list(host.connection.directory.iterdir()) == []


@pytest.mark.parametrize("destination", ["", "-oProxyCommand=touch /tmp/x"])
def test_a_destination_that_ssh_would_read_as_an_option_is_refused(tmp_path: Path, destination: str) -> None:
    with pytest.raises(HostError, match=r"is no SSH destination; give \[user@\]host, as for `ssh`$"):
        SshHost(destination, runtime_dir=tmp_path)


def test_a_name_can_be_part_of_a_file_name(tmp_path: Path) -> None:
    host = SshHost("ssh://me@box:2222/", runtime_dir=tmp_path)

    assert host.name == "me@box:2222-"
    host.close()


def test_a_host_that_is_unreachable_is_told_with_ssh_s_words(tmp_path: Path, ssh_to: SshTo) -> None:
    server = make_sshd(tmp_path / "sshd")
    host = ssh_to(server)

    with pytest.raises(HostError) as caught:
        host.run(["true"])

    assert str(caught.value) == (
        f"gpu-box: can't connect: ssh: connect to host 127.0.0.1 port {server.port}: Connection refused; "
        f"try `ssh -F {tmp_path}/sshd/config gpu-box true`"
    )


def test_a_host_that_refuses_the_key_is_told_with_ssh_s_words(own_sshd: Sshd, ssh_to: SshTo) -> None:
    (own_sshd.directory / "authorized_keys").write_text("")

    with pytest.raises(
        HostError, match=r"^gpu-box: can't connect: \S+@127.0.0.1: Permission denied \(publickey\).; try"
    ):
        ssh_to(own_sshd).run(["true"])


def test_the_words_are_ssh_s_and_not_the_banner_s(
    start_sshd: Callable[..., Sshd], tmp_path: Path, ssh_to: SshTo
) -> None:
    server = start_sshd(*noisy_settings(tmp_path / "noise"))
    (server.directory / "authorized_keys").write_text("")

    with pytest.raises(HostError, match=r"can't connect: \S+@127.0.0.1: Permission denied \(publickey\).; try"):
        ssh_to(server).run(["true"])


def test_a_host_whose_key_has_changed_is_not_talked_to(own_sshd: Sshd, ssh_to: SshTo) -> None:
    known = (own_sshd.directory / "known_hosts").read_text().split()[0]
    (own_sshd.directory / "known_hosts").write_text(f"{known} {(own_sshd.directory / 'user_key.pub').read_text()}")

    with pytest.raises(HostError, match=r"^gpu-box: can't connect: Host key verification failed.; try `ssh -F "):
        ssh_to(own_sshd).run(["true"])


def test_a_host_that_says_nothing_is_given_up(own_sshd: Sshd, ssh_to: SshTo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        write_config(own_sshd.directory, silent.getsockname()[1])
        host = ssh_to(own_sshd, connect_timeout_s=0.5)

        with pytest.raises(HostError, match=r"^gpu-box: can't connect: no connection within 0.5 s; try `ssh -F "):
            host.run(["true"])


def test_an_ssh_that_is_not_installed_is_named(
    sshd: Sshd, ssh_to: SshTo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    host = ssh_to(sshd)
    with pytest.raises(HostError, match=r"^gpu-box: can't connect: .*ssh: not found; try `ssh -F "):
        host.run(["true"])


def test_one_connection_is_used_for_everything(own_sshd: Sshd, ssh_to: SshTo) -> None:
    host = ssh_to(own_sshd)
    for _ in range(3):
        host.run(["true"])
    host.url(host.free_port())

    assert own_sshd.log.count("Accepted publickey") == 1


def test_a_connection_that_is_lost_meanwhile_is_told_and_made_again_for_the_next_call(
    own_sshd: Sshd, ssh_to: SshTo, tmp_path: Path
) -> None:
    host = ssh_to(own_sshd)
    host.environ()
    started = tmp_path / "started"

    def drop() -> None:
        wait_for(started, "now")
        own_sshd.drop_connections()

    thread = threading.Thread(target=drop)
    thread.start()
    with pytest.raises(HostError, match=r"^gpu-box: the connection was lost while sh ran: \S.+"):
        host.run(["sh", "-c", f"echo now >{started}; exec sleep 30"])
    thread.join()

    assert host.run(["echo", "again"]).stdout == "again\n"
    assert own_sshd.log.count("Accepted publickey") == 2


def test_a_killed_ssh_is_replaced_and_ports_stay_forwarded(own_sshd: Sshd, ssh_to: SshTo) -> None:
    host = ssh_to(own_sshd)
    url = host.url(own_sshd.port)
    assert greeting(url).startswith(b"SSH-2.0-")
    kill_master(host)
    with pytest.raises(ConnectionRefusedError):
        greeting(url)

    assert host.run(["echo", "again"]).stdout == "again\n"

    assert host.url(own_sshd.port) == url
    assert greeting(url).startswith(b"SSH-2.0-")


def greeting(url: str) -> bytes:
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=10) as connection:
        return connection.recv(100)


def test_a_host_that_is_gone_is_told_at_the_next_call(own_sshd: Sshd, ssh_to: SshTo, tmp_path: Path) -> None:
    host = ssh_to(own_sshd)
    host.run(["true"])
    own_sshd.stop()
    wait_until(lambda: not ssh_of(host), "ssh to notice")

    for _ in range(2):
        with pytest.raises(HostError, match=r"^gpu-box: can't connect: .*Connection refused; try `ssh -F "):
            host.read_from(tmp_path / "log", 0)


def test_a_host_that_forbids_forwarding_answers_nothing(start_sshd: Callable[..., Sshd], ssh_to: SshTo) -> None:
    server = start_sshd("AllowTcpForwarding no")
    host = ssh_to(server)

    # OpenSSH's client learns of it only when the port is used; the port is closed on whoever connects.
    assert greeting(host.url(server.port)) == b""


def test_the_user_s_own_forwards_and_commands_are_left_out(own_sshd: Sshd, ssh_to: SshTo) -> None:
    taken = own_sshd.port
    write_config(
        own_sshd.directory,
        own_sshd.port,
        LocalForward=f"127.0.0.1:{taken} 127.0.0.1:1",
        ExitOnForwardFailure="yes",
        RemoteCommand="tmux attach",
        RequestTTY="force",
        ControlMaster="auto",
        ControlPath=str(own_sshd.directory / "their-socket"),
        ControlPersist="yes",
    )

    assert ssh_to(own_sshd).run(["echo", "hello"]).stdout == "hello\n"
    assert not (own_sshd.directory / "their-socket").exists()


def test_close_leaves_nothing(sshd: Sshd, ssh_to: SshTo) -> None:
    host = ssh_to(sshd)
    host.run(["true"])
    host.url(sshd.port)
    assert len(ssh_of(host)) == 1

    host.close()
    host.close()

    assert ssh_of(host) == []
    assert not host.connection.directory.exists()
    with pytest.raises(HostError, match=r"^gpu-box: the connection was closed$"):
        host.run(["true"])


def test_passing_files_are_removed(sshd: Sshd, ssh_to: SshTo) -> None:
    host = ssh_to(sshd)
    host.run(["true"])
    before = set(host.connection.directory.iterdir())

    host.run(["echo", "a"])
    with pytest.raises(HostError):
        host.run(["sleep", "60"], timeout_s=0.2)

    assert set(host.connection.directory.iterdir()) == before


def test_a_directory_that_is_too_long_for_a_socket_is_not_used(sshd: Sshd, tmp_path: Path) -> None:
    host = SshHost(ALIAS, ssh_options=sshd.options, runtime_dir=tmp_path / ("long" * 20))

    assert host.run(["true"]).returncode == 0
    assert len(str(host.connection.directory)) < 70
    host.close()


def test_the_private_directory_is_private(sshd: Sshd, ssh_to: SshTo) -> None:
    assert ssh_to(sshd).connection.directory.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", ""),
        ("Warning: x\nssh: connect to host a: No route to host\n\n", "ssh: connect to host a: No route to host"),
        (
            "Permission denied (publickey).\r\nConnection closed by UNKNOWN port 65535\r\n",
            "Permission denied (publickey).",
        ),
        ("Connection closed by UNKNOWN port 65535\n", "Connection closed by UNKNOWN port 65535"),
    ],
)
def test_the_last_telling_line_is_the_reason(said: str, told: str) -> None:
    assert last_words(said) == told
