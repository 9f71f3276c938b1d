"""One running server over HTTP: what it says of itself, its cache, a request, and a measured load.

Errors of the HTTP library become :class:`ServerRequestError`, with what was asked, how long it took, and the
beginning of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pytest_specdec.errors import ServerRequestError
from pytest_specdec.model import Prompt, RequestSample, Sampling

_SECRET: Final = re.compile(r"(key|token|secret|password)(_b)?$")
#: Keys of the answer that are about the engine's state rather than its arguments.
_STATE: Final = frozenset(
    {"internal_states", "version", "startup_time", "launch_command", "last_gen_throughput", "memory_usage"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What ``/server_info`` says. ``args`` are effective arguments, without secrets; ``facts`` the capacities."""

    version: str | None
    model_path: str | None
    port: int | None
    drafting: bool
    args: Mapping[str, object]
    facts: Mapping[str, object]


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
    port = merged.get("port")
    return ServerInfo(
        version=merged.get("version"),
        model_path=merged.get("model_path"),
        port=port if isinstance(port, int) else None,
        drafting=merged.get("speculative_algorithm") is not None,
        args=args,
        facts={key: value for key, value in facts.items() if value is not None},
    )


class ServerClient:
    """A server at ``base_url``. Every request has a deadline, ``timeout_s`` unless the call says otherwise."""

    def __init__(self, base_url: str, *, timeout_s: float = 30.0) -> None:
        self.base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s

    def _ask(self, method: str, path: str, *, timeout_s: float | None = None, json: object = None) -> Any:  # noqa: ANN401  # requests.Response
        import requests  # noqa: PLC0415  # importing the package must not load an HTTP library

        url, limit_s = f"{self.base_url}{path}", timeout_s or self._timeout_s
        try:
            # A proxy of the environment is not meant for a server on this host.
            with requests.Session() as session:
                session.trust_env = False
                return session.request(method, url, json=json, timeout=limit_s)
        except requests.Timeout:
            raise ServerRequestError(f"{method} {url}: no answer within {limit_s:g} s") from None
        except requests.RequestException as error:
            raise ServerRequestError(f"{method} {url}: {error}") from None

    def _expect_ok(self, method: str, path: str, answer: Any) -> Any:  # noqa: ANN401  # requests.Response
        if answer.status_code != 200:
            raise ServerRequestError(
                f"{method} {self.base_url}{path}: HTTP {answer.status_code}: {answer.text[:300].strip()}"
            )
        return answer

    def health(self, *, timeout_s: float = 25.0) -> int | None:
        """Return the status code of ``/health``, None when nothing listens. It runs a token: not while measuring."""
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
        answer = self._expect_ok("GET", path, answer)
        try:
            told = answer.json()
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise ServerRequestError(f"GET {self.base_url}{path}: expected a JSON object, got {answer.text[:300]!r}")
        return parse_server_info(told)

    def flush_cache(self) -> None:
        """Empty the prefix cache; raises when the server says that it did not (requests are running)."""
        answer = self._ask("POST", "/flush_cache")
        if answer.status_code == 405:
            answer = self._ask("GET", "/flush_cache")
        self._expect_ok("POST", "/flush_cache", answer)

    def generate_once(self, text: str, *, max_new_tokens: int, timeout_s: float = 120.0) -> Generated:
        """Send one greedy request that is not streamed."""
        params = {"max_new_tokens": max_new_tokens, "temperature": 0.0, "ignore_eos": True}
        answer = self._expect_ok(
            "POST",
            "/generate",
            self._ask("POST", "/generate", json={"text": text, "sampling_params": params}, timeout_s=timeout_s),
        )
        told = answer.json()
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
    ) -> tuple[float, tuple[RequestSample, ...]]:
        """Send every prompt once, ``concurrency`` at a time; wall time (s) and samples, see :mod:`http_stream`."""
        import asyncio  # noqa: PLC0415  # loaded on first use, like the HTTP library

        from pytest_specdec import http_stream  # noqa: PLC0415  # needs asyncio

        try:
            return asyncio.run(
                http_stream.closed_loop(
                    self.base_url,
                    prompts,
                    concurrency=concurrency,
                    output_tokens=output_tokens,
                    sampling=sampling,
                    clock=clock,
                    request_timeout_s=request_timeout_s,
                )
            )
        except (OSError, asyncio.TimeoutError) as error:
            raise ServerRequestError(f"{self.base_url}: no connection for the load: {error}") from None
