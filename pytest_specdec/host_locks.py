"""Who has a host: advisory locks in a directory of the host itself, so that they hold across processes and machines.

A module, and a script of the standard library: ``python -c SOURCE REQUEST`` takes a lock on a host that is reached
by SSH and has it until its process ends, which the lease sees to. REQUEST is a JSON object: ``directory``, ``who``,
and ``gpus`` with ``count`` or neither. Each line of its output is one: ``{"busy": WHO}`` when that changes, then
``{"held": [GPU, ...]}`` (null: the whole host).

A session that shares a host takes locks of single GPUs, and may do so while nobody has ``host.lock``; one that does
not share has ``host.lock`` and every lock of a GPU that there is.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from pathlib import Path

_HOST = "host"
_POLL_S = 0.25


class HostLocks:
    """The locks that one session has of one host. ``who`` is what others are told while they wait."""

    def __init__(self, directory: Path, who: str) -> None:
        self._directory = directory
        self._who = who
        self._fds: dict[str, int] = {}

    def whole(self) -> str | None:
        """Try to take the whole host; returns None when it is had, else who has it.

        The host's own lock is kept meanwhile: those who share the host end, and nobody new comes in.
        """
        if not self._take(_HOST):
            return self._holder(_HOST)
        for path in sorted(self._directory.glob("gpu-*.lock")):
            if not self._take(path.stem):
                return self._holder(path.stem)
        return None

    def some(self, gpus: list[str], count: int) -> list[str] | str:
        """Try to take ``count`` of these GPUs; returns those that are had, else who is in the way."""
        if not self._take(_HOST):
            return self._holder(_HOST)
        had: list[str] = []
        in_the_way = ""
        for gpu in gpus:
            if len(had) == count:
                break
            if self._take(f"gpu-{gpu}"):
                had.append(gpu)
            else:
                in_the_way = self._holder(f"gpu-{gpu}")
        self._drop(_HOST)
        if len(had) == count:
            return had
        self.release()
        return in_the_way

    def release(self) -> None:
        """Let go of everything; safe to call twice."""
        for name in list(self._fds):
            self._drop(name)

    def _take(self, name: str) -> bool:
        if name in self._fds:
            return True
        self._directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._directory / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        # Written into the locked file: it says nothing to anybody while the lock is free.
        os.ftruncate(fd, 0)
        os.pwrite(fd, self._who.encode(), 0)
        self._fds[name] = fd
        return True

    def _drop(self, name: str) -> None:
        os.close(self._fds.pop(name))

    def _holder(self, name: str) -> str:
        try:
            return (self._directory / f"{name}.lock").read_text(encoding="utf-8", errors="replace") or "somebody"
        except OSError:
            return "somebody"


def main() -> None:
    """Take what the request says and have it until this process ends."""
    request = json.loads(sys.argv[1])
    locks = HostLocks(Path(request["directory"]).expanduser(), request["who"])
    told = ""
    while True:
        if "gpus" in request:
            answer = locks.some(request["gpus"], request["count"])
            said: dict[str, object] = {"busy" if isinstance(answer, str) else "held": answer}
        else:
            busy = locks.whole()
            said = {"held": None} if busy is None else {"busy": busy}
        line = json.dumps(said)
        if line != told:
            print(line, flush=True)
            told = line
        time.sleep(_POLL_S if "busy" in said else 3600)


if __name__ == "__main__":
    main()
