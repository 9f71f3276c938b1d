"""What fixtures hand to tests: a borrowed server, and the GPU host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_specdec.spec import ServerSpec


class SglangServer:
    """A borrowed SGLang server. Reading ``url``, ``info`` or ``log_path`` starts it if it isn't up."""

    def __init__(self, spec: ServerSpec, serving: Callable[[], Any]) -> None:
        self.spec = spec
        self._serving = serving

    def __repr__(self) -> str:
        return f"SglangServer({self.spec.name!r})"

    @property
    def url(self) -> str:
        """Where it answers: ``http://127.0.0.1:<port>``."""
        url: str = self._serving().url
        return url

    @property
    def info(self) -> Any:  # noqa: ANN401  # client.ServerInfo, which lower layers own
        """Its ``/server_info``, read when it became ready; secrets are removed."""
        return self._serving().info

    @property
    def log_path(self) -> Path:
        """Where its log is kept."""
        return Path(self._serving().log_path)

    def generate(self, text: str, *, output_tokens: int = 16) -> Any:  # noqa: ANN401  # client.Generated
        """Send one greedy request of exactly ``output_tokens`` tokens and return its text and token ids."""
        return self._serving().client.generate_once(text, max_new_tokens=output_tokens)


@dataclass(frozen=True, slots=True)
class GpuHost:
    """The GPU host: its name, its node's name, and a way to run a command on it."""

    name: str
    node: str
    run: Callable[..., Any]
