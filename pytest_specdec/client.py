"""One running server over HTTP: what it says of itself, its cache, a request, and a measured load.

Errors of the HTTP library become :class:`ServerRequestError`, with what was asked, how long it took, and the
beginning of the answer. The measured load is in :mod:`pytest_specdec.load`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_specdec.clock import Clock, SystemClock
from pytest_specdec.errors import ServerRefusedError, ServerRequestError
from pytest_specdec.model import Prompt, RequestSample, Sampling
from pytest_specdec.observed import ServerMark

_SECRET: Final = re.compile(r"(key|token|secret|password)(_b)?$")
_FLUSH_POLL_S: Final = 0.05
_SHOWN_OF_AN_ANSWER: Final = 300
#: Keys of the answer that are about the engine's state rather than its arguments.
_STATE: Final = frozenset(
    {"internal_states", "version", "startup_time", "launch_command", "last_gen_throughput", "memory_usage"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What ``/server_info`` says. ``args`` are effective arguments, without secrets; ``facts`` the capacities.

    ``mark`` tells this start of the server from another one.
    """

    version: str | None
    model_path: str | None
    port: int | None
    drafting: bool
    args: Mapping[str, object]
    facts: Mapping[str, object]
    mark: ServerMark = field(default_factory=ServerMark)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """One answer that was not streamed."""

    text: str
    output_ids: tuple[int, ...]
    meta_info: Mapping[str, Any]


def parse_server_info(answer: Mapping[str, Any]) -> ServerInfo:
    """Read any version's shape: arguments at top level, or in ``internal_states`` (one a data-parallel rank)."""
    states = answer.get("internal_states")
    state: Mapping[str, Any] = states[0] if isinstance(states, list) and states else {}
    merged = {**state, **{key: value for key, value in answer.items() if value is not None}}
    args = {
        key: value
        for key, value in sorted(merged.items())
        if key not in _STATE and not _SECRET.search(key) and isinstance(value, (str, int, float, bool, list))
    }
    memory = state.get("memory_usage") or {}
    facts: dict[str, object] = {
        "max_total_num_tokens": merged.get("max_total_num_tokens") or memory.get("token_capacity"),
        "mem_fraction_static": merged.get("mem_fraction_static"),
        "decode_cuda_graph_bs": state.get("decode_cuda_graph_bs"),
        "max_running_requests": state.get("effective_max_running_requests_per_dp"),
    }
    port, seed, startup = merged.get("port"), merged.get("random_seed"), merged.get("startup_time")
    return ServerInfo(
        version=merged.get("version"),
        model_path=merged.get("model_path"),
        port=port if isinstance(port, int) else None,
        drafting=merged.get("speculative_algorithm") is not None,
        args=args,
        facts={key: value for key, value in facts.items() if value is not None},
        mark=ServerMark(
            random_seed=seed if isinstance(seed, int) else None,
            startup=None if startup is None else repr(startup),
        ),
    )


