"""The metrics: names, units, directions, formulas, and how a round's values follow from its requests.

Everything counts ``completion_tokens``, never chunks: a server that drafts sends several tokens in one chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from pytest_specdec import stats
from pytest_specdec.model import Direction, GoodputLimits, LaunchRecord, Measurement, RequestSample, Round

#: Raised whenever a change here makes older values incomparable; part of every baseline's identity.
METHOD_VERSION: Final = 1

#: The quantiles of latencies that are reported beside the median.
_QUANTILES: Final = (0.9, 0.99)
_SHORTEST_JUDGED_TEXT: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """What is known about a metric before it is measured.

    ``gate_at`` says where it gates by default: ``one`` for one stream, ``many`` for more, ``always``, ``never``.
    ``default_tolerance`` is the loss that passes, as a fraction. ``smallest_sigma`` (log scale) keeps a value
    that never varies from passing for one without noise. ``per`` is what yields one value: a round, or a launch with
    all its rounds pooled. ``detail`` metrics are in every result, and in the table of a failure only when they gate.
    """

    name: str
    unit: str
    direction: Direction
    gate_at: str
    default_tolerance: float
    smallest_sigma: float
    formula: str
    per: Literal["round", "launch"] = "round"
    detail: bool = False

    def gates(self, streams: int) -> bool:
        """Whether the metric gates by default for so many streams (:attr:`Identity.streams`)."""
        return self.gate_at in ("always", "one" if streams == 1 else "many")


def _throughput(name: str, gate_at: str, formula: str) -> MetricSpec:
    return MetricSpec(
        name=name,
        unit="tok/s",
        direction="higher",
        gate_at=gate_at,
        default_tolerance=0.02,
        smallest_sigma=0.005,
        formula=formula,
    )


def _latency(name: str, formula: str) -> MetricSpec:
    return MetricSpec(
        name=name,
        unit="ms",
        direction="lower",
        gate_at="never",
        default_tolerance=0.05,
        smallest_sigma=0.005,
        formula=formula,
    )


def least_requests(q: float) -> int:
    """Return how many requests a quantile needs: as many as leave one beyond it (10 for p90, 100 for p99).

    With fewer it is the slowest request under another name. Even at that number it is a figure of one or two
    requests, and repeats badly; ten times as many make it one to compare.
    """
    return round(1 / (1 - q))


def _quantile(latency: str, q: float, formula: str) -> MetricSpec:
    return MetricSpec(
        name=_quantile_name(latency, q),
        unit="ms",
        direction="lower",
        gate_at="never",
        default_tolerance=0.1,
        smallest_sigma=0.02,
        formula=f"{formula}; {q:.0%} quantile (linear) over the requests of all rounds of a launch, from "
        f"{least_requests(q)} requests on",
        per="launch",
        detail=True,
    )


def _quantile_name(latency: str, q: float) -> str:
    return f"{latency}_p{round(q * 100)}_ms"


def _share(name: str, formula: str) -> MetricSpec:
    return MetricSpec(
        name=name,
        unit="share",
        direction="higher",
        gate_at="never",
        default_tolerance=0.05,
        smallest_sigma=0.01,
        formula=formula,
        detail=True,
    )


_TTFT: Final = "t_first_token - t_sent"
_TPOT: Final = "(e2e - ttft) / (completion_tokens - first_chunk_tokens) per request"
_E2E: Final = "t_last_token - t_sent"

_SPECS: Final = (
    _throughput(
        "decode_tok_s",
        "one",
        "per stream (completion_tokens - first_chunk_tokens) / (t_last_token - t_first_token); median over streams",
    ),
    _throughput(
        "system_tok_s",
        "many",
        "tokens that arrived in the steady window / its length; the window begins when `concurrency` streams "
        "have their first token and ends when the first stream after which fewer than that remain is done; in an "
        "open loop it begins when the first request is done and ends when the last one is due",
    ),
    _throughput("output_tok_s", "never", "sum(completion_tokens) / wall time of the round"),
    _latency("ttft_ms", f"{_TTFT}; median over requests"),
    _latency(
        "ttft_scheduled_ms",
        "t_first_token - the moment at which the request was due, its wait for a slot included; median over requests; "
        "open loop only",
    ),
    _latency("tpot_ms", f"{_TPOT}; median over requests"),
    _latency("e2e_ms", f"{_E2E}; median over requests"),
    *(_quantile("ttft", q, _TTFT) for q in _QUANTILES),
    *(_quantile("tpot", q, _TPOT) for q in _QUANTILES),
    *(_quantile("e2e", q, _E2E) for q in _QUANTILES),
    MetricSpec(
        name="goodput",
        unit="req/s",
        direction="higher",
        gate_at="never",
        default_tolerance=0.02,
        smallest_sigma=0.005,
        formula="requests that meet every stated limit / wall time of the round; a request that failed meets none",
    ),
    _share("goodput_share", "requests that meet every stated limit / requests sent"),
    MetricSpec(
        name="accept_length",
        unit="tok/step",
        direction="higher",
        gate_at="always",
        default_tolerance=0.01,
        smallest_sigma=0.002,
        formula="sum(completion_tokens - first_chunk_tokens) / sum(spec_verify_ct), pooled over the round",
    ),
    MetricSpec(
        name="accept_length_sglang",
        unit="tok/step",
        direction="higher",
        gate_at="never",
        default_tolerance=0.01,
        smallest_sigma=0.002,
        formula="sum(completion_tokens) / sum(spec_verify_ct): SGLang's own quotient, which counts the prefill token",
        detail=True,
    ),
    MetricSpec(
        name="accept_rate",
        unit="share",
        direction="higher",
        gate_at="never",
        default_tolerance=0.02,
        smallest_sigma=0.002,
        formula="(accept_length - 1) / (num_draft_tokens - 1), num_draft_tokens from /server_info: right draft tokens "
        "/ draft tokens offered. Derived, since SGLang's accept_rate changed its meaning between versions",
        detail=True,
    ),
    MetricSpec(
        name="verify_rate",
        unit="step/s",
        direction="higher",
        gate_at="never",
        default_tolerance=0.02,
        smallest_sigma=0.005,
        formula="decode_tok_s / accept_length; per stream this is spec_verify_ct / (t_last_token - t_first_token)",
    ),
    _share(
        "distinct_share",
        "distinct 4-grams of token ids / all 4-grams of an answer; median over answers of 32 tokens and more",
    ),
)
METRICS: Final[Mapping[str, MetricSpec]] = MappingProxyType({spec.name: spec for spec in _SPECS})


def speed_of(measurement: Measurement) -> str:
    """Return the throughput that says how fast a measurement is: the one that gates by default.

    At a request rate the system's follows the rate, so that only a stream's own can tell.
    """
    alone = measurement.concurrency == 1 or measurement.request_rate is not None
    return next(spec.name for spec in _SPECS if spec.unit == "tok/s" and spec.gates(1 if alone else 2))


def decode_tok_s(sample: RequestSample) -> float | None:
    """Tokens per second of one stream after its first chunk; None when nothing came after it."""
    tokens = sample.completion_tokens - sample.first_chunk_tokens
    elapsed_s = sample.last_token_s - sample.first_token_s
    return tokens / elapsed_s if tokens > 0 and elapsed_s > 0 else None


def verify_rate(sample: RequestSample) -> float | None:
    """Verify steps per second of one stream; decode_tok_s = accept length x verify rate, exactly."""
    elapsed_s = sample.last_token_s - sample.first_token_s
    return sample.verify_steps / elapsed_s if sample.verify_steps and elapsed_s > 0 else None


def accept_length(sample: RequestSample) -> float | None:
    """Tokens committed per verify step of one stream, without the tokens of the first chunk."""
    if not sample.verify_steps:
        return None
    return (sample.completion_tokens - sample.first_chunk_tokens) / sample.verify_steps


def draft_tokens(launch: LaunchRecord) -> int | None:
    """Return num_draft_tokens as ``/server_info`` tells it, the bonus token counted in; None where it doesn't."""
    told = launch.server_args.get("speculative_num_draft_tokens") if launch.drafting else None
    return told if isinstance(told, int) and told > 1 else None


