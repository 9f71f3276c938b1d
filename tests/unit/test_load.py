from __future__ import annotations

import gc
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from pytest_specdec.answers import request_body
from pytest_specdec.arrivals import arrival_times
from pytest_specdec.client import ServerClient
from pytest_specdec.clock import SystemClock
from pytest_specdec.errors import ServerRequestError
from pytest_specdec.model import Prompt, RequestSample, Sampling
from tests.fakes.sglang_server import Answers, FakeSGLang, output_ids

PROMPT = Prompt(id="p1", category="c", text="Hello")


def test_the_body_asks_for_a_fixed_length_streamed_and_greedy() -> None:
    assert json.loads(request_body("Hello", output_tokens=16, sampling=Sampling())) == {
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
    params = json.loads(request_body("Hello", output_tokens=1, sampling=Sampling(temperature=0.6, seed=7)))

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
    request_rate: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[RequestSample, ...]:
    _, samples = ServerClient(server.url + path).load(
        sent,
        concurrency=concurrency,
        output_tokens=16,
        sampling=Sampling(),
        clock=clock,
        request_timeout_s=request_timeout_s,
        deadline_s=deadline_s,
        request_rate=request_rate,
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


ANSWER = '"completion_tokens":9999, ' * 16
CONVERSATION = Prompt(id="talk", category="c", text="Hello", turns=("\n\nAnd then?", "\n\nWhy?"))


def test_a_further_turn_is_appended_to_all_that_was_said_and_sent_when_the_answer_is_whole(server: FakeSGLang) -> None:
    got = load(server, [CONVERSATION])

    assert [(one.prompt_id, one.turn, one.error) for one in got] == [("talk", n, None) for n in (1, 2, 3)]
    second = f"Hello{ANSWER}\n\nAnd then?"
    assert [asked["text"] for asked in server.seen.generate] == ["Hello", second, f"{second}{ANSWER}\n\nWhy?"]
    assert got[0].done_s <= got[1].sent_s
    assert got[1].done_s <= got[2].sent_s
    assert server.seen.connections == 1


def test_a_conversation_takes_one_slot(server: FakeSGLang) -> None:
    got = load(server, [CONVERSATION, *prompts(4)], concurrency=2)

    assert [one.error for one in got] == [None] * 7
    assert [(one.prompt_id, one.turn) for one in got[:4]] == [("talk", 1), ("talk", 2), ("talk", 3), ("p1", 1)]
    assert server.seen.most_running <= 2


def test_after_a_failed_turn_the_rest_of_the_conversation_is_not_sent(server: FakeSGLang) -> None:
    server.by_text["Hello"] = Answers(status=400)

    first, second, third, other = load(server, [CONVERSATION, *prompts(1)])

    assert first.error is not None
    assert first.error.startswith("HTTP 400: ")
    assert second.error == "not sent: turn 1 of it failed"
    assert third.error == "not sent: turn 2 of it failed"
    assert other.error is None
    assert len(server.seen.generate) == 2


@pytest.mark.parametrize("request_rate", [None, 500.0])
@pytest.mark.parametrize("fault", [Answers(drop_after=2), Answers(status=503), Answers(error_after=1)])
def test_nothing_is_sent_twice(server: FakeSGLang, fault: Answers, request_rate: float | None) -> None:
    server.answers = fault

    got = load(server, prompts(5), concurrency=2, request_rate=request_rate)

    assert all(one.error is not None for one in got)
    assert sorted(asked["text"] for asked in server.seen.generate) == [f"prompt {i}" for i in range(1, 6)]


def test_an_open_loop_sends_when_due_however_late_the_answers_before_are(server: FakeSGLang) -> None:
    # No request is answered before all four have come: a closed loop would wait for ever.
    server.together = threading.Barrier(4)

    got = load(server, prompts(4), concurrency=4, request_rate=200.0)

    assert [one.error for one in got] == [None] * 4
    assert [one.scheduled_s for one in got] == pytest.approx(arrival_times(4, 200.0), abs=1e-6)
    assert all(one.scheduled_s is not None and one.sent_s >= one.scheduled_s for one in got)
    assert server.seen.most_running == 4


def test_the_concurrency_caps_an_open_loop_and_the_wait_is_in_the_sample(server: FakeSGLang) -> None:
    got = load(server, prompts(6), concurrency=1, request_rate=10_000.0)

    assert server.seen.most_running == 1
    for earlier, later in itertools.pairwise(got):
        assert later.sent_s >= earlier.done_s
    assert [one.scheduled_s for one in got] == pytest.approx(arrival_times(6, 10_000.0), abs=1e-6)


def test_a_further_turn_of_an_open_loop_is_due_when_the_answer_before_it_is_whole(server: FakeSGLang) -> None:
    first, second, third = load(server, [CONVERSATION], request_rate=100.0)

    assert (first.scheduled_s, second.scheduled_s, third.scheduled_s) == (0.0, first.done_s, second.done_s)


def test_an_open_loop_stops_sending_after_a_request_that_hangs(server: FakeSGLang) -> None:
    server.by_text["prompt 1"] = Answers(hang_after=1)

    first, second = load(server, prompts(2), concurrency=2, request_rate=0.1, request_timeout_s=0.2, deadline_s=0.4)

    assert first.error == "no whole answer within 0.2 s"
    assert second.error is not None
    assert second.error.startswith("not sent: ")
    assert len(server.seen.generate) == 1


def test_a_closed_loop_has_no_schedule(server: FakeSGLang) -> None:
    assert [one.scheduled_s for one in load(server, prompts(2))] == [None, None]


def test_garbage_is_not_collected_while_times_are_taken(server: FakeSGLang) -> None:
    states: list[bool] = []

    def clock() -> float:
        states.append(gc.isenabled())
        return time.perf_counter()

    load(server, prompts(2), clock=clock)

    # At the beginning and the end of the round, at both sendings, and at their reads; not when connections end.
    without = [index for index, enabled in enumerate(states) if not enabled]
    assert len(without) >= 6
    assert without == list(range(without[0], without[-1] + 1))
    assert gc.isenabled()


def test_the_servers_own_times_are_kept_where_it_tells_them(server: FakeSGLang) -> None:
    told = {"decode_throughput": 123.5, "first_token_latency": 0.05, "queue_time": 0.001, "e2e_latency": 0.5}
    meta = {"completion_tokens": 4, "finish_reason": {"type": "length"}, **told}
    server.instead["POST /generate"] = (200, b"data: " + json.dumps({"meta_info": meta}).encode() + b"\n\n")

    (got,) = load(server)

    assert got.error is None
    assert (got.server_e2e_s, got.server_ttft_s, got.server_queue_s) == (0.5, 0.05, 0.001)
    assert got.server_decode_tok_s == 123.5


def test_a_server_without_metrics_tells_its_end_to_end_time_alone(server: FakeSGLang) -> None:
    (got,) = load(server)

    assert (got.server_e2e_s, got.server_ttft_s, got.server_queue_s, got.server_decode_tok_s) == (
        0.25,
        None,
        None,
        None,
    )
