"""What was seen beside the requests of a round: the server's log, the GPUs, and which start of the server it was."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLine:
    """One ``Decode batch`` line of a server's log; a value that its version does not print is None.

    ``rank`` is the data-parallel rank (``DP3``, empty without), ``running`` the requests of the batch, ``tok_s`` the
    tokens since the rank's line before over the time since then. ``steady``: in that time the rank did nothing but
    decode, so that ``tok_s`` is its decode throughput.
    """

    rank: str
    running: int
    queued: int | None
    tok_s: float | None
    accept_length: float | None
    cuda_graph: bool | None
    steady: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpan:
    """What a server's log said during a round. ``restarts`` counts the lines with which a server starts anew."""

    decode: tuple[DecodeLine, ...]
    retractions: tuple[str, ...]
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU over a round, from ``samples`` looks at it: medians, and what slowed it down in any of them.

    ``slowdowns`` are the names of active reasons (hardware or thermal); ``power_capped_share`` is the share of looks
    at which the power limit held the clocks down.
    """

    index: str
    uuid: str
    samples: int
    sm_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    slowdowns: tuple[str, ...]
    power_capped_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that computed on a GPU; ``own`` when the server started it."""

    uuid: str
    pid: int
    name: str
    own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpan:
    """The GPUs of a host over a round. ``unknown`` says why nothing is known of them, None when it is."""

    gpus: tuple[GpuState, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    unknown: str | None = None

    @property
    def own_uuids(self) -> frozenset[str]:
        """The GPUs on which the server's own processes were seen."""
        return frozenset(process.uuid for process in self.processes if process.own)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMark:
    """What tells one start of a server from another: its random seed, and the times its start took, as text."""

    random_seed: int | None = None
    startup: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen beside the requests of one round."""

    log: LogSpan | None = None
    gpu: GpuSpan | None = None
