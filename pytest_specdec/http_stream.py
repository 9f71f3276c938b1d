"""One kept-alive HTTP/1.1 connection and the event stream that comes over it, timed as bytes arrive.

A raw asyncio protocol, because this is what is measured with: a response is a few thousand chunks, the native
route repeats the whole text in each, and a client that parses them all is slower than the server it times.
Here an intermediate chunk costs a search for its token count from the right; what else it says is read after the
round. The figures that chose it are in docs/measuring.md.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

#: In a chunk's JSON this can only be the server's own key: within a text the quotes are escaped.
_COUNT: Final = b'"completion_tokens":'
_HEADER_LIMIT: Final = 64 * 1024
#: How far a chunk's size line is looked for.
_SIZE_LINE_LIMIT: Final = 1024
SHOWN_OF_AN_ANSWER: Final = 300


@dataclass(slots=True)
class Answer:
    """What has been seen of one response; times are the clock's.

    ``times`` and ``tokens`` have an entry a chunk that brought tokens: when it came, and completion tokens so far.
    ``events`` are the payloads needed to know the whole answer: the last alone where each repeats all before it,
    all of them where each holds only what is new.
    """

    sent: float = 0.0
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    events: list[bytes] = field(default_factory=list)
    error: str | None = None
    timed_out: bool = False
    done: float = 0.0

    @property
    def arrivals(self) -> list[tuple[float, int]]:
        """(time, completion tokens so far), a pair a chunk that brought tokens."""
        return list(zip(self.times, self.tokens, strict=True))

    @property
    def last_event(self) -> bytes:
        """The payload of the last event; empty when none came."""
        return self.events[-1] if self.events else b""


class Connection(asyncio.Protocol):
    """One connection, one response at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._finished: asyncio.Future[None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._answer = Answer()
        self._rest = bytearray()  # bytes not yet understood as HTTP
        self._needed = 0  # how many of them there have to be before it is worth another look
        self._body = bytearray()  # bytes of the body not yet understood as events
        self._status = 0
        self._chunked = False
        self._left: int | None = None  # body bytes left without chunking; None: until the connection ends
        self._in_headers = True
        self._keep_alive = True
        self._last: bytes | None = None  # the read that holds the last event, from ... to ...
        self._last_from = self._last_to = 0
        self._keeps_events = False

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
        answer = self._answer
        loop = asyncio.get_running_loop()
        self._finished = loop.create_future()
        deadline = loop.call_later(timeout_s, self._give_up, late)
        answer.sent = self._clock()
        self._transport.write(request)
        try:
            await self._finished
        finally:
            deadline.cancel()
        return answer

    def _give_up(self, late: str) -> None:
        self._answer.timed_out = True
        self._finish(late, self._clock())
        self.close()

    def data_received(self, data: bytes) -> None:
        """Note the time, then read on."""
        now = self._clock()
        if self._finished is None or self._finished.done():
            self.close()  # bytes that no request asked for: what follows could not be told apart
            return
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
            self._rest.clear()
        try:
            at = self._read_headers(data) if self._in_headers else 0
            if self._in_headers:
                self._rest += data
            elif self._chunked:
                self._read_chunks(data, at, now)
            else:
                self._read_plain(data, at, now)
        except ValueError as error:
            self._finish(f"an answer that is not HTTP: {error}", now)
            self.close()

    def _read_headers(self, data: bytes) -> int:
        """Read the head if all of it is there; return where the body begins."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > _HEADER_LIMIT:
                raise ValueError("headers without an end")
            return 0
        lines = data[:end].split(b"\r\n")
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
        self._needed = 0
        return end + 4

    def _read_plain(self, data: bytes, at: int, now: float) -> None:
        self._body += data[at:]
        if self._left is not None:
            self._left -= len(data) - at
        self._read_events(now)
        if self._left is not None and self._left <= 0:
            self._complete(now)

    def _read_chunks(self, data: bytes, at: int, now: float) -> None:
        """Read whole chunks. One event a chunk is the rule, and costs no copy."""
        find = data.find
        size = len(data)
        while True:
            end = find(b"\r\n", at, at + _SIZE_LINE_LIMIT)
            if end < 0:
                if size - at >= _SIZE_LINE_LIMIT:
                    raise ValueError(f"a chunk without a size: {data[at : at + 80]!r}")
                self._needed = 0
                break
            line = data[at:end]
            length = int(line if b";" not in line else line.partition(b";")[0], 16)
            start = end + 2
            stop = start + length
            if size < stop + 2:
                self._needed = stop + 2 - at
                break
            if length == 0:
                self._complete(now)
                return
            # A newline within an event's JSON is escaped: one before the last two means several events, or parts.
            if (
                data.endswith(b"\n\n", start, stop)
                and find(b"\n", start, stop - 2) < 0
                and not self._body
                and self._status == 200
            ):
                self._event(data, start, stop - 2, now)
            else:
                self._body += data[start:stop]
                self._read_events(now)
            at = stop + 2
        if at < size:
            self._rest += data[at:]

    def _read_events(self, now: float) -> None:
        """Take whole events off the body."""
        if self._status != 200:
            return
        body, at = bytes(self._body), 0
        while (end := body.find(b"\n\n", at)) >= 0:
            while at < end and body[at] in b"\r\n ":
                at += 1
            self._event(body, at, end, now)
            at = end + 2
        if at:
            del self._body[:at]

    def _event(self, data: bytes, start: int, stop: int, now: float) -> None:
        """Note one event, ``data[start:stop]``: the hot path, once for every chunk."""
        if not data.startswith(b"data:", start):
            return
        at = data.rfind(_COUNT, start, stop)
        if at >= 0:
            tokens = _number(data, at + len(_COUNT), stop)
            seen = self._answer.tokens
            if tokens > (seen[-1] if seen else 0):
                self._answer.times.append(now)
                seen.append(tokens)
                if len(seen) == 2:
                    self._keeps_events = _holds_only_what_is_new(data[start:stop], tokens)
        elif data.startswith(b"data: [DONE]", start):
            return
        if self._keeps_events:
            self._keep_last()
        self._last, self._last_from, self._last_to = data, start, stop

    def _keep_last(self) -> None:
        if self._last is not None:
            self._answer.events.append(self._last[self._last_from + len(b"data:") : self._last_to].strip())
            self._last = None

    def _complete(self, now: float) -> None:
        if self._status != 200:
            shown = bytes(self._body[:SHOWN_OF_AN_ANSWER]).strip()
            self._finish(f"HTTP {self._status}: {shown.decode(errors='replace')}", now)
        else:
            self._finish(None, now)
        if not self._keep_alive:
            self.close()

    def _finish(self, error: str | None, now: float) -> None:
        if self._finished is None or self._finished.done():
            return
        self._keep_last()
        answer = self._answer
        if not answer.events and self._body:
            # An answer that is no event stream is kept for the message.
            answer.events.append(bytes(self._body[:SHOWN_OF_AN_ANSWER]).strip())
        answer.error, answer.done = error, now
        self._finished.set_result(None)


def _number(data: bytes, at: int, stop: int) -> int:
    """Read the whole number at ``at``; 0 where none is."""
    end = data.find(b",", at, at + 24)
    if 0 <= end < stop:
        try:
            return int(data[at:end])
        except ValueError:
            pass
    digits = re.match(rb"\s*(\d*)", data[at : min(stop, at + 24)])
    return int(digits[1] or 0) if digits else 0


def _holds_only_what_is_new(event: bytes, tokens: int) -> bool:
    """Whether the second event leaves out what the first said, as incremental streaming does."""
    try:
        said: Any = json.loads(event[len(b"data:") :])
        return "output_ids" in said and len(said["output_ids"]) < tokens
    except (ValueError, TypeError):
        return False
