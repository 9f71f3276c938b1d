from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_specdec.client import ServerClient, parse_server_info
from pytest_specdec.errors import ServerRequestError
from pytest_specdec.observed import ServerMark
from tests.fakes.host import FakeClock
from tests.fakes.sglang_server import Answers, FakeSGLang, output_ids

#: As 0.5.23 tells it: arguments at top level, and once more in each rank's internal state.
INFO_0523 = {
    "model_path": "/models/tiny",
    "port": 31997,
    "tp_size": 1,
    "api_key": "sk-secret",
    "admin_api_key": None,
    "ssl_keyfile_password": "secret too",
    "skip_tokenizer_init": True,
    "speculative_algorithm": "EAGLE3",
    "speculative_token_map": "/models/map.pt",
    "mem_fraction_static": 0.88,
    "max_total_num_tokens": 4096,
    "launch_command": "--model-path /models/tiny --api-key sk-secret",
    "version": "0.5.23",
    "internal_states": [
        {
            "memory_usage": {"weight": 0.015, "token_capacity": 4096},
            "decode_cuda_graph_bs": [1, 2, 4],
            "effective_max_running_requests_per_dp": 48,
        }
    ],
}


@pytest.fixture
def server() -> Iterator[FakeSGLang]:
    with FakeSGLang() as fake:
        yield fake


def test_server_info_tells_the_arguments_and_the_capacities() -> None:
    info = parse_server_info(INFO_0523)

    assert (info.version, info.model_path, info.port, info.drafting) == ("0.5.23", "/models/tiny", 31997, True)
    assert info.args["speculative_token_map"] == "/models/map.pt"
    assert info.args["tp_size"] == 1
    assert info.facts == {
        "max_total_num_tokens": 4096,
        "mem_fraction_static": 0.88,
        "decode_cuda_graph_bs": [1, 2, 4],
        "max_running_requests": 48,
    }


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({}, True),
        ({"random_seed": 8}, False),
        ({"startup_time": {"load_weight": 2.0}}, False),
        ({"version": "1"}, True),
    ],
)
def test_another_start_of_a_server_has_another_mark(changed: dict[str, Any], same: bool) -> None:
    answer: dict[str, Any] = {"random_seed": 7, "startup_time": {"load_weight": 1.5}, "version": "0.5.23"}

    assert (parse_server_info(answer).mark == parse_server_info({**answer, **changed}).mark) is same
    assert parse_server_info({}).mark == ServerMark()


def test_server_info_holds_no_secret() -> None:
    assert "secret" not in repr(parse_server_info(INFO_0523))


def test_a_server_that_does_not_draft_says_so() -> None:
    assert parse_server_info({**INFO_0523, "speculative_algorithm": None}).drafting is False


def test_arguments_that_are_only_in_the_internal_state_are_found() -> None:
    state = {"model_path": "/models/old", "speculative_algorithm": "EAGLE", "memory_usage": {"token_capacity": 99}}

    info = parse_server_info({"version": "0.4.9", "internal_states": [state]})

    assert (info.model_path, info.drafting, info.port) == ("/models/old", True, None)
    assert info.facts == {"max_total_num_tokens": 99}


def test_arguments_at_top_level_without_any_state_are_found() -> None:
    info = parse_server_info({"version": "0.4.0", "model_path": "/models/older", "max_total_num_tokens": 5})

    assert (info.version, info.model_path, info.drafting) == ("0.4.0", "/models/older", False)
    assert info.facts == {"max_total_num_tokens": 5}


def test_an_older_server_is_asked_by_the_older_path(server: FakeSGLang) -> None:
    server.instead["GET /server_info"] = (404, b"{}")
    server.instead["GET /get_server_info"] = (200, json.dumps(INFO_0523).encode())

    assert ServerClient(server.url).server_info().version == "0.5.23"


def test_another_error_than_not_found_is_not_hidden_by_the_older_path(server: FakeSGLang) -> None:
    server.instead["GET /server_info"] = (500, b"boom " * 100)

    with pytest.raises(ServerRequestError) as raised:
        ServerClient(server.url).server_info()

    said = str(raised.value)
    assert said.startswith(f"GET {server.url}/server_info: HTTP 500 after 0.")
    assert said.endswith("boom boom")
    assert len(said) < 400
    assert server.seen.paths == ["GET /server_info"]


