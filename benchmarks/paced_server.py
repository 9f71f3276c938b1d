"""A server shaped like SGLang 0.5.23 that sends tokens on a known schedule: the ground truth for load clients.

A client is judged by what was really sent: every request's own send times are kept, and told by ``GET
/admin/schedule``. They are this machine's monotonic clock, read just before the bytes are handed to the kernel.

    python benchmarks/paced_server.py --port 31000 --ttft-ms 50 --step-ms 10 --tokens-per-chunk 3

``POST /admin/config`` changes the pace (the fields of :class:`Pace`) for requests that come after it, and forgets
what was recorded. One process, one thread, no library: a server on a core of its own is ahead of most clients.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

#: Bytes handed over at once when there is no schedule; the kernel's buffers do the rest.
_FLOOD_BYTES: Final = 64 * 1024
_PROMPT_TOKENS: Final = 16
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_LAST: Final = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The schedule: first chunk after ``ttft_ms``, then ``tokens_per_chunk`` tokens every ``step_ms``.

    Deadlines are absolute: a late chunk does not move those after it. ``flat_out`` sends as fast as the client
    reads. ``incremental`` sends what is new in each chunk, as ``--incremental-streaming-output`` does, instead of
    everything so far. ``drafting`` reports verify steps; ``metrics`` what ``--enable-metrics`` adds.
    """

    ttft_ms: float = 50.0
    step_ms: float = 10.0
    tokens_per_chunk: int = 1
    first_chunk_tokens: int = 1
    incremental: bool = False
    flat_out: bool = False
    drafting: bool = True
    metrics: bool = False


@dataclass(slots=True)
class Sent:
    """What one request was sent: seconds of the monotonic clock, and completion tokens so far, a pair a chunk."""

    route: str
    received_s: float
    due_s: list[float] = field(default_factory=list)
    sent_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


def counts(total: int, pace: Pace) -> list[int]:
    """Completion tokens after each chunk of an answer of ``total`` tokens."""
    steps = list(range(min(pace.first_chunk_tokens, total), total, pace.tokens_per_chunk))
    return [*steps, total]


def _word(i: int) -> str:
    return f" w{(i * 7919) % 997}"


def _token(i: int) -> int:
    return (i * 2654435761) % 31990 + 5


@functools.lru_cache(maxsize=8)
def native_events(total: int, pace: Pace) -> list[bytes]:
    """The events of ``/generate``, each cut off before its ``meta_info`` ends: the last gets more at its time."""
    events, before = [], 0
    for tokens in counts(total, pace):
        start = before if pace.incremental else 0
        answer: dict[str, Any] = {
            "text": "".join(map(_word, range(start, tokens))),
            "output_ids": [_token(i) for i in range(start, tokens)],
            "meta_info": {
                "id": "b5cbb3b8a8d04c6a8a1f8f0d3c5e7a91",
                "finish_reason": {"type": "length", "length": total} if tokens == total else None,
                "prompt_tokens": _PROMPT_TOKENS,
                "weight_version": "default",
                "total_retractions": 0,
                "completion_tokens": tokens,
                "cached_tokens": 0,
                "cached_tokens_details": None,
                "dp_rank": None,
            },
        }
        events.append(json.dumps(answer, separators=(",", ":")).encode()[:-2])
        before = tokens
    return events


@functools.lru_cache(maxsize=8)
def chat_events(total: int, pace: Pace) -> list[bytes]:
    """The events of ``/v1/chat/completions`` with a usage in each, for clients that know no other route."""
    events, before = [], 0
    for tokens in counts(total, pace):
        answer = {
            "id": "b5cbb3b8a8d04c6a8a1f8f0d3c5e7a91",
            "object": "chat.completion.chunk",
            "created": 1_800_000_000,
            "model": "paced",
            "choices": [
                {
                    "index": 0,
                    "delta": {"role": "assistant", "content": "".join(map(_word, range(before, tokens)))},
                    "finish_reason": "length" if tokens == total else None,
                }
            ],
            "usage": {
                "prompt_tokens": _PROMPT_TOKENS,
                "completion_tokens": tokens,
                "total_tokens": _PROMPT_TOKENS + tokens,
            },
        }
        events.append(json.dumps(answer, separators=(",", ":")).encode()[:-1])
        before = tokens
    return events


@functools.lru_cache(maxsize=8)
def framed(total: int, pace: Pace, route: str) -> list[bytes]:
    """The chunks on the wire of every event but the last, which is not known before its time."""
    events = native_events(total, pace) if route == "native" else chat_events(total, pace)
    return [frame(event + (b"}}" if route == "native" else b"}")) for event in events[:-1]]


def frame(event: bytes) -> bytes:
    """One event as one HTTP chunk."""
    return b"%x\r\ndata: %b\n\n\r\n" % (len(event) + 8, event)


