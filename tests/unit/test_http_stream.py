from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pytest_specdec.http_stream import Answer, Connection


class Wire(asyncio.Transport):
    """The other end is the test."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.ended

    def abort(self) -> None:
        self.ended = True


class Now:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def read(*reads: tuple[float, bytes], cut_off_at: float | None = None) -> tuple[Answer, Connection]:
    """Let an answer arrive in these reads, each at its time; then perhaps end the connection."""

    async def main() -> tuple[Answer, Connection]:
        now = Now()
        connection = Connection(now)
        connection.connection_made(Wire())
        asked = asyncio.create_task(connection.send(b"request", timeout_s=5, late="late"))
        await asyncio.sleep(0)
        for now.s, data in reads:
            connection.data_received(data)
        if cut_off_at is not None:
            now.s = cut_off_at
            connection.connection_lost(None)
        return await asked, connection

    return asyncio.run(main())


def event(tokens: int, **more: Any) -> bytes:
    return b"data: " + json.dumps({"text": "", "meta_info": {"completion_tokens": tokens, **more}}).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = chunk(b"data: [DONE]\n\n") + chunk(b"")


def test_the_times_are_those_of_the_reads_that_complete_an_event() -> None:
    first, second = chunk(event(2)), chunk(event(6))

    answer, _ = read((0.5, HEAD), (1.0, first[:20]), (1.25, first[20:]), (2.0, second), (2.5, LAST))

    assert answer.arrivals == [(1.25, 2), (2.0, 6)]
    assert (answer.sent, answer.done, answer.error) == (0.0, 2.5, None)


def test_several_events_of_one_read_are_told_apart() -> None:
    answer, _ = read((1.0, HEAD + chunk(event(1) + event(4)) + chunk(event(7))), (1.5, LAST))

    assert answer.arrivals == [(1.0, 1), (1.0, 4), (1.0, 7)]


def test_an_answer_cut_in_two_anywhere_reads_the_same() -> None:
    whole = HEAD + chunk(event(1)) + chunk(event(4, finish_reason={"type": "length"})) + LAST

    for cut in range(1, len(whole)):
        answer, _ = read((1.0, whole[:cut]), (1.0, whole[cut:]))
        assert (answer.error, answer.arrivals) == (None, [(1.0, 1), (1.0, 4)]), f"cut after {cut} bytes"
        assert json.loads(answer.payloads[-1])["meta_info"]["completion_tokens"] == 4


def test_an_answer_that_comes_byte_by_byte_reads_the_same() -> None:
    whole = HEAD + chunk(event(1)) + chunk(event(4)) + LAST

    answer, _ = read(*((1.0, whole[i : i + 1]) for i in range(len(whole))))

    assert (answer.error, answer.arrivals) == (None, [(1.0, 1), (1.0, 4)])


def test_a_chunk_that_brings_no_token_is_no_arrival() -> None:
    answer, _ = read((1.0, HEAD + chunk(event(0))), (2.0, chunk(event(3))), (3.0, chunk(event(3)) + LAST))

    assert answer.arrivals == [(2.0, 3)]


def test_a_count_that_the_model_wrote_is_not_taken_for_the_servers() -> None:
    text = 'The API says "completion_tokens":77, and so on'
    data = b"data: " + json.dumps({"meta_info": {"completion_tokens": 5}, "text": text}).encode() + b"\n\n"

    answer, _ = read((1.0, HEAD + chunk(data) + LAST))

    assert answer.arrivals == [(1.0, 5)]


def test_a_connection_that_ends_in_mid_answer_is_an_error() -> None:
    answer, connection = read((1.0, HEAD + chunk(event(1))), cut_off_at=1.5)

    assert answer.error == "the connection ended in the middle of the answer (closed by the server)"
    assert answer.arrivals == [(1.0, 1)]
    assert answer.done == 1.5
    assert not connection.usable


def test_a_body_without_a_length_lasts_until_the_connection_ends() -> None:
    answer, _ = read((1.0, b"HTTP/1.1 200 OK\r\n\r\n" + event(1)), (2.0, event(4)), cut_off_at=2.5)

    assert (answer.error, answer.arrivals, answer.done) == (None, [(1.0, 1), (2.0, 4)], 2.5)


def test_a_refusal_without_a_length_is_an_error_too() -> None:
    answer, _ = read((1.0, b"HTTP/1.1 503 Busy\r\n\r\nno room"), cut_off_at=2.0)

    assert answer.error == "HTTP 503: no room"


def test_what_is_not_http_is_an_error_that_shows_it() -> None:
    answer, connection = read((1.0, b"SSH-2.0-OpenSSH_9.6\r\n\r\n"))

    assert answer.error == "an answer that is not HTTP: status line b'SSH-2.0-OpenSSH_9.6'"
    assert not connection.usable


def test_headers_without_an_end_are_refused() -> None:
    answer, _ = read((1.0, b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000))

    assert answer.error == "an answer that is not HTTP: headers without an end"


@pytest.mark.parametrize(("header", "usable"), [(b"", True), (b"Connection: close\r\n", False)])
def test_a_connection_is_kept_unless_the_server_closes_it(header: bytes, usable: bool) -> None:
    _, connection = read((1.0, b"HTTP/1.1 200 OK\r\n" + header + b"content-length: 0\r\n\r\n"))

    assert connection.usable is usable


def test_bytes_that_nobody_asked_for_end_the_connection_and_leave_the_answer_alone() -> None:
    answer, connection = read((1.0, HEAD + chunk(event(1)) + LAST), (2.0, chunk(event(9))))

    assert (answer.arrivals, answer.done) == ([(1.0, 1)], 1.0)
    assert not connection.usable


def test_a_stream_of_increments_is_kept_whole() -> None:
    first, second, third = [
        b"data: " + json.dumps({"output_ids": ids, "meta_info": {"completion_tokens": count}}).encode() + b"\n\n"
        for ids, count in [([5], 1), ([6, 7], 3), ([8], 4)]
    ]

    answer, _ = read((1.0, HEAD + chunk(first)), (2.0, chunk(second)), (3.0, chunk(third) + LAST))

    assert [json.loads(payload)["output_ids"] for payload in answer.payloads] == [[5], [6, 7], [8]]
    assert answer.arrivals == [(1.0, 1), (2.0, 3), (3.0, 4)]


def test_of_a_stream_that_repeats_itself_only_the_last_event_is_kept() -> None:
    events = [
        b"data: " + json.dumps({"output_ids": [5] * n, "meta_info": {"completion_tokens": n}}).encode() + b"\n\n"
        for n in range(1, 6)
    ]

    answer, _ = read((1.0, HEAD + b"".join(map(chunk, events)) + LAST))

    assert [json.loads(payload)["output_ids"] for payload in answer.payloads] == [[5] * 5]


@pytest.mark.parametrize("spoilt", [0, 1, 2, 3, 4])
def test_one_chunk_of_two_events_or_of_half_an_event_changes_nothing_anywhere(spoilt: int) -> None:
    events = [event(n, finish_reason=None) for n in (1, 4, 7, 10, 13, 16)]
    joined = [*events[:spoilt], events[spoilt] + events[spoilt + 1], *events[spoilt + 2 :]]
    halves = [*events[:spoilt], events[spoilt][:30], events[spoilt][30:], *events[spoilt + 1 :]]

    for parts in (joined, halves):
        answer, _ = read((1.0, HEAD + b"".join(map(chunk, parts)) + LAST))
        assert (answer.error, answer.tokens) == (None, [1, 4, 7, 10, 13, 16])


def test_a_count_at_the_very_end_of_an_event_is_read() -> None:
    events = [b'data: {"meta_info":{"finish_reason":null,"completion_tokens":%d}}\n\n' % n for n in (1, 9, 10, 11)]

    answer, _ = read((1.0, HEAD + b"".join(map(chunk, events)) + LAST))

    assert answer.tokens == [1, 9, 10, 11]


def test_counts_and_sizes_that_grow_by_a_digit_are_read() -> None:
    events = [
        b'data: {"text":"%b","meta_info":{"completion_tokens":%d,"dp_rank":0}}\n\n' % (b"x" * n, n)
        for n in (1, 5, 9, 10, 99, 100, 999, 1000, 4000)
    ]

    answer, _ = read((1.0, HEAD + b"".join(map(chunk, events)) + LAST))

    assert answer.tokens == [1, 5, 9, 10, 99, 100, 999, 1000, 4000]


def test_a_size_with_an_extension_is_read() -> None:
    parts = [b"%x; name=value\r\n%b\r\n" % (len(event(n)), event(n)) for n in (1, 2, 3, 4)]

    answer, _ = read((1.0, HEAD + b"".join(parts) + LAST))

    assert (answer.error, answer.tokens) == (None, [1, 2, 3, 4])


@pytest.mark.parametrize("size", [b"-5", b"zz", b"", b"x" * 2000])
def test_a_chunk_without_a_size_is_an_error(size: bytes) -> None:
    answer, connection = read((1.0, HEAD + chunk(event(1)) + chunk(event(2)) + chunk(event(3)) + size + b"\r\nabc\r\n"))

    assert answer.error is not None
    assert answer.error.startswith("an answer that is not HTTP: ")
    assert answer.tokens == [1, 2, 3]
    assert not connection.usable


def test_a_count_that_repeats_is_no_arrival_but_the_last_event_counts() -> None:
    parts = [event(1), event(2), event(3), event(3, finish_reason={"type": "length"})]

    answer, _ = read((1.0, HEAD + b"".join(map(chunk, parts)) + LAST))

    assert answer.tokens == [1, 2, 3]
    assert json.loads(answer.payloads[-1])["meta_info"]["finish_reason"] == {"type": "length"}
