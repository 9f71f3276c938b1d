from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pytest_specdec.client import ServerClient
from pytest_specdec.clock import SystemClock
from pytest_specdec.errors import ServerRequestError
from pytest_specdec.http_stream import Answer, Connection, request_body
from pytest_specdec.model import Prompt, RequestSample, Sampling
from tests.fakes.sglang_server import Answers, FakeSGLang, output_ids

PROMPT = Prompt(id="p1", category="c", text="Hello")


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
        assert json.loads(answer.last_event)["meta_info"]["completion_tokens"] == 4


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


def test_the_body_asks_for_a_fixed_length_streamed_and_greedy() -> None:
    assert json.loads(request_body(PROMPT, output_tokens=16, sampling=Sampling())) == {
        "text": "Hello",
        "sampling_params": {
            "max_new_tokens": 16,
            "ignore_eos": True,
            "temperature": 0.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
        },
        "stream": True,
    }


def test_a_seed_goes_by_the_name_that_sglang_has_for_it() -> None:
    params = json.loads(request_body(PROMPT, output_tokens=1, sampling=Sampling(temperature=0.6, seed=7)))

    assert params["sampling_params"]["sampling_seed"] == 7
    assert params["sampling_params"]["temperature"] == 0.6


@pytest.fixture
def server() -> Iterator[FakeSGLang]:
    with FakeSGLang() as fake:
        yield fake


def prompts(count: int) -> tuple[Prompt, ...]:
    return tuple(Prompt(id=f"p{i}", category="c", text=f"prompt {i}") for i in range(1, count + 1))


def load(
    server: FakeSGLang,
    sent: Sequence[Prompt] = (PROMPT,),
    *,
    concurrency: int = 1,
    request_timeout_s: float = 5.0,
    deadline_s: float = 10.0,
    path: str = "",
) -> tuple[RequestSample, ...]:
    _, samples = ServerClient(server.url + path).load(
        sent,
        concurrency=concurrency,
        output_tokens=16,
        sampling=Sampling(),
        clock=SystemClock().monotonic,
        request_timeout_s=request_timeout_s,
        deadline_s=deadline_s,
    )
    return samples


def test_a_sample_holds_what_the_final_chunk_says(server: FakeSGLang) -> None:
    (got,) = load(server)

    assert got.error is None
    assert (got.prompt_id, got.category) == ("p1", "c")
    assert (got.prompt_tokens, got.cached_tokens) == (7, 0)
    # 16 tokens: 1 in the first chunk, then 5 verify steps of 3.
    assert (got.completion_tokens, got.first_chunk_tokens, got.chunks) == (16, 1, 6)
    assert (got.verify_steps, got.accept_histogram) == (5, (0, 0, 5))
    assert (got.finish_reason, got.server_e2e_s) == ("length", 0.25)
    assert got.output_ids == tuple(output_ids("Hello", 16))
    assert [tokens for _, tokens in got.arrivals] == [1, 4, 7, 10, 13, 16]
    assert 0 <= got.sent_s <= got.first_token_s <= got.last_token_s <= got.done_s


def test_a_first_chunk_can_hold_several_tokens(server: FakeSGLang) -> None:
    server.answers = Answers(first_chunk_tokens=4)

    (got,) = load(server)

    assert (got.first_chunk_tokens, got.completion_tokens, got.verify_steps) == (4, 16, 4)


def test_events_cut_across_reads_count_the_same(server: FakeSGLang) -> None:
    server.answers = Answers(cut_bytes=7)

    (got,) = load(server)

    assert (got.error, got.completion_tokens, got.verify_steps) == (None, 16, 5)


@pytest.mark.parametrize("key", ["spec_correct_drafts_histogram", "spec_accept_histogram", "accept_histogram"])
def test_the_histogram_is_found_by_each_of_its_names(server: FakeSGLang, key: str) -> None:
    server.answers = Answers(histogram_key=key, histogram=(3, 0, 2))

    (got,) = load(server)

    assert got.accept_histogram == (3, 0, 2)


def test_missing_spec_fields_are_none_and_not_a_number(server: FakeSGLang) -> None:
    server.answers = Answers(spec_fields=False)

    (got,) = load(server)

    assert (got.error, got.verify_steps, got.accept_histogram) == (None, None, None)


def test_samples_come_in_prompt_order_and_each_prompt_is_sent_once(server: FakeSGLang) -> None:
    got = load(server, prompts(7), concurrency=3)

    assert [one.prompt_id for one in got] == ["p1", "p2", "p3", "p4", "p5", "p6", "p7"]
    assert sorted(asked["text"] for asked in server.seen.generate) == [f"prompt {i}" for i in range(1, 8)]


def test_as_many_requests_run_at_once_as_was_asked_for_and_no_more(server: FakeSGLang) -> None:
    server.together = threading.Barrier(4)

    got = load(server, prompts(8), concurrency=4)

    assert [one.error for one in got] == [None] * 8
    assert server.seen.most_running == 4


def test_connections_are_kept_between_requests(server: FakeSGLang) -> None:
    load(server, prompts(6), concurrency=2)

    assert server.seen.connections == 2


def test_a_server_that_closes_each_connection_is_served_by_new_ones(server: FakeSGLang) -> None:
    server.answers = Answers(close_after=True)

    got = load(server, prompts(3))

    assert [one.error for one in got] == [None, None, None]
    assert server.seen.connections == 3


