"""Stand-ins for a host, its processes, its time and a server's HTTP side: what is not there takes no time."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_specdec.client import Generated, ServerInfo
from pytest_specdec.errors import HostError, ServerRequestError
from pytest_specdec.hosts import Completed


class FakeClock:
    """Time that passes only while something waits; what was put in the diary for a moment happens then."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cpu = 0.0
        self.diary: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_800_000_000.0 + self.now

    def cpu_s(self) -> float:
        return self.cpu

    def sleep(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 6)
        due = [entry for entry in self.diary if entry[0] <= self.now]
        self.diary = [entry for entry in self.diary if entry[0] > self.now]
        for _, happen in due:
            happen()

    def at(self, moment_s: float, happen: Callable[[], None]) -> None:
        self.diary.append((moment_s, happen))


class FakeProcess:
    """A process group: a leader and others, which end at the signals in ``fatal``."""

    pid = 4242

    def __init__(self, *, fatal: Sequence[int] = (signal.SIGTERM, signal.SIGKILL), others: Sequence[int] = ()) -> None:
        self.exit_code: int | None = None
        self.fatal = tuple(fatal)
        self.others = tuple(others)
        self.signals: list[int] = []
        self.forgotten = False

    def poll(self) -> int | None:
        return self.exit_code

    def signal(self, number: int) -> None:
        self.signals.append(number)
        if number in self.fatal:
            self.others = ()
            if self.exit_code is None:
                self.exit_code = -number

    def members(self) -> tuple[int, ...]:
        return (*(() if self.exit_code is not None else (self.pid,)), *self.others)

    def forget(self) -> None:
        self.forgotten = True


class FakeHost:
    """A host whose files and answers to commands are written down beforehand."""

    name = "fakehost"

    def __init__(self, *, process: FakeProcess | None = None) -> None:
        self.files: dict[Path, bytes] = {}
        self.answers: dict[str, Completed | Callable[[Sequence[str]], Completed]] = {}
        self.commands: list[tuple[str, ...]] = []
        self.variables: list[dict[str, str]] = []
        self.process = process or FakeProcess()
        self.spawned: list[tuple[tuple[str, ...], dict[str, str], str | None]] = []
        self.at_end: tuple[str, ...] = ()
        self.env: dict[str, str] = {"PATH": "/usr/bin"}

    def home(self) -> str:
        return "/home/fake"

    def environ(self) -> Mapping[str, str]:
        return dict(self.env)

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Completed:
        self.commands.append(tuple(argv))
        self.variables.append(dict(env or {}))
        answer = self.answers.get(argv[0])
        if answer is None:
            raise HostError(f"{self.name}: {argv[0]} can't be run: No such file or directory")
        return answer if isinstance(answer, Completed) else answer(argv)

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        log_path: Path,
        at_end: Sequence[str] = (),
    ) -> FakeProcess:
        self.at_end = tuple(at_end)
        self.spawned.append((tuple(argv), dict(env), cwd))
        self.files.setdefault(log_path, b"")
        return self.process

    def free_port(self) -> int:
        return 20_001

    def read_from(self, path: Path, offset: int) -> bytes:
        return self.files.get(path, b"")[offset:]

    def write(self, path: Path, text: str) -> None:
        self.files[path] = self.files.get(path, b"") + text.encode()

    def url(self, port: int) -> str:
        return f"http://fakehost:{port}"


def told(stdout: str = "", *, stderr: str = "", returncode: int = 0) -> Completed:
    return Completed(returncode=returncode, stdout=stdout, stderr=stderr)


class FakeClient:
    """A server's HTTP side: ``status`` is what ``/health`` answers (None: nothing listens)."""

    def __init__(self, *, model: str | None = "/models/m", port: int | None = 20_001) -> None:
        self.status: int | None = None
        self.model = model
        self.port = port
        self.args: dict[str, object] = {}
        self.generation_error: str | None = None
        self.info_error: str | None = None
        self.asked: list[str] = []

    def health(self, *, timeout_s: float = 25.0) -> int | None:
        self.asked.append("health")
        return self.status

    def server_info(self) -> ServerInfo:
        self.asked.append("server_info")
        if self.info_error is not None:
            raise ServerRequestError(self.info_error)
        return ServerInfo(
            version="0.5.23", model_path=self.model, port=self.port, drafting=False, args=self.args, facts={}
        )

    def generate_once(self, text: str, *, max_new_tokens: int, timeout_s: float = 120.0) -> Generated:
        self.asked.append(f"generate {max_new_tokens}")
        if self.generation_error is not None:
            raise ServerRequestError(self.generation_error)
        return Generated(text="w", output_ids=(1,), meta_info={})
