"""One measured round of requests: a closed loop at a concurrency, or an open loop at a request rate.

Nothing is retried: an error is part of the sample. Answers are read after the round, so that reading one does not
delay the time stamps of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from pytest_specdec.answers import answer_text, request_body, sample_of
from pytest_specdec.arrivals import arrival_times
from pytest_specdec.http_stream import Answer, Connection
from pytest_specdec.model import Prompt, RequestSample, Sampling

CONNECT_TIMEOUT_S: Final = 10.0


class _Round:
    """What the requests of one round share: where they go, when the round began, and how long it may take."""

    def __init__(
        self,
        base_url: str,
        *,
        output_tokens: int,
        sampling: Sampling,
        clock: Callable[[], float],
        request_timeout_s: float,
        deadline_s: float,
        headers: Mapping[str, str],
    ) -> None:
        address = urlsplit(base_url)
        self._tls = address.scheme == "https"
        self._host = address.hostname or "127.0.0.1"
        self._port = address.port or (443 if self._tls else 80)
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._head = (
            f"POST {address.path.rstrip('/')}/generate HTTP/1.1\r\nHost: {address.netloc.rpartition('@')[2]}\r\n"
            f"{more}Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: "
        ).encode()
        self._output_tokens = output_tokens
        self._sampling = sampling
        self._request_timeout_s = request_timeout_s
        self._deadline_s = deadline_s
        self._connections: list[Connection] = []
        self._stuck = False
        self.clock = clock
        self.began = clock()

    async def connect(self) -> Connection:
        """Open one more connection; raises OSError or a time-out of asyncio."""
        made = asyncio.get_running_loop().create_connection(
            lambda: Connection(self.clock), self._host, self._port, ssl=True if self._tls else None
        )
        _, connection = await asyncio.wait_for(made, timeout=CONNECT_TIMEOUT_S)
        self._connections.append(connection)
        return connection

    def first_request(self, prompt: Prompt) -> bytes:
        """The request of a prompt's first turn, as bytes."""
        return self._request(prompt.text if prompt.input_ids is None else prompt.input_ids)

    def _request(self, text: str | Sequence[int]) -> bytes:
        body = request_body(text, output_tokens=self._output_tokens, sampling=self._sampling)
        return self._head + str(len(body)).encode() + b"\r\n\r\n" + body

    async def converse(
        self, connection: Connection, prompt: Prompt, request: bytes, answers: list[Answer]
    ) -> Connection:
        """Send a prompt and its further turns, each when the answer before it is whole.

        ``answers`` gets one answer a turn. Returns the connection to use next, a new one where the old had ended.
        """
        so_far = prompt.text
        connection, answer = await self._ask(connection, request)
        answers.append(answer)
        for turn, text in enumerate(prompt.turns, start=1):
            if answer.error is None:
                try:
                    so_far += answer_text(answer) + text
                except ValueError as error:
                    answer = self._not_sent(f"turn {turn} of it: {error}")
                else:
                    connection, answer = await self._ask(connection, self._request(so_far))
            else:
                answer = self._not_sent(f"turn {turn} of it failed")
            answers.append(answer)
        return connection

    async def _ask(self, connection: Connection, request: bytes) -> tuple[Connection, Answer]:
        left_s = self.began + self._deadline_s - self.clock()
        if self._stuck or left_s <= 0:
            why = "an earlier request was not answered in time" if self._stuck else self._past_the_deadline()
            return connection, self._not_sent(why)
        try:
            if not connection.usable:
                connection = await self.connect()
        except (OSError, asyncio.TimeoutError) as error:
            now = self.clock()
            why = str(error) or f"nothing answered within {CONNECT_TIMEOUT_S:g} s"
            return connection, Answer(sent=now, done=now, error=f"no connection: {why}")
        whole_round = left_s < self._request_timeout_s
        answer = await connection.send(
            request,
            timeout_s=left_s if whole_round else self._request_timeout_s,
            late=self._past_the_deadline() if whole_round else f"no whole answer within {self._request_timeout_s:g} s",
        )
        # The round is lost already; a server that hangs must not cost a time-out for each request that is left.
        if answer.timed_out:
            self._stuck = True
        return connection, answer

    def _not_sent(self, why: str) -> Answer:
        now = self.clock()
        return Answer(sent=now, done=now, error=f"not sent: {why}")

    def _past_the_deadline(self) -> str:
        return f"the round did not end within {self._deadline_s:g} s"

    async def wait_until(self, due: float) -> None:
        """Wait until the clock says ``due``; not at all once the round is lost."""
        while not self._stuck and (left_s := min(due, self.began + self._deadline_s) - self.clock()) > 0:
            await asyncio.sleep(left_s)

    def close(self) -> None:
        """Drop every connection."""
        for connection in self._connections:
            connection.close()


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Hold the collector off: a full collection in a large test process stops the clock reading for tens of ms."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


