"""The least that a load client can do: kept-alive connections, one read, one search for the token count.

It is the floor that ours is held to, not a client to use: it takes every response for a whole, well-formed one,
has no deadlines, and knows no errors.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

_COUNT: Final = b'"completion_tokens":'


@dataclass(slots=True)
class Seen:
    """One response: when it was asked for, and (time, tokens so far) of its chunks; s of the monotonic clock."""

    sent_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def close(self) -> None:
        self._transport.abort()

    def ask(self, request: bytes) -> tuple[Seen, asyncio.Future[None]]:
        self._seen, self._done = Seen(), asyncio.get_running_loop().create_future()
        self._seen.sent_s = time.monotonic()
        self._transport.write(request)
        return self._seen, self._done

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if self._rest:
            data = self._rest + data
        at = 0
        seen = self._seen
        while (end := data.find(b"\n\n", at)) >= 0:
            count = data.rfind(_COUNT, at, end)
            if count >= 0:
                seen.times_s.append(now)
                seen.tokens.append(int(data[count + len(_COUNT) : data.index(b",", count)]))
            elif data.startswith(b"data: [DONE]", end - 12):
                self._rest = b""
                self._done.set_result(None)
                return
            at = end + 2
        self._rest = data[at:]


async def load(url: str, body: bytes, *, concurrency: int, requests: int) -> list[Seen]:
    """Send the request ``requests`` times, ``concurrency`` at a time."""
    address = urlsplit(url)
    head = f"POST /generate HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    loop = asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(_Connection, address.hostname or "", address.port or 80))[1]
        for _ in range(concurrency)
    ]
    left = iter(range(requests))
    answers = []

    async def slot(connection: _Connection) -> None:
        for _ in left:
            seen, done = connection.ask(request)
            await done
            answers.append(seen)

    await asyncio.gather(*(slot(connection) for connection in connections))
    for connection in connections:
        connection.close()
    return answers
