"""The same load with several HTTP libraries, to choose the one that the load client is built on.

Runs requests (a thread a connection), httpx, aiohttp and our raw protocol against one paced server: error of TPOT
and TTFT against what was sent, CPU per chunk, and chunks a second per core flat out. Each is written as its
documentation has it: a session or client that keeps connections, lines as the library splits them, JSON parsed by
``json``. A library that isn't installed is named and left out; none of them is a dependency for this.

    python -m venv /tmp/libraries && /tmp/libraries/bin/pip install httpx aiohttp requests
    /tmp/libraries/bin/python benchmarks/http_libraries.py
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import multiprocessing
import os
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import one_load
from benchmarks.paced import Figures, Paced, Stream, Truth, client_core, figures

_TIMEOUT_S: Final = 120.0
_DATA: Final = "data: "


def body_of(output_tokens: int) -> dict[str, Any]:
    params = {"max_new_tokens": output_tokens, "ignore_eos": True, "temperature": 0.0}
    return {"text": "The quick brown fox " * 4, "sampling_params": params, "stream": True}


class Reading:
    """One answer, read line by line."""

    def __init__(self) -> None:
        self.asked_s = time.monotonic()
        self._times: list[float] = []
        self._tokens: list[int] = []

    def line(self, line: str) -> None:
        """Take one line of the stream."""
        if not line.startswith(_DATA) or line.endswith("[DONE]"):
            return
        now = time.monotonic()
        tokens = json.loads(line[len(_DATA) :])["meta_info"]["completion_tokens"]
        if not self._tokens or tokens > self._tokens[-1]:
            self._times.append(now)
            self._tokens.append(tokens)

    def stream(self) -> Stream:
        return Stream(asked_s=self.asked_s, times_s=tuple(self._times), tokens=tuple(self._tokens))


def with_requests(url: str, concurrency: int, requests: int, output_tokens: int) -> list[Stream]:
    library: Any = importlib.import_module("requests")
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(requests):
        waiting.put(number)
    done: list[Stream] = []

    def slot() -> None:
        with library.Session() as session:
            session.trust_env = False
            while True:
                try:
                    waiting.get_nowait()
                except queue.Empty:
                    return
                reading = Reading()
                with session.post(
                    f"{url}/generate", json=body_of(output_tokens), stream=True, timeout=_TIMEOUT_S
                ) as answer:
                    for line in answer.iter_lines(chunk_size=None):
                        reading.line(line.decode())
                done.append(reading.stream())

    threads = [threading.Thread(target=slot) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_TIMEOUT_S)
    return done


def with_httpx(url: str, concurrency: int, requests: int, output_tokens: int) -> list[Stream]:
    library: Any = importlib.import_module("httpx")
    done: list[Stream] = []

    async def main() -> None:
        limits = library.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        async with library.AsyncClient(limits=limits, timeout=_TIMEOUT_S, trust_env=False) as client:

            async def slot() -> None:
                for _ in left:
                    reading = Reading()
                    async with client.stream("POST", f"{url}/generate", json=body_of(output_tokens)) as answer:
                        async for line in answer.aiter_lines():
                            reading.line(line)
                    done.append(reading.stream())

            await asyncio.gather(*(slot() for _ in range(concurrency)))

    left = iter(range(requests))
    asyncio.run(main())
    return done


def with_aiohttp(url: str, concurrency: int, requests: int, output_tokens: int) -> list[Stream]:
    library: Any = importlib.import_module("aiohttp")
    done: list[Stream] = []

    async def main() -> None:
        # A line of a cumulative answer is longer than the library's default limit allows.
        session = library.ClientSession(
            connector=library.TCPConnector(limit=concurrency),
            timeout=library.ClientTimeout(total=_TIMEOUT_S),
            read_bufsize=1 << 20,
        )
        async with session:

            async def slot() -> None:
                for _ in left:
                    reading = Reading()
                    async with session.post(f"{url}/generate", json=body_of(output_tokens)) as answer:
                        async for line in answer.content:
                            reading.line(line.decode().rstrip())
                    done.append(reading.stream())

            await asyncio.gather(*(slot() for _ in range(concurrency)))

    left = iter(range(requests))
    asyncio.run(main())
    return done


def with_ours(url: str, concurrency: int, requests: int, output_tokens: int) -> list[Stream]:
    return one_load.ours(
        url, concurrency=concurrency, requests=requests, output_tokens=output_tokens, flat_out=False
    ).streams()


Load = Callable[[str, int, int, int], list[Stream]]
CLIENTS: Final[dict[str, Load]] = {
    "requests": with_requests,
    "httpx": with_httpx,
    "aiohttp": with_aiohttp,
    "raw asyncio protocol (ours)": with_ours,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run: medians of what was seen (None flat out), CPU and wall time in seconds."""

    told: Figures | None
    cpu_s: float
    wall_s: float


