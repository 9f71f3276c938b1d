from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pytest_specdec.errors import HostError
from pytest_specdec.hosts import LocalHost, Process, find_python
from tests.fakes.host import FakeHost, told

WAIT_S = 10.0


@pytest.fixture
def host() -> LocalHost:
    return LocalHost()


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    """What a test started; what it leaves is killed."""
    kept: list[Process] = []
    yield kept
    for process in kept:
        process.signal(signal.SIGKILL)
        wait_gone(process)
        process.forget()


def wait_gone(process: Process) -> None:
    deadline = time.monotonic() + WAIT_S
    while process.poll() is None or process.members():
        assert time.monotonic() < deadline, f"{process.members()} are still there"
        time.sleep(0.01)


def wait_dead(process: Process) -> None:
    deadline = time.monotonic() + WAIT_S
    while process.poll() is None:
        assert time.monotonic() < deadline, f"{process.pid} still runs"
        time.sleep(0.01)


def spawn(host: LocalHost, log: Path, code: str, **env: str) -> Process:
    return host.spawn([sys.executable, "-S", "-c", code], env={**host.environ(), **env}, cwd=None, log_path=log)


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, f"no {text!r} in {path}"
        time.sleep(0.01)


def test_a_command_runs_to_its_end_with_both_outputs_apart(host: LocalHost) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"

    done = host.run([sys.executable, "-c", code])

    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_a_command_gets_further_variables(host: LocalHost) -> None:
    done = host.run([sys.executable, "-c", "import os; print(os.environ['A'], os.environ['PATH'])"], env={"A": "b"})

    assert done.stdout == f"b {os.environ['PATH']}\n"


def test_a_command_that_is_not_there_is_named(host: LocalHost) -> None:
    with pytest.raises(HostError, match=r"^localhost: no-such-program can't be run: No such file or directory$"):
        host.run(["no-such-program"])


def test_a_command_that_takes_too_long_is_ended_and_named(host: LocalHost) -> None:
    with pytest.raises(HostError, match=r"^localhost: sleep did not end within 0.1 s$"):
        host.run(["sleep", "60"], timeout_s=0.1)


@pytest.mark.parametrize(
    ("name", "inherited"),
    [
        ("PYTEST_CURRENT_TEST", False),
        ("PYTEST_XDIST_WORKER", False),
        ("COV_CORE_SOURCE", False),
        ("SGLANG_IS_IN_CI", False),
        ("SGLANG_IS_IN_CI_AMD", False),
        ("SGLANG_IS_IN_CIRCLES", True),
        ("CUDA_VISIBLE_DEVICES", True),
        ("PYTHONPATH", True),
    ],
)
def test_variables_of_the_test_run_are_not_inherited(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch, name: str, inherited: bool
) -> None:
    monkeypatch.setenv(name, "1")

    assert (name in host.environ()) is inherited


def test_a_process_writes_both_outputs_to_a_log_that_is_added_to(
    host: LocalHost, tmp_path: Path, processes: list[Process]
) -> None:
    log = tmp_path / "made" / "server.log"
    log.parent.mkdir()
    log.write_text("before\n")

    process = spawn(host, log, "import sys, os; print(os.environ['A'], flush=True); print(2, file=sys.stderr)", A="1")
    processes.append(process)
    wait_gone(process)

    assert process.poll() == 0
    assert host.read_from(log, 0) == b"before\n1\n2\n"
    assert host.read_from(log, 9) == b"2\n"


def test_the_directory_of_a_log_is_made(host: LocalHost, tmp_path: Path, processes: list[Process]) -> None:
    processes.append(spawn(host, tmp_path / "a" / "b" / "server.log", ""))

    assert (tmp_path / "a" / "b" / "server.log").exists()


def test_a_program_that_cannot_be_started_is_named(host: LocalHost, tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"^localhost: /no/such/python can't be started: .*No such file"):
        host.spawn(["/no/such/python"], env={}, cwd=None, log_path=tmp_path / "server.log")


def test_a_file_that_is_not_there_reads_as_nothing(host: LocalHost, tmp_path: Path) -> None:
    assert host.read_from(tmp_path / "none", 0) == b""


def test_a_process_leads_a_session_of_its_own(host: LocalHost, tmp_path: Path, processes: list[Process]) -> None:
    process = spawn(host, tmp_path / "log", "import time; time.sleep(60)")
    processes.append(process)

    assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
    assert process.members() == (process.pid,)
    assert process.poll() is None


def test_a_signal_reaches_children_that_outlive_their_leader(
    host: LocalHost, tmp_path: Path, processes: list[Process]
) -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        "print('child', child.pid, flush=True)\n"
    )
    log = tmp_path / "log"
    process = spawn(host, log, code)
    processes.append(process)
    wait_for(log, "child")
    child = int(log.read_text().split()[1])
    wait_dead(process)

    assert process.poll() == 0
    assert process.members() == (child,)
    process.signal(signal.SIGTERM)
    wait_gone(process)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_group_that_is_gone_stays_gone_and_takes_no_signal(
    host: LocalHost, tmp_path: Path, processes: list[Process]
) -> None:
    process = spawn(host, tmp_path / "log", "")
    processes.append(process)
    wait_gone(process)

    process.signal(signal.SIGKILL)

    assert process.members() == ()
    assert process.poll() == 0


