"""The metrics: names, units, directions, formulas, and how a round's values follow from its requests.

Everything counts ``completion_tokens``, never chunks: a server that drafts sends several tokens in one chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pytest_specdec import stats
from pytest_specdec.model import Direction, RequestSample, Round

#: Raised whenever a change here makes older values incomparable; part of every baseline's identity.
METHOD_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """What is known about a metric before it is measured.

    ``gate_at`` says where it gates by default: ``one`` at concurrency 1, ``many`` above, ``always``, ``never``.
    ``default_tolerance`` is the loss that passes, as a fraction. ``smallest_sigma`` (log scale) keeps a value
    that never varies from passing for one without noise.
    """

    name: str
    unit: str
    direction: Direction
    gate_at: str
    default_tolerance: float
    smallest_sigma: float
    formula: str

    def gates(self, concurrency: int) -> bool:
        """Whether the metric gates by default at this concurrency."""
        return self.gate_at in ("always", "one" if concurrency == 1 else "many")


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
    _latency("ttft_ms", "t_first_token - t_sent; median over requests"),
    _latency(
        "ttft_scheduled_ms",
        "t_first_token - the moment at which the request was due, its wait for a slot included; median over requests; "
        "open loop only",
    ),
    _latency("tpot_ms", "(e2e - ttft) / (completion_tokens - first_chunk_tokens) per request; median over requests"),
    _latency("e2e_ms", "t_last_token - t_sent; median over requests"),
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
)
METRICS: Final[Mapping[str, MetricSpec]] = MappingProxyType({spec.name: spec for spec in _SPECS})


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


def round_metrics(done: Round, concurrency: int) -> dict[str, float]:
    """Return every metric of a round that follows from its requests; one that doesn't is absent.

    Requests that failed count for none. Acceptance is absent as soon as one request lacks its verify count.
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
    values["ttft_ms"] = stats.median([(s.first_token_s - s.sent_s) * 1000 for s in samples])
    values["e2e_ms"] = stats.median([(s.last_token_s - s.sent_s) * 1000 for s in samples])
    waited = [(s.first_token_s - s.scheduled_s) * 1000 for s in samples if s.scheduled_s is not None]
    if waited:
        values["ttft_scheduled_ms"] = stats.median(waited)
    per_token = [
        (s.last_token_s - s.first_token_s) * 1000 / (s.completion_tokens - s.first_chunk_tokens)
        for s in samples
        if s.completion_tokens > s.first_chunk_tokens
    ]
    if per_token:
        values["tpot_ms"] = stats.median(per_token)
    values.update(_acceptance(samples, values.get("decode_tok_s")))
    return values


def _acceptance(samples: list[RequestSample], speed: float | None) -> dict[str, float]:
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
