"""A stand-in for ``docker``: containers that are nobody's children, in what counts for ending them.

``daemon`` has to run. ``run`` lets it start the "container": outside of the client's session and process tree, and
without the client's environment. The client shows what it prints, waits for its end, has its exit code, and passes
SIGTERM and SIGINT on. SIGKILL of the client ends nothing. When the first process of a container ends, all of it does.
``kill``, ``rm``, ``ps`` and ``top`` find containers by id. Variables:

``FAKE_DOCKER_ROOT``    where containers are kept: a directory each, with ``pid`` while it runs
``FAKE_DOCKER_ORPHAN``  set: the client does not pass signals on (``--sig-proxy=false``)

A file ``down`` in the root stands for a daemon that does not answer.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import psutil

ROOT = Path(os.environ["FAKE_DOCKER_ROOT"])
PR_SET_CHILD_SUBREAPER = 36
TAKE_A_VALUE = {"--cidfile", "--name", "--network", "--gpus", "-e", "-v", "--shm-size"}
TICK_S = 0.02


def fail(message: str, code: int = 1) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    sys.exit(code)


def run(words: list[str]) -> NoReturn:
    given: dict[str, str] = {}
    env = {"PATH": os.environ["PATH"]}
    while words[0].startswith("-"):
        name, sign, value = words.pop(0).partition("=")
        if name in TAKE_A_VALUE and not sign:
            value = words.pop(0)
        given[name] = value
        if name == "-e":
            variable, _, text = value.partition("=")
            env[variable] = text
    words.pop(0)
    id_path = Path(given["--cidfile"]) if "--cidfile" in given else None
    if id_path is not None and id_path.exists():
        fail(f"docker: container ID file found, make sure the other container isn't running or delete {id_path}", 125)
    container = ROOT / secrets.token_hex(32)
    container.mkdir(parents=True)
    if id_path is not None:
        id_path.write_text(container.name)
    write(ROOT / "jobs" / f"{container.name}.json", json.dumps([container.name, words, env, "--rm" in given]))
    if "FAKE_DOCKER_ORPHAN" not in os.environ:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: send(container, number))
    log_path, exit_path = ROOT / f"{container.name}.log", ROOT / f"{container.name}.exit"
    shown = 0
    while True:
        ended = exit_path.exists()
        said = log_path.read_bytes() if log_path.exists() else b""
        sys.stdout.buffer.write(said[shown:])
        sys.stdout.buffer.flush()
        shown = len(said)
        if ended:
            sys.exit(int(exit_path.read_text()))
        time.sleep(TICK_S)


def daemon(_words: list[str]) -> NoReturn:
    """Start what clients ask for, as nobody's child and with nothing of their environments."""
    while True:
        for job in (ROOT / "jobs").glob("*.json"):
            subprocess.Popen(
                [sys.executable, __file__, "watch-over", job.read_text()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            job.unlink()
        time.sleep(TICK_S)


def watch_over(job: list[str]) -> None:
    """What containerd's shim does: the parent of all processes in the container."""
    name, words, env, removes = json.loads(job[0])
    container = ROOT / name
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with (ROOT / f"{name}.log").open("wb") as log:
        first = subprocess.Popen(
            words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    write(container / "pid", f"{first.pid} {os.getpid()}")
    code = first.wait()
    for child in psutil.Process().children(recursive=True):
        child.kill()
    (container / "pid").unlink(missing_ok=True)
    if removes:
        shutil.rmtree(container, ignore_errors=True)
    write(ROOT / f"{container.name}.exit", str(code if code >= 0 else 128 - code))


def write(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def pids(container: Path) -> tuple[int, int] | None:
    """The first process, and what watches over it; None when it does not run."""
    try:
        first, shim = map(int, (container / "pid").read_text().split())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return first, shim


def send(container: Path, number: int) -> bool:
    running = pids(container)
    if running is not None:
        os.kill(running[0], number)
    return running is not None


def there(identity: str) -> Path:
    if not (ROOT / identity).is_dir():
        fail(f"Error response from daemon: No such container: {identity}")
    return ROOT / identity


def kill(words: list[str]) -> None:
    number = signal.SIGKILL
    if words[0] == "--signal":
        number = signal.Signals(int(words[1]))
        words = words[2:]
    container = there(words[0])
    if not send(container, number):
        fail(f"Error response from daemon: cannot kill container: {words[0]}: container {words[0]} is not running")


def rm(words: list[str]) -> None:
    assert words[0] in ("-f", "--force")
    container = there(words[1])
    send(container, signal.SIGKILL)
    while pids(container) is not None:
        time.sleep(TICK_S)
    shutil.rmtree(container, ignore_errors=True)


def ps(words: list[str]) -> None:
    assert words[:3] == ["--quiet", "--no-trunc", "--filter"]
    wanted = words[3].removeprefix("id=")
    for container in ROOT.iterdir():
        if container.name.startswith(wanted) and pids(container) is not None:
            print(container.name)


def top(words: list[str]) -> None:
    container = there(words[0])
    assert words[1:] == ["-eo", "pid"]
    running = pids(container)
    if running is None:
        fail(f"Error response from daemon: container {words[0]} is not running")
    print("PID")
    for child in psutil.Process(running[1]).children(recursive=True):
        print(child.pid)


if __name__ == "__main__":
    if (ROOT / "down").exists():
        fail("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?")
    commands = {"daemon": daemon, "run": run, "watch-over": watch_over, "kill": kill, "rm": rm, "ps": ps, "top": top}
    commands[sys.argv[1]](sys.argv[2:])
