"""A process group on a host that is reached by SSH, seen through its lease channel.

The supervisor on the host tells every change; here they are read, so that asking costs no round trip.
"""

from __future__ import annotations

import base64
import json
import secrets
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_specdec.clock import Clock
from pytest_specdec.errors import HostError
from pytest_specdec.hosts import LocalHost, LocalProcess
from pytest_specdec.ssh_connection import Feed, SshConnection, end_local, last_words

_POLL_S: Final = 0.02
_START_TIMEOUT_S: Final = 60.0
_ATTACH_TIMEOUT_S: Final = 20.0
#: With a second for telling a closed channel from a lost one, what is left on its own is gone within 10 s.
ABANDONED_PATIENCE_S: Final = 8.0
#: What a command at the end, such as the removal of a container, takes of that.
AT_END_S: Final = 2.0
#: Reads the supervisor from the first line of its standard input. No character of it means anything to a login shell
#: within single quotes; the comment tells a reader of ``ps`` whose it is.
_BOOTSTRAP: Final = "import sys,base64;exec(base64.b64decode(sys.stdin.buffer.raw.readline()))#pytest-specdec"


def supervisor_source() -> bytes:
    """Return the text of the supervisor."""
    return Path(__file__).with_name("supervisor.py").read_bytes()


class _Channel:
    """One ssh that carries a lease: what is said to the supervisor, and the last state that it told."""

    def __init__(self, connection: SshConnection, *, python: str, first_line: Mapping[str, Any], clock: Clock) -> None:
        self._clock = clock
        # Killed with this process, ssh would look like a connection that was lost: it is to end in order.
        self._local = LocalHost(guarded=False)
        self._log_path = connection.new_path("lease-out")
        self._feed = Feed(connection.new_path("lease-in"))
        self._start = json.dumps({"specdec": first_line["token"]})[:-1].encode()
        self._size = 0
        self._rest = b""
        self._said = ""
        self.state: dict[str, Any] | None = None
        remote = shlex.join([python, "-I", "-S", "-c", _BOOTSTRAP])
        self._unsent = base64.b64encode(supervisor_source()) + b"\n" + json.dumps(first_line).encode() + b"\n"
        self.ssh: LocalProcess = connection.start(connection.command(f"exec {remote}"), self._feed, self._log_path)

    @property
    def is_up(self) -> bool:
        """Whether its ssh runs."""
        return self.ssh.poll() is None

    def say(self, line: str) -> None:
        """Send a line, behind what was not sent yet."""
        self._unsent += line.encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        while self._unsent:
            sent = self._feed.write(self._unsent)
            if sent == 0:
                return
            self._unsent = self._unsent[sent:]

    def listen(self) -> dict[str, Any] | None:
        """Read what has come; returns the last state told, None before any."""
        self._flush()
        new = self._local.read_from(self._log_path, self._size)
        self._size += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            told = self._state_of(line)
            if told is None:
                self._said = (self._said + line.decode(errors="replace") + "\n")[-4000:]
            else:
                self.state = told
        return self.state

    def first_state(self, timeout_s: float) -> dict[str, Any] | None:
        """Wait for the first state; None when ssh ends without any, or after that many seconds."""
        deadline = self._clock.monotonic() + timeout_s
        while True:
            up = self.is_up
            state = self.listen()
            if state is not None or not up or self._clock.monotonic() >= deadline:
                return state
            self._clock.sleep(_POLL_S)

    def _state_of(self, line: bytes) -> dict[str, Any] | None:
        if not line.startswith(self._start):
            return None
        try:
            state: dict[str, Any] = json.loads(line)
        except ValueError:
            # Cut off, by a lost connection.
            return None
        return state

    @property
    def last_words(self) -> str:
        """The last line that is no state: of ssh, or of Python on the host."""
        return last_words(self._said + self._rest.decode(errors="replace"))

    def close(self, *, patience_s: float = 0.0) -> None:
        """Let the supervisor meet the end of the channel, and end ssh when it does not end by itself."""
        self._feed.close()
        deadline = self._clock.monotonic() + patience_s
        while self.is_up and self._clock.monotonic() < deadline:
            self._clock.sleep(_POLL_S)
        end_local(self.ssh, self._clock)
        self._log_path.unlink(missing_ok=True)


