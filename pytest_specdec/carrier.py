"""Carries a lease channel to a supervisor that is running already: a script for the host, like ``supervisor.py``.

It needs nothing but Python's standard library, and may be sent as text. The first line on standard input is one JSON
object, ``{"token": "...", "directory": null, "direct": false}``: whose supervisor, the directory of its socket (null:
where a token's directory is by rule), and whether the channel is a pipe of this machine. Everything behind it goes to
the supervisor, and what that tells goes to standard output.

At the end of standard input the supervisor is told that the channel was ``closed``, unless the program at its other
end (sshd) is gone too: then the connection was lost, and nothing is said.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time

#: A connection that was lost takes its sshd along within milliseconds; after this many seconds it was no loss.
LOSS_S = 1.0
TICK_S = 0.1
SOCKET = "lease.sock"


def carry(link: socket.socket) -> bool:
    """Pass everything on, both ways; returns whether the supervisor is still there when one side ends."""
    while True:
        ready, _, _ = select.select([0, link.fileno()], [], [])
        if link.fileno() in ready:
            data = link.recv(65536)
            if not data:
                return False
            # Nobody may be left to read it: the end of standard input will tell.
            with contextlib.suppress(OSError):
                os.write(1, data)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return True
            link.sendall(data)


def was_closed(parent: int) -> bool:
    """Tell a closed channel from a lost one."""
    deadline = time.monotonic() + LOSS_S
    while time.monotonic() < deadline:
        if os.getppid() != parent:
            return False
        time.sleep(TICK_S)
    return True


def main() -> int:
    """Read whose channel it is, and carry it."""
    # As the supervisor does: an interrupt from the terminal is for others.
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    parent = os.getppid()
    # Without a buffer, which would swallow the lines behind it.
    with open(0, "rb", buffering=0, closefd=False) as incoming:
        line = incoming.readline()
    if not line:
        return 1
    asked = json.loads(line)
    token = asked["token"]
    directory = asked.get("directory") or os.path.join(tempfile.gettempdir(), f"specdec-{token}")  # noqa: PTH118
    link = socket.socket(socket.AF_UNIX)
    try:
        # A path of a socket is short by law; a name in the current directory always is.
        os.chdir(directory)
        link.connect(SOCKET)
    except OSError as error:
        told = {"specdec": token, "error": f"{directory}: {error.strerror}"}
        os.write(1, b"\n" + json.dumps(told).encode() + b"\n")
        return 1
    os.chdir("/")
    with contextlib.suppress(OSError):
        if carry(link) and (asked.get("direct") or was_closed(parent)):
            link.sendall(b"closed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
