"""Values that travel between the layers: frozen, typed, without behaviour beyond what their fields imply.

Times are seconds on one monotonic clock unless a name says otherwise; JSON is made of these at the edge only.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from pytest_specdec.observed import GpuSpan, LogSpan, ServerMark

if TYPE_CHECKING:
    from pytest_specdec.spec import ServerSpec

Direction = Literal["higher", "lower"]
#: Values of one metric: the outer tuple has one entry a launch, the inner one a value a round.
RoundsByLaunch = tuple[tuple[float, ...], ...]


class Verdict(str, enum.Enum):
    """The judgement on one measurement, or on one of its metrics."""

    PASS = "pass"
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"
    NO_BASELINE = "no-baseline"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the server picks tokens. The default is greedy, the only choice that repeats exactly."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None

    def identity(self) -> dict[str, float | int | None]:
        """The JSON object that stands for this sampling in a baseline's identity."""
        return {
            "min_p": self.min_p,
            "seed": self.seed,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
        }

    @property
    def short_hash(self) -> str:
        """Eight hex digits of the content; empty for the default, which file names leave out."""
        if self == Sampling():
            return ""
        content = json.dumps(self.identity(), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:8]


#: What goodput can be limited by, in milliseconds.
GOODPUT_LIMITS: Final = ("e2e_ms", "tpot_ms", "ttft_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputLimits:
    """What a request has to meet to count for goodput, in milliseconds; None: no such limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def identity(self) -> dict[str, float]:
        """The JSON object that stands for these limits in a baseline's identity: those that are stated."""
        stated = {name: getattr(self, name) for name in GOODPUT_LIMITS}
        return {name: float(limit) for name, limit in stated.items() if limit is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt of a workload, with the class of task it stands for.

    ``text`` is what a user says first, ``turns`` what the user says after each answer (empty for most prompts).
    ``input_ids`` are token ids that are sent in place of a text.
    """

    id: str
    category: str
    text: str = ""
    turns: tuple[str, ...] = ()
    input_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A fixed set of prompts. ``content_hash`` (hex) covers ids, categories, texts and turns, in order."""

    name: str
    prompts: tuple[Prompt, ...]
    content_hash: str

    @property
    def synthetic(self) -> bool:
        """Whether its prompts are token ids that mean nothing: acceptance on them says nothing either."""
        return any(prompt.input_ids is not None for prompt in self.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A model's chat template, cut into what stands around the words of a conversation.

    A conversation is ``before``, what the user says, ``after_user``, the answer, ``after_answer``, what the user
    says next, ``after_user``, and so on. ``after_answer`` is None for a template that takes single turns only.
    """

    before: str
    after_user: str
    after_answer: str | None

    @property
    def short_hash(self) -> str:
        """Twelve hex digits of the content."""
        content = json.dumps([self.before, self.after_user, self.after_answer])
        return hashlib.sha256(content.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What is measured: server spec x workload x concurrency x output tokens x sampling x chat template or not.

    With a ``request_rate`` (requests/s) the loop is open: requests are sent at set times, and ``concurrency`` caps
    how many run at once. ``goodput`` are the limits under which goodput is counted, None when none are stated.
    """

    spec: ServerSpec
    workload: Workload
    concurrency: int = 1
    output_tokens: int = 512
    sampling: Sampling = field(default_factory=Sampling)
    request_rate: float | None = None
    chat_template: bool = False
    goodput: GoodputLimits | None = None

    @property
    def key(self) -> str:
        """The file stem of its baseline.

        ``<server>--<workload>--c<n>--o<output tokens>[--r<requests/s>][--templated][--<hash of the sampling>]``
        """
        parts = [self.spec.name, self.workload.name, f"c{self.concurrency}", f"o{self.output_tokens}"]
        if self.request_rate is not None:
            parts.append(f"r{self.request_rate!r}".removesuffix(".0"))
        if self.chat_template:
            parts.append("templated")
        if self.sampling.short_hash:
            parts.append(self.sampling.short_hash)
        return "--".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadEnd:
    """What an experiment that is known to fail is known by.

    ``diagnosis`` is the name of one, or of a problem of the preflight; ``slower_than`` is in tok/s, of ``decode_tok_s``
    at concurrency 1 and of ``system_tok_s`` above. At least one of both is there. ``versions`` of SGLang (PEP 440) are
    those it is known in, None for all.
    """

    diagnosis: str | None
    reason: str
    versions: str | None = None
    link: str | None = None
    slower_than: float | None = None

    @property
    def expected(self) -> str:
        """What is expected, in words."""
        slow = None if self.slower_than is None else f"not above {self.slower_than:g} tok/s"
        return ", or ".join(word for word in (self.diagnosis, slow) if word is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSample:
    """One request of a round, as the client saw it and as the server's final ``meta_info`` tells it.

    The four times are seconds since the round began. ``first_chunk_tokens`` is the server's
    ``completion_tokens`` in the first chunk that carried any: with drafting that chunk can hold several.
    ``verify_steps`` is ``spec_verify_ct``, None when the server did not report it.
    ``accept_histogram[k]`` counts the verify steps in which k draft tokens were right.
    ``scheduled_s`` is when an open loop should have sent it (None: closed loop); what lies between that and
    ``sent_s`` is the wait for a free slot, and the client's own lateness. Of the server's own times,
    ``server_e2e_s`` is always told; the other three (seconds, tok/s) by a server with ``--enable-metrics``.
    """

    prompt_id: str
    category: str
    sent_s: float
    first_token_s: float
    last_token_s: float
    done_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_chunk_tokens: int
    chunks: int
    verify_steps: int | None
    accept_histogram: tuple[int, ...] | None
    finish_reason: str | None
    server_e2e_s: float | None
    output_ids: tuple[int, ...]
    error: str | None = None
    #: (seconds since the round began, completion tokens so far), one pair a chunk that carried tokens.
    arrivals: tuple[tuple[float, int], ...] = ()
    #: Which answer of the conversation it is, counted from 1.
    turn: int = 1
    scheduled_s: float | None = None
    server_ttft_s: float | None = None
    server_queue_s: float | None = None
    server_decode_tok_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One pass over the workload. ``index`` counts from 0 within warm-up and within measured rounds alike.

    ``flush_error`` is why the cache could not be flushed before it, ``client_cpu_share`` the processor time of this
    process over the round's length. ``log`` is what the server's log said meanwhile, ``gpu`` what ``nvidia-smi``
    did; each None where it is not known.
    """

    index: int
    warmup: bool
    started_unix_s: float
    wall_s: float
    requests: tuple[RequestSample, ...]
    flush_error: str | None = None
    client_cpu_share: float | None = None
    log: LogSpan | None = None
    gpu: GpuSpan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A reason why a run must not be judged: the rule's name, and what was seen."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one validity rule says of a run. ``reason`` is what was seen, or why it was not looked at.

    ``refuses``: when it is broken the run is invalid; other rules are notes for the reader.
    """

    rule: str
    status: Literal["broken", "fine", "not-applicable", "not-checked"]
    reason: str
    refuses: bool = True
    waived: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """One start of a server, and what was learned about it.

    ``phase_s`` tells where the ``ready_s`` seconds went (``weights``, ``graphs``, ...). ``server_args`` are the
    effective arguments from ``/server_info`` (secrets removed); ``facts`` are the other environment facts recorded
    with a baseline (versions, token capacity, GPU state). ``attached_to`` is the address of a server that was
    running before; then ``ready_s`` and ``log_path`` are not known (None), and ``started_unix_s`` is when it was
    first asked. ``cache_flushed``: before each round. ``adopted``: an earlier session launched it and kept it up; its
    times are those of that launch.
    """

    index: int
    spec_name: str
    spec_hash: str
    command: str
    host: str
    node: str
    started_unix_s: float
    ready_s: float | None
    log_path: str | None
    sglang_version: str | None
    drafting: bool
    server_args: Mapping[str, object]
    facts: Mapping[str, object]
    attached_to: str | None = None
    cache_flushed: bool = True
    adopted: bool = False
    phase_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRounds:
    """The measured rounds that one launch gave one measurement (warm-up rounds kept apart).

    ``template`` is what stood around the prompts, None where they were sent as they are. ``marks`` tell one start of
    the server from another: at its readiness, and after the last round.
    """

    launch: LaunchRecord
    warmup: tuple[Round, ...]
    rounds: tuple[Round, ...]
    template: ChatTemplate | None = None
    marks: tuple[ServerMark, ServerMark] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricVerdict:
    """The judgement on one metric. ``change`` is value/baseline - 1, signed as measured (+ is more, not better).

    ``change_low`` and ``change_high`` bound it, at the levels that a regression and a pass are called at.
    ``catches`` is the loss, as a fraction above 0, that must be ruled out for a pass. ``launches`` is how many were
    judged: a metric that is decided is not judged again when another asks for more. All are None or 0 where nothing
    was compared. ``verdict`` is None when the metric was neither compared nor held to a floor.
    """

    metric: str
    unit: str
    direction: Direction | None
    gated: bool
    value: float | None
    baseline: float | None
    change: float | None
    floor: float | None
    verdict: Verdict | None
    reason: str
    change_low: float | None = None
    change_high: float | None = None
    catches: float | None = None
    launches: int = 0
    stale: bool = False
    source: str | None = None


#: What a change comes from: its likeliest kind.
Cause = Literal["drafter", "engine", "machine", "workload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryChange:
    """How one class of task moved: fractions, None where the baseline or the run has no value."""

    category: str
    accept_length: float | None
    verify_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentChange:
    """One fact or effective argument that is not what the baseline was recorded with; both sides as shown."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The judgement on one measurement, with all that a reader needs to see why.

    ``split`` explains a change of decode throughput: (accept length change, verify rate change) as
    fractions, None where the server does not draft or the baseline lacks one of them. ``cause`` is the likeliest kind
    of a loss. ``more``: launches that are still worth spending on an answer that is too close to call.
    """

    verdict: Verdict
    metrics: tuple[MetricVerdict, ...]
    violations: tuple[Violation, ...]
    baseline_path: str | None
    split: tuple[float, float] | None
    environment_changes: tuple[EnvironmentChange, ...]
    notes: tuple[str, ...]
    categories: tuple[CategoryChange, ...] = ()
    cause: Cause | None = None
    more: int = 0
