"""What every host does, asked of this machine and of one behind SSH."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

import pytest

from pytest_specdec.errors import HostError
from pytest_specdec.hosts import Host, LocalHost, Process, find_python
from pytest_specdec.leased_host import LeasedLocalHost
from pytest_specdec.ssh import SshHost
from tests.hosts.waiting import is_alive, wait_for, wait_until

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
HARD_WORDS = [
    "two words",
    "'",
    '"',
    "\\",
    "\\n",
    "a\nb",
    "$HOME",
    "`id`",
    "!!",
    "*",
    "~",
    "",
    "-n",
    "é",
    "%s",
    "{",
    "#",
]


@pytest.fixture(params=["local", "leased local", "ssh", "noisy ssh"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    if request.param == "local":
        yield LocalHost()
        return
    if request.param == "leased local":
        leased = LeasedLocalHost()
        yield leased
        leased.close()
        return
    shared: SshHost = request.getfixturevalue("ssh_host" if request.param == "ssh" else "noisy_host")
    yield shared


@pytest.fixture
def spawn(host: Host, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start a process; what a test leaves is killed."""
    started: list[Process] = []

    def spawn(argv: list[str], *, cwd: str | None = None, **env: str) -> Process:
        log_path = tmp_path / "logs" / "server.log"
        process = host.spawn(argv, env={**host.environ(), **env}, cwd=cwd, log_path=log_path)
        started.append(process)
        return process

    yield spawn

    for process in started:
        process.signal(signal.SIGKILL)
        wait_gone(process)
        process.forget()


def wait_gone(process: Process) -> None:
    wait_until(lambda: process.poll() is not None and not process.members(), "the group to end")


def log_of(host: Host, tmp_path: Path) -> bytes:
    return host.read_from(tmp_path / "logs" / "server.log", 0)


def test_a_command_runs_to_its_end_with_both_outputs_apart(host: Host) -> None:
    done = host.run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"])

    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_words_arrive_as_they_are(host: Host) -> None:
    done = host.run([sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *HARD_WORDS])

    assert done.stdout == f"{HARD_WORDS!a}\n"


def test_variables_arrive_as_they_are(host: Host) -> None:
    env = {f"WORD_{number}": word for number, word in enumerate(HARD_WORDS)}
    code = f"import os; print(ascii([os.environ[n] for n in {list(env)}]), len(os.environ['PATH']) > 0)"

    assert host.run([sys.executable, "-c", code], env=env).stdout == f"{HARD_WORDS!a} True\n"


def test_output_without_a_line_break_arrives_as_it_is(host: Host) -> None:
    assert host.run(["printf", "%s", "a\n\nb"]).stdout == "a\n\nb"


def test_a_command_has_an_empty_standard_input(host: Host) -> None:
    assert host.run(["cat"]).stdout == ""


@pytest.mark.parametrize("code", [1, 126, 127, 255])
def test_every_exit_code_is_the_command_s(host: Host, code: int) -> None:
    assert host.run(["sh", "-c", f"exit {code}"]).returncode == code


@pytest.mark.parametrize("program", ["no-such-program", "/no/such/program"])
def test_a_command_that_is_not_there_is_named(host: Host, program: str) -> None:
    with pytest.raises(HostError, match=f"^{host.name}: {program} can't be run: No such file or directory$"):
        host.run([program])


def test_a_command_that_may_not_run_is_named(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("")

    with pytest.raises(HostError, match=f"^{host.name}: {path} can't be run: Permission denied$"):
        host.run([str(path)])


def test_a_command_that_takes_too_long_is_ended_and_named(host: Host, tmp_path: Path) -> None:
    pid_path = tmp_path / "pid"
    code = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True); time.sleep(60)"
    host.environ()

    with pytest.raises(HostError, match=f"^{host.name}: {sys.executable} did not end within 1.5 s$"):
        host.run([sys.executable, "-S", "-c", code, str(pid_path)], timeout_s=1.5)

    wait_until(lambda: not is_alive(int(pid_path.read_text())), "the command to end")


def test_the_home_is_the_environment_s(host: Host) -> None:
    assert host.home() == host.environ()["HOME"] == str(Path.home())


def test_a_process_writes_both_outputs_to_a_log_that_is_added_to(
    host: Host, tmp_path: Path, spawn: Callable[..., Process]
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "server.log").write_text("before\n")
    code = "import sys, os; print(os.environ['A'], flush=True); print(2, file=sys.stderr)"

    process = spawn([sys.executable, "-S", "-c", code], A="one 'two'\n")
    wait_until(lambda: process.poll() is not None, "the process to end")

    assert process.poll() == 0
    assert log_of(host, tmp_path) == b"before\none 'two'\n\n2\n"
    assert host.read_from(tmp_path / "logs" / "server.log", 7) == b"one 'two'\n\n2\n"