def round_metrics(
    done: Round, concurrency: int, *, num_draft_tokens: int | None = None, limits: GoodputLimits | None = None
) -> dict[str, float]:
    """Return every metric of a round that follows from its requests; one that doesn't is absent.

    Requests that failed count for none but goodput. Acceptance is absent as soon as one request lacks its verify
    count, the accept rate where ``num_draft_tokens`` is not known, goodput where no limits are stated.
    """
    samples = [sample for sample in done.requests if sample.error is None]
    if not samples:
        return {}
    values: dict[str, float] = {}
    speeds = [speed for sample in samples if (speed := decode_tok_s(sample)) is not None]
    if speeds:
        values["decode_tok_s"] = stats.median(speeds)
    system = _system_tok_s(samples, concurrency)
    if system is not None:
        values["system_tok_s"] = system
    if done.wall_s > 0:
        values["output_tok_s"] = sum(sample.completion_tokens for sample in samples) / done.wall_s
    for name, took in latencies(samples).items():
        if took:
            values[f"{name}_ms"] = stats.median(took)
    waited = [(s.first_token_s - s.scheduled_s) * 1000 for s in samples if s.scheduled_s is not None]
    if waited:
        values["ttft_scheduled_ms"] = stats.median(waited)
    if limits is not None:
        good = sum(meets(sample, limits) for sample in samples)
        values["goodput_share"] = good / len(done.requests)
        if done.wall_s > 0:
            values["goodput"] = good / done.wall_s
    values.update(_acceptance(samples, values.get("decode_tok_s"), num_draft_tokens))
    shares = [share for sample in samples if (share := distinct_share(sample.output_ids)) is not None]
    if shares:
        values["distinct_share"] = stats.median(shares)
    return values