async def run(
    base_url: str,
    prompts: Sequence[Prompt],
    *,
    concurrency: int,
    output_tokens: int,
    sampling: Sampling,
    clock: Callable[[], float],
    request_timeout_s: float,
    deadline_s: float,
    request_rate: float | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> tuple[float, tuple[RequestSample, ...]]:
    """Send every prompt once; return the wall time (s) and the samples, in prompt order and turn by turn.

    Without a ``request_rate`` this is a closed loop: ``concurrency`` at a time, the next when one is done. With one
    (requests/s) it is an open loop: each is due at its own moment (:mod:`pytest_specdec.arrivals`), however late
    the answers before it are, and ``concurrency`` is a cap: a request that finds it reached is sent as soon as it is
    not, and its sample tells by how much (``sent_s - scheduled_s``).

    A prompt with further turns is one conversation: each turn is appended to the text so far and its answer, to the
    letter, and sent when that answer is whole, on the same connection, within the same slot. It has a sample of its
    own.

    Connections are opened before the round begins and kept. A request that takes longer than ``request_timeout_s``,
    or is not done ``deadline_s`` after the round began, is abandoned with that as its error; after one of those, no
    further request is sent.

    Raises:
        OSError: the first connections can't be made (asyncio.TimeoutError: not in time).
    """
    load = _Round(
        base_url,
        output_tokens=output_tokens,
        sampling=sampling,
        clock=clock,
        request_timeout_s=request_timeout_s,
        deadline_s=deadline_s,
        headers=headers,
    )
    requests = [load.first_request(prompt) for prompt in prompts]
    answers: list[list[Answer]] = [[] for _ in prompts]
    due: Sequence[float] | None = None
    try:
        connections = [await load.connect() for _ in range(min(concurrency, len(prompts)))]
        with _no_garbage_collection():
            load.began = clock()
            if request_rate is None:
                await _closed_loop(load, connections, prompts, requests, answers)
            else:
                due = [load.began + at_s for at_s in arrival_times(len(prompts), request_rate)]
                await _open_loop(load, connections, prompts, requests, answers, due)
            wall_s = clock() - load.began
    finally:
        load.close()
    samples = []
    for index, prompt in enumerate(prompts):
        was_due = None if due is None else due[index]
        for turn, answer in enumerate(answers[index], start=1):
            samples.append(sample_of(prompt, answer, began=load.began, turn=turn, due=was_due))
            # A further turn is due when the answer before it is whole.
            was_due = None if due is None else answer.done
    return wall_s, tuple(samples)


async def _closed_loop(
    load: _Round,
    connections: Sequence[Connection],
    prompts: Sequence[Prompt],
    requests: Sequence[bytes],
    answers: Sequence[list[Answer]],
) -> None:
    waiting = iter(range(len(prompts)))

    async def slot(connection: Connection) -> None:
        for index in waiting:
            connection = await load.converse(connection, prompts[index], requests[index], answers[index])

    await asyncio.gather(*(slot(connection) for connection in connections))


async def _open_loop(
    load: _Round,
    connections: Sequence[Connection],
    prompts: Sequence[Prompt],
    requests: Sequence[bytes],
    answers: Sequence[list[Answer]],
    due: Sequence[float],
) -> None:
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for connection in connections:
        free.put_nowait(connection)

    async def one(index: int) -> None:
        connection = await free.get()
        free.put_nowait(await load.converse(connection, prompts[index], requests[index], answers[index]))

    running = []
    for index, at in enumerate(due):
        await load.wait_until(at)
        running.append(asyncio.create_task(one(index)))
    await asyncio.gather(*running)