def test_the_directory_of_a_log_is_made(host: Host, tmp_path: Path, spawn: Callable[..., Process]) -> None:
    spawn(["sleep", "60"])

    assert (tmp_path / "logs" / "server.log").exists()


def test_a_process_starts_in_its_directory(host: Host, tmp_path: Path, spawn: Callable[..., Process]) -> None:
    process = spawn([sys.executable, "-S", "-c", "import os; print(os.getcwd())"], cwd=str(tmp_path))
    wait_until(lambda: process.poll() is not None, "the process to end")

    assert log_of(host, tmp_path).decode() == f"{tmp_path}\n"


def test_a_program_that_cannot_be_started_is_named(host: Host, tmp_path: Path) -> None:
    with pytest.raises(HostError, match=f"^{host.name}: /no/such/python can't be started: .*No such file"):
        host.spawn(["/no/such/python"], env={}, cwd=None, log_path=tmp_path / "server.log")


@pytest.mark.parametrize("data", [b"\xff\xfe\x00\r\n\n", "é".encode()[:1], b"\n specdec end 0\n", b""])
def test_a_file_is_read_byte_by_byte(host: Host, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a file's name"
    path.write_bytes(b"0123" + data)

    assert host.read_from(path, 0) == b"0123" + data
    assert host.read_from(path, 4) == data
    assert host.read_from(path, 1000) == b""


def test_a_file_that_is_not_there_reads_as_nothing(host: Host, tmp_path: Path) -> None:
    assert host.read_from(tmp_path / "none", 0) == b""


def test_a_process_leads_a_session_of_its_own(spawn: Callable[..., Process]) -> None:
    process = spawn(SLEEP)

    assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
    assert process.members() == (process.pid,)
    assert process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_that_ends_the_leader_is_its_exit_code(spawn: Callable[..., Process], number: int) -> None:
    process = spawn(["sleep", "60"])

    process.signal(number)
    wait_until(lambda: process.poll() is not None and not process.members(), "the signal to be told")

    assert process.poll() == -number


@pytest.mark.parametrize("stray", [False, True], ids=["in the session", "that left it"])
def test_a_signal_reaches_children_that_outlive_their_leader(
    spawn: Callable[..., Process], tmp_path: Path, stray: bool
) -> None:
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen(['sleep', '60'], start_new_session={stray})\n"
        "print('child', child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    process = spawn([sys.executable, "-S", "-c", code])
    log = tmp_path / "logs" / "server.log"
    wait_for(log, "\n")
    child = int(log.read_text().split()[1])
    wait_until(lambda: process.members() == tuple(sorted((process.pid, child))), "both to be seen")

    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: process.poll() is not None and process.members() == (child,), "the child to be alone")
    assert process.poll() == -signal.SIGKILL
    process.signal(signal.SIGTERM)
    wait_until(lambda: not process.members(), "the child to end")

    assert not is_alive(child)


def test_a_group_that_is_gone_stays_gone_and_takes_no_signal(spawn: Callable[..., Process]) -> None:
    process = spawn(["true"])
    wait_until(lambda: process.poll() is not None and not process.members(), "the group to end")

    process.signal(signal.SIGKILL)

    assert process.members() == ()
    assert process.poll() == 0


def test_a_free_port_can_be_bound_and_is_given_once(host: Host) -> None:
    ports = {host.free_port() for _ in range(5)}

    assert len(ports) == 5
    assert all(20_000 <= port < 32_000 for port in ports)
    with socket.socket() as server:
        server.bind(("127.0.0.1", ports.pop()))


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


def test_a_server_is_reached_by_its_url(host: Host) -> None:
    with HTTPServer(("127.0.0.1", host.free_port()), Hello) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            url = host.url(server.server_port)
            with urlopen(url, timeout=10) as answer:
                assert answer.read() == b"hello"
            assert host.url(server.server_port) == url
        finally:
            server.shutdown()
            thread.join()


def test_the_python_that_has_a_package_is_found_by_its_path(host: Host, tmp_path: Path) -> None:
    info = tmp_path / "sglang-0.5.99.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.99\n")
    python = tmp_path / "a dir" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)

    found = find_python(host, explicit=str(python), explicit_where="--specdec-python", spec_python=None)

    assert found.sglang_version == "0.5.99"


def test_a_command_that_is_quick_is_quick(host: Host) -> None:
    host.run(["true"])
    assert shutil.which("true") is not None
    began = time.monotonic()

    for _ in range(5):
        host.run(["true"])

    # The connection is shared: a login of its own for each would take far longer on any host that is far away.
    assert time.monotonic() - began < 5
