"""Ends a server on this machine when the process that started it is killed: both ends of one pipe.

Run as a script (of the standard library), ``guard.py TOKEN`` waits on its standard input, which only its starter
holds. It is started before the server is, so that no moment is without it. The first line is a job, one JSON object:
``{"at_end": [...], "env": {...}}``, a command that ends what no signal reaches, and its environment. Then comes
``leader PID`` when the server has started, and ``done`` when it was ended in order. The end of the pipe without that
means that the starter is gone, by whatever signal: what belongs to the server gets SIGTERM, patience, SIGKILL, and the
command runs. What belongs to it is the leader's session, every process that carries the token in its environment,
and their descendants.

The guard is a session of its own, so that what ends the starter's group does not end it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

#: The variable that everything a server starts inherits, daemons too.
VARIABLE = "PYTEST_SPECDEC_LAUNCH"
#: Together with the time to notice, and with what the last command takes, less than ten seconds.
PATIENCE_S = 8.0
AT_END_S = 2.0
KILL_PATIENCE_S = 10.0
AT_END_TIMEOUT_S = 60.0
TICK_S = 0.1
#: A start that was under way when the starter was killed shows itself within this time.
START_S = 1.0
DISMISS_WAIT_S = 5.0


class Guard:
    """The starter's end: a guard that waits for a server to be started with ``environment``."""

    def __init__(self, *, env: Mapping[str, str], at_end: Sequence[str]) -> None:
        self.token = secrets.token_hex(16)
        self.environment = {**env, VARIABLE: self.token}
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, self.token],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._say(json.dumps({"at_end": list(at_end), "env": dict(env)}))

    def _say(self, line: str) -> None:
        assert self._popen.stdin is not None
        # A guard that was killed hears nothing; the server goes on without it.
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(line.encode() + b"\n")
            self._popen.stdin.flush()

    def watch(self, leader: int) -> None:
        """Tell it the id of the session that was started."""
        self._say(f"leader {leader}")

    def dismiss(self) -> None:
        """Let it go: all has ended in order."""
        assert self._popen.stdin is not None
        self._say("done")
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout=DISMISS_WAIT_S)


def members(leader: int | None, token: str | None) -> set[int]:
    """Return what lives of the leader's session and of the token's bearers, descendants that left both included."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    mark = None if token is None else f"{VARIABLE}={token}".encode()
    for name in os.listdir("/proc"):  # noqa: PTH208 (no objects: a thousand names, ten times a second)
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # The name of the program may hold anything, a closing parenthesis too.
                state, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if state in (b"Z", b"X"):
            continue
        parents[int(name)] = int(parent)
        if int(session) == leader or bears(int(name), mark):
            found.add(int(name))
    family = set(found)
    for pid in parents:
        walked = pid
        while walked in parents and walked not in found:
            walked = parents[walked]
        if walked in found:
            family.add(pid)
    return family


def bears(pid: int, mark: bytes | None) -> bool:
    """Whether the process was started with this variable; another user's can't be asked."""
    if mark is None:
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def is_alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def end(leader: int | None, token: str, patience_s: float) -> None:
    """End all of it, with SIGKILL after the patience."""
    began = time.monotonic()
    seen: set[int] = set()
    for number, within_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, KILL_PATIENCE_S)):
        signalled: set[int] = set()
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            # Those seen before may have lost whatever they were known by.
            seen = members(leader, token) | {pid for pid in seen if is_alive(pid)}
            if not seen and (leader is not None or time.monotonic() - began > START_S):
                return
            for pid in seen - signalled:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            signalled |= seen
            time.sleep(TICK_S)


def main() -> None:
    """Wait for the word or for the end."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    token = sys.argv[1]
    job: dict[str, Any] = {}
    leader: int | None = None
    for line in sys.stdin.buffer:
        word, _, rest = line.strip().partition(b" ")
        if word == b"done":
            return
        if word == b"leader":
            leader = int(rest)
        elif line.endswith(b"\n"):
            job = json.loads(line)
    at_end = job.get("at_end")
    end(leader, token, PATIENCE_S - (AT_END_S if at_end else 0.0))
    if at_end:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(at_end, env=job["env"], stdin=subprocess.DEVNULL, timeout=AT_END_TIMEOUT_S, check=False)


if __name__ == "__main__":
    main()
