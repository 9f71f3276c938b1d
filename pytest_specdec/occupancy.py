"""Taking a host for one launch: all of it, or some of its GPUs, with a lock that lies on the host itself."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pytest_specdec import host_locks
from pytest_specdec.clock import Clock
from pytest_specdec.engine_env import host_cache
from pytest_specdec.errors import HostError
from pytest_specdec.hosts import Host, Process
from pytest_specdec.ssh import SshHost
from pytest_specdec.stopping import stop_process

_START_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """``count`` of these GPUs, by the index that ``nvidia-smi`` gives them."""

    gpus: tuple[str, ...]
    count: int


class Claim(Protocol):
    """What one session wants of a host. ``gpus`` are those it has, None for the whole host."""

    gpus: tuple[str, ...] | None

    def poll(self) -> str | None:
        """Return None once it is had, else who is in the way. Raises :class:`HostError`."""

    def release(self) -> None:
        """Let go, had or not; safe to call twice."""


def claim(host: Host, wanted: Wanted | None, *, what: str, clock: Clock) -> Claim:
    """Begin to claim the host (``wanted`` None) or some of its GPUs; ``what`` is told to those who wait for it."""
    who = f"{getpass.getuser()}@{socket.gethostname()} (process {os.getpid()}, {what})"
    directory = host_cache(host) / "locks"
    if isinstance(host, SshHost):
        return _ClaimThere(host, directory, who, wanted, clock)
    return _ClaimHere(directory, who, wanted)


class _ClaimHere:
    """Held by this process: the kernel lets go of it when the process ends, however it does."""

    def __init__(self, directory: Path, who: str, wanted: Wanted | None) -> None:
        self._locks = host_locks.HostLocks(directory, who)
        self._wanted = wanted
        self.gpus: tuple[str, ...] | None = None

    def poll(self) -> str | None:
        if self._wanted is None:
            return self._locks.whole()
        answer = self._locks.some(list(self._wanted.gpus), self._wanted.count)
        if isinstance(answer, str):
            return answer
        self.gpus = tuple(answer)
        return None

    def release(self) -> None:
        self._locks.release()


class _ClaimThere:
    """Held by a process on the host, under a lease like a server's: a laptop that is gone holds nothing for long."""

    def __init__(self, host: SshHost, directory: Path, who: str, wanted: Wanted | None, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        request: dict[str, object] = {"directory": str(directory), "who": who}
        if wanted is not None:
            request |= {"gpus": list(wanted.gpus), "count": wanted.count}
        source = Path(host_locks.__file__).read_text(encoding="utf-8")
        self._log = host.log_dir() / f"lock-{secrets.token_hex(6)}.log"
        self._size = 0
        self._busy: str | None = ""
        self.gpus: tuple[str, ...] | None = None
        argv = [host.python3(), "-I", "-S", "-c", source, json.dumps(request)]
        self._process: Process | None = host.spawn(argv, env=host.environ(), cwd=None, log_path=self._log)

    def poll(self) -> str | None:
        deadline = self._clock.monotonic() + _START_TIMEOUT_S
        self._read()
        while self._busy == "":
            if self._clock.monotonic() >= deadline:
                raise HostError(
                    f"{self._host.name}: its lock was asked for, and nothing said in {_START_TIMEOUT_S:g} s"
                )
            self._clock.sleep(_POLL_S)
            self._read()
        return self._busy

    def _read(self) -> None:
        process = self._process
        code = None if process is None else process.poll()
        new = self._host.read_from(self._log, self._size)
        whole, _, _ = new.rpartition(b"\n")
        for line in whole.splitlines():
            self._heed(line)
        self._size += len(whole) + 1 if whole else 0
        if code is not None or process is None:
            said = new.decode(errors="replace").strip().splitlines()
            raise HostError(f"{self._host.name}: its lock can't be had: {said[-1] if said else f'exit code {code}'}")

    def _heed(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            return
        if "held" in said:
            self._busy = None
            self.gpus = None if said["held"] is None else tuple(said["held"])
        else:
            self._busy = str(said["busy"])

    def release(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # It is ended with its lease at the latest; what has been measured is no worse for that.
        try:
            stop_process(process, self._clock, what=f"the lock of {self._host.name}")
            self._host.run(["rm", "-f", str(self._log)])
        except HostError as error:
            print(f"specdec: {error}", file=sys.stderr)
