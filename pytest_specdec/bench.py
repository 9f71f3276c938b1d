"""Rounds: passes over a workload, each after a cache flush that is checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from pytest_specdec.clock import Clock
from pytest_specdec.errors import ServerRequestError
from pytest_specdec.model import Measurement, Prompt, RequestSample, Round, Sampling

#: A stream slower than this many tokens a second is given up; with a margin for queueing and the first token.
_SLOWEST_TOK_S: Final = 1.0
PATIENCE_S: Final = 120.0


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


def _went_wrong(before: Round | None) -> str:
    """What a server that no longer answers did in the round before."""
    failed = [sample for sample in before.requests if sample.error is not None] if before is not None else []
    if before is None or not failed:
        return ""
    return (
        f"; {len(failed)} of {len(before.requests)} requests of the round before had failed, the first, "
        f"{failed[0].prompt_id}: {failed[0].error}"
    )


def measure(
    server: Loadable,
    measurement: Measurement,
    *,
    rounds: int,
    warmup: int,
    flush: bool = True,
    clock: Clock,
    on_round: Callable[[Round], None],
    patience_s: float = PATIENCE_S,
) -> tuple[tuple[Round, ...], tuple[Round, ...]]:
    """Run warm-up rounds, then measured rounds; return both.

    The cache is flushed before every round (unless ``flush`` is off); a flush that the server refuses raises
    :class:`pytest_specdec.errors.ServerRequestError`. ``on_round`` is called as each round ends, so that it is
    written before the next can fail. A request is given up after ``patience_s`` and a second for each token.
    """
    prompts = prompts_of_a_round(measurement.workload.prompts, measurement.concurrency)
    stream_s = measurement.output_tokens / _SLOWEST_TOK_S
    turns = math.ceil(len(prompts) / measurement.concurrency)

    before: Round | None = None

    def one(index: int, *, is_warmup: bool) -> Round:
        nonlocal before
        if flush:
            try:
                server.flush_cache()
            except ServerRequestError as error:
                raise ServerRequestError(f"{error}{_went_wrong(before)}") from None
        started_unix_s = clock.time()
        wall_s, samples = server.load(
            prompts,
            concurrency=measurement.concurrency,
            output_tokens=measurement.output_tokens,
            sampling=measurement.sampling,
            clock=clock.monotonic,
            request_timeout_s=patience_s + stream_s,
            deadline_s=patience_s + stream_s * turns,
        )
        done = Round(index=index, warmup=is_warmup, started_unix_s=started_unix_s, wall_s=wall_s, requests=samples)
        on_round(done)
        before = done
        return done

    warm = tuple(one(index, is_warmup=True) for index in range(warmup))
    measured = tuple(one(index, is_warmup=False) for index in range(rounds))
    return warm, measured
