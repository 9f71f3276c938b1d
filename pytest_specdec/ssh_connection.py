"""One connection to a host by OpenSSH's own client, which all commands and forwarded ports share.

The client reads the user's own configuration, agent and known hosts. What is needed at the other end is a POSIX
shell, whatever the login shell is and whatever its start-up files print.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_specdec.clock import Clock
from pytest_specdec.errors import HostError
from pytest_specdec.hosts import LocalHost, Process
from pytest_specdec.owned import OwnedDirectory

#: The path of a socket holds 108 bytes, and ssh adds 17 of its own while it makes one.
_LONGEST_DIRECTORY: Final = 70
#: Not ``ssh-``: in the directory for temporary files those are ssh-agent's.
_PREFIX: Final = "specdec-ssh-"
_POLL_S: Final = 0.02
_CONTROL_TIMEOUT_S: Final = 10.0
_END_PATIENCE_S: Final = 2.0
#: Connections that don't answer so many times in a row are given up by ssh.
_UNANSWERED: Final = 3
#: Words that ssh adds around the reason, in the end.
_NO_REASON: Final = ("Connection closed by UNKNOWN", "Control socket connect", "kex_exchange_identification: write")


class ConnectionLostError(HostError):
    """There is no connection, or it was lost: a later call may find one again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A script that ended on the host. ``returncode`` is the shell's: 128 and the number of a signal."""

    returncode: int
    stdout: bytes
    stderr: str


def end_local(process: Process, clock: Clock) -> None:
    """End a process of ours on this machine: SIGTERM, a little patience, SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        process.signal(number)
        deadline = clock.monotonic() + _END_PATIENCE_S
        while process.poll() is None and clock.monotonic() < deadline:
            clock.sleep(_POLL_S)
    process.forget()


class Feed:
    """Standard input of a process: a named pipe, whose only writer is this process.

    When this process ends, in whatever way, the reader meets the end of file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path, 0o600)
        # To read as well, so that opening it waits for nobody; Linux allows it.
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def write(self, data: bytes) -> int:
        """Write what fits now; returns how many bytes that was."""
        if self._fd is None:
            return 0
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Let the reader meet the end; calling it again does nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            self.path.unlink(missing_ok=True)


