"""Where servers run. The one seam for processes: everything that starts or signals one is given a host.

A host is described by the :class:`Host` protocol; :class:`LocalHost` is this machine.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

import psutil

from pytest_specdec import guard
from pytest_specdec.errors import HostError

#: What a command must not inherit: variables of the test run itself, and the switches with which SGLang's own CI
#: makes it check more and run slower (12 % of throughput in one report). A spec may still set any of them.
_NOT_INHERITED: Final = re.compile(r"(PYTEST_|COV_CORE_|COVERAGE_)|SGLANG_IS_IN_CI(_AMD)?$|PYTHONHASHSEED$")
#: Below the ports that Linux hands out for outgoing connections: one of those may be taken by any program in the
#: minutes between the choice of a port and the server's use of it.
_PORTS: Final = range(20_000, 32_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A command that ended."""

    returncode: int
    stdout: str
    stderr: str


class Process(Protocol):
    """A process group that was started on a host."""

    @property
    def pid(self) -> int:
        """The leader's process id."""

    def poll(self) -> int | None:
        """Return the leader's exit code (negative: the signal), None while it runs."""

    def signal(self, number: int) -> None:
        """Send a signal to every process of the group that is left."""

    def members(self) -> tuple[int, ...]:
        """Return the ids of the processes that are left: the leader, and whatever it started."""

    def forget(self) -> None:
        """Say that the group is gone: nothing of it needs to be ended when Python exits."""


class Host(Protocol):
    """A machine that can run commands and servers. Paths are the host's own."""

    @property
    def name(self) -> str:
        """What the host is called in messages and file names."""

    def home(self) -> str:
        """Return the home directory, for words that begin with ``~/``."""

    def environ(self) -> Mapping[str, str]:
        """Return the environment variables that a command starts with."""

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Completed:
        """Run a command to its end. Raises :class:`HostError` when it can't be started or takes too long."""

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        log_path: Path,
        at_end: Sequence[str] = (),
    ) -> Process:
        """Start a process group whose output is added to a log file; raises :class:`HostError`.

        ``at_end`` is a command for the end of a group that had to be ended without this process: it runs last, on
        the host, in the same environment. After an end in order it is either not run, or has to find nothing to do.
        """

    def free_port(self) -> int:
        """Return a port that nothing listens on."""

    def read_from(self, path: Path, offset: int) -> bytes:
        """Return the bytes of a file from an offset on; none when the file isn't there."""

    def url(self, port: int) -> str:
        """Return where a server on that port of the host is reached from here."""


_live: dict[int, LocalProcess] = {}


class LocalProcess:
    """A process group on this machine: a session of its own, so that its members can be found by its id."""

    def __init__(self, popen: subprocess.Popen[bytes], *, guarded_by: guard.Guard | None) -> None:
        self._popen = popen
        self._guard = guarded_by
        self._token = None if guarded_by is None else guarded_by.token
        self._owner = os.getpid()
        self._gone = False
        # Members are remembered with their start times: an id alone may have been given to another process.
        self._seen: dict[int, float] = {}
        _live[popen.pid] = self

    @property
    def pid(self) -> int:
        """The leader's process id, which is also the id of its group and session."""
        return self._popen.pid

    def poll(self) -> int | None:
        """Return the leader's exit code, None while it runs."""
        return self._popen.poll()

    def members(self) -> tuple[int, ...]:
        """Return the ids of living processes of the session, and of whatever else it started, daemons too."""
        if self._gone:
            return ()
        leader_runs = self.poll() is None
        for pid in guard.members(self.pid, self._token):
            with contextlib.suppress(psutil.Error):
                self._seen[pid] = psutil.Process(pid).create_time()
        alive = tuple(sorted(pid for pid, started in self._seen.items() if _is_alive(pid, started)))
        # From here on the numbers may be given to strangers.
        self._gone = not alive and not leader_runs
        return alive

    def signal(self, number: int) -> None:
        """Signal the group at once, then members that are outside of it."""
        members = self.members()
        if not members:
            return
        # While a member of the session is left, the kernel gives the session's number to nobody else.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(pid) != self.pid:
                    os.kill(pid, number)

    def forget(self) -> None:
        """Leave the list of what is ended when Python exits; the guard is told that all is done."""
        self.poll()
        _live.pop(self.pid, None)
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None
        leave_term_alone()

    @property
    def is_ours(self) -> bool:
        """Whether this very process started it: a fork of it has a copy of the list, and must end nothing."""
        return self._owner == os.getpid()


def _is_alive(pid: int, started: float) -> bool:
    try:
        process = psutil.Process(pid)
        return process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@atexit.register
