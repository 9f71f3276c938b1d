from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pytest_specdec import bench
from pytest_specdec.client import ServerClient
from pytest_specdec.clock import SystemClock
from pytest_specdec.errors import ServerRequestError
from pytest_specdec.metrics import round_metrics
from pytest_specdec.model import Prompt, RequestSample, Round, Sampling
from tests.fakes.host import FakeClock
from tests.fakes.samples import measurement, sample
from tests.fakes.sglang_server import FakeSGLang


class FakeServer:
    """Takes 2 s for a load and notes what it is asked; refuses the flush of that number."""

    def __init__(self, clock: FakeClock, *, refused_flush: int | None = None) -> None:
        self.clock = clock
        self.refused_flush = refused_flush
        self.asked: list[str] = []
        self.loads: list[dict[str, object]] = []
        self.error: str | None = None

    def flush_cache(self) -> None:
        self.asked.append("flush")
        if self.asked.count("flush") == self.refused_flush:
            raise ServerRequestError("POST /flush_cache: HTTP 400: requests are running")

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
    ) -> tuple[float, tuple[RequestSample, ...]]:
        self.asked.append("load")
        self.loads.append(
            {
                "prompts": [prompt.id for prompt in prompts],
                "concurrency": concurrency,
                "output_tokens": output_tokens,
                "sampling": sampling,
                "request_timeout_s": request_timeout_s,
                "deadline_s": deadline_s,
            }
        )
        began = clock()
        self.clock.sleep(2.0)
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

    with pytest.raises(ServerRequestError, match="requests are running"):
        bench.measure(
            FakeServer(clock, refused_flush=3),
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
        }
    ]


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
    prompts = measurement("one", "two").workload.prompts

    sent = bench.prompts_of_a_round(prompts, concurrency)

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


def test_a_server_whose_flush_fails_is_not_measured() -> None:
    with FakeSGLang() as server:
        server.instead["POST /flush_cache"] = (400, b"Flush cache failed: 1 request is running")

        with pytest.raises(ServerRequestError, match="Flush cache failed: 1 request is running"):
            bench.measure(
                ServerClient(server.url),
                measurement("one"),
                rounds=1,
                warmup=0,
                clock=SystemClock(),
                on_round=lambda _: None,
            )

    assert server.seen.generate == []
