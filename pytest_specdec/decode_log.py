"""What a server's log says while it serves: its decode lines, of every version, and what spoils a round.

Lines are read as ``key: value`` pairs: their order, their number and their punctuation change between versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from pytest_specdec.logwatch import clean
from pytest_specdec.observed import DecodeLine, LogSpan

_DECODE: Final = re.compile(r"Decode batch(?: \[\d+\])?[.,]? (?P<pairs>.*)")
_PREFILL: Final = re.compile(r"Prefill batch")
#: Before 0.4.2: "Decode out of memory happened."
_RETRACTION: Final = re.compile(r"Retract requests\..*|Decode out of memory happened.*#retracted_reqs.*")
_RESTART: Final = re.compile(r"The server is fired up and ready to roll!|Started server process \[\d+\]")
_RANKS: Final = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?((?: [A-Z_]+\d+)*)\]")
#: CUDA's; a CPU or an NPU has graphs of its own.
_GRAPH: Final = "cuda graph"


def parse(text: str) -> LogSpan:
    """Read what was written during one round.

    The first decode line of each rank counts the time before the round in, idle as a rule, and so does a line after a
    prefill that prefill's: neither is steady.
    """
    decode: list[DecodeLine] = []
    retractions: list[str] = []
    restarts = 0
    mixed: dict[str, bool] = {}
    for line in clean(text).splitlines():
        ranks = _ranks(line)
        rank = next((word for word in ranks if re.fullmatch(r"DP\d+", word)), "")
        if found := _DECODE.search(line):
            # Every rank of a tensor-parallel group has the same batch.
            if rank or not any(re.fullmatch(r"TP[1-9]\d*", word) for word in ranks):
                decode.append(_line(found["pairs"], rank, steady=not mixed.get(rank, True)))
                mixed[rank] = False
        elif _PREFILL.search(line):
            mixed[rank] = True
        elif told := _RETRACTION.search(line):
            retractions.append(told[0])
        elif _RESTART.search(line):
            restarts += 1
    return LogSpan(decode=tuple(decode), retractions=tuple(retractions), restarts=restarts)


def _ranks(line: str) -> list[str]:
    found = _RANKS.search(line)
    return found[1].split() if found else []


def _line(pairs: str, rank: str, *, steady: bool) -> DecodeLine:
    values = dict(pair.split(": ", 1) for pair in pairs.split(", ") if ": " in pair)
    graph = values.get(_GRAPH)
    return DecodeLine(
        rank=rank,
        running=int(_number(values.get("#running-req")) or 0),
        queued=None if (queued := _number(values.get("#queue-req"))) is None else int(queued),
        tok_s=_number(values.get("gen throughput (token/s)")),
        accept_length=_number(values.get("accept len")),
        cuda_graph=None if graph is None else graph.strip(" ,") == "True",
        steady=steady,
    )


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text.strip(" ,"))
    except ValueError:
        return None


def decode_tok_s(lines: Iterable[DecodeLine]) -> float | None:
    """Return the server's own decode throughput a stream (tok/s) over its steady lines; None without any.

    A line stands for the same number of steps whatever its rate, so a stream got ``accept_length`` tokens a step in
    ``accept_length x running / tok_s`` seconds: sums of both, and their quotient.
    """
    steady = [line for line in lines if line.steady and line.tok_s and line.running]
    tokens = sum(line.accept_length or 1.0 for line in steady)
    seconds = sum((line.accept_length or 1.0) * line.running / line.tok_s for line in steady if line.tok_s)
    return tokens / seconds if seconds else None


def accept_length(lines: Iterable[DecodeLine]) -> float | None:
    """Return the server's own tokens a verify step over all lines, weighted by requests; None where it isn't told."""
    told = [(line.accept_length, line.running) for line in lines if line.accept_length and line.running]
    weight = sum(running for _, running in told)
    return sum(length * running for length, running in told) / weight if weight else None