@pytest.mark.parametrize("body", [b"<html>", b"[1]"])
def test_an_answer_that_is_no_json_object_is_shown(server: FakeSGLang, body: bytes) -> None:
    server.instead["GET /server_info"] = (200, body)

    with pytest.raises(ServerRequestError, match=r"expected a JSON object, got this after 0\.\d s: (<html>|\[1\])$"):
        ServerClient(server.url).server_info()


def test_health_is_the_status_code(server: FakeSGLang) -> None:
    server.instead["GET /health"] = (503, b"")

    assert ServerClient(server.url).health() == 503


def test_health_is_none_when_nothing_listens() -> None:
    with FakeSGLang() as server:
        url = server.url

    assert ServerClient(url).health() is None


def test_the_cache_is_flushed_by_post(server: FakeSGLang) -> None:
    ServerClient(server.url).flush_cache()

    assert server.seen.paths == ["POST /flush_cache"]


def test_the_cache_is_flushed_by_get_where_post_is_not_allowed(server: FakeSGLang) -> None:
    server.instead["POST /flush_cache"] = (405, b"")

    ServerClient(server.url).flush_cache()

    assert server.seen.paths == ["POST /flush_cache", "GET /flush_cache"]


def test_a_flush_that_the_server_refuses_is_an_error_with_its_words(server: FakeSGLang) -> None:
    server.instead["POST /flush_cache"] = (400, b"Flush cache failed: 3 requests are running.\n")

    with pytest.raises(
        ServerRequestError,
        match=r"POST http://127\.0\.0\.1:\d+/flush_cache: HTTP 400 after 0\.\d s: Flush cache failed: 3 requests are",
    ):
        ServerClient(server.url, clock=FakeClock()).flush_cache(patience_s=1)


def test_a_flush_is_asked_again_until_the_last_request_is_put_away(server: FakeSGLang) -> None:
    clock = FakeClock()
    clock.at(0.2, server.instead.clear)
    server.instead["POST /flush_cache"] = (400, b"Flush cache failed.\n")

    ServerClient(server.url, clock=clock).flush_cache()

    assert server.seen.paths == ["POST /flush_cache"] * 5


def test_generate_once_returns_text_ids_and_meta_info(server: FakeSGLang) -> None:
    got = ServerClient(server.url).generate_once("Hello", max_new_tokens=4)

    assert got.output_ids == tuple(output_ids("Hello", 4))
    assert got.text == '"completion_tokens":9999, ' * 4
    assert got.meta_info["completion_tokens"] == 4
    assert server.seen.generate == [
        {"text": "Hello", "sampling_params": {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True}}
    ]


def test_generate_once_takes_token_ids_too(server: FakeSGLang) -> None:
    got = ServerClient(server.url).generate_once((5, 6, 7), max_new_tokens=2)

    assert len(got.output_ids) == 2
    assert server.seen.generate[0]["input_ids"] == [5, 6, 7]
    assert "text" not in server.seen.generate[0]


def test_a_generation_that_the_server_refuses_is_an_error_with_its_words(server: FakeSGLang) -> None:
    server.answers = Answers(status=400)

    with pytest.raises(ServerRequestError, match=r"HTTP 400 after 0\.\d s: .*The input is too long"):
        ServerClient(server.url).generate_once("Hello", max_new_tokens=4)


def test_a_server_that_does_not_answer_in_time_is_an_error_with_the_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"

        with pytest.raises(ServerRequestError) as raised:
            ServerClient(url, timeout_s=0.1).server_info()

        assert str(raised.value) == f"GET {url}/server_info: no answer within 0.1 s"


def test_a_refused_connection_is_an_error_with_the_address() -> None:
    with FakeSGLang() as server:
        url = server.url

    with pytest.raises(ServerRequestError, match=rf"^GET {url}/server_info: failed after \d+\.\d s: .*refused"):
        ServerClient(url).server_info()


def test_a_slash_at_the_end_of_the_address_is_not_doubled(server: FakeSGLang) -> None:
    ServerClient(server.url + "/").flush_cache()

    assert server.seen.paths == ["POST /flush_cache"]


def test_a_proxy_of_the_environment_is_not_asked(server: FakeSGLang, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    assert ServerClient(server.url).health() == 200
