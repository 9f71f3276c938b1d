"""Faults put into real servers at a known moment, through the seams that a launch has: its host and its clock."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from pytest_specdec import ServerSpec, bench, engine_env, server
from pytest_specdec.client import ServerClient
from pytest_specdec.clock import Clock, SystemClock
from pytest_specdec.errors import SpecdecError
from pytest_specdec.hosts import LocalHost, Process
from pytest_specdec.model import LaunchRecord, LaunchRounds, Measurement, Round
from pytest_specdec.plan import Plan, PlannedMeasurement, SpecPlan
from pytest_specdec.pool import Served, ServerPool
from pytest_specdec.preflight import Preflight, check
from pytest_specdec.server import RunningServer
from pytest_specdec.workloads import load_workload

SCHEDULER = "sglang::scheduler"
DETOKENIZER = "sglang::detokenizer"
#: What a request of these tests is waited for, beside a second for each of its tokens, instead of two minutes.
PATIENCE_S = 2.0
OUTPUT_TOKENS = 16
#: Of the client's clock: each answer takes four readings at the least, and one for each piece it comes in.
_IN_THE_FIRST_ROUND = 12
Inject = Callable[[Process], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What the user is told, and how many seconds after the fault."""

    text: str
    seconds: float


class FaultyHost(LocalHost):
    """This machine, where something happens to a launch once its log says so, or that hands out a chosen port."""

    def __init__(self, *, at: str | None = None, inject: Inject | None = None, port: int | None = None) -> None:
        super().__init__()
        self.happened_at: float | None = None
        self._at = None if at is None else at.encode()
        self._inject = inject
        self._port = port
        self._seen = b""
        self._process: Process | None = None

    def free_port(self) -> int:
        return super().free_port() if self._port is None else self._port

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        log_path: Path,
        at_end: Sequence[str] = (),
    ) -> Process:
        self._process = super().spawn(argv, env=env, cwd=cwd, log_path=log_path, at_end=at_end)
        return self._process

    def read_from(self, path: Path, offset: int) -> bytes:
        new = super().read_from(path, offset)
        self._seen += new
        if self._inject is not None and self.happened_at is None and self._at is not None and self._at in self._seen:
            assert self._process is not None
            self.happened_at = time.monotonic()
            self._inject(self._process)
        return new


class FaultyClock(SystemClock):
    """The machine's clock, on whose n-th reading something happens: a client reads it with each piece of an answer."""

    def __init__(self, inject: Callable[[], None], *, at_reading: int) -> None:
        self.happened_at: float | None = None
        self._inject = inject
        self._left = at_reading

    def monotonic(self) -> float:
        self._left -= 1
        if self._left == 0:
            self.happened_at = time.monotonic()
            self._inject()
        return super().monotonic()


class HurriedClock(SystemClock):
    """The machine's clock, until it is told to hurry: from then on that many seconds of waiting pass in a few."""

    _FACTOR = 300

    def __init__(self) -> None:
        self._skipped_s = self._to_skip_s = 0.0

    def hurry(self, seconds: float) -> None:
        self._to_skip_s = seconds

    def monotonic(self) -> float:
        return super().monotonic() + self._skipped_s

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self._skipped_s < self._to_skip_s:
            self._skipped_s += seconds * (self._FACTOR - 1)


def signalled(number: int, name: str | None = None) -> Inject:
    """Send a signal to the process of that name, or to the launcher alone."""

    def inject(process: Process) -> None:
        launcher = psutil.Process(process.pid)
        named = [launcher] if name is None else [p for p in launcher.children(recursive=True) if p.name() == name]
        named[0].send_signal(number)

    return inject


class _Borrowed:
    """A running server as the pool uses one; whoever lent it stops it."""

    def __init__(self, running: RunningServer) -> None:
        self._running = running
        self.record = LaunchRecord(
            index=0,
            spec_name=running.spec.name,
            spec_hash=running.spec.content_hash,
            command=running.spec.masked_command,
            host="localhost",
            node="cpu",
            started_unix_s=0.0,
            ready_s=running.ready_s,
            log_path=str(running.log_path),
            sglang_version=running.info.version,
            drafting=running.info.drafting,
            server_args={},
            facts={},
        )

    def check_alive(self) -> None:
        self._running.check_alive()

    def stop(self) -> None:
        """Leave it."""


