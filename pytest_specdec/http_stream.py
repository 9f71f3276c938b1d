"""The load client: streamed ``/generate`` over kept-alive connections, timed as bytes arrive.

A raw asyncio protocol, because this is what is measured with: a response is a few thousand chunks, the native
route repeats the whole text in each, and a client that parses them all is slower than the server it times.
Here an intermediate chunk costs a search for its token count from the right; the last one is parsed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from pytest_specdec.model import Prompt, RequestSample, Sampling

#: In a chunk's JSON this can only be the server's own key: within a text the quotes are escaped.
_COUNT: Final = b'"completion_tokens":'
#: Where the histogram of right drafts is, by SGLang version: 0.5.12 and later, then 0.5.9.
_HISTOGRAMS: Final = ("spec_correct_drafts_histogram", "spec_accept_histogram", "accept_histogram")
_HEADER_LIMIT: Final = 64 * 1024
_SHOWN_OF_AN_ANSWER: Final = 300
CONNECT_TIMEOUT_S: Final = 10.0


def request_body(prompt: Prompt, *, output_tokens: int, sampling: Sampling) -> bytes:
    """Return the JSON body of one measured request: exactly ``output_tokens`` tokens, streamed.

    Of a prompt with several turns it is the first; see :mod:`pytest_specdec.conversation` for what follows.
    """
    params: dict[str, Any] = {
        "max_new_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
    }
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    words = {"text": prompt.text} if prompt.input_ids is None else {"input_ids": prompt.input_ids}
    return json.dumps({**words, "sampling_params": params, "stream": True}).encode()


@dataclass(slots=True)
class Answer:
    """What has been seen of one response; times are the clock's, ``arrivals`` are (time, tokens so far)."""

    sent: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    last_event: bytes = b""
    error: str | None = None
    timed_out: bool = False
    done: float = 0.0


