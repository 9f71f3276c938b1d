"""How long after a server is ready does anybody know? Print the lag of ``launch``, beside two other ways to wait.

    python benchmarks/readiness.py                     20 launches of a paced fake
    python benchmarks/readiness.py --real 3            and 3 of the engine, with the Python of PYTEST_SPECDEC_PYTHON

A server is ready when it says so ("The server is fired up and ready to roll!"): that is after its own warm-up, when
``/health`` answers 200. The fake notes the moment itself; SGLang's line carries it, in milliseconds. The lag ends when
``launch`` returns; the one real generation that it asks for is counted apart. When the port is there is seen by
connecting to it, fifty times a second.

The other two are worked out from the same launches by what their loops do in SGLang 0.5.23. Both begin to ask when
the process starts:

- ``sglang.test.test_utils.popen_launch_server`` asks ``/health_generate`` and sleeps 10 s;
- ``sglang.utils.wait_for_server`` asks ``/v1/models`` and sleeps 1 s, and 5 s more when it was answered. That route
  is there as soon as the port is, so that a warm-up of more than five seconds is not waited for (a lag below 0).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import math
import os
import re
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pytest_specdec import ServerSpec, engine_env, server
from pytest_specdec.client import Generated, ServerClient
from pytest_specdec.clock import SystemClock
from pytest_specdec.hosts import LocalHost
from pytest_specdec.stats import median

ENGINE: Final = Path(__file__).parents[1] / "tests" / "fakes" / "engine.py"
#: The fake's loads end evenly over one pause of the slowest of the three, so that none of them is lucky.
_SLOWEST_PAUSE_S: Final = 10.0
_SHORTEST_LOAD_S: Final = 0.5
_LONGEST_LAUNCH_S: Final = 600.0
_STAMP: Final = r"(?m)^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3})[^\]]*\] "


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch: when it began, listened, was ready and was known to be, seconds since the epoch."""

    began_s: float
    listens_s: float
    ready_s: float
    known_s: float
    generation_s: float

    @property
    def lag_s(self) -> float:
        """From ready to known, without the generation."""
        return self.known_s - self.ready_s - self.generation_s

    @property
    def helper_lag_s(self) -> float:
        """The lag of SGLang's test helper."""
        return self._asked(self.ready_s, every_s=10.0) - self.ready_s

    @property
    def wait_for_server_lag_s(self) -> float:
        """The lag of ``sglang.utils.wait_for_server``."""
        return self._asked(self.listens_s, every_s=1.0) + 5.0 - self.ready_s

    def _asked(self, moment_s: float, *, every_s: float) -> float:
        """When the first question after a moment is asked."""
        return self.began_s + every_s * math.ceil((moment_s - self.began_s) / every_s)


class TimedClient(ServerClient):
    """Notes when the last server listened, seconds since the epoch, and how long its generation took, seconds."""

    generation_s = 0.0
    listens_s = 0.0

    def __init__(self, base_url: str) -> None:
        super().__init__(base_url)
        threading.Thread(target=self._see_port, args=(urlsplit(base_url).port,), daemon=True).start()

    def _see_port(self, port: int) -> None:
        clock = SystemClock()
        deadline = clock.monotonic() + _LONGEST_LAUNCH_S
        while clock.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                type(self).listens_s = clock.time()
                return
            clock.sleep(0.02)

    def generate_once(self, text: str | Sequence[int], *, max_new_tokens: int, timeout_s: float = 120.0) -> Generated:
        """Generate, timed."""
        clock = SystemClock()
        began = clock.monotonic()
        try:
            return super().generate_once(text, max_new_tokens=max_new_tokens, timeout_s=timeout_s)
        finally:
            type(self).generation_s = clock.monotonic() - began


def launched(spec: ServerSpec, python: str, log_path: Path, extra_env: Mapping[str, str]) -> tuple[float, float]:
    """Launch and stop a server; return when that began and when it was known to be ready, seconds since the epoch."""
    clock = SystemClock()
    began_s = clock.time()
    running = server.launch(
        LocalHost(),
        spec,
        python=python,
        clock=clock,
        log_path=log_path,
        client_factory=TimedClient,
        startup_timeout_s=600.0,
        startup_limit_s=3600.0,
        extra_env=extra_env,
        on_progress=lambda _told: None,
    )
    known_s = clock.time()
    running.stop()
    return began_s, known_s