def final_meta(pace: Pace, sent: Sent, now: float) -> dict[str, Any]:
    """What SGLang adds to ``meta_info`` in the last chunk."""
    steps = len(sent.tokens) - 1
    meta: dict[str, Any] = {"e2e_latency": now - sent.received_s}
    if pace.drafting:
        accepted = sent.tokens[-1] - sent.tokens[0] - steps
        meta["spec_verify_ct"] = steps
        meta["spec_accept_length"] = sent.tokens[-1] / steps if steps else 0.0
        meta["spec_num_correct_drafts"] = accepted
        meta["spec_correct_drafts_histogram"] = [0] * (pace.tokens_per_chunk - 1) + [steps]
    if pace.metrics and not pace.flat_out:
        elapsed_s = now - sent.sent_s[0]
        meta["queue_time"] = 0.0
        meta["first_token_latency"] = sent.sent_s[0] - sent.received_s
        meta["decode_throughput"] = (sent.tokens[-1] - 1) / elapsed_s if elapsed_s > 0 else None
    return meta


class PacedServer:
    """The state that connections share: the pace, and what was sent."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.sent: list[Sent] = []

    def configure(self, change: dict[str, Any]) -> None:
        """Take fields of :class:`Pace`; raises TypeError for one that it does not have."""
        self.pace = dataclasses.replace(self.pace, **change)
        self.sent = []

    def schedule(self) -> dict[str, Any]:
        """What ``/admin/schedule`` tells: each request's times, and how late the server itself was (ms)."""
        late = sorted(
            (at - due) * 1000 for one in self.sent for at, due in zip(one.sent_s, one.due_s, strict=False) if due
        )
        return {
            "pace": dataclasses.asdict(self.pace),
            "requests": [dataclasses.asdict(one) for one in self.sent],
            "lateness_ms": {
                "mean": sum(late) / len(late),
                "p99": late[int(0.99 * (len(late) - 1))],
                "max": late[-1],
            }
            if late
            else None,
        }

    def info(self) -> dict[str, Any]:
        """``/server_info``, as much of it as load clients read."""
        return {
            "model_path": "paced",
            "served_model_name": "paced",
            "version": "0.5.23",
            "speculative_algorithm": "EAGLE3" if self.pace.drafting else None,
            "incremental_streaming_output": self.pace.incremental,
            "internal_states": [{"avg_spec_accept_length": float(self.pace.tokens_per_chunk)}],
        }


