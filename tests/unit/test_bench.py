from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest

from pytest_specdec import bench
from pytest_specdec.arrivals import arrival_times
from pytest_specdec.client import ServerClient
from pytest_specdec.clock import SystemClock
from pytest_specdec.errors import ServerRefusedError, ServerRequestError
from pytest_specdec.metrics import round_metrics
from pytest_specdec.model import ChatTemplate, Prompt, RequestSample, Round, Sampling
from pytest_specdec.observed import GpuSpan, LogSpan, Seen
from tests.fakes.host import FakeClock
from tests.fakes.samples import measurement, sample
from tests.fakes.sglang_server import FakeSGLang


class FakeServer:
    """Takes 2 s for a load and notes what it is asked; refuses the flush, and the load, of that number."""

    def __init__(
        self,
        clock: FakeClock,
        *,
        refused_flush: int | None = None,
        refused_load: int | None = None,
        cpu_s: float = 0.0,
    ) -> None:
        self.clock = clock
        self.refused_flush = refused_flush
        self.refused_load = refused_load
        self.cpu_s = cpu_s
        self.asked: list[str] = []
        self.loads: list[dict[str, object]] = []
        self.error: str | None = None
        self.sent: tuple[Prompt, ...] = ()

    def flush_cache(self) -> None:
        self.asked.append("flush")
        if self.asked.count("flush") == self.refused_flush:
            raise ServerRefusedError("POST /flush_cache: HTTP 400: requests are running")

    def load(
        self,
        prompts: Sequence[Prompt],
        *,
        concurrency: int,
        output_tokens: int,
        sampling: Sampling,
        clock: Callable[[], float],
        request_timeout_s: float,
        deadline_s: float,
        request_rate: float | None = None,
    ) -> tuple[float, tuple[RequestSample, ...]]:
        self.asked.append("load")
        self.sent = tuple(prompts)
        self.loads.append(
            {
                "prompts": [prompt.id for prompt in prompts],
                "concurrency": concurrency,
                "output_tokens": output_tokens,
                "sampling": sampling,
                "request_timeout_s": request_timeout_s,
                "deadline_s": deadline_s,
                "request_rate": request_rate,
            }
        )
        if self.asked.count("load") == self.refused_load:
            raise ServerRequestError("no connection for the load")
        began = clock()
        self.clock.sleep(2.0)
        self.clock.cpu += self.cpu_s
        return clock() - began, tuple(sample(prompt.id, error=self.error) for prompt in prompts)


def test_the_cache_is_flushed_before_every_round_and_warm_up_is_kept_apart() -> None:
    clock = FakeClock()
    server = FakeServer(clock)

    warmup, rounds = bench.measure(
        server, measurement("one", "two"), rounds=2, warmup=1, clock=clock, on_round=lambda _: None
    )

    assert server.asked == ["flush", "load"] * 3
    assert [(done.index, done.warmup) for done in warmup] == [(0, True)]
    assert [(done.index, done.warmup) for done in rounds] == [(0, False), (1, False)]
    assert [done.started_unix_s - clock.time() for done in (*warmup, *rounds)] == [-6.0, -4.0, -2.0]
    assert [done.wall_s for done in rounds] == [2.0, 2.0]
    assert [[request.prompt_id for request in done.requests] for done in rounds] == [["p1", "p2"]] * 2


def test_a_round_is_handed_on_before_the_next_can_fail() -> None:
    clock = FakeClock()
    handed_on: list[Round] = []

    with pytest.raises(ServerRequestError, match="no connection"):
        bench.measure(
            FakeServer(clock, refused_load=3),
            measurement("one"),
            rounds=2,
            warmup=1,
            clock=clock,
            on_round=handed_on.append,
        )

    assert [(done.index, done.warmup) for done in handed_on] == [(0, True), (0, False)]


