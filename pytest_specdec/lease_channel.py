"""One lease channel, to a supervisor on a remote host or on this machine.

What carries it (an ssh, a child process) is behind :class:`Transport` and :class:`Wire`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from pytest_specdec.clock import Clock
from pytest_specdec.errors import HostError

_POLL_S: Final = 0.02
_ANSWER_TIMEOUT_S: Final = 20.0
#: Reads a script from the first line of its standard input. No character of it means anything to a login shell
#: within single quotes; the comment tells a reader of ``ps`` whose it is.
BOOTSTRAP: Final = "import sys,base64;exec(base64.b64decode(sys.stdin.buffer.raw.readline()))#pytest-specdec"
_HERE: Final = Path(__file__).parent
SUPERVISOR: Final = _HERE / "supervisor.py"
CARRIER: Final = _HERE / "carrier.py"


class Wire(Protocol):
    """A program of this machine that carries one channel to the host; neither end ever blocks."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def is_up(self) -> bool:
        """Whether it runs."""

    def write(self, data: bytes) -> int:
        """Send what fits now; returns how many bytes that was."""

    def read(self) -> bytes:
        """Return what has come."""

    def close(self) -> None:
        """Let the other side meet the end, and let go of it."""


class Transport(Protocol):
    """A way to the host. ``direct``: the end of a wire is never a lost connection."""

    @property
    def direct(self) -> bool:
        """Whether both ends are on this machine."""

    def ensure(self) -> None:
        """Connect, unless there is a connection; raises :class:`HostError`."""

    def open(self, python: str) -> Wire:
        """Start a Python on the host that runs :data:`BOOTSTRAP`; raises :class:`HostError`."""

    def reason(self, said: str) -> str:
        """Return the line that tells a reason, of what a wire's program said."""


class Channel:
    """One lease channel: what is said to the script at its other end, and the last state that it told."""

    def __init__(
        self, transport: Transport, *, python: str, script: Path, line: Mapping[str, Any], clock: Clock
    ) -> None:
        self._clock = clock
        self._reason = transport.reason
        self._start = json.dumps({"specdec": line["token"]})[:-1].encode()
        self._rest = b""
        self._said = ""
        self.state: dict[str, Any] | None = None
        self._refusal: dict[str, Any] | None = None
        first_line = json.dumps({**line, "direct": transport.direct}).encode()
        self._unsent = base64.b64encode(script.read_bytes()) + b"\n" + first_line + b"\n"
        self.wire = transport.open(python)

    @property
    def is_up(self) -> bool:
        """Whether what carries it runs."""
        return self.wire.is_up

    def say(self, line: str) -> None:
        """Send a line, behind what was not sent yet."""
        self._unsent += line.encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        while self._unsent:
            sent = self.wire.write(self._unsent)
            if sent == 0:
                return
            self._unsent = self._unsent[sent:]

    def listen(self) -> dict[str, Any] | None:
        """Read what has come; returns the last state told, None before any. Errors are for who asked."""
        self._flush()
        *lines, self._rest = (self._rest + self.wire.read()).split(b"\n")
        for line in lines:
            told = self._state_of(line)
            if told is None:
                self._said = (self._said + line.decode(errors="replace") + "\n")[-4000:]
            elif "error" in told:
                self._refusal = told
            else:
                self.state = told
        return self.state

    def wait_for(self, holds: Callable[[dict[str, Any]], bool], timeout_s: float) -> dict[str, Any] | None:
        """Wait for a state that fits, or for an error; None when the channel ends, or after that many seconds."""
        deadline = self._clock.monotonic() + timeout_s
        while True:
            up = self.is_up
            state = self.listen()
            if self._refusal is not None:
                refusal, self._refusal = self._refusal, None
                return refusal
            if state is not None and holds(state):
                return state
            if not up or self._clock.monotonic() >= deadline:
                return None
            self._clock.sleep(_POLL_S)

    def first_state(self, timeout_s: float) -> dict[str, Any] | None:
        """Wait for the first state."""
        return self.wait_for(lambda _state: True, timeout_s)

    def wait_for_end(self, timeout_s: float) -> None:
        """Wait until the supervisor lets go of the channel, or for that many seconds."""
        deadline = self._clock.monotonic() + timeout_s
        while self.is_up and self._clock.monotonic() < deadline:
            self.listen()
            self._clock.sleep(_POLL_S)

    def ask(self, line: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Say a line and wait for the state that answers it; raises :class:`HostError` with the reason why not."""
        self.say(line)
        state = self.wait_for(holds, _ANSWER_TIMEOUT_S)
        if state is None:
            word = line.partition(" ")[0]
            raise HostError(
                f"its supervisor was told `{word}` and did not answer within {_ANSWER_TIMEOUT_S:g} s"
                + (f": {self.last_words}" if self.last_words else "")
            )
        if "error" in state:
            raise HostError(state["error"])
        return state

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
        return self._reason(self._said + self._rest.decode(errors="replace"))

    def close(self) -> None:
        """Let the supervisor meet the end of the channel."""
        self.wire.close()