def fake_launches(directory: Path, loads_s: Sequence[float]) -> list[Launch]:
    """Launch the fake once for each of these load times."""
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {ENGINE} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    found = []
    for index, load_s in enumerate(loads_s):
        ready = directory / f"ready-{index}"
        spec = ServerSpec("fake", "/models/m", env={"FAKE_LOAD_S": f"{load_s}", "FAKE_READY": str(ready)})
        began_s, known_s = launched(spec, str(python), directory / f"{index}.log", {})
        ready_s = float(ready.read_text(encoding="utf-8"))
        found.append(
            Launch(
                began_s=began_s,
                listens_s=TimedClient.listens_s,
                ready_s=ready_s,
                known_s=known_s,
                generation_s=TimedClient.generation_s,
            )
        )
    return found


def real_launches(directory: Path, python: str, count: int) -> list[Launch]:
    """Launch the CPU engine that often."""
    host = LocalHost()
    spec = ServerSpec.tiny("real", env={"SGLANG_LOG_MS": "1"})
    paths = engine_env.tiny_model_paths(host, python, spec.tiny_models, cache_dir=engine_env.cache_root(os.environ))
    found = []
    for index in range(count):
        log_path = directory / f"real-{index}.log"
        extra = engine_env.cpu_engine_environment(dict(os.environ))
        began_s, known_s = launched(spec.with_paths(paths), python, log_path, extra)
        log = log_path.read_text(encoding="utf-8", errors="replace")
        found.append(
            Launch(
                began_s=began_s,
                listens_s=TimedClient.listens_s,
                ready_s=said_at(log, "The server is fired up and ready to roll!"),
                known_s=known_s,
                generation_s=TimedClient.generation_s,
            )
        )
    return found


def said_at(log: str, text: str) -> float:
    """Return when a log said something, by the time in milliseconds before it; seconds since the epoch."""
    match = re.search(_STAMP + re.escape(text), log)
    if match is None:
        raise SystemExit(f"the log does not say {text!r} with milliseconds")
    return dt.datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S.%f").astimezone().timestamp()


def paced(count: int) -> list[float]:
    """Return load times that end evenly over the slowest pause."""
    return [_SHORTEST_LOAD_S + _SLOWEST_PAUSE_S * (index + 0.5) / count for index in range(count)]


def row(name: str, seconds: Sequence[float]) -> str:
    """Return a row of the table."""
    ordered = sorted(seconds)
    p90 = ordered[math.ceil(0.9 * len(ordered)) - 1]
    return f"| {name} | {median(ordered):.2f} | {p90:.2f} | {ordered[-1]:.2f} |"


def report(name: str, launches: Sequence[Launch]) -> list[str]:
    """Return the table of one kind of launches."""
    return [
        f"{len(launches)} launches of {name}, seconds after it is ready:",
        "",
        "| who waits | median | p90 | max |",
        "|---|---|---|---|",
        row("launch", [each.lag_s for each in launches]),
        row("(its one generation, not counted above)", [each.generation_s for each in launches]),
        row("popen_launch_server, asks every 10 s", [each.helper_lag_s for each in launches]),
        row("wait_for_server, asks every 1 s, then sleeps 5 s", [each.wait_for_server_lag_s for each in launches]),
        "",
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The lag between readiness and its being known.")
    parser.add_argument("--fake", type=int, default=20, metavar="N", help="launches of the fake; default: 20")
    parser.add_argument("--real", type=int, default=0, metavar="N", help="launches of the CPU engine; default: none")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if options.fake:
            print(
                "\n".join(report("a fake with a load of known length", fake_launches(directory, paced(options.fake))))
            )
        if options.real:
            python = os.environ.get("PYTEST_SPECDEC_PYTHON")
            if python is None:
                raise SystemExit(
                    "--real needs PYTEST_SPECDEC_PYTHON, the Python that has SGLang; scripts/demo makes one"
                )
            print("\n".join(report("SGLang on the CPU engine", real_launches(directory, python, options.real))))


if __name__ == "__main__":
    main()
