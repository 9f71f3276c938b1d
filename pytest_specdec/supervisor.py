"""Runs a server and holds its lease: the one part of this package that runs on the host, by the host's own Python.

It needs nothing but Python's standard library and Linux, and may be sent as text. What comes in on standard input
is the lease channel. Its first line is a job, one JSON object:

``{"argv": [...], "env": {...}, "cwd": null, "log": "...", "lease_s": 120, "patience_s": 8, "resumable": true, ...}``
    Start that command as a session of its own, with its output added to the log.
``{"attach": true, ...}``
    Be the new lease channel of a job that is running, after the first one was lost.

Either has a ``token``, a word of the asker's choice, by which the job is found again.

Every later line renews the lease: ``beat``; ``signal 15`` (to all that the command started); ``end`` (end it all
now). On standard output every change is told, one JSON object a line, which begins with the token (``specdec``), so
that nothing else that is printed there is taken for it, and holds the whole state: ``pid``, ``code``
(of the command; negative: the signal; null while it runs), ``members`` (ids of living processes), ``ending`` (why
they are being ended, or null). ``error`` stands alone: why nothing was started, or nothing is there to attach to.

The command and everything it started are ended with SIGTERM, patience, SIGKILL when ``end`` comes, when nothing
comes for ``lease_s`` seconds, or at the end of standard input. If the job is resumable, the end of standard input
counts only while the program at its other end (sshd) lives: if that is gone too, the connection was lost, and may
come back until the lease runs out. Last of all, whatever ended it, the job's command ``at_end`` runs, if there is
one: it ends what no signal reaches, such as a container.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

#: How often exits and deadlines are looked at, seconds.
TICK_S = 0.1
#: How often all processes of the host are looked through while nothing happens, and while something ends, seconds.
LOOK_S = 1.0
LOOK_ENDING_S = 0.1
#: A connection that was lost takes its sshd along within milliseconds; after this many seconds it was no loss.
LOSS_S = 1.0
#: How long after SIGKILL processes in an uninterruptible call are waited for, seconds.
KILL_PATIENCE_S = 60.0
#: How long the job's last command may take, seconds.
AT_END_TIMEOUT_S = 60.0
SOCKET = "lease.sock"
PR_SET_CHILD_SUBREAPER = 36


def living_of(supervisor: int, leader: int) -> dict[int, int]:
    """Return living descendants of the supervisor and members of the leader's session: id to process group."""
    parents: dict[int, int] = {}
    groups: dict[int, int] = {}
    found: set[int] = set()
    for name in os.listdir("/proc"):  # noqa: PTH208 (a thousand times a run: no objects)
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # The name of the program may hold anything, a closing parenthesis too.
                state, parent, group, session = file.read().rpartition(b")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if state in (b"Z", b"X"):
            continue
        pid = int(name)
        parents[pid], groups[pid] = int(parent), int(group)
        if int(session) == leader:
            found.add(pid)
    for pid in parents:
        walked = pid
        while walked in parents and walked != supervisor:
            walked = parents[walked]
        if walked == supervisor:
            found.add(pid)
    found.discard(supervisor)
    return {pid: groups[pid] for pid in found}


def directory_of(token: str) -> str:
    """Return where the socket of a resumable job is."""
    return os.path.join(tempfile.gettempdir(), f"specdec-{token}")  # noqa: PTH118


class Channel:
    """One lease channel: lines come in, states go out."""

    def __init__(self, read_fd: int, write_fd: int, *, token: str, parent: int | None) -> None:
        self.token = token
        self.read_fd = read_fd
        self.write_fd = write_fd
        # The process at the other end, while its life tells a closed channel from a lost one.
        self.parent = parent
        self.ended_at: float | None = None
        # Its end was judged, and it is kept for those who still listen.
        self.judged = False
        self._rest = b""
        # A reader that hangs must not stop the clock of the lease.
        os.set_blocking(write_fd, False)

    def lines(self) -> list[bytes]:
        """Read what has come; notes the end."""
        try:
            data = os.read(self.read_fd, 65536)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.ended_at = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines

    def tell(self, state: dict[str, Any]) -> bool:
        """Write a state; False when nobody can read it."""
        try:
            # The line break before it ends what a start-up file of the login shell may have left unfinished.
            data = b"\n" + json.dumps({"specdec": self.token, **state}).encode() + b"\n"
            return os.write(self.write_fd, data) == len(data)
        except OSError:
            return False

    @property
    def lost(self) -> bool:
        """Whether the program at the other end is gone."""
        return self.parent is not None and os.getppid() != self.parent

    def close(self) -> None:
        """Let go of it; standard input and output stay open, on nothing."""
        for fd in {self.read_fd, self.write_fd}:
            if fd > 2:
                os.close(fd)


class Supervisor:
    """One job, from its start until nothing of it is left and its end was told."""

    def __init__(self, job: dict[str, Any], first: Channel) -> None:
        self.lease_s = float(job["lease_s"])
        self.patience_s = float(job["patience_s"])
        self.resumable = bool(job.get("resumable"))
        self.token = first.token
        self.at_end: list[str] = job.get("at_end") or []
        self.env: dict[str, str] = job["env"]
        self.channels = [first]
        self.directory: str | None = None
        self.listener: socket.socket | None = None
        self.code: int | None = None
        self.ending: str | None = None
        self.killed = False
        self.released = False
        self.term_at = self.kill_at = 0.0
        self.beat_at = self.look_at = time.monotonic()
        self.told: dict[str, Any] = {}
        self.members: dict[int, int] = {}
        # Whatever was started can be attached to.
        if self.resumable:
            self._listen()
        try:
            self.popen = self._start(job)
        except OSError:
            self.tidy()
            raise

    @staticmethod
    def _start(job: dict[str, Any]) -> subprocess.Popen[bytes]:
        # Whatever loses its parent becomes a child of this process: nothing escapes by leaving the session.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        log_path = job["log"]
        os.makedirs(os.path.dirname(log_path), exist_ok=True)  # noqa: PTH103, PTH120
        with open(log_path, "ab") as log:  # noqa: PTH123
            return subprocess.Popen(
                job["argv"],
                env=job["env"],
                cwd=job.get("cwd"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _listen(self) -> None:
        directory = directory_of(self.token)
        os.mkdir(directory, 0o700)  # noqa: PTH102
        self.directory = directory
        # A path of a socket is short by law; a name in the current directory always is.
        os.chdir(self.directory)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(SOCKET)
        self.listener.listen()

    def run(self) -> None:
        """Watch until all is over."""
        try:
            while not self.over():
                self.wait()
                self.reap()
                self.look()
                self.watch_channels()
                self.end_if_due()
                self.tell()
        finally:
            self.popen.returncode = self.code
            self.end_the_rest()
            self.tidy()

    def end_the_rest(self) -> None:
        """Run the job's last command."""
        if self.at_end:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    self.at_end,
                    env=self.env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=AT_END_TIMEOUT_S,
                    check=False,
                )

    def tidy(self) -> None:
        """Leave nothing on the host but the log."""
        if self.directory is not None:
            os.chdir("/")
            shutil.rmtree(self.directory, ignore_errors=True)

    def over(self) -> bool:
        """Whether nothing runs and whoever holds the lease knows it, or has no lease any more."""
        if self.killed and time.monotonic() - self.kill_at > KILL_PATIENCE_S:
            return True
        if self.code is None or self.members:
            return False
        return self.released or time.monotonic() - self.beat_at > self.lease_s

    def wait(self) -> None:
        """Wait for a tick, or for something to come in."""
        reading = {channel.read_fd: channel for channel in self.channels if channel.ended_at is None}
        fds = [*reading, *([] if self.listener is None else [self.listener.fileno()])]
        ready, _, _ = select.select(fds, [], [], TICK_S)
        for fd in ready:
            if fd in reading:
                for line in reading[fd].lines():
                    self.heed(line)
            elif self.listener is not None:
                connection, _ = self.listener.accept()
                both = connection.detach()
                self.channels.append(Channel(both, both, token=self.token, parent=None))
                self.beat_at = time.monotonic()
                self.told = {}

    def heed(self, line: bytes) -> None:
        """Do what a line of the channel says."""
        self.beat_at = time.monotonic()
        word, _, number = line.partition(b" ")
        if word == b"end":
            self.end("the lease channel said so")
        elif word == b"signal" and number.isdigit():
            self.send(int(number))

    def reap(self) -> None:
        """Take the exit codes of children, adopted ones included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.look_at = 0.0
            if pid == self.popen.pid:
                self.code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def look(self) -> None:
        """See which processes are left, when it is time to."""
        now = time.monotonic()
        if now >= self.look_at:
            self.members = living_of(os.getpid(), self.popen.pid)
            self.look_at = now + (LOOK_S if self.ending is None and self.code is None else LOOK_ENDING_S)

    def watch_channels(self) -> None:
        """Tell closed channels from lost ones."""
        now = time.monotonic()
        for channel in list(self.channels):
            if channel.ended_at is None or channel.judged:
                continue
            if self.resumable and (channel.parent is None or channel.lost):
                self.drop(channel)
            elif not self.resumable or now - channel.ended_at > LOSS_S:
                channel.judged = True
                self.end("the lease channel was closed")

    def drop(self, channel: Channel) -> None:
        """Forget a channel."""
        self.channels.remove(channel)
        channel.close()

    def end(self, why: str) -> None:
        """Begin to end everything; a second reason changes nothing."""
        # Whoever says so has read the state, or will not.
        self.released = True
        if self.ending is None:
            self.ending = why
            self.term_at = time.monotonic()
            self.send(signal.SIGTERM)

    def end_if_due(self) -> None:
        """Heed the lease; after SIGTERM heed the patience."""
        now = time.monotonic()
        if self.ending is None:
            if now - self.beat_at > self.lease_s:
                self.end(f"nothing was heard for {self.lease_s:g} s")
        elif not self.killed and now - self.term_at > self.patience_s:
            self.killed, self.kill_at = True, now
            self.send(signal.SIGKILL)
        elif self.killed and self.members:
            # What was started in the meantime.
            self.send(signal.SIGKILL)

    def send(self, number: int) -> None:
        """Signal the leader's group at once, then what is outside of it."""
        self.look_at = 0.0
        self.look()
        leader = self.popen.pid
        # While a member of the group is left, its number is given to nobody else.
        if leader in self.members.values():
            with contextlib.suppress(OSError):
                os.killpg(leader, number)
        for pid, group in self.members.items():
            if group != leader:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        self.look_at = 0.0

    def tell(self) -> None:
        """Say what has changed."""
        state = {
            "pid": self.popen.pid,
            "code": self.code,
            "members": sorted(self.members),
            "ending": self.ending,
        }
        if state != self.told:
            self.told = state
            for channel in list(self.channels):
                if channel.tell(state):
                    continue
                if channel.judged:
                    self.drop(channel)
                elif channel.ended_at is None:
                    channel.ended_at = time.monotonic()


def attach(own: Channel) -> int:
    """Carry a lease channel to a running supervisor."""
    link = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(directory_of(own.token))
        link.connect(SOCKET)
    except OSError as error:
        own.tell({"error": f"{directory_of(own.token)}: {error.strerror}"})
        return 1
    while own.ended_at is None:
        ready, _, _ = select.select([own.read_fd, link.fileno()], [], [])
        if link.fileno() in ready:
            data = link.recv(65536)
            if not data:
                return 0
            with contextlib.suppress(OSError):
                os.write(own.write_fd, data)
        if own.read_fd in ready:
            for line in own.lines():
                link.sendall(line + b"\n")
    while not own.lost:
        if time.monotonic() - own.ended_at > LOSS_S:
            link.sendall(b"end\n")
            break
        time.sleep(TICK_S)
    return 0


def main() -> int:
    """Read the job from standard input, and see to it."""
    # Handlers, since what is ignored would be ignored by the command too.
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    parent = os.getppid()
    # Without a buffer, which would swallow the lines behind it.
    with open(0, "rb", buffering=0, closefd=False) as incoming:
        line = incoming.readline()
    if not line:
        return 1
    job = json.loads(line)
    own = Channel(0, 1, token=job["token"], parent=parent)
    if "attach" in job:
        return attach(own)
    try:
        supervisor = Supervisor(job, own)
    except OSError as error:
        own.tell({"error": str(error)})
        return 1
    signal.signal(signal.SIGTERM, lambda *_: supervisor.end("the supervisor was told to end"))
    supervisor.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