def test_an_answer_without_chunked_encoding_is_read_to_its_end(server: FakeSGLang) -> None:
    server.answers = Answers(chunked=False)

    (got,) = load(server)

    assert (got.error, got.completion_tokens) == (None, 16)


def test_an_error_event_in_mid_stream_is_the_samples_error(server: FakeSGLang) -> None:
    server.by_text["prompt 2"] = Answers(error_after=2)

    first, second, third = load(server, prompts(3))

    assert (first.error, third.error) == (None, None)
    assert second.error == 'the server says {"message": "out of pages", "code": 400}'
    assert (second.completion_tokens, second.finish_reason) == (4, None)


def test_a_refused_request_is_the_samples_error_and_the_connection_goes_on(server: FakeSGLang) -> None:
    server.by_text["prompt 1"] = Answers(status=400)

    first, second = load(server, prompts(2))

    assert first.error == 'HTTP 400: {"error":{"message":"The input is too long","code":400}}'
    assert (first.completion_tokens, first.first_token_s) == (0, first.done_s)
    assert second.error is None
    assert server.seen.connections == 1


def test_a_dropped_connection_is_the_samples_error_and_is_not_tried_again(server: FakeSGLang) -> None:
    server.by_text["prompt 1"] = Answers(drop_after=1)

    first, second = load(server, prompts(2))

    assert first.error is not None
    assert first.error.startswith("the connection ended in the middle of the answer")
    assert first.completion_tokens == 1
    assert second.error is None
    assert len(server.seen.generate) == 2


def test_an_aborted_request_is_an_error_with_the_servers_reason(server: FakeSGLang) -> None:
    server.answers = Answers(stop_at=4, finish_reason={"type": "abort", "message": "KV cache is full"})

    (got,) = load(server)

    assert got.error == "the server aborted it: KV cache is full"


def test_an_answer_that_is_no_stream_is_shown(server: FakeSGLang) -> None:
    server.instead["POST /generate"] = (200, b'{"hello": 1}')

    (got,) = load(server)

    assert got.error == 'an answer without tokens: {"hello": 1}'


def test_a_request_that_hangs_is_given_up_and_nothing_more_is_sent(server: FakeSGLang) -> None:
    server.by_text["prompt 2"] = Answers(hang_after=2)

    first, second, third = load(server, prompts(3), request_timeout_s=0.2)

    assert first.error is None
    assert second.error == "no whole answer within 0.2 s"
    assert second.completion_tokens == 4
    assert second.done_s - second.sent_s >= 0.2
    assert third.error == "not sent: an earlier request was not answered in time"
    assert len(server.seen.generate) == 2


def test_a_round_has_a_deadline_of_its_own(server: FakeSGLang) -> None:
    server.by_text["prompt 1"] = Answers(hang_after=0)

    first, second = load(server, prompts(2), deadline_s=0.2)

    assert first.error == "the round did not end within 0.2 s"
    assert second.error == "not sent: an earlier request was not answered in time"


def test_a_server_behind_a_path_is_asked_there(server: FakeSGLang) -> None:
    (got,) = load(server, path="/llm/")

    assert got.error == 'HTTP 404: {"detail":"Not Found"}'
    assert server.seen.paths == ["POST /llm/generate"]


def test_no_connection_at_all_is_raised_with_the_address() -> None:
    with FakeSGLang() as server:
        url = server.url

    with pytest.raises(ServerRequestError, match=f"^{url}: no connection for the load: "):
        ServerClient(url).load(
            [PROMPT],
            concurrency=1,
            output_tokens=16,
            sampling=Sampling(),
            clock=SystemClock().monotonic,
            request_timeout_s=5,
            deadline_s=5,
        )


def test_token_ids_are_sent_in_place_of_a_text(server: FakeSGLang) -> None:
    (got,) = load(server, [Prompt(id="s", category="c", input_ids=(5, 6, 7))])

    assert got.error is None
    assert server.seen.generate[0]["input_ids"] == [5, 6, 7]
    assert "text" not in server.seen.generate[0]


def test_a_further_turn_follows_the_answer_to_the_one_before(server: FakeSGLang) -> None:
    talk = Prompt(id="talk", category="c", text="One?", turns=("|Two?", "|Three?"))

    samples = load(server, [talk, PROMPT])

    assert [(got.prompt_id, got.turn, got.error) for got in samples] == [
        ("talk", 1, None),
        ("talk", 2, None),
        ("talk", 3, None),
        ("p1", 1, None),
    ]
    answer = '"completion_tokens":9999, ' * 16
    assert [request["text"] for request in server.seen.generate] == [
        "One?",
        f"One?{answer}|Two?",
        f"One?{answer}|Two?{answer}|Three?",
        "Hello",
    ]
    ends = [got.done_s for got in samples]
    assert ends == sorted(ends), "one after the other"


def test_after_a_failed_turn_the_others_are_not_sent(server: FakeSGLang) -> None:
    server.by_text["One?"] = Answers(status=500, body_of_error=b"boom")
    talk = Prompt(id="talk", category="c", text="One?", turns=("|Two?", "|Three?"))

    samples = load(server, [talk])

    assert [got.error for got in samples] == [
        "HTTP 500: boom",
        "not sent: the answer to turn 1 failed, or its whole text is not known (--stream-output)",
        "not sent: the answer to turn 2 failed, or its whole text is not known (--stream-output)",
    ]
    assert len(server.seen.generate) == 1
