"""A host that is reached by SSH. It needs a POSIX shell, Linux, and the Python that runs SGLang."""

from __future__ import annotations

import posixpath
import random
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pytest_specdec.clock import Clock, SystemClock
from pytest_specdec.errors import HostError
from pytest_specdec.hosts import Completed
from pytest_specdec.lease import LeasedProcess, Leases, Terms, job_of, renew_kept
from pytest_specdec.ssh_connection import ConnectionLostError, Ran, SshConnection
from pytest_specdec.ssh_wire import SshTransport

#: As on this machine: below the ports that Linux hands out for outgoing connections.
_PORTS: Final = range(20_000, 32_000)
_READ_TIMEOUT_S: Final = 60.0
_TRY_AGAIN_S: Final = 0.5
#: Of one connection, or of the shell that was asked: not what a command starts with.
_NOT_INHERITED: Final = re.compile(r"(SSH_(CLIENT|CONNECTION|TTY|ORIGINAL_COMMAND)|SHLVL|PWD|OLDPWD|_|TERM)$")
_IS_PYTHON: Final = re.compile(r"python[\d.]*$")
_SAYS: Final = "specdec-python-3"
#: Missing and not executable are told apart from the codes that a program may end with itself.
_RUN: Final = """
case "$1" in
*/*)
    if [ ! -e "$1" ]; then printf %s missing; exit 0; fi
    if [ -d "$1" ] || [ ! -x "$1" ]; then printf %s refused; exit 0; fi ;;
*)
    if ! command -v "$1" >/dev/null 2>&1; then printf %s missing; exit 0; fi ;;
esac
printf %s started
exec "$@"
"""
_STARTED: Final = b"started"
_NOT_STARTED: Final = {b"missing": "No such file or directory", b"refused": "Permission denied"}