class Engine:
    """Checks, launches and measures real servers, and tells what a user would be told."""

    def __init__(self, python: str, directory: Path) -> None:
        self.python = python
        self.directory = directory
        self._cache = engine_env.cache_root(os.environ)

    def with_paths(self, spec: ServerSpec) -> ServerSpec:
        """Replace the names of tiny models by paths."""
        names = spec.tiny_models
        return spec.with_paths(engine_env.tiny_model_paths(LocalHost(), self.python, names, cache_dir=self._cache))

    def model(self, name: str, change: Callable[[Path], None] = lambda _path: None, **config: object) -> Path:
        """Copy the tiny target and spoil the copy."""
        path = self.directory / name
        shutil.copytree(self.with_paths(ServerSpec.tiny("model")).model, path)
        told = json.loads((path / "config.json").read_text(encoding="utf-8"))
        (path / "config.json").write_text(json.dumps(told | config), encoding="utf-8")
        change(path)
        return path

    def refused(self, spec: ServerSpec) -> Reported:
        """Check a spec that must not pass."""
        began = time.monotonic()
        text = self.checked(spec).refusal()
        assert text is not None
        return Reported(text=text, seconds=time.monotonic() - began)

    def checked(self, spec: ServerSpec) -> Preflight:
        """Check a spec as it is before its launch."""
        host = LocalHost()
        launched = self.with_paths(spec)
        extra = engine_env.cpu_engine_environment(dict(os.environ))
        return check(
            host,
            launched,
            python=self.python,
            env=server.environment(host, launched, extra),
            cache_dir=self._cache,
            device="cpu",
            clock=SystemClock(),
        )

    def launch(
        self,
        spec: ServerSpec,
        *,
        host: LocalHost | None = None,
        clock: Clock | None = None,
        log_path: Path | None = None,
    ) -> RunningServer:
        """Start a server, with its preflight passed by."""
        return server.launch(
            host or LocalHost(),
            self.with_paths(spec),
            python=self.python,
            clock=clock or SystemClock(),
            log_path=log_path or self.directory / f"{spec.name}.log",
            client_factory=ServerClient,
            startup_timeout_s=600.0,
            startup_limit_s=3600.0,
            extra_env=engine_env.cpu_engine_environment(dict(os.environ)),
            on_progress=lambda _told: None,
        )

    def fails(
        self,
        spec: ServerSpec,
        *,
        host: FaultyHost | None = None,
        clock: Clock | None = None,
        log_path: Path | None = None,
    ) -> Reported:
        """Launch a server that must not come up. Without a moment of its own, the fault was there from the start."""
        host = host or FaultyHost()
        began = time.monotonic()
        try:
            running = self.launch(spec, host=host, clock=clock, log_path=log_path)
        except SpecdecError as error:
            happened = began if host.happened_at is None else host.happened_at
            return Reported(text=str(error), seconds=time.monotonic() - happened)
        running.stop()
        raise AssertionError(f"{spec.name} came up")

    @contextmanager
    def running(self, spec: ServerSpec) -> Iterator[RunningServer]:
        """A server for the length of a block."""
        running = self.launch(spec)
        try:
            yield running
        finally:
            running.stop()

    def measured(
        self,
        running: RunningServer,
        inject: Callable[[], None] = lambda: None,
        *,
        measurement: Measurement | None = None,
        rounds: int = 2,
    ) -> tuple[list[Round], Reported | None]:
        """Measure as the pool does, with a fault in the first round; return the rounds that ended.

        Beside them is what the user is told, None where every round was measured.
        """
        if measurement is None:
            measurement = Measurement(spec=running.spec, workload=load_workload("smoke"), output_tokens=OUTPUT_TOKENS)
        planned = PlannedMeasurement(measurement=measurement, rounds=rounds, warmup=0, launches=1)
        clock = FaultyClock(inject, at_reading=_IN_THE_FIRST_ROUND)
        ended: list[Round] = []

        def measure(served: Served, planned: PlannedMeasurement) -> LaunchRounds:
            with running.in_use():
                warmup, rounds = bench.measure(
                    ServerClient(running.url, timeout_s=5.0),
                    planned.measurement,
                    rounds=planned.rounds,
                    warmup=planned.warmup,
                    clock=clock,
                    on_round=ended.append,
                    patience_s=PATIENCE_S,
                )
            return LaunchRounds(launch=served.record, warmup=warmup, rounds=rounds)

        plan = Plan(specs=(SpecPlan(spec=running.spec, measurements=(planned,), nodeids=("test",)),))
        pool = ServerPool(plan, start=lambda _spec, _index: _Borrowed(running), measure=measure)
        try:
            pool.measured(measurement)
        except SpecdecError as error:
            if clock.happened_at is None:
                raise
            return ended, Reported(text=str(error), seconds=time.monotonic() - clock.happened_at)
        return ended, None
