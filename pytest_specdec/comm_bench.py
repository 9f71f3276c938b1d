"""Timing all-reduces on a host: the probe is sent as text to the Python that has torch, and its answer is read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pytest_specdec import comm_probe
from pytest_specdec.communication import Traffic
from pytest_specdec.errors import HostError, UserInputError
from pytest_specdec.hosts import Host

Backend = Literal["nccl", "gloo"]

_SCRIPT: Final = Path(comm_probe.__file__)
#: Beyond the probe's own deadline: for its Python to start, and to end its ranks.
_GRACE_S: Final = 30.0
_ALGORITHM: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """What is timed: ``traffic.calls`` all-reduces in a row of ``traffic.message_bytes`` each, in bfloat16.

    ``algorithm`` is NCCL's (``Tree``, ``Ring``; None: its own choice). ``graph``: all calls of a round are one CUDA
    graph, as SGLang runs a step; with gloo there is none. Raises :class:`UserInputError` for what can't be timed.
    """

    backend: Backend
    world_size: int
    traffic: Traffic
    algorithm: str | None = None
    graph: bool = True

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise UserInputError(f"an all-reduce needs a world_size of at least 1, got {self.world_size}")
        if self.algorithm is not None and self.backend != "nccl":
            raise UserInputError(f"{self.backend} has one algorithm; {self.algorithm!r} is NCCL's: leave it out")
        if self.algorithm is not None and not _ALGORITHM.fullmatch(self.algorithm):
            raise UserInputError(f"NCCL_ALGO={self.algorithm!r}: give one algorithm, such as Tree or Ring")

    @property
    def key(self) -> str:
        """The file stem of its baseline.

        ``all-reduce--<backend>--w<ranks>--<calls>x<bytes>[--<algorithm>][--eager]``
        """
        parts = ["all-reduce", self.backend, f"w{self.world_size}"]
        parts.append(f"{self.traffic.calls}x{self.traffic.message_bytes}")
        if self.algorithm is not None:
            parts.append(self.algorithm.lower())
        if self.backend == "nccl" and not self.graph:
            parts.append("eager")
        return "--".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One start of all ranks: microseconds a call, one value a round, and the versions it was measured by."""

    rounds_us: tuple[float, ...]
    facts: Mapping[str, str]


def measure(
    host: Host, python: str, wanted: AllReduce, *, rounds: int = 10, warmup: int = 3, timeout_s: float = 120.0
) -> Timed:
    """Start the ranks once on a host and time ``rounds`` rounds after ``warmup`` others.

    Raises :class:`HostError` with what the ranks said when they fail, or are not done after ``timeout_s``.
    """
    request = {
        "backend": wanted.backend,
        "world_size": wanted.world_size,
        "calls": wanted.traffic.calls,
        "message_bytes": wanted.traffic.message_bytes,
        "graph": wanted.graph,
        "rounds": rounds,
        "warmup": warmup,
        "timeout_s": timeout_s,
    }
    env = {} if wanted.algorithm is None else {"NCCL_ALGO": wanted.algorithm}
    source = _SCRIPT.read_text(encoding="utf-8")
    done = host.run([python, "-c", source, json.dumps(request)], env=env, timeout_s=timeout_s + _GRACE_S)
    answer = _answer(done.stdout)
    if answer is None or "error" in answer:
        reason = f"exit code {done.returncode}" if answer is None else str(answer["error"])
        said = [reason, *done.stderr.strip().splitlines()[-5:]]
        raise HostError(f"{host.name}: {wanted.key} can't be timed with {python}: " + "\n".join(said))
    return _timed(host, wanted, answer)


def _answer(stdout: str) -> dict[str, Any] | None:
    """The last line that the probe printed; libraries print what they like before it."""
    lines = [line for line in stdout.splitlines() if line.startswith(comm_probe.MARK)]
    if not lines:
        return None
    answer: dict[str, Any] = json.loads(lines[-1].removeprefix(comm_probe.MARK))
    return answer


def _timed(host: Host, wanted: AllReduce, answer: Mapping[str, Any]) -> Timed:
    rounds = tuple(float(value) for value in answer["rounds_us"])
    if not rounds or not all(math.isfinite(value) and value > 0 for value in rounds):
        raise HostError(f"{host.name}: {wanted.key} gave {list(rounds)}, which are no times")
    facts = {name: str(answer[name]) for name in ("torch_version", "nccl_version") if answer.get(name)}
    return Timed(rounds_us=rounds, facts=facts)
