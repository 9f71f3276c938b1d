"""One kept-alive HTTP/1.1 connection and the event stream that comes over it, timed as bytes arrive.

A raw asyncio protocol, because this is what is measured with: a response is a few thousand chunks, the native
route repeats the whole text in each, and a client that parses them all is slower than the server it times.
Here an intermediate chunk costs a search for its token count from the right; what else it says is read after the
round. The figures that chose it are in docs/measuring.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

#: In a chunk's JSON this can only be the server's own key: within a text the quotes are escaped.
_COUNT: Final = b'"completion_tokens":'
_HEADER_LIMIT: Final = 64 * 1024
_COUNT_LENGTH: Final = len(_COUNT)
_MOST_DIGITS: Final = 20
_NUMBER: Final = re.compile(rb"\s*(\d+)")
_RETURN: Final = 0x0D
_COMMA: Final = 0x2C
_NEWLINE: Final = 0x0A
#: How far a chunk's size line is looked for.
_SIZE_LINE_LIMIT: Final = 1024
SHOWN_OF_AN_ANSWER: Final = 300


@dataclass(slots=True)
class Answer:
    """What has been seen of one response; times are the clock's.

    ``times`` and ``tokens`` have an entry a chunk that brought tokens: when it came, and completion tokens so far.
    ``kept`` are the parts of the body needed to know the whole answer, as they came: the last event alone where each
    repeats all before it, all of them where each holds only what is new.
    """

    sent: float = 0.0
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    kept: list[bytes | memoryview] = field(default_factory=list)
    error: str | None = None
    timed_out: bool = False
    done: float = 0.0

    @property
    def arrivals(self) -> list[tuple[float, int]]:
        """(time, completion tokens so far), a pair a chunk that brought tokens."""
        return list(zip(self.times, self.tokens, strict=True))

    @property
    def payloads(self) -> list[bytes]:
        """The events without what the protocols put around them; an answer without events is one as it is."""
        parts = [bytes(part) for part in self.kept]
        lines = [line for part in parts for line in part.split(b"\n")]
        return [line[len(b"data:") :].strip() for line in lines if line.startswith(b"data:")] or parts


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
        self._digits = 3  # of a chunk's size line, most likely
        self._last: bytes | None = None  # the last event, where it is not kept in the answer yet
        self._keeps_events = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop, as are the next two."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer: whole, if it was to last until the connection ends."""
        self._transport = None
        if self._finished is None or self._finished.done():
            return
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
        """Read whole chunks, and keep what is left of the last."""
        size = len(data)
        while at < size:
            # From the third event on it is known whether events repeat all before them.
            if len(self._answer.tokens) >= 2 and not self._body and self._status == 200:
                at = self._read_plain_events(data, at, now)
            start, length = self._read_size(data, at)
            if length < 0 or size < start + length + 2:
                self._needed = start + length + 2 - at
                self._rest += data[at:]
                return
            if length == 0:
                self._complete(now)
                return
            self._body += data[start : start + length]
            self._read_events(now)
            at = start + length + 2

    @staticmethod
    def _read_size(data: bytes, at: int) -> tuple[int, int]:
        """Where the chunk at ``at`` begins, and its length; (``at``, -1) when its size line is not whole."""
        end = data.find(b"\r\n", at, at + _SIZE_LINE_LIMIT)
        if end < 0:
            if len(data) - at >= _SIZE_LINE_LIMIT:
                raise ValueError(f"a chunk without a size: {data[at : at + 80]!r}")
            return at, -1
        length = int(data[at:end].partition(b";")[0], 16)
        if length < 0:
            raise ValueError(f"a chunk of the size {data[at:end]!r}")
        return end + 2, length

    def _read_plain_events(self, data: bytes, at: int, now: float) -> int:
        """Read on as long as each chunk is one event with a count: the hot path. Returns where that ends.

        Nothing is copied or parsed but two numbers. A size line is mostly as long as the one before, and a count
        too, so that is looked at first. A newline within an event's JSON is escaped: one before the last two means
        that the chunk is not one event.
        """
        counts, size = self._answer.tokens, len(data)
        find, rfind = data.find, data.rfind
        note, began = counts.append, at
        last_at = at
        before, digits, count_digits = counts[-1], self._digits, 0
        with contextlib.suppress(ValueError):  # a size line that is not whole, or says more than a size
            while True:
                end = at + digits
                if end >= size or data[end] != _RETURN:
                    end = find(b"\r\n", at, at + _SIZE_LINE_LIMIT)
                    if end < 0:
                        break
                    digits = end - at
                start = end + 2
                stop = start + int(data[at:end], 16)
                if size < stop + 2 or find(b"\n", start, stop) != stop - 2 or data[stop - 1] != _NEWLINE:
                    break
                number = rfind(_COUNT, start, stop) + _COUNT_LENGTH
                if number < start + _COUNT_LENGTH:
                    break
                comma = number + count_digits
                if comma >= stop or data[comma] != _COMMA:
                    comma = find(b",", number, min(number + _MOST_DIGITS, stop))
                    if comma < 0:
                        break
                    count_digits = comma - number
                tokens = int(data[number:comma])
                if tokens > before:
                    note(tokens)
                    before = tokens
                last_at = at
                at = stop + 2
        self._digits = digits
        self._note_times(now)
        if at > began:
            if self._keeps_events:
                self._answer.kept.append(memoryview(data)[began:at])
            else:
                self._last = data[last_at:at]
        return at

    def _note_times(self, now: float) -> None:
        """Give the counts that have no time yet the time of this read."""
        times = self._answer.times
        times.extend([now] * (len(self._answer.tokens) - len(times)))

    def _read_events(self, now: float) -> None:
        """Take whole events off the body."""
        if self._status != 200:
            return
        body, at = bytes(self._body), 0
        while (end := body.find(b"\n\n", at)) >= 0:
            self._event(body[at:end].strip(), now)
            at = end + 2
        if at:
            del self._body[:at]

    def _event(self, event: bytes, now: float) -> None:
        """Note one event, whatever it is."""
        if not event.startswith(b"data:") or event.startswith(b"data: [DONE]"):
            return
        if (at := event.rfind(_COUNT)) >= 0:
            number = _NUMBER.match(event, at + _COUNT_LENGTH)
            tokens = int(number[1]) if number else 0
            counts = self._answer.tokens
            if tokens > (counts[-1] if counts else 0):
                self._answer.times.append(now)
                counts.append(tokens)
                if len(counts) == 2:
                    self._keeps_events = _holds_only_what_is_new(event, tokens)
        if self._keeps_events:
            self._keep_last()
            self._answer.kept.append(event)
        else:
            self._last = event

    def _keep_last(self) -> None:
        if self._last is not None:
            self._answer.kept.append(self._last)
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
        if not answer.kept and self._body:
            # An answer that is no event stream is kept for the message.
            answer.kept.append(bytes(self._body[:SHOWN_OF_AN_ANSWER]).strip())
        answer.error, answer.done = error, now
        self._finished.set_result(None)


def _holds_only_what_is_new(event: bytes, tokens: int) -> bool:
    """Whether the second event leaves out what the first said, as incremental streaming does."""
    try:
        said: Any = json.loads(event[len(b"data:") :])
        return "output_ids" in said and len(said["output_ids"]) < tokens
    except (ValueError, TypeError):
        return False