def test_a_signal_that_ends_the_leader_is_its_exit_code(
    host: LocalHost, tmp_path: Path, processes: list[Process]
) -> None:
    process = spawn(host, tmp_path / "log", "import time; time.sleep(60)")
    processes.append(process)

    process.signal(signal.SIGTERM)
    wait_gone(process)

    assert process.poll() == -signal.SIGTERM


LEAVES_A_SERVER = """
import os, sys
from pathlib import Path
from pytest_specdec.hosts import LocalHost
process = LocalHost().spawn(["sleep", "60"], env=dict(os.environ), cwd=None, log_path=Path(sys.argv[1]))
print(process.pid, flush=True)
if sys.argv[2] == "fork":
    child = os.fork()
    if child == 0:
        sys.exit()
    os.waitpid(child, 0)
    print(process.poll(), flush=True)
raise SystemExit(5)
"""


def leave_a_server(tmp_path: Path, how: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", LEAVES_A_SERVER, str(tmp_path / "log"), how]
    root = Path(__file__).parent.parent.parent
    return subprocess.run(words, capture_output=True, text=True, cwd=root, timeout=WAIT_S, check=False)


def test_what_is_left_when_python_exits_is_killed(tmp_path: Path) -> None:
    done = leave_a_server(tmp_path, "exit")

    pid = int(done.stdout)
    assert done.returncode == 5
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_fork_that_exits_ends_nothing_of_its_parent(tmp_path: Path) -> None:
    done = leave_a_server(tmp_path, "fork")

    assert done.stdout.split()[1] == "None"


INTERRUPTED = """
import signal, sys, time
from pathlib import Path
from pytest_specdec.hosts import LocalHost
host = LocalHost()
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
process = host.spawn(sleep, env=dict(host.environ()), cwd=None, log_path=Path(sys.argv[1]))
try:
    signal.raise_signal(signal.SIGTERM)
except KeyboardInterrupt as interrupt:
    print("interrupted by", interrupt)
process.signal(signal.SIGKILL)
while process.members():
    time.sleep(0.01)
process.forget()
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


def test_sigterm_interrupts_only_while_a_process_is_up(tmp_path: Path) -> None:
    """In a process of its own: the one that runs the tests may have servers up itself."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    interrupted, left_alone = done.stdout.splitlines()
    assert "SIGTERM" in interrupted
    assert left_alone == "True"


def test_a_handler_of_somebody_else_s_is_kept(host: LocalHost, tmp_path: Path, processes: list[Process]) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        processes.append(spawn(host, tmp_path / "log", "import time; time.sleep(60)"))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_free_port_can_be_bound_and_is_given_once(host: LocalHost) -> None:
    ports = {host.free_port() for _ in range(50)}

    assert len(ports) == 50
    # Linux hands out ports from 32768 on to outgoing connections.
    assert all(20_000 <= port < 32_000 for port in ports)
    with socket.socket() as server:
        server.bind(("127.0.0.1", ports.pop()))


def test_a_server_is_reached_by_the_loopback_address(host: LocalHost) -> None:
    assert host.url(20_001) == "http://127.0.0.1:20001"


def test_an_explicit_python_is_the_only_one_tried() -> None:
    host = FakeHost()
    host.answers["/mine/python"] = told(stderr="importlib.metadata.PackageNotFoundError: sglang", returncode=1)
    host.answers["python3"] = told("0.5.23\n")

    with pytest.raises(HostError) as caught:
        find_python(host, explicit="/mine/python", explicit_where="--specdec-python", spec_python="/spec/python")

    assert str(caught.value) == (
        "no Python with SGLang on fakehost. Tried:\n"
        "  /mine/python (--specdec-python): has no sglang\n"
        'Install it with `pip install "pytest-specdec[sglang]"`, '
        "or name a Python that has it with --specdec-python=PATH"
    )


def test_the_spec_s_python_comes_next_with_its_home_written_out() -> None:
    host = FakeHost()
    host.answers["/home/fake/venv/bin/python"] = told("0.5.9\n")

    found = find_python(host, explicit=None, explicit_where="default", spec_python="~/venv/bin/python")

    assert (found.path, found.sglang_version) == ("/home/fake/venv/bin/python", "0.5.9")


def test_then_the_shell_s_pythons_are_tried_in_order() -> None:
    host = FakeHost()
    host.answers["python3"] = told(stderr="Traceback\nSyntaxError: odd", returncode=1)
    host.answers["python"] = told("a warning on standard output\n0.5.23\n")

    found = find_python(host, explicit=None, explicit_where="default", spec_python=None)

    assert (found.path, found.sglang_version) == ("python", "0.5.23")


def test_each_python_that_will_not_do_is_listed_with_the_reason() -> None:
    host = FakeHost()
    host.answers["python3"] = told(stderr="Traceback\nSyntaxError: odd", returncode=1)

    with pytest.raises(HostError) as caught:
        find_python(host, explicit=None, explicit_where="default", spec_python=None)

    assert str(caught.value).splitlines()[1:3] == [
        "  python3 (on the PATH): exit code 1: SyntaxError: odd",
        "  python (on the PATH): can't be run: No such file or directory",
    ]


def test_sglang_is_not_imported_to_learn_its_version(host: LocalHost, tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_text("raise RuntimeError('imported')")
    info = tmp_path / "sglang-0.5.99.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.99\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)

    found = find_python(host, explicit=str(python), explicit_where="--specdec-python", spec_python=None)

    assert found.sglang_version == "0.5.99"