class SshProcess:
    """A process group on a host, which lives as long as its lease is renewed.

    ``keep`` renews it, and takes it up again over a new connection when the old one was lost; it is called by a
    thread of the host's.
    """

    def __init__(
        self,
        connection: SshConnection,
        *,
        name: str,
        python: str,
        job: Mapping[str, Any],
        lease_s: float,
        clock: Clock,
        on_forget: Callable[[SshProcess], None],
    ) -> None:
        self._connection = connection
        self._name = name
        self._python = python
        self._lease_s = lease_s
        self._clock = clock
        self._on_forget = on_forget
        self._lock = threading.RLock()
        self._heard_at = clock.monotonic()
        self._lost: str | None = None
        self._token = secrets.token_hex(8)
        argv: Sequence[str] = job["argv"]
        first_line = {**job, "token": self._token}
        self._channel = _Channel(connection, python=python, first_line=first_line, clock=clock)
        state = self._channel.first_state(_START_TIMEOUT_S)
        words = self._channel.last_words if state is None else str(state.get("error"))
        try:
            if state is None and not self._channel.is_up:
                # The connection may have been lost behind the start.
                state = self._attached()
            if state is not None and "error" not in state:
                self._state = state
                return
        except HostError as error:
            words = str(error).removeprefix(f"{name}: ")
        if state is not None and not words:
            words = state["error"]
        self._channel.close()
        raise HostError(f"{name}: {argv[0]} can't be started: {words or 'ssh said nothing'}")

    @property
    def pid(self) -> int:
        """The leader's process id on the host."""
        pid: int = self._state["pid"]
        return pid

    def poll(self) -> int | None:
        """Return the leader's exit code (negative: the signal), None while it runs, as far as is known here.

        Raises :class:`HostError` when the connection was lost for so long that the host has ended it.
        """
        code: int | None = self._listen()["code"]
        if code is None and self._lost is not None:
            raise HostError(self._lost)
        return code

    def members(self) -> tuple[int, ...]:
        """Return the ids of the processes that are left, as far as is known here."""
        members: list[int] = self._listen()["members"]
        return () if self._lost is not None else tuple(members)

    @property
    def ending(self) -> str | None:
        """Why the host has begun to end it, None when it has not."""
        ending: str | None = self._listen()["ending"]
        return ending

    @property
    def channel(self) -> LocalProcess:
        """The ssh on this machine that carries the lease at present."""
        return self._channel.ssh

    def _listen(self) -> dict[str, Any]:
        with self._lock:
            state = self._channel.listen()
            if state is not None and "error" not in state:
                self._state = state
            return self._state

    def signal(self, number: int) -> None:
        """Send a signal to every process that is left.

        Raises :class:`HostError` when the host can't be reached: the lease ends them then.
        """
        with self._lock:
            if not self.members():
                return
            if not self._channel.is_up:
                self._attach()
            self._channel.say(f"signal {int(number)}")

    def forget(self) -> None:
        """Give the lease back: what is left, if anything, is ended by the host."""
        self._on_forget(self)
        with self._lock:
            self._channel.say("end")
            self._channel.close(patience_s=_POLL_S * 50)

    def release(self, patience_s: float) -> None:
        """Let the host end it all, and wait for that; does not raise."""
        with self._lock:
            self._channel.say("end")
            self._channel.close(patience_s=patience_s)

    def keep(self) -> None:
        """Renew the lease; over a new connection, when the old one was lost."""
        with self._lock:
            state = self._listen()
            if self._lost is not None or (state["code"] is not None and not state["members"]):
                return
            if self._channel.is_up:
                self._channel.say("beat")
                self._heard_at = self._clock.monotonic()
                return
            try:
                self._attach()
            except HostError as error:
                if self._clock.monotonic() - self._heard_at > self._lease_s:
                    self._lose(str(error))

    def _attach(self) -> None:
        state = self._attached()
        if state is None:
            words = self._channel.last_words or "ssh said nothing"
            raise HostError(f"{self._name}: the lease can't be taken up again: {words}")
        if "error" in state:
            self._lose("its supervisor has ended")
            raise HostError(str(self._lost))
        self._state = state

    def _attached(self) -> dict[str, Any] | None:
        self._connection.ensure()
        self._channel.close()
        first_line = {"attach": True, "token": self._token}
        self._channel = _Channel(self._connection, python=self._python, first_line=first_line, clock=self._clock)
        state = self._channel.first_state(_ATTACH_TIMEOUT_S)
        if state is not None:
            self._heard_at = self._clock.monotonic()
        return state

    def _lose(self, reason: str) -> None:
        self._lost = (
            f"{self._name}: the connection was lost, and with it the server, which the host ends after "
            f"{self._lease_s:g} s (--specdec-lease): {reason}"
        )
