"""Rounds: passes over a workload, each after a cache flush that is checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from pytest_specdec.clock import Clock
from pytest_specdec.errors import ServerRequestError
from pytest_specdec.model import Measurement, Prompt, RequestSample, Round, Sampling
from pytest_specdec.observed import Seen

#: A stream slower than this many tokens a second is given up; with a margin for queueing and the first token.
_SLOWEST_TOK_S: Final = 1.0
_PATIENCE_S: Final = 120.0


class Loadable(Protocol):
    """What a round needs of a server: :class:`pytest_specdec.client.ServerClient`, or a fake of it."""

    def flush_cache(self) -> None:
        """Empty the prefix cache or raise."""

    def load(
        self,
        prompts: Sequence[Prompt],
        *,
        concurrency: int,
        output_tokens: int,
        sampling: Sampling,
        clock: Callable[[], float],
        request_timeout_s: float,
        deadline_s: float,
    ) -> tuple[float, tuple[RequestSample, ...]]:
        """Send every prompt once."""


class Watch(Protocol):
    """What looks at the server and its machine while a round runs."""

    def begin(self) -> None:
        """Let a round begin."""

    def end(self) -> Seen:
        """Return what was seen since then."""


def prompts_of_a_round(prompts: Sequence[Prompt], concurrency: int) -> tuple[Prompt, ...]:
    """Return the prompts of one pass: the workload, repeated (ids ``x#2``) until the concurrency can be reached.

    Repeated prompts share cached prefixes with their first copy, which the cached-tokens rule leaves out.
    """
    sent = list(prompts)
    copy = 2
    while len(sent) < concurrency:
        sent += [dataclasses.replace(prompt, id=f"{prompt.id}#{copy}") for prompt in prompts]
        copy += 1
    return tuple(sent)


def measure(
    server: Loadable,
    measurement: Measurement,
    *,
    rounds: int,
    warmup: int,
    flush: bool = True,
    clock: Clock,
    on_round: Callable[[Round], None],
    watch: Watch | None = None,
) -> tuple[tuple[Round, ...], tuple[Round, ...]]:
    """Run warm-up rounds, then measured rounds; return both.

    The cache is flushed before every round (unless ``flush`` is off); why a server refuses is told by the round.
    ``on_round`` is called as each round ends, so that it is written before the next can fail. ``watch`` begins after
    the flush and ends with the last answer.
    """
    prompts = prompts_of_a_round(measurement.workload.prompts, measurement.concurrency)
    stream_s = measurement.output_tokens / _SLOWEST_TOK_S
    turns = math.ceil(len(prompts) / measurement.concurrency)

    def one(index: int, *, is_warmup: bool) -> Round:
        flush_error = _flushed(server) if flush else None
        if watch is not None:
            watch.begin()
        started_unix_s, began_s, cpu_began_s = clock.time(), clock.monotonic(), clock.cpu_s()
        wall_s, samples = server.load(
            prompts,
            concurrency=measurement.concurrency,
            output_tokens=measurement.output_tokens,
            sampling=measurement.sampling,
            clock=clock.monotonic,
            request_timeout_s=_PATIENCE_S + stream_s,
            deadline_s=_PATIENCE_S + stream_s * turns,
        )
        passed_s, cpu_s = clock.monotonic() - began_s, clock.cpu_s() - cpu_began_s
        seen = Seen() if watch is None else watch.end()
        done = Round(
            index=index,
            warmup=is_warmup,
            started_unix_s=started_unix_s,
            wall_s=wall_s,
            requests=samples,
            flush_error=flush_error,
            client_cpu_share=cpu_s / passed_s if passed_s > 0 else None,
            log=seen.log,
            gpu=seen.gpu,
        )
        on_round(done)
        return done

    warm = tuple(one(index, is_warmup=True) for index in range(warmup))
    measured = tuple(one(index, is_warmup=False) for index in range(rounds))
    return warm, measured


def _flushed(server: Loadable) -> str | None:
    """Why the cache could not be emptied; None when it was."""
    try:
        server.flush_cache()
    except ServerRequestError as error:
        return str(error)
    return None
