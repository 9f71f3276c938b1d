"""Rounds: passes over a workload, each after a cache flush that is checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from pytest_specdec import arrivals
from pytest_specdec.clock import Clock
from pytest_specdec.conversation import as_sent
from pytest_specdec.errors import ServerRefusedError, ServerRequestError
from pytest_specdec.model import ChatTemplate, Measurement, Prompt, RequestSample, Round, Sampling
from pytest_specdec.observed import Seen

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
        request_rate: float | None = None,
    ) -> tuple[float, tuple[RequestSample, ...]]:
        """Send every prompt and its further turns once."""


class Watch(Protocol):
    """What looks at the server and its machine while a round runs."""

    def begin(self) -> None:
        """Let a round begin."""

    def end(self) -> Seen:
        """Return what was seen since then."""


def prompts_of_a_round(measurement: Measurement) -> tuple[Prompt, ...]:
    """Return the prompts of one pass: the workload, repeated (ids ``x#2``) until the concurrency can be reached.

    Repeated prompts share cached prefixes with their first copy, which the cached-tokens rule leaves out. In an
    open loop the concurrency is a cap that need not be reached, and nothing is repeated.
    """
    prompts, concurrency = measurement.workload.prompts, measurement.concurrency
    if measurement.request_rate is not None:
        return prompts
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
    template: ChatTemplate | None = None,
    clock: Clock,
    on_round: Callable[[Round], None],
    watch: Watch | None = None,
    patience_s: float = PATIENCE_S,
) -> tuple[tuple[Round, ...], tuple[Round, ...]]:
    """Run warm-up rounds, then measured rounds; return both. ``template`` is put around the prompts.

    The cache is flushed before every round (unless ``flush`` is off); why a server refuses is told by the round. One
    that does not answer, or refuses after requests have failed, ends the measurement:
    :class:`pytest_specdec.errors.ServerRequestError`. ``on_round`` is called as each round ends, so that it is
    written before the next can fail. ``watch`` begins after the flush and ends with the last answer. A request is
    given up after ``patience_s`` and a second for each token.
    """
    prompts = as_sent(prompts_of_a_round(measurement), template)
    stream_s = measurement.output_tokens / _SLOWEST_TOK_S
    deadline_s = patience_s + stream_s * _answers_in_a_row(prompts, measurement.concurrency)
    if measurement.request_rate is not None:
        deadline_s += arrivals.arrival_times(len(prompts), measurement.request_rate)[-1]

    before: Round | None = None

    def one(index: int, *, is_warmup: bool) -> Round:
        nonlocal before
        flush_error = _flush(server, before) if flush else None
        if watch is not None:
            watch.begin()
        started_unix_s, began_s, cpu_began_s = clock.time(), clock.monotonic(), clock.cpu_s()
        wall_s, samples = server.load(
            prompts,
            concurrency=measurement.concurrency,
            output_tokens=measurement.output_tokens,
            sampling=measurement.sampling,
            clock=clock.monotonic,
            request_timeout_s=patience_s + stream_s,
            deadline_s=deadline_s,
            request_rate=measurement.request_rate,
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
        before = done
        return done

    warm = tuple(one(index, is_warmup=True) for index in range(warmup))
    measured = tuple(one(index, is_warmup=False) for index in range(rounds))
    return warm, measured


def _answers_in_a_row(prompts: Sequence[Prompt], concurrency: int) -> int:
    """How many answers one slot can have to wait for: its share of all, and the rest of its last conversation."""
    turns = [1 + len(prompt.turns) for prompt in prompts]
    return math.ceil(sum(turns) / concurrency) + max(turns) - 1


def _flush(server: Loadable, before: Round | None) -> str | None:
    """Empty the cache; return why the server refused, None when it did not."""
    try:
        server.flush_cache()
    except ServerRequestError as error:
        wrong = _went_wrong(before)
        if wrong or not isinstance(error, ServerRefusedError):
            raise ServerRequestError(f"{error}{wrong}") from None
        return str(error)
    return None