def launch_metrics(rounds: Sequence[Round]) -> dict[str, float]:
    """Return the metrics of a launch that need more requests than a round has; absent where these are too few."""
    pooled = latencies([sample for done in rounds for sample in done.requests if sample.error is None])
    return {
        _quantile_name(name, q): stats.quantile(took, q)
        for name, took in pooled.items()
        for q in _QUANTILES
        if len(took) >= least_requests(q)
    }


def ttft_ms(sample: RequestSample) -> float:
    """Milliseconds from sending a request to its first token."""
    return (sample.first_token_s - sample.sent_s) * 1000


def tpot_ms(sample: RequestSample) -> float | None:
    """Milliseconds a token after the first chunk; None when nothing came after it."""
    tokens = sample.completion_tokens - sample.first_chunk_tokens
    return (sample.last_token_s - sample.first_token_s) * 1000 / tokens if tokens > 0 else None


def e2e_ms(sample: RequestSample) -> float:
    """Milliseconds from sending a request to its last token."""
    return (sample.last_token_s - sample.sent_s) * 1000


def latencies(samples: Sequence[RequestSample]) -> dict[str, list[float]]:
    """Return what answered requests took, ms: ``ttft`` and ``e2e`` of all, ``tpot`` of those that have one."""
    return {
        "ttft": [ttft_ms(sample) for sample in samples],
        "tpot": [each for sample in samples if (each := tpot_ms(sample)) is not None],
        "e2e": [e2e_ms(sample) for sample in samples],
    }


