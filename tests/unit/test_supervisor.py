"""The supervisor by itself: on this machine, through its standard input and output."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_specdec import supervisor

SCRIPT = supervisor.__file__
WAIT_S = 10.0
TOKEN = "t0ken"
SLEEP = ["sleep", "60"]
#: A leader with a child in its session and one that left it; none heeds SIGTERM when told so.
FAMILY = (
    "import signal, subprocess, sys, time\n"
    "if sys.argv[1] == 'stubborn': signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "for apart in (False, True): subprocess.Popen(['sleep', '60'], start_new_session=apart)\n"
    "print('up', flush=True)\n"
    "time.sleep(60)\n"
)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Supervised:
    """A supervisor with its job, as seen by whoever holds the lease."""

    def __init__(self, log_path: Path, argv: list[str], **job: Any) -> None:
        self.log = log_path
        words = [sys.executable, "-I", "-S", SCRIPT]
        # Without buffers: what is in one is not seen by a selector.
        pipe = subprocess.PIPE
        self.popen = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
        asked = {"env": dict(os.environ), "log": str(log_path), "lease_s": 60, "patience_s": 0.5, "token": TOKEN, **job}
        self.say(json.dumps({"argv": argv, **asked}))
        self.states: list[dict[str, Any]] = []

    def say(self, line: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line.encode() + b"\n")
        self.popen.stdin.flush()

    def hang_up(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.close()

    def state(self, holds: Callable[[dict[str, Any]], bool] = lambda _state: True) -> dict[str, Any]:
        """Wait for a state that fits."""
        assert self.popen.stdout is not None
        deadline = time.monotonic() + WAIT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.popen.stdout, selectors.EVENT_READ)
            while True:
                assert selector.select(max(0.0, deadline - time.monotonic())), f"only {self.states} was told"
                line = self.popen.stdout.readline()
                assert line, f"it ended; only {self.states} was told: {self.errors}"
                if line != b"\n":
                    self.states.append(json.loads(line))
                    if holds(self.states[-1]):
                        return self.states[-1]

    @property
    def errors(self) -> str:
        assert self.popen.stderr is not None
        return self.popen.stderr.read().decode()

    def end_code(self) -> int:
        """Wait for its end."""
        return self.popen.wait(WAIT_S)

    def family(self) -> list[int]:
        """Wait until all three of a family are told."""
        members: list[int] = self.state(lambda state: len(state["members"]) == 3)["members"]
        deadline = time.monotonic() + WAIT_S
        while b"up" not in self.log.read_bytes():
            assert time.monotonic() < deadline
        return members

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    """Start a job; what a failed test leaves is killed."""
    started: list[Supervised] = []

    def start(argv: list[str], **job: Any) -> Supervised:
        started.append(Supervised(tmp_path / "logs" / f"{len(started)}.log", argv, **job))
        return started[-1]

    yield start

    for one in started:
        pids = {pid for state in one.states for pid in state.get("members", [])}
        one.close()
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)


def family(how: str = "willing") -> list[str]:
    return [sys.executable, "-S", "-c", FAMILY, how]


def test_a_job_runs_in_a_session_of_its_own_and_its_end_is_told(start: Callable[..., Supervised]) -> None:
    job = start([sys.executable, "-S", "-c", "import os, sys; print(os.getsid(0) == os.getpid()); sys.exit(3)"])

    state = job.state(lambda state: state["code"] is not None and not state["members"])

    assert state == {
        "specdec": TOKEN,
        "pid": state["pid"],
        "code": 3,
        "members": [],
        "ending": None,
        "kept": False,
        "lease_s": 60.0,
    }
    assert job.log.read_text() == "True\n"
    job.hang_up()
    assert (job.end_code(), job.errors) == (0, "")


@pytest.mark.parametrize(
    ("argv", "changed", "told"),
    [
        (["/no/such/program"], {}, "[Errno 2] No such file or directory: '/no/such/program'"),
        (["sleep"], {"cwd": "/no/such/directory"}, "[Errno 2] No such file or directory: '/no/such/directory'"),
        (["sleep"], {"log": "/proc/none/log"}, "[Errno 2] No such file or directory: '/proc/none'"),
    ],
)
@pytest.mark.parametrize("resumable", [False, True])
def test_what_cannot_be_started_is_told(
    start: Callable[..., Supervised], argv: list[str], changed: dict[str, str], told: str, resumable: bool
) -> None:
    job = start(argv, resumable=resumable, token=f"{TOKEN}-{os.getpid()}-{resumable}", **changed)

    assert job.state()["error"] == told
    assert job.end_code() == 1
    assert list(Path(tempfile.gettempdir()).glob(f"specdec-{TOKEN}-{os.getpid()}-*")) == []


def test_the_end_of_the_channel_ends_the_whole_group(start: Callable[..., Supervised]) -> None:
    job = start(family())
    members = job.family()

    job.hang_up()

    state = job.state(lambda state: not state["members"])
    assert state["code"] == -signal.SIGTERM
    assert state["ending"] == "the lease channel was closed"
    assert job.end_code() == 0
    assert not any(map(is_alive, members))


def test_what_ignores_sigterm_is_killed_after_the_patience(start: Callable[..., Supervised]) -> None:
    job = start(family("stubborn"))
    members = job.family()
    began = time.monotonic()

    job.hang_up()

    assert job.state(lambda state: not state["members"])["code"] == -signal.SIGKILL
    assert 0.5 <= time.monotonic() - began < 5
    assert job.end_code() == 0
    assert not any(map(is_alive, members))


def test_the_end_can_be_asked_for(start: Callable[..., Supervised]) -> None:
    job = start(family())
    job.family()

    job.say("end")

    assert job.state(lambda state: not state["members"])["ending"] == "the lease channel said so"
    assert job.end_code() == 0


def test_silence_ends_it_after_the_lease(start: Callable[..., Supervised]) -> None:
    job = start(family(), lease_s=1)
    began = time.monotonic()

    assert job.state(lambda state: state["ending"] is not None)["ending"] == "nothing was heard for 1 s"
    assert 0.5 < time.monotonic() - began < 5
    assert job.state(lambda state: not state["members"])["code"] == -signal.SIGTERM
    assert job.end_code() == 0


@pytest.mark.parametrize("how", ["closed", "asked for", "silence"])
def test_the_last_command_runs_after_everything_else_has_ended(
    start: Callable[..., Supervised], tmp_path: Path, how: str
) -> None:
    told, pid_path = tmp_path / "told", tmp_path / "pid"
    script = f"echo $$ >{pid_path}; exec sleep 60"
    last = ["sh", "-c", f"kill -0 $(cat {pid_path}) 2>/dev/null || echo $A >{told}"]
    job = start(["sh", "-c", script], at_end=last, env={**os.environ, "A": "b"}, lease_s=1 if how == "silence" else 60)
    job.state()
    deadline = time.monotonic() + WAIT_S
    while not pid_path.exists() or not pid_path.read_text():
        assert time.monotonic() < deadline
    assert not told.exists()

    if how == "closed":
        job.hang_up()
    elif how == "asked for":
        job.say("end")

    assert job.end_code() == 0
    assert told.read_text() == "b\n"


def test_a_heartbeat_renews_the_lease(start: Callable[..., Supervised]) -> None:
    job = start(SLEEP, lease_s=1)
    job.state()
    began = time.monotonic()

    with selectors.DefaultSelector() as selector:
        assert job.popen.stdout is not None
        selector.register(job.popen.stdout, selectors.EVENT_READ)
        while time.monotonic() - began < 2:
            job.say("beat")
            assert not selector.select(0.1), f"{job.popen.stdout.readline()!r} was told"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on(start: Callable[..., Supervised], number: signal.Signals) -> None:
    job = start(["sleep", "60"])
    job.state()

    job.say(f"signal {int(number)}")

    state = job.state(lambda state: state["code"] is not None)
    assert (state["code"], state["ending"]) == (-number, None)


@pytest.mark.parametrize("line", ["", "signal", "signal x", "signal -9", "nonsense"])
def test_a_line_that_says_nothing_does_nothing(start: Callable[..., Supervised], line: str) -> None:
    job = start(SLEEP)
    job.state()

    job.say(line)
    job.say("signal 10")

    assert job.state(lambda state: state["code"] is not None)["code"] == -signal.SIGUSR1


def test_lines_that_come_with_the_job_are_heeded(start: Callable[..., Supervised]) -> None:
    job = start(SLEEP)

    job.say("end")

    assert job.state(lambda state: not state["members"] and state["code"] is not None)["code"] == -signal.SIGTERM


def test_a_child_that_outlives_the_leader_is_told_and_ended(start: Callable[..., Supervised]) -> None:
    job = start(family())
    job.family()
    leader = job.states[-1]["pid"]

    os.kill(leader, signal.SIGKILL)

    state = job.state(lambda state: state["code"] is not None and leader not in state["members"])
    assert state["code"] == -signal.SIGKILL
    assert len(state["members"]) == 2
    job.hang_up()
    job.state(lambda state: not state["members"])
    assert job.end_code() == 0


def test_a_supervisor_that_is_told_to_end_ends_its_group_first(start: Callable[..., Supervised]) -> None:
    job = start(family())
    members = job.family()

    job.popen.terminate()

    assert job.state(lambda state: not state["members"])["ending"] == "the supervisor was told to end"
    assert job.end_code() == 0
    assert not any(map(is_alive, members))


def test_an_interrupt_from_the_terminal_is_not_the_supervisor_s(start: Callable[..., Supervised]) -> None:
    job = start(SLEEP)
    job.state()

    job.popen.send_signal(signal.SIGINT)
    job.popen.send_signal(signal.SIGHUP)
    job.say("signal 10")

    assert job.state(lambda state: state["code"] is not None)["code"] == -signal.SIGUSR1


def test_without_a_job_nothing_is_done() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", SCRIPT], stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_S, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def kept_state(state: dict[str, Any]) -> bool:
    return bool(state.get("kept"))


def keep_line(path: Path, lease_s: float) -> str:
    return "keep " + json.dumps({"lease_s": lease_s, "path": str(path), "record": {"spec_name": "s"}})


def test_a_kept_job_outlives_its_channel_and_is_recorded(start: Callable[..., Supervised], tmp_path: Path) -> None:
    path = tmp_path / "servers" / "t.json"
    job = start(SLEEP, resumable=True, direct=True, token=f"kept-{os.getpid()}")
    pid = job.state()["pid"]

    job.say(keep_line(path, 3))
    assert job.state(kept_state)["lease_s"] == 3
    job.hang_up()

    record = json.loads(path.read_text())
    assert (record["spec_name"], record["state"], record["pid"]) == ("s", "kept", pid)
    assert record["supervisor"] == job.popen.pid
    assert record["pid_started"] == supervisor.started_at(pid)
    assert 0 < record["until_unix_s"] - time.time() <= 3
    assert path.stat().st_mode & 0o777 == 0o600
    assert job.end_code() == 0, "its lease runs out"
    assert not is_alive(pid)
    assert list(path.parent.iterdir()) == []
    assert not Path(record["directory"]).exists()


def test_before_it_is_kept_the_end_of_a_pipe_ends_it_at_once(start: Callable[..., Supervised]) -> None:
    job = start(SLEEP, resumable=True, direct=True, token=f"direct-{os.getpid()}")
    job.state()
    began = time.monotonic()

    job.hang_up()

    assert job.state(lambda state: state["ending"] is not None)["ending"] == "the lease channel was closed"
    assert job.end_code() == 0
    assert time.monotonic() - began < 5


def test_once_kept_its_first_holder_has_no_say(start: Callable[..., Supervised], tmp_path: Path) -> None:
    job = start(SLEEP, resumable=True, direct=True, token=f"say-{os.getpid()}")
    pid = job.state()["pid"]
    job.say(keep_line(tmp_path / "t.json", 2))
    job.state(kept_state)

    for line in ("signal 15", "end", "closed"):
        job.say(line)
    time.sleep(0.5)

    assert is_alive(pid)
    assert job.end_code() == 0


def test_a_kept_job_that_dies_leaves_no_record(start: Callable[..., Supervised], tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    job = start(family(), resumable=True, direct=True, token=f"dies-{os.getpid()}")
    members = job.family()
    leader = job.states[-1]["pid"]
    job.say(keep_line(path, 60))
    job.state(kept_state)
    job.hang_up()

    os.kill(leader, signal.SIGKILL)

    assert job.end_code() == 0
    assert not path.exists()
    assert not any(map(is_alive, members))


@pytest.mark.parametrize("line", ["hold 5", "renew 5"])
def test_what_is_held_is_neither_taken_nor_renewed(start: Callable[..., Supervised], line: str) -> None:
    job = start(SLEEP)
    job.state()

    job.say(line)

    assert job.state(lambda state: "error" in state)["error"] == "somebody else holds it"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("keep nonsense", "Expecting value"),
        ('keep {"lease_s": 5, "path": "/proc/version/t.json", "record": {}}', "File exists"),
    ],
)
def test_what_cannot_be_kept_goes_on_as_before(start: Callable[..., Supervised], line: str, told: str) -> None:
    job = start(SLEEP)
    job.state()

    job.say(line)

    assert told in job.state(lambda state: "error" in state)["error"]
    job.say("end")
    assert job.state(lambda state: state.get("ending") is not None)["lease_s"] == 60


KILLED = """
import json, os, signal, subprocess, sys
script, log = sys.argv[1:]
job = subprocess.Popen([sys.executable, "-I", "-S", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
asked = {"argv": ["sleep", "60"], "env": dict(os.environ), "log": log, "lease_s": 60, "patience_s": 8, "token": ""}
job.stdin.write(json.dumps(asked).encode() + b"\\n")
job.stdin.flush()
job.stdout.readline()
print(json.loads(job.stdout.readline())["pid"], job.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_holder_that_is_killed_takes_the_group_along(tmp_path: Path) -> None:
    words = [sys.executable, "-S", "-c", KILLED, SCRIPT, str(tmp_path / "log")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == -signal.SIGKILL

    deadline = time.monotonic() + WAIT_S
    while any(map(is_alive, map(int, done.stdout.split()))):
        assert time.monotonic() < deadline


def test_it_needs_nothing_but_the_standard_library() -> None:
    code = (
        f"import runpy, sys; runpy.run_path({SCRIPT!r}); "
        "print(sorted(m for m in sys.modules if m.partition('.')[0] not in sys.stdlib_module_names))"
    )

    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "['__main__']\n"
