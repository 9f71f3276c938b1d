"""Ends a server on this machine when the process that started it is killed: a script of the standard library.

``guard.py PID`` waits on its standard input, a pipe that only its starter holds. ``done`` there means that the
server was ended in order; the end of the pipe without it means that the starter is gone, by whatever signal, and
everything of the session PID gets SIGTERM, patience, SIGKILL. It is a session of its own, so that what ends the
starter's group does not end it.
"""

from __future__ import annotations

import os
import signal
import sys
import time

#: Together with the time to notice less than ten seconds.
PATIENCE_S = 8.0
KILL_PATIENCE_S = 10.0
TICK_S = 0.1


def members(leader: int) -> list[int]:
    """Return living processes of the leader's session, and living descendants of the leader that left it."""
    parents: dict[int, int] = {}
    found: set[int] = set()
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
        if int(session) == leader:
            found.add(int(name))
    for pid in parents:
        walked = pid
        while walked in parents and walked != leader:
            walked = parents[walked]
        if walked == leader and leader in found:
            found.add(pid)
    return sorted(found)


def send(leader: int, seen: set[int], number: int) -> None:
    """Signal every member, those seen before that are still descendants included."""
    for pid in {*members(leader), *seen}:
        try:
            os.kill(pid, number)
        except OSError:
            seen.discard(pid)


def end(leader: int) -> None:
    """End the session."""
    seen = set(members(leader))
    for number, patience_s in ((signal.SIGTERM, PATIENCE_S), (signal.SIGKILL, KILL_PATIENCE_S)):
        send(leader, seen, number)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            alive = members(leader)
            if not alive and not any(is_alive(pid) for pid in seen):
                return
            time.sleep(TICK_S)


def is_alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def main() -> None:
    """Wait for the word or for the end."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if not sys.stdin.buffer.readline().startswith(b"done"):
        end(int(sys.argv[1]))


if __name__ == "__main__":
    main()
