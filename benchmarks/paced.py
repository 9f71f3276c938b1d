"""What the benchmarks of the client share: a paced server in a process of its own, and figures on both sides.

The same formulas are used for what a client saw and for what the server sent (docs/measuring.md), so that an error
is the client's alone.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

_HERE: Final = Path(__file__).parent
_START_TIMEOUT_S: Final = 20.0
_STOP_TIMEOUT_S: Final = 5.0
_ADMIN_TIMEOUT_S: Final = 60.0
_IDLE_FOR_S: Final = 0.7
_IDLE_SHARE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One run as one side tells it: medians over requests; None where it does not tell.

    ``cpu_s`` is the CPU time of the client's process for its call, ``load_cpu_s`` the part of it up to the last chunk
    (None: the same).
    """

    decode_tok_s: float | None = None
    tpot_ms: float | None = None
    ttft_ms: float | None = None
    output_tok_s: float | None = None
    cpu_s: float | None = None
    load_cpu_s: float | None = None
    wall_s: float | None = None
    called_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One answer: when it was asked for, and (s, tokens so far) of its chunks."""

    asked_s: float
    times_s: tuple[float, ...]
    tokens: tuple[int, ...]


def figures(streams: Iterable[Stream]) -> Figures:
    """Apply the formulas of docs/measuring.md to answers."""
    streams = list(streams)
    decoded = [(one.tokens[-1] - one.tokens[0]) for one in streams]
    took_s = [one.times_s[-1] - one.times_s[0] for one in streams]
    wall_s = max(one.times_s[-1] for one in streams) - min(one.asked_s for one in streams)
    return Figures(
        decode_tok_s=statistics.median(n / s for n, s in zip(decoded, took_s, strict=True)),
        tpot_ms=statistics.median(s * 1000 / n for n, s in zip(decoded, took_s, strict=True)),
        ttft_ms=statistics.median((one.times_s[0] - one.asked_s) * 1000 for one in streams),
        output_tok_s=sum(one.tokens[-1] for one in streams) / wall_s,
        wall_s=wall_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the server sent in one run; ``chunks`` counts those with tokens. ``late_p99_ms`` is its own lateness."""

    figures: Figures
    requests: int
    chunks: int
    tokens: int
    first_request_s: float
    late_p99_ms: float | None


class Paced:
    """A paced server on a free port, on core 0 where there are several; runs while the ``with`` block lasts."""

    def __enter__(self) -> Paced:  # noqa: PYI034  # Self is not in Python 3.10
        command = [sys.executable, str(_HERE / "paced_server.py"), "--port", "0", "--until-stdin-ends"]
        if (os.cpu_count() or 1) > 1:
            command += ["--core", "0"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _START_TIMEOUT_S)[0]:
            self._process.kill()
            raise TimeoutError(f"the paced server said nothing within {_START_TIMEOUT_S:g} s: {command}")
        self.url = self._process.stdout.readline().split()[-1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_STOP_TIMEOUT_S)
        self._process.stdout.close()

    def _ask(self, path: str, body: object = None) -> Any:  # noqa: ANN401  # any JSON value
        data = None if body is None else json.dumps(body).encode()
        # A proxy of the environment is not meant for a server on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(self.url + path, data=data), timeout=_ADMIN_TIMEOUT_S) as answer:
            return json.load(answer)

    def configure(self, **pace: object) -> None:
        """Set the pace, from the defaults on, and forget what was sent."""
        from benchmarks.paced_server import Pace  # noqa: PLC0415  # stands alone, and is not needed by all

        self._ask("/admin/config", dataclasses.asdict(Pace()) | pace)

    def truth(self, output_tokens: int) -> Truth:
        """What was sent to requests of that length since the pace was set; others are somebody's warm-up."""
        told = self._ask("/admin/schedule")
        sent = [one for one in told["requests"] if one["tokens"][-1] == output_tokens and one["sent_s"]]
        late = told["lateness_ms"]
        whole = [one for one in sent if len(one["sent_s"]) == len(one["tokens"])]
        return Truth(
            figures=figures(
                Stream(asked_s=one["received_s"], times_s=tuple(one["sent_s"]), tokens=tuple(one["tokens"]))
                for one in whole
            )
            if whole
            else Figures(),
            requests=len(sent),
            chunks=sum(len(one["tokens"]) for one in sent),
            tokens=sum(one["tokens"][-1] for one in sent),
            first_request_s=min((one["received_s"] for one in sent), default=0.0),
            late_p99_ms=None if late is None else late["p99"],
        )


def client_core() -> int | None:
    """The core for clients: the last one, where the server has another."""
    count = os.cpu_count() or 1
    return count - 1 if count > 1 else None


def wait_for_quiet(patience_s: float) -> None:
    """Wait until the machine's cores are idle for most of a second, at most ``patience_s``."""
    ends = time.monotonic() + patience_s
    while time.monotonic() < ends and _idle_share(_IDLE_FOR_S) < _IDLE_SHARE:
        pass


def _idle_share(seconds: float) -> float:
    """How much of the cores' time nobody used, over the next seconds."""

    def read() -> tuple[int, int]:
        # user, nice, system, idle, iowait, irq, softirq, steal: in ticks, over all cores.
        ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return ticks[3] + ticks[4], sum(ticks)

    idle, all_ = read()
    time.sleep(seconds)
    idle_later, all_later = read()
    return (idle_later - idle) / max(1, all_later - all_)