class Connection(asyncio.Protocol):
    """One client's connection: requests one after another, each with its schedule."""

    def __init__(self, server: PacedServer) -> None:
        self._server = server
        self._received = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._more: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop, as are the next four."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._flowing = True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """End the stream."""
        self._more = None
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        """The client is behind."""
        self._flowing = False

    def resume_writing(self) -> None:
        """Go on, without a schedule."""
        self._flowing = True
        if self._more is not None:
            self._more()

    def data_received(self, data: bytes) -> None:
        """Read requests."""
        now = time.monotonic()
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            lines = bytes(self._received[:end]).split(b"\r\n")
            headers = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])
            }
            length = int(headers.get(b"content-length", b"0"))
            if len(self._received) < end + 4 + length:
                if headers.get(b"expect") == b"100-continue":
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            body = bytes(self._received[end + 4 : end + 4 + length])
            del self._received[: end + 4 + length]
            method, path, _ = lines[0].decode().split(" ", 2)
            self._answer(method, path.partition("?")[0], body, now)

    def _whole(self, body: object, status: str = "200 OK") -> None:
        raw = json.dumps(body, separators=(",", ":")).encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
        self._transport.write(head.encode() + raw)

    def _answer(self, method: str, path: str, body: bytes, now: float) -> None:
        server = self._server
        asked = f"{method} {path}"
        if asked in ("POST /generate", "POST /v1/chat/completions"):
            self._generate("native" if path == "/generate" else "chat", json.loads(body), now)
        elif path in ("/server_info", "/get_server_info"):
            self._whole(server.info())
        elif path in ("/health", "/health_generate", "/flush_cache"):
            self._whole({})
        elif path == "/v1/models":
            self._whole({"object": "list", "data": [{"id": "paced", "object": "model"}]})
        elif path == "/admin/schedule":
            self._whole(server.schedule())
        elif asked == "POST /admin/config":
            try:
                server.configure(json.loads(body))
            except TypeError as error:
                self._whole({"error": str(error)}, "400 Bad Request")
            else:
                self._whole(dataclasses.asdict(server.pace))
        else:
            self._whole({"detail": "Not Found"}, "404 Not Found")

    def _generate(self, route: str, request: dict[str, Any], now: float) -> None:
        pace = self._server.pace
        if route == "native":
            total = int(request.get("sampling_params", {}).get("max_new_tokens", 128))
        else:
            total = int(request.get("max_completion_tokens") or request.get("max_tokens") or 128)
        sent = Sent(route=route, received_s=now, tokens=counts(total, pace))
        self._server.sent.append(sent)
        if not request.get("stream"):
            prompts = request.get("text", request.get("input_ids"))
            copies = len(prompts) if isinstance(prompts, list) and isinstance(prompts[0], (str, list)) else None
            wait_s = 0.0 if pace.flat_out else (pace.ttft_ms + pace.step_ms * (len(sent.tokens) - 1)) / 1000
            self._timer = asyncio.get_running_loop().call_at(
                now + wait_s, self._whole_answer, pace, sent, total, copies, wait_s
            )
            return
        self._transport.write(_STREAM_HEAD)
        chunks = framed(total, pace, route)
        if pace.flat_out:
            self._at = 0
            self._more = functools.partial(self._flood, chunks, pace, sent, total)
            self._more()
        else:
            self._step(0, now + pace.ttft_ms / 1000, chunks, pace, sent, total)

    def _whole_answer(self, pace: Pace, sent: Sent, total: int, copies: int | None, wait_s: float) -> None:
        """Answer a request that is not streamed, once for each prompt that it carries."""
        sent.due_s, sent.sent_s = [sent.received_s + wait_s], [time.monotonic()]
        event = native_events(total, dataclasses.replace(pace, incremental=False))[-1]
        answer = json.loads(event + b"}}")
        answer["meta_info"] |= final_meta(pace, sent, sent.sent_s[0])
        self._whole(answer if copies is None else [answer] * copies)

    def _step(self, index: int, due: float, chunks: list[bytes], pace: Pace, sent: Sent, total: int) -> None:
        """Wait for the deadline of a chunk."""
        self._timer = asyncio.get_running_loop().call_at(due, self._send, index, due, chunks, pace, sent, total)

    def _send(self, index: int, due: float, chunks: list[bytes], pace: Pace, sent: Sent, total: int) -> None:
        now = time.monotonic()
        if index == len(chunks):
            sent.due_s.append(due)
            sent.sent_s.append(now)
            self._transport.write(self._last(pace, sent, total, now))
            return
        self._transport.write(chunks[index])
        sent.due_s.append(due)
        sent.sent_s.append(now)
        self._step(index + 1, due + pace.step_ms / 1000, chunks, pace, sent, total)

    def _last(self, pace: Pace, sent: Sent, total: int, now: float) -> bytes:
        if sent.route == "native":
            meta = json.dumps(final_meta(pace, sent, now), separators=(",", ":")).encode()
            return frame(native_events(total, pace)[-1] + b"," + meta[1:] + b"}") + _LAST
        return frame(chat_events(total, pace)[-1] + b"}") + _LAST

    def _flood(self, chunks: list[bytes], pace: Pace, sent: Sent, total: int) -> None:
        """Write until the client is behind; only the first and the last time are kept."""
        now = time.monotonic()
        if self._at == 0:
            sent.sent_s = [now]
        while self._flowing and self._at < len(chunks):
            size, end = 0, self._at
            while end < len(chunks) and size < _FLOOD_BYTES:
                size += len(chunks[end])
                end += 1
            self._transport.write(b"".join(chunks[self._at : end]))
            self._at = end
        if self._at == len(chunks):
            self._more = None
            sent.sent_s.append(now := time.monotonic())
            self._transport.write(self._last(pace, sent, total, now))


async def serve(pace: Pace, host: str, port: int, ready: Callable[[int], None], *, until_stdin_ends: bool) -> None:
    """Serve until told to end by a signal, or by the end of standard input; ``ready`` is given the port."""
    state = PacedServer(pace)
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: Connection(state), host, port, backlog=1024)
    ready(listening.sockets[0].getsockname()[1])
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if until_stdin_ends:

        def look() -> None:
            if not os.read(sys.stdin.fileno(), 4096):
                ended.set()

        loop.add_reader(sys.stdin.fileno(), look)
    await ended.wait()
    listening.close()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=31000, help="0: any free one, printed")
    parser.add_argument("--core", type=int, help="run on this core only")
    parser.add_argument("--until-stdin-ends", action="store_true", help="end with whoever started it")
    for pace_field in dataclasses.fields(Pace):
        name = "--" + pace_field.name.replace("_", "-")
        if isinstance(pace_field.default, bool):
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=pace_field.default)
        else:
            parser.add_argument(name, type=type(pace_field.default), default=pace_field.default)
    args = vars(parser.parse_args())
    host, port, core = args.pop("host"), args.pop("port"), args.pop("core")
    until_stdin_ends = args.pop("until_stdin_ends")
    if core is not None:
        os.sched_setaffinity(0, {core})

    def ready(at: int) -> None:
        sys.stdout.write(f"listening on http://{host}:{at}\n")
        sys.stdout.flush()

    # select() waits to the microsecond; epoll, asyncio's choice, rounds up to the millisecond.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(serve(Pace(**args), host, port, ready, until_stdin_ends=until_stdin_ends))


if __name__ == "__main__":
    main()
