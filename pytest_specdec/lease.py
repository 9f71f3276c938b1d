"""A process group under a supervisor, seen through its lease channel: on a remote host, or on this machine.

The supervisor tells every change; here they are read, so that asking costs no round trip.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_specdec.clock import Clock
from pytest_specdec.errors import HostError
from pytest_specdec.lease_channel import CARRIER, SUPERVISOR, Channel, Transport, Wire

_START_TIMEOUT_S: Final = 60.0
_ATTACH_TIMEOUT_S: Final = 20.0
_GOODBYE_S: Final = 1.0
#: With a second for telling a closed channel from a lost one, what is left on its own is gone within 10 s.
ABANDONED_PATIENCE_S: Final = 8.0
#: What a command at the end, such as the removal of a container, takes of that.
AT_END_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On what a lease is held: the host's name, a Python there, the seconds it lasts, and who hears of its end."""

    name: str
    python: str
    lease_s: float
    clock: Clock
    on_forget: Callable[[LeasedProcess], None]


def job_of(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: str, log_path: Path, at_end: Sequence[str]
) -> dict[str, Any]:
    """Return the job of starting a process group, as a supervisor reads it."""
    return {
        "argv": list(argv),
        "env": dict(env),
        "cwd": cwd,
        "log": str(log_path),
        "at_end": list(at_end),
        "patience_s": ABANDONED_PATIENCE_S - (AT_END_S if at_end else 0.0),
    }


class LeasedProcess:
    """A process group on a host, which lives as long as its lease is renewed.

    ``renew`` does that, and takes the lease up again over a new connection when the old one was lost; a thread of
    :class:`Leases` calls it. Made by :meth:`start` and :meth:`adopt`.
    """

    def __init__(self, transport: Transport, terms: Terms, *, token: str, directory: str | None) -> None:
        self._transport = transport
        self._terms = terms
        self._name = terms.name
        self._lease_s = terms.lease_s
        self._clock = terms.clock
        self._token = token
        self._directory = directory
        self._lock = threading.RLock()
        self._heard_at = self._clock.monotonic()
        self._lost: str | None = None
        self._given_back = False
        self._channel: Channel
        self._state: dict[str, Any] = {}

    @classmethod
    def start(cls, transport: Transport, terms: Terms, *, job: Mapping[str, Any]) -> LeasedProcess:
        """Start a job under a supervisor; raises :class:`HostError`."""
        process = cls(transport, terms, token=secrets.token_hex(8), directory=None)
        process._start(job)
        return process

    @classmethod
    def adopt(cls, transport: Transport, terms: Terms, *, token: str, directory: str) -> LeasedProcess:
        """Take a server that is kept, from now on to be ended with this process; raises :class:`HostError`."""
        process = cls(transport, terms, token=token, directory=directory)
        process._hold()
        return process

    def _start(self, job: Mapping[str, Any]) -> None:
        self._channel = self._open(SUPERVISOR, {**job, "resumable": True, "lease_s": self._lease_s})
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
            words = str(error).removeprefix(f"{self._name}: ")
        if state is not None and not words:
            words = state["error"]
        self._channel.close()
        raise HostError(f"{self._name}: {job['argv'][0]} can't be started: {words or 'nothing was said'}")

    def _hold(self) -> None:
        self._transport.ensure()
        self._channel = self._open(CARRIER, {"directory": self._directory})
        try:
            self._state = self._channel.ask(f"hold {self._lease_s:g}", lambda state: not state["kept"])
        except BaseException as error:
            self._channel.close()
            if isinstance(error, HostError):
                raise HostError(f"{self._name}: the server can't be taken: {error}") from None
            raise

    def _open(self, script: Path, line: Mapping[str, Any]) -> Channel:
        return Channel(
            self._transport,
            python=self._terms.python,
            script=script,
            line={**line, "token": self._token},
            clock=self._clock,
        )

    @property
    def pid(self) -> int:
        """The leader's process id on the host."""
        pid: int = self._state["pid"]
        return pid

    @property
    def token(self) -> str:
        """The word by which its supervisor is found again."""
        return self._token

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
    def wire(self) -> Wire:
        """What carries the lease at present."""
        return self._channel.wire

    def _listen(self) -> dict[str, Any]:
        with self._lock:
            state = self._channel.listen()
            if state is not None:
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
        self._terms.on_forget(self)
        self.release(_GOODBYE_S)

    def release(self, patience_s: float) -> None:
        """Let the host end it all, and wait for that; does not raise."""
        with self._lock:
            self._given_back = True
            self._channel.say("end")
            # Open until then: a carrier would end before its supervisor does.
            self._channel.wait_for_end(patience_s)
            self._channel.close()

    def keep(self, *, lease_s: float, path: str, record: Mapping[str, Any]) -> None:
        """Leave it up without a holder, for ``lease_s`` seconds, with a record of it at a path of the host.

        Raises :class:`HostError` when that can't be had: then it is still held by this process.
        """
        line = json.dumps({"lease_s": lease_s, "path": path, "record": dict(record)})
        with self._lock:
            try:
                if not self._channel.is_up:
                    self._attach()
                self._channel.ask(f"keep {line}", lambda state: bool(state["kept"]))
            except HostError as error:
                raise HostError(f"{self._name}: the server can't be kept: {error}") from None
            self._given_back = True
            self._terms.on_forget(self)
            self._channel.close()

    def renew(self) -> None:
        """Renew the lease; over a new connection, when the old one was lost."""
        with self._lock:
            state = self._listen()
            if self._given_back or self._lost is not None or (state["code"] is not None and not state["members"]):
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
            words = self._channel.last_words or "nothing was said"
            raise HostError(f"{self._name}: the lease can't be taken up again: {words}")
        if "error" in state:
            self._lose("its supervisor has ended")
            raise HostError(str(self._lost))
        self._state = state

    def _attached(self) -> dict[str, Any] | None:
        self._transport.ensure()
        self._channel.close()
        self._channel = self._open(CARRIER, {"directory": self._directory})
        self._channel.say("resume")
        state = self._channel.first_state(_ATTACH_TIMEOUT_S)
        if state is not None:
            self._heard_at = self._clock.monotonic()
        return state

    def _lose(self, reason: str) -> None:
        self._lost = (
            f"{self._name}: the connection was lost, and with it the server, which the host ends after "
            f"{self._lease_s:g} s (--specdec-lease): {reason}"
        )