class ServerClient:
    """A server at ``base_url``. Every request has a deadline, ``timeout_s`` unless the call says otherwise.

    ``api_key`` is sent with each request, to a server that was started with ``--api-key``.
    """

    def __init__(
        self, base_url: str, *, timeout_s: float = 30.0, clock: Clock | None = None, api_key: str | None = None
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._timeout_s = timeout_s
        self._clock: Clock = clock or SystemClock()

    def _ask(self, method: str, path: str, *, timeout_s: float | None = None, json: object = None) -> Any:  # noqa: ANN401  # requests.Response
        import requests  # noqa: PLC0415  # importing the package must not load an HTTP library

        url, limit_s = f"{self.base_url}{path}", self._timeout_s if timeout_s is None else timeout_s
        began = self._clock.monotonic()
        try:
            # A proxy of the environment is not meant for a server on this host.
            with requests.Session() as session:
                session.trust_env = False
                return session.request(method, url, json=json, timeout=limit_s, headers=self._headers)
        except requests.Timeout:
            raise ServerRequestError(f"{method} {url}: no answer within {limit_s:g} s") from None
        except requests.RequestException as error:
            passed_s = self._clock.monotonic() - began
            raise ServerRequestError(f"{method} {url}: failed after {passed_s:.1f} s: {error}") from None

    def _refused(self, method: str, path: str, answer: Any, what: str) -> ServerRefusedError:  # noqa: ANN401  # requests.Response
        shown = answer.text[:_SHOWN_OF_AN_ANSWER].strip()
        passed_s = answer.elapsed.total_seconds()
        return ServerRefusedError(f"{method} {self.base_url}{path}: {what} after {passed_s:.1f} s: {shown}")

    def _expect_ok(self, method: str, path: str, answer: Any) -> Any:  # noqa: ANN401  # requests.Response
        if answer.status_code != 200:
            raise self._refused(method, path, answer, f"HTTP {answer.status_code}")
        return answer

    def _json_object(self, method: str, path: str, answer: Any) -> dict[str, Any]:  # noqa: ANN401  # requests.Response
        try:
            told = self._expect_ok(method, path, answer).json()
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise self._refused(method, path, answer, "expected a JSON object, got this")
        return told

    def health(self, *, timeout_s: float = 25.0) -> int | None:
        """Return the status code of ``/health``; None when nothing listens, or nothing answers in time.

        The server runs a token for it: not to be asked while measuring.
        """
        try:
            return int(self._ask("GET", "/health", timeout_s=timeout_s).status_code)
        except ServerRequestError:
            return None

    def server_info(self) -> ServerInfo:
        """Ask the server about itself: ``/server_info``, or ``/get_server_info`` before 0.5.6."""
        path = "/server_info"
        answer = self._ask("GET", path)
        if answer.status_code == 404:
            path = "/get_server_info"
            answer = self._ask("GET", path)
        return parse_server_info(self._json_object("GET", path, answer))

    def flush_cache(self, *, patience_s: float = 10.0) -> None:
        """Empty the prefix cache; raises when the server still refuses after ``patience_s``.

        A server refuses while requests run, and an answer is complete for the client a moment before the scheduler
        has put its request away: a refusal is asked again until then.
        """
        deadline = self._clock.monotonic() + patience_s
        method = "POST"
        while True:
            answer = self._ask(method, "/flush_cache")
            if answer.status_code == 405 and method == "POST":
                method = "GET"
            elif answer.status_code == 400 and self._clock.monotonic() < deadline:
                self._clock.sleep(_FLUSH_POLL_S)
            else:
                self._expect_ok(method, "/flush_cache", answer)
                return

    def generate_once(self, text: str | Sequence[int], *, max_new_tokens: int, timeout_s: float = 120.0) -> Generated:
        """Send one greedy request that is not streamed: a text, or token ids for a server without a tokenizer."""
        prompt = {"text": text} if isinstance(text, str) else {"input_ids": list(text)}
        params = {"max_new_tokens": max_new_tokens, "temperature": 0.0, "ignore_eos": True}
        answer = self._ask("POST", "/generate", json={**prompt, "sampling_params": params}, timeout_s=timeout_s)
        told = self._json_object("POST", "/generate", answer)
        return Generated(
            text=told.get("text") or "",
            output_ids=tuple(told.get("output_ids") or ()),
            meta_info=told.get("meta_info") or {},
        )

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
        """Send every prompt once; return the wall time (s), and samples in prompt order and turn by turn.

        A closed loop, or with a ``request_rate`` (requests/s) an open one, see :func:`pytest_specdec.load.run`.
        What goes wrong with a request is in its sample. Only when no connection can be made at all is
        :class:`ServerRequestError` raised.
        """
        import asyncio  # noqa: PLC0415  # loaded on first use, like the HTTP library

        from pytest_specdec import load  # noqa: PLC0415  # needs asyncio

        try:
            return asyncio.run(
                load.run(
                    self.base_url,
                    prompts,
                    concurrency=concurrency,
                    output_tokens=output_tokens,
                    sampling=sampling,
                    clock=clock,
                    request_timeout_s=request_timeout_s,
                    deadline_s=deadline_s,
                    request_rate=request_rate,
                    headers=self._headers,
                )
            )
        except (OSError, asyncio.TimeoutError) as error:
            why = str(error) or f"nothing answered within {load.CONNECT_TIMEOUT_S:g} s"
            raise ServerRequestError(f"{self.base_url}: no connection for the load: {why}") from None
