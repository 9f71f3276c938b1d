"""One load of our client, or of the raw reference client, in a process of its own: prints its figures as JSON.

python benchmarks/one_load.py ours http://127.0.0.1:31000 --concurrency 16 --requests 32 --output-tokens 201
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import reference_client
from benchmarks.paced import Figures, Stream, figures
from pytest_specdec import load as _load  # noqa: F401  # imported on first use: not a part of what a load costs
from pytest_specdec.client import ServerClient
from pytest_specdec.model import Prompt, Sampling

_TIMEOUT_S = 120.0
_TEXT = "The quick brown fox " * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What was seen, and what it cost."""

    wall_s: float
    cpu_s: float
    load_cpu_s: float
    streams: Callable[[], list[Stream]]


def ours(url: str, *, concurrency: int, requests: int, output_tokens: int, flat_out: bool) -> Load:
    """Load the server as a measurement does."""
    prompts = [Prompt(id=f"p{i}", category="c", text=_TEXT) for i in range(requests)]
    load_ended_at = 0.0

    def clock() -> float:
        # The last time that the clock is read is when the load ends; answers are read after that.
        nonlocal load_ended_at
        load_ended_at = time.process_time()
        return time.monotonic()

    before = time.process_time()
    wall_s, samples = ServerClient(url).load(
        prompts,
        concurrency=concurrency,
        output_tokens=output_tokens,
        sampling=Sampling(),
        clock=clock if flat_out else time.monotonic,
        request_timeout_s=_TIMEOUT_S,
        deadline_s=_TIMEOUT_S,
    )
    cpu_s = time.process_time() - before
    errors = {sample.error for sample in samples if sample.error is not None}
    if errors:
        raise SystemExit(f"requests failed: {errors}")
    return Load(
        wall_s=wall_s,
        cpu_s=cpu_s,
        load_cpu_s=load_ended_at - before if flat_out else cpu_s,
        streams=lambda: [
            Stream(
                asked_s=sample.sent_s,
                times_s=tuple(at for at, _ in sample.arrivals),
                tokens=tuple(tokens for _, tokens in sample.arrivals),
            )
            for sample in samples
        ],
    )


def reference(url: str, *, concurrency: int, requests: int, output_tokens: int, flat_out: bool) -> Load:  # noqa: ARG001
    """Load the server with the floor of all clients."""
    params = {"max_new_tokens": output_tokens, "ignore_eos": True, "temperature": 0.0}
    body = json.dumps({"text": _TEXT, "sampling_params": params, "stream": True}).encode()
    began, before = time.monotonic(), time.process_time()
    seen = asyncio.run(reference_client.load(url, body, concurrency=concurrency, requests=requests))
    cpu_s, wall_s = time.process_time() - before, time.monotonic() - began
    return Load(
        wall_s=wall_s,
        cpu_s=cpu_s,
        load_cpu_s=cpu_s,
        streams=lambda: [
            Stream(asked_s=one.sent_s, times_s=tuple(one.times_s), tokens=tuple(one.tokens)) for one in seen
        ],
    )


def main() -> None:
    """Read the command line, load, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("client", choices=["ours", "reference"])
    parser.add_argument("url")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--requests", type=int, default=2)
    parser.add_argument("--output-tokens", type=int, default=201)
    parser.add_argument("--flat-out", action="store_true", help="the server has no schedule: tell the cost alone")
    parser.add_argument("--core", type=int, help="run on this core only")
    args = parser.parse_args()
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    run = ours if args.client == "ours" else reference
    called_s = time.monotonic()
    load = run(
        args.url,
        concurrency=args.concurrency,
        requests=args.requests,
        output_tokens=args.output_tokens,
        flat_out=args.flat_out,
    )
    told = dataclasses.replace(
        Figures() if args.flat_out else figures(load.streams()),
        cpu_s=load.cpu_s,
        load_cpu_s=load.load_cpu_s,
        wall_s=load.wall_s,
        called_s=called_s,
    )
    sys.stdout.write(json.dumps(dataclasses.asdict(told)) + "\n")


if __name__ == "__main__":
    main()
