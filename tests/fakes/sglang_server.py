"""A real HTTP server in a thread, shaped like SGLang 0.5.23: it answers at once, and misbehaves on request."""

from __future__ import annotations

import json
import socket
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, final

_GIVE_UP_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """How ``/generate`` answers. Counts named ``..._after`` are events already sent."""

    first_chunk_tokens: int = 1
    tokens_per_chunk: int = 3
    prompt_tokens: int = 7
    cached_tokens: int = 0
    drafting: bool = True
    #: The final chunk's spec_verify_ct; None: as many as there were chunks after the first.
    verify_steps: int | None = None
    histogram_key: str = "spec_correct_drafts_histogram"
    histogram: tuple[int, ...] | None = (0, 0, 5)
    #: Without it a drafting server says nothing about its drafts.
    spec_fields: bool = True
    stop_at: int | None = None
    finish_reason: dict[str, Any] | None = None
    status: int = 200
    body_of_error: bytes = b'{"error":{"message":"The input is too long","code":400}}'
    error_after: int | None = None
    drop_after: int | None = None
    hang_after: int | None = None
    #: Bytes a write: events are cut anywhere.
    cut_bytes: int | None = None
    close_after: bool = False
    chunked: bool = True


@dataclass(slots=True)
class Seen:
    """What was asked of the server."""

    generate: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    connections: int = 0
    running: int = 0
    most_running: int = 0


@final
class FakeSGLang:
    """Serves on a free port of this machine while the ``with`` block lasts."""

    def __init__(self, answers: Answers | None = None) -> None:
        self.answers = answers or Answers()
        #: Answers to single prompts, by their text.
        self.by_text: dict[str, Answers] = {}
        self.info: dict[str, Any] = {"version": "0.5.23", "model_path": "/models/tiny", "internal_states": [{}]}
        #: Status and body by "METHOD /path", in place of the usual answer.
        self.instead: dict[str, tuple[int, bytes]] = {}
        #: As many streams have to run at once before any of them is answered.
        self.together = threading.Barrier(1)
        self.seen = Seen()
        self.failures: list[str] = []
        self.released = threading.Event()
        self.lock = threading.Lock()

    def __enter__(self) -> FakeSGLang:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.fake = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        assert not self.failures, self.failures

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    fake: FakeSGLang

    def handle_error(self, request: Any, client_address: Any) -> None:
        told = traceback.format_exc()
        if "ConnectionError" not in told and "BrokenPipe" not in told and "ConnectionReset" not in told:
            self.fake.failures.append(told)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.server.fake.lock:
            self.server.fake.seen.connections += 1

    def log_message(self, *_: object) -> None:
        pass

    def whole(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.route("GET", b"")

    def do_POST(self) -> None:
        self.route("POST", self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def route(self, method: str, body: bytes) -> None:
        fake, asked = self.server.fake, f"{method} {self.path}"
        fake.seen.paths.append(asked)
        if asked in fake.instead:
            self.whole(*fake.instead[asked])
        elif asked == "GET /server_info":
            self.whole(200, json.dumps(fake.info).encode())
        elif asked == "GET /health":
            self.whole(200, b"")
        elif self.path == "/flush_cache":
            self.whole(200, b"Cache flushed.\n")
        elif asked == "POST /generate":
            self.generate(json.loads(body))
        else:
            self.whole(404, b'{"detail":"Not Found"}')

    def generate(self, request: dict[str, Any]) -> None:
        fake = self.server.fake
        answers = fake.by_text.get(request.get("text", ""), fake.answers)
        with fake.lock:
            fake.seen.generate.append(request)
            fake.seen.running += 1
            fake.seen.most_running = max(fake.seen.most_running, fake.seen.running)
        try:
            fake.together.wait(_GIVE_UP_S)
            if answers.status != 200:
                self.whole(answers.status, answers.body_of_error)
            elif request.get("stream"):
                self.stream(request, answers)
            else:
                self.whole(200, list(events(request, answers))[-1])
        finally:
            with fake.lock:
                fake.seen.running -= 1

    def stream(self, request: dict[str, Any], answers: Answers) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        if answers.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        if answers.close_after or not answers.chunked:
            self.send_header("Connection", "close")
        self.end_headers()
        for sent, event in enumerate(events(request, answers)):
            if sent == answers.error_after:
                self.event(b'{"error":{"message":"out of pages","code":400}}', answers)
                break
            if sent == answers.drop_after:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            if sent == answers.hang_after:
                self.server.fake.released.wait(_GIVE_UP_S)
                self.close_connection = True
                return
            self.event(event, answers)
        self.event(b"[DONE]", answers)
        if answers.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def event(self, payload: bytes, answers: Answers) -> None:
        data = b"data: " + payload + b"\n\n"
        if answers.chunked:
            data = f"{len(data):x}\r\n".encode() + data + b"\r\n"
        size = answers.cut_bytes or len(data)
        for at in range(0, len(data), size):
            self.wfile.write(data[at : at + size])


def output_ids(text: str, count: int) -> list[int]:
    """What the model of this server says to a prompt: the same each time, and different from prompt to prompt."""
    seed = sum(map(ord, text))
    return [(seed * 31 + i * 17 + i * i) % 500 for i in range(count)]


def events(request: dict[str, Any], answers: Answers) -> Iterator[bytes]:
    """The payloads of a stream: each repeats the whole text and all ids, the last holds what was drafted."""
    wanted = int(request["sampling_params"]["max_new_tokens"])
    total = wanted if answers.stop_at is None else answers.stop_at
    ids = output_ids(str(request.get("text", request.get("input_ids"))), total)
    done, verified = min(answers.first_chunk_tokens, total), 0
    while True:
        finished = done == total
        usual = {"type": "length", "length": total} if total == wanted else {"type": "stop", "matched": 2}
        meta: dict[str, Any] = {
            "id": "5f3",
            "finish_reason": (answers.finish_reason or usual) if finished else None,
            "prompt_tokens": answers.prompt_tokens,
            "completion_tokens": done,
            "cached_tokens": answers.cached_tokens,
        }
        if finished:
            meta["e2e_latency"] = 0.25
            if answers.drafting and answers.spec_fields:
                meta["spec_verify_ct"] = verified if answers.verify_steps is None else answers.verify_steps
                meta[answers.histogram_key] = answers.histogram
        # A text that looks like a count, as a model asked about this very API would write it.
        answer = {"text": '"completion_tokens":9999, ' * done, "output_ids": ids[:done], "meta_info": meta}
        yield json.dumps(answer, separators=(",", ":")).encode()
        if finished:
            return
        done = min(done + answers.tokens_per_chunk, total)
        verified += 1
