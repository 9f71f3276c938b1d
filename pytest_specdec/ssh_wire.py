"""What carries a lease channel to a host behind SSH: an ssh of its own over the shared connection."""

from __future__ import annotations

import shlex
from pathlib import Path

from pytest_specdec.clock import Clock
from pytest_specdec.hosts import LocalHost, Process
from pytest_specdec.lease_channel import BOOTSTRAP
from pytest_specdec.ssh_connection import Feed, SshConnection, end_local, last_words


class SshWire:
    """One ssh: fed through a named pipe, heard through a file."""

    def __init__(self, connection: SshConnection, *, python: str, clock: Clock) -> None:
        self._clock = clock
        # Killed with this process, ssh would look like a connection that was lost: it is to end in order.
        self._local = LocalHost(guarded=False)
        self._log_path: Path = connection.new_path("lease-out")
        self._feed = Feed(connection.new_path("lease-in"))
        self._size = 0
        remote = shlex.join([python, "-I", "-S", "-c", BOOTSTRAP])
        self._ssh: Process = connection.start(connection.command(f"exec {remote}"), self._feed, self._log_path)

    @property
    def pid(self) -> int:
        """The process id of ssh."""
        return self._ssh.pid

    @property
    def is_up(self) -> bool:
        """Whether ssh runs."""
        return self._ssh.poll() is None

    def write(self, data: bytes) -> int:
        """Send what fits now; returns how many bytes that was."""
        return self._feed.write(data)

    def read(self) -> bytes:
        """Return what has come."""
        new = self._local.read_from(self._log_path, self._size)
        self._size += len(new)
        return new

    def close(self) -> None:
        """Let the other side meet the end, and end ssh."""
        self._feed.close()
        end_local(self._ssh, self._clock)
        self._log_path.unlink(missing_ok=True)


class SshTransport:
    """The way to a host behind SSH, where the end of a wire may be a lost connection."""

    direct = False

    def __init__(self, connection: SshConnection, *, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock

    def ensure(self) -> None:
        """Connect, unless there is a connection."""
        self._connection.ensure()

    def open(self, python: str) -> SshWire:
        """Start a Python on the host."""
        return SshWire(self._connection, python=python, clock=self._clock)

    def reason(self, said: str) -> str:
        """Return the last line that tells a reason."""
        return last_words(said)
