"""Runs a server and holds its lease: the one part of this package that runs on the host, by the host's own Python.

It needs nothing but Python's standard library and Linux, and may be sent as text. What comes in on standard input
is the lease channel. Its first line is a job, one JSON object:

``{"argv": [...], "env": {...}, "cwd": null, "log": "...", "lease_s": 120, "patience_s": 8, "resumable": true, ...}``
    Start that command as a session of its own, with its output added to the log.

It has a ``token``, a word of the asker's choice, by which a resumable job is found again: ``carrier.py`` brings a new
lease channel to the socket that stands in the token's directory. With ``direct`` the channel is a pipe of this
machine, whose end is never a lost connection. The first channel is the holder's; on another one the holder says
``resume`` to be known as such, and from anybody else only ``hold`` and ``renew`` are heeded.

Every later line of a holder renews the lease: ``beat``; ``signal 15`` (to all that the command started); ``end`` (end
it all now); ``closed`` (a carrier's channel was closed). On standard output every change is told, one JSON object a
line, which begins with the token (``specdec``), so that nothing else that is printed there is taken for it, and holds
the whole state: ``pid``, ``code`` (of the command; negative: the signal; null while it runs), ``members`` (ids of
living processes), ``ending`` (why they are being ended, or null), ``kept``, ``lease_s``. ``error`` stands alone: why
nothing was started, or why what was asked can't be done.

The command and everything it started are ended with SIGTERM, patience, SIGKILL when ``end`` comes, when nothing
comes for ``lease_s`` seconds, or at the end of standard input. If the job is resumable, the end of standard input
counts only while the program at its other end (sshd) lives: if that is gone too, the connection was lost, and may
come back until the lease runs out. Last of all, whatever ended it, the job's command ``at_end`` runs, if there is
one: it ends what no signal reaches, such as a container.

A server may be left up for a later holder:

``keep {"lease_s": 3600, "path": "...", "record": {...}}``
    From now on no end of a channel ends it, only the lease. The record is written to the path, with what is known
    here added to it; it is removed when the job is over.
``hold 120``
    Take it: the ends of channels count again, and the lease is that long.
``renew 3600``
    Leave it up for that long from now on.
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


def started_at(pid: int) -> int:
    """Return when a process started, in ticks since the machine did; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return 0


def directory_of(token: str) -> str:
    """Return where the socket of a resumable job is."""
    return os.path.join(tempfile.gettempdir(), f"specdec-{token}")  # noqa: PTH118


class Channel:
    """One lease channel: lines come in, states go out."""

    def __init__(self, read_fd: int, write_fd: int, *, token: str, parent: int | None = None) -> None:
        self.token = token
        self.read_fd = read_fd
        self.write_fd = write_fd
        # The process at the other end, when its life tells a closed channel from a lost one.
        self.parent = parent
        # Whether its words count: it is the holder's.
        self.holds = False
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


class Record:
    """What is known of a server that is kept, in a file where a later holder finds it."""

    def __init__(self, path: str, content: dict[str, Any], supervisor: Supervisor) -> None:
        self.path = path
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
            boot = file.read().strip()
        leader, own = supervisor.popen.pid, os.getpid()
        self.content = {
            **content,
            "token": supervisor.token,
            "directory": supervisor.directory,
            "boot_id": boot,
            "pid": leader,
            "pid_started": started_at(leader),
            "supervisor": own,
            "supervisor_started": started_at(own),
        }

    def write(self, state: str, lease_s: float) -> None:
        """Write it whole or not at all, readable by its owner only."""
        content = {**self.content, "state": state, "lease_s": lease_s, "until_unix_s": time.time() + lease_s}
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
        new = f"{self.path}.new"
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # noqa: PTH123
                json.dump(content, file, indent=2, sort_keys=True)
            os.replace(new, self.path)  # noqa: PTH105
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new)  # noqa: PTH108
            raise

    def remove(self) -> None:
        """Leave nothing of it."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)  # noqa: PTH108


class Supervisor:
    """One job, from its start until nothing of it is left and its end was told."""

    def __init__(self, job: dict[str, Any], first: Channel) -> None:
        self.lease_s = float(job["lease_s"])
        self.patience_s = float(job["patience_s"])
        self.resumable = bool(job.get("resumable"))
        self.token = first.token
        self.first = first
        first.holds = True
        self.at_end: list[str] = job.get("at_end") or []
        self.env: dict[str, str] = job["env"]
        self.channels = [first]
        self.record: Record | None = None
        self.kept = False
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
        if self.record is not None:
            self.record.remove()
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
                    self.heed(line, reading[fd])
            elif self.listener is not None:
                connection, _ = self.listener.accept()
                both = connection.detach()
                self.channels.append(Channel(both, both, token=self.token))
                self.told = {}

    def heed(self, line: bytes, channel: Channel) -> None:
        """Do what a line of a channel says."""
        word, _, rest = line.partition(b" ")
        if word == b"resume":
            channel.holds = not self.kept
        if word in (b"hold", b"renew") or (word == b"keep" and channel.holds):
            try:
                self.hand_over(word, rest, channel)
            except (OSError, ValueError, KeyError) as error:
                channel.tell({"error": str(error)})
        elif channel.holds:
            self.beat_at = time.monotonic()
            if word == b"end":
                self.end("the lease channel said so")
            elif word == b"closed":
                self.end("the lease channel was closed")
            elif word == b"signal" and rest.isdigit():
                self.send(int(rest))

    def hand_over(self, word: bytes, rest: bytes, channel: Channel) -> None:
        """Leave it up without a holder, or take it; raises ValueError with the reason why not."""
        if self.ending is not None or self.code is not None:
            raise ValueError("it has ended" if self.ending is None else f"it is being ended: {self.ending}")
        if word == b"keep":
            asked = json.loads(rest)
            record, lease_s = Record(asked["path"], asked["record"], self), float(asked["lease_s"])
        elif not self.kept or self.record is None:
            raise ValueError("somebody else holds it")
        else:
            record, lease_s = self.record, float(rest)
        record.write("held" if word == b"hold" else "kept", lease_s)
        self.record, self.lease_s, self.kept = record, lease_s, word != b"hold"
        for one in self.channels:
            one.holds = one is channel and not self.kept
        self.beat_at = time.monotonic()
        # Also for those whose state does not change by it.
        self.told = {}

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
            # Of a carrier's channel the carrier is the judge.
            if self.kept or channel is not self.first or channel.lost:
                self.drop(channel)
            elif channel.parent is None or now - channel.ended_at > LOSS_S:
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
            if self.record is not None:
                with contextlib.suppress(OSError):
                    self.record.write("ending", 0.0)
            self.send(signal.SIGTERM)

    def end_if_due(self) -> None:
        """Heed the lease; after SIGTERM heed the patience."""
        now = time.monotonic()
        if self.ending is None:
            if now - self.beat_at > self.lease_s:
                self.end(f"nothing was heard for {self.lease_s:g} s")
            elif self.kept and self.code is not None:
                self.end("it died while it was kept")
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
            "kept": self.kept,
            "lease_s": self.lease_s,
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
    own = Channel(0, 1, token=job["token"], parent=parent if job.get("resumable") and not job.get("direct") else None)
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
