"""The load client: streamed ``/generate`` over kept-alive connections, timed as bytes arrive.

A raw asyncio protocol, because this is what is measured with: a response is a few thousand chunks, the native
route repeats the whole text in each, and a client that parses them all is slower than the server it times.
Here an intermediate chunk costs a search for its token count from the right; the last one is parsed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from pytest_specdec.model import Prompt, RequestSample, Sampling

#: In a chunk's JSON this can only be the server's own key: within a text the quotes are escaped.
_COUNT: Final = b'"completion_tokens":'
#: Where the histogram of right drafts is, by SGLang version: 0.5.12 and later, then 0.5.9.
_HISTOGRAMS: Final = ("spec_correct_drafts_histogram", "spec_accept_histogram", "accept_histogram")
_HEADER_LIMIT: Final = 64 * 1024


def request_body(prompt: Prompt, *, output_tokens: int, sampling: Sampling) -> bytes:
    """Return the JSON body of one measured request: exactly ``output_tokens`` tokens, streamed."""
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
    return json.dumps({"text": prompt.text, "sampling_params": params, "stream": True}).encode()


@dataclass(slots=True)
class _Answer:
    """What has been seen of one response; times are the clock's."""

    sent: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    last_event: bytes = b""
    error: str | None = None
    done: float = 0.0


class _Connection(asyncio.Protocol):
    """One kept-alive HTTP/1.1 connection, one response at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._finished: asyncio.Future[None] | None = None
        self._answer = _Answer()
        self._reset()

    def _reset(self) -> None:
        self._buffer = bytearray()  # bytes not yet understood as HTTP
        self._body = bytearray()  # bytes of the body not yet understood as events
        self._status = 0
        self._chunked = False
        self._left: int | None = None  # body bytes left without chunking; None: until the connection ends
        self._chunk_left = -1  # bytes left of the current chunk; -1: its size line comes next
        self._in_headers = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._finished is not None and not self._finished.done():
            if not self._in_headers and not self._chunked and self._left is None:
                self._finish(None)
            else:
                self._finish(f"the connection ended in the middle of the answer ({exc or 'closed by the server'})")

    @property
    def usable(self) -> bool:
        """Whether another request can be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    async def send(self, head: bytes, body: bytes) -> _Answer:
        """Send one request and return what its answer was, an error included."""
        assert self._transport is not None
        self._reset()
        self._answer = answer = _Answer()
        self._finished = asyncio.get_running_loop().create_future()
        answer.sent = self._clock()
        self._transport.write(head + body)
        await self._finished
        return answer

    def data_received(self, data: bytes) -> None:
        now = self._clock()
        self._buffer += data
        try:
            self._advance(now)
        except ValueError as error:
            self._finish(f"an answer that is not HTTP: {error}")
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
            self._answer.done = now
            if self._status != 200:
                self._finish(f"HTTP {self._status}: {bytes(self._body[:300]).decode(errors='replace')}")
            else:
                self._finish(None)

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
        tokens = int(event[at:end])
        if tokens > (answer.arrivals[-1][1] if answer.arrivals else 0):
            answer.arrivals.append((now, tokens))

    def _finish(self, error: str | None) -> None:
        self._answer.error = self._answer.error or error
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)


async def closed_loop(
    base_url: str,
    prompts: Sequence[Prompt],
    *,
    concurrency: int,
    output_tokens: int,
    sampling: Sampling,
    clock: Callable[[], float],
    request_timeout_s: float,
) -> tuple[float, tuple[RequestSample, ...]]:
    """Send every prompt once, ``concurrency`` at a time; return the wall time and the samples in prompt order.

    Connections are opened before the first request and kept. Nothing is retried: an error is part of the
    sample. A request that takes longer than ``request_timeout_s`` is abandoned with that as its error.
    """
    address = urlsplit(base_url)
    host, port = address.hostname or "127.0.0.1", address.port or 80
    head = (
        f"POST /generate HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        "Accept: text/event-stream\r\nContent-Length: "
    ).encode()
    bodies = [request_body(prompt, output_tokens=output_tokens, sampling=sampling) for prompt in prompts]
    samples: list[RequestSample | None] = [None] * len(prompts)
    waiting = iter(range(len(prompts)))
    loop = asyncio.get_running_loop()

    async def connect() -> _Connection:
        _, connection = await asyncio.wait_for(
            loop.create_connection(lambda: _Connection(clock), host, port), timeout=10
        )
        return connection

    connections = [await connect() for _ in range(min(concurrency, len(prompts)))]
    began = clock()

    async def slot(connection: _Connection) -> None:
        for index in waiting:
            prompt, body = prompts[index], bodies[index]
            try:
                if not connection.usable:
                    connection = await connect()
                answer = await asyncio.wait_for(
                    connection.send(head + str(len(body)).encode() + b"\r\n\r\n", body), request_timeout_s
                )
            except (OSError, asyncio.TimeoutError) as error:
                connection.close()
                answer = _Answer(sent=clock(), done=clock())
                timed_out = isinstance(error, asyncio.TimeoutError)
                answer.error = f"no answer within {request_timeout_s:g} s" if timed_out else f"no connection: {error}"
            samples[index] = _sample(prompt, answer, began)
        connection.close()

    try:
        await asyncio.gather(*(slot(connection) for connection in connections))
    finally:
        for connection in connections:
            connection.close()
    wall_s = clock() - began
    return wall_s, tuple(sample for sample in samples if sample is not None)


def _sample(prompt: Prompt, answer: _Answer, began: float) -> RequestSample:
    arrivals = tuple((at - began, tokens) for at, tokens in answer.arrivals)
    first, last = (arrivals[0], arrivals[-1]) if arrivals else ((0.0, 0), (0.0, 0))
    empty = RequestSample(
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
    if answer.error is not None:
        return empty
    return _with_server_facts(empty, answer.last_event)


def _with_server_facts(sample: RequestSample, event: bytes) -> RequestSample:
    """Fill in what the last event says; an answer without tokens or with an error in it is an error."""
    try:
        final = json.loads(event) if event else {}
    except json.JSONDecodeError as error:
        return dataclasses.replace(sample, error=f"the last event is no JSON: {error}")
    if "error" in final:
        return dataclasses.replace(sample, error=f"the server says {json.dumps(final['error'])[:300]}")
    meta = final.get("meta_info")
    if not isinstance(meta, dict) or not sample.arrivals:
        return dataclasses.replace(sample, error=f"an answer without tokens: {event[:200].decode(errors='replace')}")
    histogram = next((meta[name] for name in _HISTOGRAMS if meta.get(name) is not None), None)
    reason = meta.get("finish_reason")
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