class Connection(asyncio.Protocol):
    """One kept-alive HTTP/1.1 connection, one response at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._finished: asyncio.Future[None] | None = None
        self._answer = Answer()
        self._reset()

    def _reset(self) -> None:
        self._buffer = bytearray()  # bytes not yet understood as HTTP
        self._body = bytearray()  # bytes of the body not yet understood as events
        self._status = 0
        self._chunked = False
        self._left: int | None = None  # body bytes left without chunking; None: until the connection ends
        self._chunk_left = -1  # bytes left of the current chunk; -1: its size line comes next
        self._in_headers = True
        self._keep_alive = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop, as are the next two."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer: whole, if it was to last until the connection ends."""
        self._transport = None
        if not self._in_headers and not self._chunked and self._left is None:
            self._complete(self._clock())
        else:
            self._finish(
                f"the connection ended in the middle of the answer ({exc or 'closed by the server'})", self._clock()
            )

    @property
    def usable(self) -> bool:
        """Whether another request can be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    async def send(self, request: bytes, *, timeout_s: float, late: str) -> Answer:
        """Send one request and return what its answer was, an error included; ``late`` is the one of a time-out."""
        assert self._transport is not None
        self._reset()
        self._answer = answer = Answer()
        self._finished = asyncio.get_running_loop().create_future()
        answer.sent = self._clock()
        self._transport.write(request)
        try:
            await asyncio.wait_for(self._finished, timeout_s)
        except asyncio.TimeoutError:
            answer.error, answer.done, answer.timed_out = late, self._clock(), True
            self.close()
        return answer

    def data_received(self, data: bytes) -> None:
        """Note the time, then read on."""
        now = self._clock()
        if self._finished is None or self._finished.done():
            self.close()  # bytes that no request asked for: what follows could not be told apart
            return
        self._buffer += data
        try:
            self._advance(now)
        except ValueError as error:
            self._finish(f"an answer that is not HTTP: {error}", now)
            self.close()

    def _advance(self, now: float) -> None:
        if self._in_headers and not self._read_headers():
            return
        if self._chunked:
            ended = self._read_chunks()
        else:
            self._body += self._buffer
            if self._left is not None:
                self._left -= len(self._buffer)
            self._buffer.clear()
            ended = self._left is not None and self._left <= 0
        self._read_events(now)
        if ended:
            self._complete(now)

    def _complete(self, now: float) -> None:
        shown = bytes(self._body[:_SHOWN_OF_AN_ANSWER]).strip()
        if self._status != 200:
            self._finish(f"HTTP {self._status}: {shown.decode(errors='replace')}", now)
        else:
            # An answer that is no event stream is kept for the message.
            self._answer.last_event = self._answer.last_event or shown
            self._finish(None, now)
        if not self._keep_alive:
            self.close()

    def _read_headers(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _HEADER_LIMIT:
                raise ValueError("headers without an end")
            return False
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        version, _, rest = lines[0].partition(b" ")
        if not version.startswith(b"HTTP/1."):
            raise ValueError(f"status line {lines[0][:80]!r}")
        self._status = int(rest[:3])
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            key = name.strip().lower()
            if key == b"transfer-encoding":
                self._chunked = b"chunked" in value.lower()
            elif key == b"content-length":
                self._left = int(value)
            elif key == b"connection":
                self._keep_alive = value.strip().lower() != b"close"
        self._in_headers = False
        return True

    def _read_chunks(self) -> bool:
        """Move whole chunks into the body; True at the last one."""
        buffer, at = self._buffer, 0
        try:
            while True:
                if self._chunk_left < 0:
                    end = buffer.find(b"\r\n", at)
                    if end < 0:
                        return False
                    self._chunk_left = int(bytes(buffer[at:end]).split(b";")[0], 16)
                    at = end + 2
                size = self._chunk_left
                if len(buffer) - at < size + 2:
                    return False
                self._body += buffer[at : at + size]
                at += size + 2
                self._chunk_left = -1
                if size == 0:
                    return True
        finally:
            del buffer[:at]

    def _read_events(self, now: float) -> None:
        if self._status != 200:
            return
        body, at = self._body, 0
        while (end := body.find(b"\n\n", at)) >= 0:
            self._event(bytes(body[at:end]).strip(), now)
            at = end + 2
        if at:
            del body[:at]

    def _event(self, event: bytes, now: float) -> None:
        if not event.startswith(b"data:") or event == b"data: [DONE]":
            return
        answer = self._answer
        answer.last_event = event[5:].strip()
        at = event.rfind(_COUNT)
        if at < 0:
            return
        at += len(_COUNT)
        end = at
        while end < len(event) and (event[end] == 0x20 or 0x30 <= event[end] <= 0x39):
            end += 1
        tokens = int(event[at:end].strip() or b"0")
        if tokens > (answer.arrivals[-1][1] if answer.arrivals else 0):
            answer.arrivals.append((now, tokens))

    def _finish(self, error: str | None, now: float) -> None:
        if self._finished is not None and not self._finished.done():
            self._answer.error, self._answer.done = error, now
            self._finished.set_result(None)


class _Round:
    """What the requests of one round share: where they go, when the round began, and how long it may take.

    It sends a request when it is told to, on the connection it is told: when that is, and on how many
    connections, is the caller's (a closed loop below; an open loop would send at set times).
    """

    def __init__(
        self,
        base_url: str,
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
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._deadline_s = deadline_s
        self._connections: list[Connection] = []
        self._stuck = False
        self.began = clock()

    async def connect(self) -> Connection:
        """Open one more connection; raises OSError or a time-out of asyncio."""
        made = asyncio.get_running_loop().create_connection(
            lambda: Connection(self._clock), self._host, self._port, ssl=True if self._tls else None
        )
        _, connection = await asyncio.wait_for(made, timeout=CONNECT_TIMEOUT_S)
        self._connections.append(connection)
        return connection

    async def ask(
        self, connection: Connection, prompt: Prompt, body: bytes
    ) -> tuple[Connection, RequestSample, Answer]:
        """Send one request; return the connection to use next (a new one if the old had ended), sample and answer."""
        left_s = self.began + self._deadline_s - self._clock()
        if self._stuck or left_s <= 0:
            now = self._clock()
            why = "an earlier request was not answered in time" if self._stuck else self._past_the_deadline()
            return self._seen(connection, prompt, Answer(sent=now, done=now, error=f"not sent: {why}"))
        try:
            if not connection.usable:
                connection = await self.connect()
        except (OSError, asyncio.TimeoutError) as error:
            now = self._clock()
            why = str(error) or f"nothing answered within {CONNECT_TIMEOUT_S:g} s"
            return self._seen(connection, prompt, Answer(sent=now, done=now, error=f"no connection: {why}"))
        whole_round = left_s < self._request_timeout_s
        answer = await connection.send(
            self._head + str(len(body)).encode() + b"\r\n\r\n" + body,
            timeout_s=left_s if whole_round else self._request_timeout_s,
            late=self._past_the_deadline() if whole_round else f"no whole answer within {self._request_timeout_s:g} s",
        )
        # The round is lost already; a server that hangs must not cost a time-out for each request that is left.
        if answer.timed_out:
            self._stuck = True
        return self._seen(connection, prompt, answer)

    def _seen(self, connection: Connection, prompt: Prompt, answer: Answer) -> tuple[Connection, RequestSample, Answer]:
        return connection, _sample(prompt, answer, self.began), answer

    def _past_the_deadline(self) -> str:
        return f"the round did not end within {self._deadline_s:g} s"

    def close(self) -> None:
        """Drop every connection."""
        for connection in self._connections:
            connection.close()


async def closed_loop(
    base_url: str,
    prompts: Sequence[Prompt],
    *,
    concurrency: int,
    output_tokens: int,
    sampling: Sampling,
    clock: Callable[[], float],
    request_timeout_s: float,
    deadline_s: float,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> tuple[float, tuple[RequestSample, ...]]:
    """Send every prompt once, ``concurrency`` at a time; return the wall time (s) and the samples in prompt order.

    The turns of a prompt follow one another, each after the answer to the one before, with a sample for each.
    Connections are opened before the round begins and kept. Nothing is retried: an error is part of the sample.
    A request that takes longer than ``request_timeout_s``, or is not done ``deadline_s`` after the round began,
    is abandoned with that as its error; after one of those, no further request is sent.

    Raises:
        OSError: the first connections can't be made (asyncio.TimeoutError: not in time).
    """
    bodies = [request_body(prompt, output_tokens=output_tokens, sampling=sampling) for prompt in prompts]
    samples: list[list[RequestSample]] = [[] for _ in prompts]
    waiting = iter(range(len(prompts)))
    load = _Round(base_url, clock, request_timeout_s, deadline_s, headers)

    async def slot(connection: Connection) -> None:
        for index in waiting:
            prompt, body = prompts[index], bodies[index]
            connection, sample, answer = await load.ask(connection, prompt, body)
            samples[index].append(sample)
            for turn, words in enumerate(prompt.turns, start=2):
                so_far = _text_of(answer, sample)
                if so_far is None:
                    samples[index].append(_not_sent(prompt, turn, clock() - load.began))
                    continue
                prompt = dataclasses.replace(prompt, text=prompt.text + so_far + words)
                body = request_body(prompt, output_tokens=output_tokens, sampling=sampling)
                connection, sample, answer = await load.ask(connection, prompt, body)
                sample = dataclasses.replace(sample, turn=turn)
                samples[index].append(sample)

    try:
        connections = [await load.connect() for _ in range(min(concurrency, len(prompts)))]
        load.began = clock()
        await asyncio.gather(*(slot(connection) for connection in connections))
        wall_s = clock() - load.began
    finally:
        load.close()
    return wall_s, tuple(sample for of_prompt in samples for sample in of_prompt)


def _text_of(answer: Answer, sample: RequestSample) -> str | None:
    """The whole text of an answer, None when it failed or the server streams increments."""
    if sample.error is not None:
        return None
    final = json.loads(answer.last_event)
    whole = not sample.output_ids or len(sample.output_ids) == sample.completion_tokens
    return final["text"] if whole and isinstance(final.get("text"), str) else None


def _not_sent(prompt: Prompt, turn: int, at_s: float) -> RequestSample:
    why = f"not sent: the answer to turn {turn - 1} failed, or its whole text is not known (--stream-output)"
    return dataclasses.replace(_sample(prompt, Answer(sent=at_s, done=at_s, error=why), 0.0), turn=turn)


def _sample(prompt: Prompt, answer: Answer, began: float) -> RequestSample:
    """Make a sample of an answer. One without a token has its end for the times of its tokens."""
    arrivals = tuple((at - began, tokens) for at, tokens in answer.arrivals)
    first, last = (arrivals[0], arrivals[-1]) if arrivals else ((answer.done - began, 0),) * 2
    seen = RequestSample(
        prompt_id=prompt.id,
        category=prompt.category,
        sent_s=answer.sent - began,
        first_token_s=first[0],
        last_token_s=last[0],
        done_s=answer.done - began,
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=last[1],
        first_chunk_tokens=first[1],
        chunks=len(arrivals),
        verify_steps=None,
        accept_histogram=None,
        finish_reason=None,
        server_e2e_s=None,
        output_ids=(),
        error=answer.error,
        arrivals=arrivals,
    )
    return seen if answer.error is not None else _with_server_facts(seen, answer.last_event)


def _with_server_facts(sample: RequestSample, event: bytes) -> RequestSample:
    """Fill in what the last event says; an answer without tokens, aborted or with an error in it is an error."""
    shown = event[:_SHOWN_OF_AN_ANSWER].decode(errors="replace")
    try:
        final = json.loads(event) if event else {}
    except ValueError as error:
        return dataclasses.replace(sample, error=f"the last event is no JSON ({error}): {shown}")
    if not isinstance(final, dict) or not isinstance(final.get("meta_info"), dict) or not sample.arrivals:
        if isinstance(final, dict) and "error" in final:
            said = json.dumps(final["error"], ensure_ascii=False)[:_SHOWN_OF_AN_ANSWER]
            return dataclasses.replace(sample, error=f"the server says {said}")
        return dataclasses.replace(sample, error=f"an answer without tokens: {shown or 'nothing'}")
    meta = final["meta_info"]
    reason = meta.get("finish_reason")
    if isinstance(reason, dict) and reason.get("type") == "abort":
        return dataclasses.replace(sample, error=f"the server aborted it: {reason.get('message') or 'no reason given'}")
    histogram = next((meta[name] for name in _HISTOGRAMS if meta.get(name) is not None), None)
    try:
        return dataclasses.replace(
            sample,
            prompt_tokens=int(meta.get("prompt_tokens") or 0),
            cached_tokens=int(meta.get("cached_tokens") or 0),
            verify_steps=None if meta.get("spec_verify_ct") is None else int(meta["spec_verify_ct"]),
            accept_histogram=None if histogram is None else tuple(int(count) for count in histogram),
            finish_reason=reason.get("type") if isinstance(reason, dict) else reason,
            server_e2e_s=meta.get("e2e_latency"),
            output_ids=tuple(final.get("output_ids") or ()),
        )
    except (TypeError, ValueError) as error:
        return dataclasses.replace(sample, error=f"meta_info can't be read: {error}")
