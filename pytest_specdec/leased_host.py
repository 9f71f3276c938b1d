"""This machine, with its servers under supervisors as on a remote host: they can be left up, and found again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_specdec.clock import Clock, SystemClock
from pytest_specdec.errors import HostError
from pytest_specdec.hosts import LocalHost, heed_term, leave_term_alone
from pytest_specdec.lease import LeasedProcess, Leases, Terms, job_of, renew_kept
from pytest_specdec.lease_channel import BOOTSTRAP


class PipeWire:
    """A child process of this one, with a pipe to either side; whatever ends this process closes them."""

    def __init__(self, python: str) -> None:
        try:
            self._popen = subprocess.Popen(
                [python, "-I", "-S", "-c", BOOTSTRAP],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise HostError(f"localhost: {python} can't be started: {error}") from None
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._to, self._from = self._popen.stdin, self._popen.stdout
        for pipe in (self._to, self._from):
            os.set_blocking(pipe.fileno(), False)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._popen.pid

    @property
    def is_up(self) -> bool:
        """Whether the child runs, as a child of this process still."""
        return not self._to.closed and self._popen.poll() is None

    def write(self, data: bytes) -> int:
        """Send what fits now; returns how many bytes that was."""
        if self._to.closed:
            return 0
        try:
            return self._to.write(data) or 0
        except BrokenPipeError:
            return 0

    def read(self) -> bytes:
        """Return what has come."""
        return b"" if self._from.closed else self._from.read() or b""

    def close(self) -> None:
        """Let the other side meet the end. A supervisor ends in its own time: it may have a server to end, or keep."""
        with contextlib.suppress(BrokenPipeError):
            self._to.close()
        self._from.close()
        self._popen.poll()
        # Its end is not waited for any more, whichever it is: Python would warn of a child that still runs.
        self._popen.returncode = self._popen.returncode or 0


class PipeTransport:
    """The way to a supervisor on this machine."""

    direct = True

    def ensure(self) -> None:
        """Nothing is needed."""

    def open(self, python: str) -> PipeWire:
        """Start a Python here."""
        return PipeWire(python)

    def reason(self, said: str) -> str:
        """Return the last line."""
        return (said.strip().splitlines() or [""])[-1].strip()


class LeasedLocalHost(LocalHost):
    """This machine. What it starts is ended when this process ends, in whatever way, unless it was kept before.

    ``lease_s`` is how long a server outlives this process's silence (a stopped process, a killed carrier).
    """

    def __init__(self, *, lease_s: float = 120.0, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or SystemClock()
        self._lease_s = lease_s
        self._transport = PipeTransport()
        self._leases = Leases(name=self.name, lease_s=lease_s, on_exit=self.close)

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        log_path: Path,
        at_end: Sequence[str] = (),
    ) -> LeasedProcess:
        """Start a process group under a lease, with its output in the log, whose directory is made."""
        heed_term()
        job = job_of(argv, env=env, cwd=cwd or str(Path.cwd()), log_path=log_path.absolute(), at_end=at_end)
        process = LeasedProcess.start(self._transport, self._terms(), job=job)
        self._leases.add(process)
        return process

    def adopt(self, token: str, directory: str) -> LeasedProcess:
        """Take a server that is kept on this machine; see :meth:`LeasedProcess.adopt`."""
        heed_term()
        process = LeasedProcess.adopt(self._transport, self._terms(), token=token, directory=directory)
        self._leases.add(process)
        return process

    def renew_kept(self, token: str, directory: str, lease_s: float) -> None:
        """Let a kept server stay for so many seconds from now on; raises :class:`HostError`."""
        renew_kept(self._transport, self._terms(), token=token, directory=directory, lease_s=lease_s)

    def python3(self, argv: Sequence[str] = ()) -> str:
        """Return the Python that runs this."""
        del argv
        return sys.executable

    def _terms(self) -> Terms:
        return Terms(
            name=self.name, python=sys.executable, lease_s=self._lease_s, clock=self._clock, on_forget=self._forget
        )

    def _forget(self, process: LeasedProcess) -> None:
        self._leases.remove(process)
        if not self._leases:
            leave_term_alone()

    def close(self) -> None:
        """End what still runs. Calling it again does nothing."""
        self._leases.close()
