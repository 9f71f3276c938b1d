"""What a validity rule looks at, and what it may answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_specdec.model import ChatTemplate, LaunchRounds, Measurement, RequestSample, Round
from pytest_specdec.observed import DecodeLine, ServerMark

#: What changes acceptance without changing a model: never a baseline.
SIMULATED_ACCEPTANCE = ("SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The measured rounds of one launch, and what is known about its server.

    ``args`` and ``facts`` are those of the launch's record. ``attached``: the server was running before, so that of
    its host, its log and its environment nothing is known. ``distinct_before`` is the share of distinct 4-grams that
    the baseline's (or the control's) answers had, None where it isn't known.
    """

    measurement: Measurement
    rounds: Sequence[Round]
    drafting: bool
    cache_flushed: bool = True
    template: ChatTemplate | None = None
    on_cuda: bool = False
    attached: bool = False
    command: str = ""
    args: Mapping[str, object] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    marks: tuple[ServerMark, ServerMark] | None = None
    distinct_before: float | None = None

    @classmethod
    def of(
        cls, measurement: Measurement, launch: LaunchRounds, *, on_cuda: bool, distinct_before: float | None = None
    ) -> Run:
        """Return what the rules look at of one launch; ``on_cuda`` counts where the server doesn't tell its device."""
        record = launch.launch
        told = record.server_args.get("device")
        return cls(
            measurement=measurement,
            rounds=launch.rounds,
            drafting=record.drafting,
            cache_flushed=record.cache_flushed,
            template=launch.template,
            on_cuda=told == "cuda" if isinstance(told, str) and told else on_cuda,
            attached=record.attached_to is not None,
            command=record.command,
            args=record.server_args,
            facts=record.facts,
            marks=launch.marks,
            distinct_before=distinct_before,
        )

    def samples(self) -> Iterator[RequestSample]:
        """Every request that was answered."""
        return (sample for done in self.rounds for sample in done.requests if sample.error is None)

    def decode_lines(self) -> list[DecodeLine]:
        """The decode lines of the rounds whose log is known."""
        return [line for done in self.rounds if done.log is not None for line in done.log.decode]

    @property
    def has_log(self) -> bool:
        """Whether the log of every round is known."""
        return bool(self.rounds) and all(done.log is not None for done in self.rounds)

    @property
    def ranks(self) -> int:
        """Data-parallel ranks, each of which has a batch of its own."""
        sizes = [self.args.get(name) for name in ("dp_size", "attn_dp_size")]
        return max([1, *(size for size in sizes if isinstance(size, int))])

    @property
    def open_loop(self) -> bool:
        """Whether the concurrency is a cap that need not be reached."""
        return self.measurement.request_rate is not None

    @property
    def batch(self) -> int:
        """The requests in one rank's batch when as many run as were asked for (in an open loop: at most)."""
        return -(-self.measurement.concurrency // self.ranks)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rule says: the status, and what was seen or why it was not looked at."""

    status: Literal["broken", "fine", "not-applicable", "not-checked"]
    reason: str = ""


FINE = Answer("fine")


def broken(reason: str) -> Answer:
    """The run must not be judged."""
    return Answer("broken", reason)


def not_applicable(why: str) -> Answer:
    """The rule says nothing about such a run."""
    return Answer("not-applicable", why)


def not_checked(why: str) -> Answer:
    """The rule applies, and what it needs is not known."""
    return Answer("not-checked", why)


#: Why nothing is known of a server that this session did not start.
NOT_OURS = not_checked("the server was already running: its host and its log are not known")
NO_LOG = not_checked("the server's log could not be read during the rounds")