class SshHost:
    """A host behind an SSH destination: ``[user@]host``, an alias of the user's configuration, or an ssh:// URI.

    ``ssh_options`` are further words for every ``ssh``; ``runtime_dir`` is where sockets and passing files are
    kept, in a private directory. ``lease_s`` is how long a lost connection may take to come back before the host
    ends its servers; they end within 10 s when this process does. Nothing is started before the first call.
    """

    def __init__(
        self,
        destination: str,
        *,
        ssh_options: Sequence[str] = (),
        runtime_dir: Path,
        lease_s: float = 120.0,
        connect_timeout_s: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        if not destination or destination.startswith("-"):
            raise HostError(f"{destination!r} is no SSH destination; give [user@]host, as for `ssh`")
        self.destination = destination
        self._clock = clock or SystemClock()
        self._lease_s = lease_s
        self._connection = SshConnection(
            destination,
            ssh_options=ssh_options,
            runtime_dir=runtime_dir,
            clock=self._clock,
            connect_timeout_s=connect_timeout_s,
            alive_s=lease_s / 8,
        )
        self._environ: dict[str, str] | None = None
        self._pythons: dict[str, str | None] = {}
        self._given_ports: set[int] = set()
        self._transport = SshTransport(self._connection, clock=self._clock)
        self._leases = Leases(name=self.name, lease_s=lease_s, on_exit=self.close)

    @property
    def name(self) -> str:
        """The destination, in a form that can be part of a file name."""
        return self.destination.removeprefix("ssh://").replace("/", "-")

    @property
    def connection(self) -> SshConnection:
        """The connection that everything shares."""
        return self._connection

    def home(self) -> str:
        """Return the home directory on the host."""
        return self.environ().get("HOME", "/")

    def environ(self) -> Mapping[str, str]:
        """Return the environment of a login shell on the host, where a person's PATH is set."""
        if self._environ is None:
            mark = f"specdec-{secrets.token_hex(8)}"
            told = f"printf %s {mark}; exec cat /proc/self/environ"
            # A shell that has no such options, or start-up files that end it: then without.
            script = f'"${{SHELL:-/bin/sh}}" -l -c {shlex.quote(told)} 2>/dev/null || {{ {told}; }}'
            done = self._ask(script, what="the login shell")
            _, _, listing = done.stdout.rpartition(mark.encode())
            pairs = (entry.partition("=") for entry in listing.decode(errors="surrogateescape").split("\0"))
            self._environ = {key: value for key, sign, value in pairs if sign and not _NOT_INHERITED.match(key)}
        return self._environ

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Completed:
        """Run a command to its end; one that a signal ended has 128 and its number as exit code.

        Raises :class:`HostError` naming the destination when the host can't be reached (with ssh's last words), or
        the command is not there or takes longer than ``timeout_s`` seconds.
        """
        script = f"set -- {shlex.join(argv)}\n{_RUN}"
        variables = {**self.environ(), **(env or {})}
        done = self._connection.run(script, what=argv[0], env=variables, timeout_s=timeout_s)
        for word, reason in _NOT_STARTED.items():
            if done.stdout == word:
                raise HostError(f"{self.name}: {argv[0]} can't be run: {reason}")
        return Completed(
            returncode=done.returncode,
            stdout=done.stdout.removeprefix(_STARTED).decode(errors="replace"),
            stderr=done.stderr,
        )

    def read_from(self, path: Path, offset: int) -> bytes:
        """Return the bytes of a file on the host from an offset on; none when it isn't there.

        While a server runs, a lost connection is waited for as long as its lease lasts. Raises :class:`HostError`.
        """
        quoted = shlex.quote(str(path))
        script = f"[ -e {quoted} ] || exit 0\nexec tail -c +{offset + 1} -- {quoted}"
        done = self._ask(script, what=f"reading {path}")
        if done.returncode != 0:
            raise HostError(f"{self.name}: {path} can't be read: {done.stderr.strip()}")
        return done.stdout

    def _ask(self, script: str, *, what: str) -> Ran:
        """Run a script that changes nothing, and may be repeated when the connection is lost."""
        deadline = self._clock.monotonic() + (self._lease_s if self._leases else 0.0)
        repeated = False
        while True:
            try:
                return self._connection.run(script, what=what, env={}, timeout_s=_READ_TIMEOUT_S)
            except ConnectionLostError:
                if repeated and self._clock.monotonic() >= deadline:
                    raise
                if repeated:
                    self._clock.sleep(_TRY_AGAIN_S)
                repeated = True

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        log_path: Path,
        at_end: Sequence[str] = (),
    ) -> LeasedProcess:
        """Start a process group under a lease. ``log_path`` is the host's, as is ``cwd`` (default: the home)."""
        job = job_of(argv, env=env, cwd=cwd or self.home(), log_path=log_path, at_end=at_end)
        process = LeasedProcess.start(self._transport, self._terms(self.python3(argv)), job=job)
        self._leases.add(process)
        return process

    def adopt(self, token: str, directory: str) -> LeasedProcess:
        """Take a server that is kept on the host; see :meth:`LeasedProcess.adopt`."""
        terms = self._terms(self.python3())
        process = LeasedProcess.adopt(self._transport, terms, token=token, directory=directory)
        self._leases.add(process)
        return process

    def renew_kept(self, token: str, directory: str, lease_s: float) -> None:
        """Let a kept server stay for so many seconds from now on; raises :class:`HostError`."""
        renew_kept(self._transport, self._terms(self.python3()), token=token, directory=directory, lease_s=lease_s)

    def _terms(self, python: str) -> Terms:
        return Terms(
            name=self.name, python=python, lease_s=self._lease_s, clock=self._clock, on_forget=self._leases.remove
        )

    def python3(self, argv: Sequence[str] = ()) -> str:
        """Return any Python 3: the one that is started, else the login shell's, else the system's.

        Raises :class:`HostError` naming those that were tried.
        """
        named = [word for word in argv if _IS_PYTHON.match(posixpath.basename(word))]
        tried = list(dict.fromkeys([*named, "python3", "python", "/usr/bin/python3"]))
        for candidate in tried:
            if candidate not in self._pythons:
                self._pythons[candidate] = self._python_at(candidate)
            if found := self._pythons[candidate]:
                return found
        raise HostError(
            f"{self.name}: no Python 3 that could watch over the server; tried {', '.join(tried)}. "
            "Name the one that runs SGLang with --specdec-python=PATH"
        )

    def _python_at(self, candidate: str) -> str | None:
        """Return the path of a Python 3: the lease channel has the PATH of sshd, not the login shell's."""
        code = "import sys; print('specdec-python-%d' % sys.version_info[0], sys.executable)"
        try:
            said, _, path = self.run([candidate, "-I", "-S", "-c", code]).stdout.strip().partition(" ")
        except ConnectionLostError:
            raise
        except HostError:
            # Not there, or something else by that name.
            return None
        return path if said == _SAYS else None

    def free_port(self) -> int:
        """Return a port of the host that nothing has, and that was not given out before."""
        script = "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null || :"
        done = self._ask(script, what="reading /proc/net/tcp")
        taken = {int(port, 16) for port in re.findall(rb"^ *\d+: [0-9A-F]+:([0-9A-F]{4}) ", done.stdout, re.MULTILINE)}
        free = [port for port in _PORTS if port not in taken and port not in self._given_ports]
        if not free:
            raise HostError(f"{self.name}: every port between {_PORTS.start} and {_PORTS.stop} is taken")
        port = random.choice(free)
        self._given_ports.add(port)
        return port

    def url(self, port: int) -> str:
        """Return the address here that is forwarded to that port of the host; it outlives a lost connection."""
        return f"http://127.0.0.1:{self._connection.forward(port)}"

    def log_dir(self) -> Path:
        """Return a directory of the host for server logs."""
        return Path(self.home()) / ".cache" / "pytest-specdec" / "logs"

    def fetch(self, path: Path, to: Path) -> None:
        """Copy a file of the host to this machine."""
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(self.read_from(path, 0))

    def close(self) -> None:
        """End what still runs, then the connection. Calling it again does nothing."""
        self._leases.close()
        self._connection.close()