def test_a_server_that_stops_answering_is_told_with_what_went_wrong_before() -> None:
    clock = FakeClock()
    server = FakeServer(clock, refused_flush=2)
    server.error = "no whole answer within 184 s"

    with pytest.raises(ServerRequestError) as caught:
        bench.measure(server, measurement("one", "two"), rounds=2, warmup=0, clock=clock, on_round=lambda _: None)

    assert str(caught.value) == (
        "POST /flush_cache: HTTP 400: requests are running; 2 of 2 requests of the round before had failed, "
        "the first, p1: no whole answer within 184 s"
    )


def test_a_refused_flush_is_told_by_its_round() -> None:
    clock = FakeClock()

    _, rounds = bench.measure(
        FakeServer(clock, refused_flush=2),
        measurement("one"),
        rounds=3,
        warmup=0,
        clock=clock,
        on_round=lambda _: None,
    )

    refused = "POST /flush_cache: HTTP 400: requests are running"
    assert [done.flush_error for done in rounds] == [None, refused, None]


class SilentServer(FakeServer):
    """Does not answer a flush."""

    def flush_cache(self) -> None:
        raise ServerRequestError("POST /flush_cache: no answer within 5 s")


def test_a_server_that_does_not_answer_a_flush_is_not_measured() -> None:
    clock = FakeClock()
    server = SilentServer(clock)

    with pytest.raises(ServerRequestError, match="no answer within 5 s"):
        bench.measure(server, measurement("one"), rounds=1, warmup=0, clock=clock, on_round=lambda _: None)

    assert server.asked == []


def test_a_cache_that_is_left_alone_is_not_flushed() -> None:
    clock = FakeClock()
    server = FakeServer(clock)

    bench.measure(server, measurement("one"), rounds=1, warmup=0, flush=False, clock=clock, on_round=lambda _: None)

    assert server.asked == ["load"]


class FakeWatch:
    """Notes when it begins and ends, and saw one start of the server a round."""

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked

    def begin(self) -> None:
        self.asked.append("begin")

    def end(self) -> Seen:
        self.asked.append("end")
        return Seen(log=LogSpan(decode=(), retractions=(), restarts=1), gpu=GpuSpan(unknown="none here"))


def test_a_round_is_watched_from_after_its_flush_to_its_last_answer() -> None:
    clock = FakeClock()
    server = FakeServer(clock)

    _, rounds = bench.measure(
        server,
        measurement("one"),
        rounds=1,
        warmup=0,
        clock=clock,
        on_round=lambda _: None,
        watch=FakeWatch(server.asked),
    )

    assert server.asked == ["flush", "begin", "load", "end"]
    assert rounds[0].log == LogSpan(decode=(), retractions=(), restarts=1)
    assert rounds[0].gpu == GpuSpan(unknown="none here")


def test_a_round_tells_how_much_of_a_core_the_client_took() -> None:
    clock = FakeClock()

    _, rounds = bench.measure(
        FakeServer(clock, cpu_s=0.5), measurement("one"), rounds=2, warmup=0, clock=clock, on_round=lambda _: None
    )

    assert [done.client_cpu_share for done in rounds] == [0.25, 0.25]


def test_a_load_is_what_the_measurement_says_with_its_deadlines() -> None:
    clock = FakeClock()
    server = FakeServer(clock)

    bench.measure(
        server,
        measurement("one", "two", "three", concurrency=2, output_tokens=64),
        rounds=1,
        warmup=0,
        clock=clock,
        on_round=lambda _: None,
    )

    # Patience of 120 s and a second a token; three prompts on two slots take two turns.
    assert server.loads == [
        {
            "prompts": ["p1", "p2", "p3"],
            "concurrency": 2,
            "output_tokens": 64,
            "sampling": Sampling(),
            "request_timeout_s": 184.0,
            "deadline_s": 248.0,
            "request_rate": None,
        }
    ]


