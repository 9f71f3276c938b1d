"""Rounds: passes over a workload, each after a cache flush that is checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from pytest_specdec.clock import Clock
from pytest_specdec.conversation import as_sent
from pytest_specdec.model import ChatTemplate, Measurement, Prompt, RequestSample, Round, Sampling

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
        """Send every prompt and its further turns once."""


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
    template: ChatTemplate | None = None,
    clock: Clock,
    on_round: Callable[[Round], None],
) -> tuple[tuple[Round, ...], tuple[Round, ...]]:
    """Run warm-up rounds, then measured rounds; return both. ``template`` is put around the prompts.

    The cache is flushed before every round (unless ``flush`` is off); a flush that the server refuses raises
    :class:`pytest_specdec.errors.ServerRequestError`. ``on_round`` is called as each round ends, so that it is
    written before the next can fail.
    """
    prompts = prompts_of_a_round(as_sent(measurement.workload.prompts, template), measurement.concurrency)
    stream_s = measurement.output_tokens / _SLOWEST_TOK_S
    answers = sum(1 + len(prompt.turns) for prompt in prompts)
    # The last conversation may begin when all others are done.
    in_a_row = math.ceil(answers / measurement.concurrency) + max(len(prompt.turns) for prompt in prompts)

    def one(index: int, *, is_warmup: bool) -> Round:
        if flush:
            server.flush_cache()
        started_unix_s = clock.time()
        wall_s, samples = server.load(
            prompts,
            concurrency=measurement.concurrency,
            output_tokens=measurement.output_tokens,
            sampling=measurement.sampling,
            clock=clock.monotonic,
            request_timeout_s=_PATIENCE_S + stream_s,
            deadline_s=_PATIENCE_S + stream_s * in_a_row,
        )
        done = Round(index=index, warmup=is_warmup, started_unix_s=started_unix_s, wall_s=wall_s, requests=samples)
        on_round(done)
        return done

    warm = tuple(one(index, is_warmup=True) for index in range(warmup))
    measured = tuple(one(index, is_warmup=False) for index in range(rounds))
    return warm, measured