class SshConnection:
    """A connection that is made when it is needed, and made again when it was lost.

    ``alive_s`` is how often ssh asks whether the host still answers; after three times without an answer it gives
    the connection up. Methods may be called from several threads.
    """

    def __init__(
        self,
        destination: str,
        *,
        ssh_options: Sequence[str],
        runtime_dir: Path,
        clock: Clock,
        connect_timeout_s: float,
        alive_s: float,
    ) -> None:
        self.destination = destination
        self._ssh_options = tuple(ssh_options)
        self._clock = clock
        self._connect_timeout_s = connect_timeout_s
        self._alive_s = max(1, round(alive_s))
        # Killed with this process, ssh would look like a connection that was lost: it is to end in order.
        self._local = LocalHost(guarded=False)
        self._lock = threading.RLock()
        self._master: Process | None = None
        self._feed: Feed | None = None
        self._forwarded: dict[int, int] = {}
        self._names = 0
        self._closed = False
        self._owned = _private_directory(runtime_dir)
        self.directory = self._owned.path

    @property
    def try_this(self) -> str:
        """The command with which a person can see what ssh makes of the destination."""
        return shlex.join(["ssh", *self._ssh_options, self.destination, "true"])

    def _words(self, *options: str) -> list[str]:
        settings = (
            "BatchMode=yes",
            f"ControlPath={self._control_path}",
            "ControlPersist=no",
            f"ServerAliveInterval={self._alive_s}",
            f"ServerAliveCountMax={_UNANSWERED}",
            "RemoteCommand=none",
            "RequestTTY=no",
            "PermitLocalCommand=no",
            # Of the user's own forwards the ports may be taken, by the user's own session for one.
            "ClearAllForwardings=yes",
            *options,
        )
        return ["ssh", *(word for setting in settings for word in ("-o", setting)), *self._ssh_options]

    @property
    def _control_path(self) -> Path:
        return self.directory / "m"

    def command(self, remote: str) -> list[str]:
        """Return the words that run a command over the connection, and never over one of their own."""
        return [*self._words("ControlMaster=no", "ProxyCommand=exec false"), "--", self.destination, remote]

    def new_path(self, stem: str) -> Path:
        """Return a name in the private directory that wasn't given out before."""
        with self._lock:
            self._names += 1
            return self.directory / f"{stem}-{self._names}"

    def ensure(self) -> None:
        """Connect, unless there is a connection; forwarded ports are forwarded again.

        Raises :class:`ConnectionLostError` with ssh's own last words, and what to try.
        """
        with self._lock:
            if self._closed:
                raise HostError(f"{self.destination}: the connection was closed")
            if self._master is not None and self._master.poll() is None:
                return
            self._end_master()
            self._connect()
            for port, local_port in self._forwarded.items():
                self._ask_forward(port, local_port)

    def _connect(self) -> None:
        # A socket that a killed ssh left would make the next one do without.
        self._control_path.unlink(missing_ok=True)
        log_path = self.new_path("master")
        up = f"specdec-up-{secrets.token_hex(8)}"
        self._feed = Feed(self.new_path("feed"))
        # The remote command ends when this process does, and takes the connection along after the last session.
        words = [*self._words("ControlMaster=yes"), "--", self.destination, f"echo {up}; exec cat"]
        self._master = self.start(words, self._feed, log_path)
        deadline = self._clock.monotonic() + self._connect_timeout_s
        while True:
            ended = self._master.poll() is not None
            said = self._local.read_from(log_path, 0)
            if up.encode() in said:
                log_path.unlink()
                return
            if ended or self._clock.monotonic() >= deadline:
                break
            self._clock.sleep(_POLL_S)
        self._end_master()
        log_path.unlink(missing_ok=True)
        reason = last_words(said.decode(errors="replace"))
        if not ended:
            reason = f"no connection within {self._connect_timeout_s:g} s" + (f": {reason}" if reason else "")
        raise ConnectionLostError(
            f"{self.destination}: can't connect: {reason or 'ssh said nothing'}; try `{self.try_this}`"
        )

    def start(self, words: Sequence[str], feed: Feed, log_path: Path) -> Process:
        """Start a long-lived ssh on this machine, fed through a named pipe."""
        script = 'exec "$@" <"$0"'
        return self._local.spawn(
            ["sh", "-c", script, str(feed.path), *words], env=self._local.environ(), cwd=None, log_path=log_path
        )

    def _end_master(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None
        if self._master is not None:
            end_local(self._master, self._clock)
            self._master = None

    def forward(self, port: int) -> int:
        """Forward a port of this machine to one of the host; returns this machine's.

        It stays the same when the connection is made again.
        """
        with self._lock:
            self.ensure()
            if port not in self._forwarded:
                local_port = self._local.free_port()
                self._ask_forward(port, local_port)
                self._forwarded[port] = local_port
            return self._forwarded[port]

    def _ask_forward(self, port: int, local_port: int) -> None:
        # Without the user's configuration: its own forwards would be asked for too.
        words = ["ssh", "-F", "/dev/null", "-o", f"ControlPath={self._control_path}", "-O", "forward"]
        words += ["-L", f"127.0.0.1:{local_port}:127.0.0.1:{port}", "--", self.destination]
        done = self._local.run(words, timeout_s=_CONTROL_TIMEOUT_S)
        if done.returncode != 0:
            words_said = last_words(done.stderr) or f"ssh ended with {done.returncode}"
            raise HostError(
                f"{self.destination}: its port {port} can't be forwarded to 127.0.0.1:{local_port} here: {words_said}"
            )

    def run(self, script: str, *, what: str, env: Mapping[str, str], timeout_s: float) -> Ran:
        """Run a POSIX shell script on the host; its standard input is empty.

        The script may end in any way. ``what`` names it in messages. Raises :class:`ConnectionLostError` when there
        is no connection or it is lost meanwhile, :class:`HostError` after ``timeout_s`` seconds, when what runs is
        ended.
        """
        self.ensure()
        token = f"specdec-{secrets.token_hex(8)}"
        in_path, out_path = self.new_path("in"), self.new_path("out")
        try:
            in_path.write_text(_framed(script, token, env), encoding="utf-8", errors="surrogateescape")
            in_path.chmod(0o600)
            words = ["sh", "-c", 'in=$1 out=$2; shift 2; exec "$@" <"$in" >"$out"', "sh", str(in_path), str(out_path)]
            try:
                # Read from standard input, it is no matter to the login shell, whichever it is.
                done = self._local.run([*words, *self.command("exec sh")], timeout_s=timeout_s)
            except HostError:
                self._end_remote(out_path, token)
                raise HostError(f"{self.destination}: {what} did not end within {timeout_s:g} s") from None
            return self._unframed(out_path.read_bytes(), done.stderr, token, what)
        finally:
            in_path.unlink(missing_ok=True)
            out_path.unlink(missing_ok=True)

    def _unframed(self, out: bytes, errors: str, token: str, what: str) -> Ran:
        begin, end = f"\n{token} begin ".encode(), f"\n{token} end ".encode()
        _, began, rest = out.partition(begin)
        body, ended, code = rest.partition(b"\n")[2].rpartition(end)
        _, _, stderr = errors.rpartition(f"\n{token} begin\n")
        if ended:
            return Ran(returncode=int(code.split()[0]), stdout=body, stderr=stderr)
        reason = last_words(stderr) or "ssh said nothing"
        if began:
            raise ConnectionLostError(f"{self.destination}: the connection was lost while {what} ran: {reason}")
        raise ConnectionLostError(f"{self.destination}: {what} can't be run: {reason}; try `{self.try_this}`")

    def _end_remote(self, out_path: Path, token: str) -> None:
        """End what a script started that took too long: sshd makes every command a session of its own."""
        _, began, rest = out_path.read_bytes().partition(f"\n{token} begin ".encode())
        if not began:
            return
        leader = int(rest.split(b"\n")[0])
        with contextlib.suppress(HostError):
            self._local.run(self.command(f"kill -s KILL -- -{leader}"), timeout_s=_CONTROL_TIMEOUT_S)

    def close(self) -> None:
        """End the connection; nothing of it is left on this machine. Calling it again does nothing."""
        with self._lock:
            self._closed = True
            self._end_master()
            self._owned.remove()


def _framed(script: str, token: str, env: Mapping[str, str]) -> str:
    """Put a script between two lines of ours: what start-up files print is outside of them.

    One compound command, so that the shell has read all of it before any of it runs.
    """
    # Bash's exported functions have names that no shell can export by name.
    named = {name: value for name, value in env.items() if name.isascii() and name.isidentifier()}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in named.items())
    return (
        "{\n"
        f"printf '\\n%s begin %s\\n' {token} $$\n"
        f"printf '\\n%s begin\\n' {token} >&2\n"
        f"(\n{exports}{script}\n) </dev/null\n"
        f"printf '\\n%s end %s\\n' {token} $?\n"
        "exit\n"
        "}\n"
    )


def last_words(text: str) -> str:
    """Return the last line of what ssh said that tells a reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(_NO_REASON)]
    return (telling or lines or [""])[-1]


def _private_directory(runtime_dir: Path) -> OwnedDirectory:
    runtime_dir.mkdir(parents=True, exist_ok=True)
    fits = len(os.fsencode(runtime_dir.resolve())) + len(f"/{_PREFIX}12345678") <= _LONGEST_DIRECTORY
    return OwnedDirectory(runtime_dir.resolve() if fits else Path(tempfile.gettempdir()), prefix=_PREFIX)