def test_the_deadline_of_a_round_has_room_for_every_turn_and_for_the_last_arrival() -> None:
    clock = FakeClock()
    server = FakeServer(clock)
    plain = measurement("one", "two", "three", concurrency=2, output_tokens=64)
    talk = dataclasses.replace(plain.workload.prompts[2], turns=("more", "still more"))
    workload = dataclasses.replace(plain.workload, prompts=(*plain.workload.prompts[:2], talk))

    for asked in (
        dataclasses.replace(plain, workload=workload),
        dataclasses.replace(plain, workload=workload, request_rate=0.01),
    ):
        bench.measure(server, asked, rounds=1, warmup=0, clock=clock, on_round=lambda _: None)

    # Five answers on two slots: three in a row, and two more when the conversation begins last.
    closed, opened = server.loads
    assert (closed["deadline_s"], closed["request_rate"]) == (120.0 + 64 * 5, None)
    assert opened["deadline_s"] == 120.0 + 64 * 5 + arrival_times(3, 0.01)[-1]
    assert opened["request_rate"] == 0.01


def test_an_open_loop_sends_each_prompt_once_whatever_its_cap() -> None:
    asked = dataclasses.replace(measurement("one", "two", concurrency=5), request_rate=1.0)

    assert [prompt.id for prompt in bench.prompts_of_a_round(asked)] == ["p1", "p2"]


@pytest.mark.parametrize(
    ("concurrency", "ids"),
    [
        (1, ["p1", "p2"]),
        (2, ["p1", "p2"]),
        (3, ["p1", "p2", "p1#2", "p2#2"]),
        (5, ["p1", "p2", "p1#2", "p2#2", "p1#3", "p2#3"]),
    ],
)
def test_a_workload_smaller_than_the_concurrency_is_repeated_whole(concurrency: int, ids: list[str]) -> None:
    sent = bench.prompts_of_a_round(measurement("one", "two", concurrency=concurrency))

    assert [prompt.id for prompt in sent] == ids
    assert [prompt.text for prompt in sent] == ["one", "two"] * (len(ids) // 2)


def test_a_whole_measurement_over_http() -> None:
    with FakeSGLang() as server:
        warmup, rounds = bench.measure(
            ServerClient(server.url),
            measurement("one", "two", concurrency=2, output_tokens=16),
            rounds=2,
            warmup=1,
            clock=SystemClock(),
            on_round=lambda _: None,
        )

    assert server.seen.paths == ["POST /flush_cache", "POST /generate", "POST /generate"] * 3
    for done in (*warmup, *rounds):
        assert [request.error for request in done.requests] == [None, None]
        # 1 token, then 5 steps of 3: 15 / 5, and 16 / 5 as SGLang counts.
        assert round_metrics(done, 2)["accept_length"] == 3.0
        assert round_metrics(done, 2)["accept_length_sglang"] == 3.2


def test_a_server_that_refuses_to_flush_is_measured_and_says_so() -> None:
    with FakeSGLang() as server:
        server.instead["POST /flush_cache"] = (404, b"no such path")

        _, rounds = bench.measure(
            ServerClient(server.url),
            measurement("one"),
            rounds=1,
            warmup=0,
            clock=SystemClock(),
            on_round=lambda _: None,
        )

    assert rounds[0].flush_error is not None
    assert "no such path" in rounds[0].flush_error


def test_a_template_is_put_around_every_prompt_and_turns_take_their_time() -> None:
    clock = FakeClock()
    server = FakeServer(clock)
    talk = Prompt(id="talk", category="c", text="One?", turns=("Two?",))
    asked = measurement("other", concurrency=2, output_tokens=64)
    workload = dataclasses.replace(asked.workload, prompts=(talk, *asked.workload.prompts))

    bench.measure(
        server,
        dataclasses.replace(asked, workload=workload, chat_template=True),
        rounds=1,
        warmup=0,
        template=ChatTemplate(before="<u>", after_user="</u>", after_answer="</a><u>"),
        clock=clock,
        on_round=lambda _: None,
    )

    assert server.sent == (
        dataclasses.replace(talk, text="<u>One?</u>", turns=("</a><u>Two?</u>",)),
        Prompt(id="p1", category="c", text="<u>other</u>"),
    )
    # Three answers on two slots take two rows, and one more where the last to begin is the conversation.
    assert server.loads[0]["deadline_s"] == 120 + 3 * 64