def measured(name: str, url: str, concurrency: int, requests: int, output_tokens: int, *, flat_out: bool) -> Outcome:
    """Run one client in this process."""
    core = client_core()
    if core is not None:
        os.sched_setaffinity(0, {core})
    began_s, before_s = time.monotonic(), time.process_time()
    streams = CLIENTS[name](url, concurrency, requests, output_tokens)
    cpu_s, wall_s = time.process_time() - before_s, time.monotonic() - began_s
    if len(streams) != requests:
        raise SystemExit(f"{name}: {requests - len(streams)} of {requests} requests failed")
    return Outcome(told=None if flat_out else figures(streams), cpu_s=cpu_s, wall_s=wall_s)


def _in_a_child(outcomes: Any, arguments: tuple[Any, ...], flat_out: bool) -> None:  # noqa: ANN401
    outcomes.put(measured(*arguments, flat_out=flat_out))


def run(
    server: Paced, name: str, concurrency: int, requests: int, output_tokens: int, **pace: object
) -> tuple[Outcome, Truth]:
    """Run one client in a process of its own, under a pace."""
    server.configure(**pace)
    context = multiprocessing.get_context("spawn")
    outcomes = context.SimpleQueue()
    arguments = (name, server.url, concurrency, requests, output_tokens)
    child = context.Process(target=_in_a_child, args=(outcomes, arguments, bool(pace.get("flat_out"))))
    child.start()
    child.join(_TIMEOUT_S)
    if child.exitcode != 0:
        child.kill()
        raise SystemExit(f"{name} ended with {child.exitcode}")
    return outcomes.get(), server.truth(output_tokens)


def installed(names: Iterable[str]) -> list[str]:
    """Those that can be imported; says which can't."""
    found = []
    for name in names:
        if " " in name or importlib.util.find_spec(name) is not None:
            found.append(name)
        else:
            print(f"{name} is not installed here, and left out")
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    names = installed(CLIENTS)
    columns = ("TPOT err %", "TTFT + ms", "CPU us/chunk", "chunks/s per core, cumulative", "incremental")
    print(f"\n| client, C=64 K=3 | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    with Paced() as server:
        for name in names:
            paced = [run(server, name, 64, 128, 601, tokens_per_chunk=3) for _ in range(args.runs)]
            tpot = [
                (outcome.told.tpot_ms / truth.figures.tpot_ms - 1) * 100
                for outcome, truth in paced
                if outcome.told is not None and outcome.told.tpot_ms and truth.figures.tpot_ms
            ]
            ttft = [
                outcome.told.ttft_ms - truth.figures.ttft_ms
                for outcome, truth in paced
                if outcome.told is not None and outcome.told.ttft_ms and truth.figures.ttft_ms
            ]
            cpu = [outcome.cpu_s / truth.chunks * 1e6 for outcome, truth in paced]
            ceilings = []
            for incremental, tokens in ((False, 1001), (True, 2001)):
                flat = [
                    run(server, name, 16, 48, tokens, flat_out=True, incremental=incremental) for _ in range(args.runs)
                ]
                ceilings.append(statistics.median(truth.chunks / outcome.cpu_s for outcome, truth in flat))
            figures_of = (
                f"{statistics.median(tpot):+.3f}",
                f"{statistics.median(ttft):+.2f}",
                f"{statistics.median(cpu):.0f}",
                *(f"{ceiling:.0f}" for ceiling in ceilings),
            )
            print(f"| {name} | {' | '.join(figures_of)} |", flush=True)


if __name__ == "__main__":
    main()