def renew_kept(transport: Transport, terms: Terms, *, token: str, directory: str, lease_s: float) -> None:
    """Leave a kept server up for ``lease_s`` seconds from now on, without taking it; raises :class:`HostError`."""
    transport.ensure()
    line = {"token": token, "directory": directory}
    channel = Channel(transport, python=terms.python, script=CARRIER, line=line, clock=terms.clock)
    try:
        channel.ask(f"renew {lease_s:g}", lambda state: state["kept"] and state["lease_s"] == lease_s)
    except HostError as error:
        raise HostError(f"{terms.name}: the lease can't be renewed: {error}") from None
    finally:
        channel.close()


class Leases:
    """The leases that this process holds on one host: a thread renews them.

    ``on_exit`` is called when Python ends while any was held: in order, since a host would wait for a connection
    that was simply cut to come back.
    """

    def __init__(self, *, name: str, lease_s: float, on_exit: Callable[[], None]) -> None:
        self._name = name
        self._lease_s = lease_s
        self._on_exit = on_exit
        self._processes: list[LeasedProcess] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def __bool__(self) -> bool:
        """Whether any is held."""
        return bool(self._processes)

    def add(self, process: LeasedProcess) -> None:
        """Renew this one too."""
        self._processes.append(process)
        if self._thread is None:
            atexit.register(self._exit, os.getpid())
            self._thread = threading.Thread(target=self._renew, name=f"lease of {self._name}", daemon=True)
            self._thread.start()

    def remove(self, process: LeasedProcess) -> None:
        """Let this one be."""
        if process in self._processes:
            self._processes.remove(process)

    def _renew(self) -> None:
        while not self._stopping.wait(min(5.0, self._lease_s / 10)):
            for process in list(self._processes):
                process.renew()

    def _exit(self, owner: int) -> None:
        # A fork has a copy of this, and must end nothing of its parent's.
        if os.getpid() == owner:
            self._on_exit()

    def close(self) -> None:
        """End what is still held. Calling it again does nothing."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        while self._processes:
            self._processes.pop().release(ABANDONED_PATIENCE_S + 2.0)
        atexit.unregister(self._exit)
