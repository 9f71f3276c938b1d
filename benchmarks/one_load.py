"""One load of our client, or of the raw reference client, in a process of its own: prints its figures as JSON.

python benchmarks/one_load.py ours http://127.0.0.1:31000 --concurrency 16 --requests 32 --output-tokens 201
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import resource
import sys
import time
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import reference_client
from benchmarks.paced import Figures, Stream, figures
from pytest_specdec.client import ServerClient
from pytest_specdec.model import Prompt, Sampling

_TIMEOUT_S = 120.0


def ours(url: str, *, concurrency: int, requests: int, output_tokens: int) -> tuple[float, list[Stream]]:
    """Load the server as a measurement does; return the wall time (s) and what was seen."""
    prompts = [Prompt(id=f"p{i}", category="c", text="The quick brown fox " * 4) for i in range(requests)]
    wall_s, samples = ServerClient(url).load(
        prompts,
        concurrency=concurrency,
        output_tokens=output_tokens,
        sampling=Sampling(),
        clock=time.monotonic,
        request_timeout_s=_TIMEOUT_S,
        deadline_s=_TIMEOUT_S,
    )
    errors = {sample.error for sample in samples if sample.error is not None}
    if errors:
        raise SystemExit(f"requests failed: {errors}")
    return wall_s, [
        Stream(
            asked_s=sample.sent_s,
            times_s=tuple(at for at, _ in sample.arrivals),
            tokens=tuple(tokens for _, tokens in sample.arrivals),
        )
        for sample in samples
    ]


def reference(url: str, *, concurrency: int, requests: int, output_tokens: int) -> tuple[float, list[Stream]]:
    """Load the server with the floor of all clients."""
    params = {"max_new_tokens": output_tokens, "ignore_eos": True, "temperature": 0.0}
    body = {"text": "The quick brown fox " * 4, "sampling_params": params, "stream": True}
    began = time.monotonic()
    seen = asyncio.run(
        reference_client.load(url, json.dumps(body).encode(), concurrency=concurrency, requests=requests)
    )
    streams = [Stream(asked_s=one.sent_s, times_s=tuple(one.times_s), tokens=tuple(one.tokens)) for one in seen]
    return time.monotonic() - began, streams


def main() -> None:
    """Read the command line, load, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("client", choices=["ours", "reference"])
    parser.add_argument("url")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--requests", type=int, default=2)
    parser.add_argument("--output-tokens", type=int, default=201)
    parser.add_argument("--core", type=int, help="run on this core only")
    args = parser.parse_args()
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    run = ours if args.client == "ours" else reference
    called_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    wall_s, streams = run(
        args.url, concurrency=args.concurrency, requests=args.requests, output_tokens=args.output_tokens
    )
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # Flat out, every chunk of an answer may come in one read.
    paced = all(one.times_s[-1] > one.times_s[0] for one in streams)
    told = dataclasses.replace(figures(streams) if paced else Figures(), cpu_s=cpu_s, wall_s=wall_s, called_s=called_s)
    sys.stdout.write(json.dumps(dataclasses.asdict(told)) + "\n")


if __name__ == "__main__":
    main()