def _end_what_is_left() -> None:
    """End what could not be ended in order: the last resort, without patience."""
    for process in list(_live.values()):
        if process.is_ours:
            process.signal(signal.SIGKILL)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def heed_term() -> None:
    """Let SIGTERM unwind Python as Ctrl-C does: its default ends Python at once, and leaves the server behind."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)


def leave_term_alone() -> None:
    """Give SIGTERM its default back, when nothing is left that an end would leave behind."""
    if _live:
        return
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is _interrupt:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class LocalHost:
    """This machine. ``guarded``: what it starts is ended when this process is killed.

    Without a guard are clients whose end means something to another machine: they end by the pipes they hold.
    """

    name = "localhost"

    def __init__(self, *, guarded: bool = True) -> None:
        self._guarded = guarded
        self._given_ports: set[int] = set()

    def home(self) -> str:
        """Return the home directory of who runs this."""
        return str(Path.home())

    def environ(self) -> Mapping[str, str]:
        """Return this process's environment, without what belongs to the test run."""
        return {key: value for key, value in os.environ.items() if not _NOT_INHERITED.match(key)}

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Completed:
        """Run a command to its end."""
        try:
            done = subprocess.run(
                list(argv),
                env={**self.environ(), **(env or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise HostError(f"{self.name}: {argv[0]} did not end within {timeout_s:g} s") from None
        except OSError as error:
            raise HostError(f"{self.name}: {argv[0]} can't be run: {error.strerror or error}") from None
        return Completed(
            returncode=done.returncode,
            stdout=done.stdout.decode(errors="replace"),
            stderr=done.stderr.decode(errors="replace"),
        )

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        log_path: Path,
        at_end: Sequence[str] = (),
    ) -> Process:
        """Start a session of its own, with its output in the log, whose directory is made."""
        # Before the start, so that no signal finds a server and no handler, or no guard.
        heed_term()
        watcher = guard.Guard(env=env, at_end=at_end) if self._guarded else None
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            with log_path.open("ab") as log:
                popen = subprocess.Popen(
                    list(argv),
                    env=dict(env) if watcher is None else watcher.environment,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            if watcher is not None:
                watcher.dismiss()
            raise HostError(f"{self.name}: {argv[0]} can't be started: {error}") from None
        if watcher is not None:
            watcher.watch(popen.pid)
        return LocalProcess(popen, guarded_by=watcher)

    def free_port(self) -> int:
        """Return a port that was free a moment ago, and that was not given out before."""
        for port in random.sample(_PORTS, 100):
            if port not in self._given_ports and _can_bind(port):
                self._given_ports.add(port)
                return port
        raise HostError(f"{self.name}: a hundred ports between {_PORTS.start} and {_PORTS.stop} are all taken")

    def read_from(self, path: Path, offset: int) -> bytes:
        """Return the bytes of a file from an offset on."""
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read()
        except FileNotFoundError:
            return b""

    def url(self, port: int) -> str:
        """Return the loopback address."""
        return f"http://127.0.0.1:{port}"


def _can_bind(port: int) -> bool:
    # Every address, not only the loopback one: a server that listens on all of them would be met there too.
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFound:
    """A Python that has SGLang."""

    path: str
    sglang_version: str


_TELL_VERSION: Final = "import importlib.metadata as m; print(m.version('sglang'))"
INSTALL_COMMAND: Final = 'pip install "pytest-specdec[sglang]"'


def find_python(host: Host, *, explicit: str | None, explicit_where: str, spec_python: str | None) -> PythonFound:
    """Find the Python that runs SGLang: the option's, else the spec's, else the one the shell finds.

    A Python that was named is the only one tried. SGLang is not imported (that takes 10 s), its metadata is
    read. Raises :class:`HostError` listing what was tried, and what installs SGLang.
    """
    if explicit is not None:
        candidates = [(explicit, explicit_where)]
    elif spec_python is not None:
        candidates = [(spec_python, "the spec's python")]
    else:
        candidates = [("python3", "on the PATH"), ("python", "on the PATH")]
        if isinstance(host, LocalHost):
            candidates.append((sys.executable, "runs pytest"))
    tried = []
    for given, where in candidates:
        path = host.home() + given[1:] if given.startswith("~/") else given
        found = _ask_version(host, path)
        if isinstance(found, PythonFound):
            return found
        tried.append(f"  {path} ({where}): {found}")
    raise HostError(
        f"no Python with SGLang on {host.name}. Tried:\n"
        + "\n".join(tried)
        + f"\nInstall it with `{INSTALL_COMMAND}`, or name a Python that has it with --specdec-python=PATH"
    )


def _ask_version(host: Host, path: str) -> PythonFound | str:
    try:
        done = host.run([path, "-c", _TELL_VERSION])
    except HostError as error:
        return str(error).removeprefix(f"{host.name}: {path} ")
    if done.returncode == 0 and done.stdout.strip():
        return PythonFound(path=path, sglang_version=done.stdout.strip().splitlines()[-1])
    if "PackageNotFoundError" in done.stderr:
        return "has no sglang"
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return f"exit code {done.returncode}: {last}"