def meets(sample: RequestSample, limits: GoodputLimits) -> bool:
    """Whether a request that was answered stays within every limit; no token after the first chunk is none late.

    In an open loop its wait for a slot counts: who asked has waited since it was due.
    """
    waited_ms = 0.0 if sample.scheduled_s is None else (sample.sent_s - sample.scheduled_s) * 1000
    measured = {
        "ttft_ms": waited_ms + ttft_ms(sample),
        "tpot_ms": tpot_ms(sample) or 0.0,
        "e2e_ms": waited_ms + e2e_ms(sample),
    }
    return all(measured[name] <= limit for name, limit in limits.identity().items())


def distinct_share(output_ids: Sequence[int], n: int = 4) -> float | None:
    """Distinct n-grams / all n-grams of a text; None for a text too short to tell."""
    if len(output_ids) < _SHORTEST_JUDGED_TEXT:
        return None
    grams = [tuple(output_ids[i : i + n]) for i in range(len(output_ids) - n + 1)]
    return len(set(grams)) / len(grams)


def _acceptance(samples: list[RequestSample], speed: float | None, num_draft_tokens: int | None) -> dict[str, float]:
    counts = [sample.verify_steps for sample in samples]
    if any(count is None for count in counts):
        return {}
    verified = sum(count for count in counts if count is not None)
    committed = sum(sample.completion_tokens - sample.first_chunk_tokens for sample in samples)
    if verified == 0 or committed == 0:
        return {}
    pooled = committed / verified
    values = {
        "accept_length": pooled,
        "accept_length_sglang": sum(sample.completion_tokens for sample in samples) / verified,
    }
    if num_draft_tokens is not None:
        values["accept_rate"] = (pooled - 1) / (num_draft_tokens - 1)
    if speed is not None:
        # From the other two, so that the identity holds for the round as it does for each stream.
        values["verify_rate"] = speed / pooled
    return values


def _system_tok_s(samples: list[RequestSample], concurrency: int) -> float | None:
    """Throughput of the whole server while it was full.

    Streams that run beside each other are counted by their arrivals; before the window some slots are still
    empty, after it some are empty again.
    """
    due = [sample.scheduled_s for sample in samples if sample.scheduled_s is not None]
    if due:
        # Requests run as long as they would, and still arrive as often as they should.
        begins, ends = min(sample.last_token_s for sample in samples), max(due)
    elif len(samples) < concurrency:
        return None
    else:
        begins = sorted(sample.first_token_s for sample in samples)[concurrency - 1]
        ends = sorted(sample.last_token_s for sample in samples)[len(samples) - concurrency]
    if ends <= begins:
        return None
    tokens = sum(_arrived(sample, ends) - _arrived(sample, begins) for sample in samples)
    return tokens / (ends - begins) if tokens > 0 else None


def _arrived(sample: RequestSample, at_s: float) -> int:
    arrived = 0
    for time_s, tokens in sample.arrivals:
        if time_s > at_s:
            break
        arrived = tokens
    return arrived


def accept_histogram(rounds: tuple[Round, ...]) -> tuple[int, ...] | None:
    """How often k draft tokens were right, summed over requests; None when a request did not report it."""
    histograms = [s.accept_histogram for done in rounds for s in done.requests if s.error is None]
    if not histograms or any(histogram is None for histogram in histograms):
        return None
    total = [0] * max(len(histogram) for histogram in histograms if histogram is not None)
    for histogram in histograms:
        for k, count in enumerate(histogram or ()):
            total[k] += count
    return tuple(total)


def acceptance_by_position(histogram: Sequence[int]) -> tuple[float | None, ...]:
    """Return, for draft positions 1, 2, ..., the share of verify steps that took it, of those that reached it.

    Position k is reached when the k - 1 before it were right: P(k) = sum(histogram[k:]) / sum(histogram[k-1:]), with
    ``histogram[j]`` the verify steps in which exactly j draft tokens were right. None where no step reached it. In a
    tree of drafts the positions are depths.
    """
    reached = [sum(histogram[k:]) for k in range(len(histogram))]
    return tuple(reached[k] / reached[k - 1] if reached[k - 1] else None for k in range(1, len(reached)))
