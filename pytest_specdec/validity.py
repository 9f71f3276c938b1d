"""Whether a run may be judged at all: named rules, each with its reason.

A rule that does not apply says nothing. A test may waive a rule by name; what was waived is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pytest_specdec import stats
from pytest_specdec.model import Measurement, RequestSample, Round, Violation

#: At most this far from 1.0, nothing was accepted. An absolute bound: near 1.0 a percentage means nothing.
_NOTHING_ACCEPTED: Final = 0.005
#: Below this share of distinct 4-grams a text is repetition, which any drafter predicts.
_LEAST_DISTINCT: Final = 0.1
_SHORTEST_JUDGED_TEXT: Final = 32
#: Cached prompt tokens that do not speak of a warm cache: a beginning-of-text token and a template's first.
_CACHED_ALLOWANCE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the rules look at: the measured rounds of one launch, and what is known about its server."""

    measurement: Measurement
    rounds: Sequence[Round]
    drafting: bool
    simulated_acceptance: str | None = None

    def samples(self) -> Iterator[RequestSample]:
        """Every request that was answered."""
        return (sample for done in self.rounds for sample in done.requests if sample.error is None)


def _request_error(run: Run) -> str | None:
    failed = [sample for done in run.rounds for sample in done.requests if sample.error is not None]
    if not failed:
        return None
    total = sum(len(done.requests) for done in run.rounds)
    return f"{len(failed)} of {total} requests failed; the first, {failed[0].prompt_id}: {failed[0].error}"


def _output_length(run: Run) -> str | None:
    wanted = run.measurement.output_tokens
    wrong = [s for s in run.samples() if s.completion_tokens != wanted or s.finish_reason != "length"]
    if not wrong:
        return None
    first = wrong[0]
    return (
        f"{len(wrong)} requests did not end at {wanted} tokens; the first, {first.prompt_id}: "
        f"{first.completion_tokens} tokens, finish reason {first.finish_reason!r}. "
        "Rounds of different lengths can't be compared"
    )


def _missing_spec_verify_ct(run: Run) -> str | None:
    if not run.drafting:
        return None
    missing = sum(sample.verify_steps is None for sample in run.samples())
    if not missing:
        return None
    return (
        f"the server drafts, but {missing} requests came without spec_verify_ct, so the accept length is not "
        "known (not 1.0); is it a version before 0.4.2, or a proxy that drops meta_info?"
    )


def _not_drafting(run: Run) -> str | None:
    samples = list(run.samples())
    if not run.drafting or not samples or any(sample.verify_steps is None for sample in samples):
        return None
    verified = sum(sample.verify_steps or 0 for sample in samples)
    if verified == 0:
        return "the server drafts, but made no verify step"
    length = sum(sample.completion_tokens - sample.first_chunk_tokens for sample in samples) / verified
    if abs(length - 1.0) > _NOTHING_ACCEPTED:
        return None
    return (
        f"accept length is {length:.3f}: the server drafts and no draft token is ever right. Draft and target "
        "do not match (algorithm EAGLE with an EAGLE3 draft is silent, so is an untrained draft)"
    )


def _cached_tokens(run: Run) -> str | None:
    for done in run.rounds:
        answered = [sample for sample in done.requests if sample.error is None]
        if not answered:
            continue
        first = min(answered, key=lambda sample: sample.sent_s)
        if first.cached_tokens > _CACHED_ALLOWANCE:
            return (
                f"round {done.index + 1}: the first request, {first.prompt_id}, found {first.cached_tokens} of its "
                f"{first.prompt_tokens} prompt tokens cached after a flush: something else uses the server"
            )
        unique = [s for s in answered if "#" not in s.prompt_id]
        cached, prompt = sum(s.cached_tokens for s in unique), sum(s.prompt_tokens for s in unique)
        if prompt and cached > prompt / 2:
            return (
                f"round {done.index + 1}: {cached} of {prompt} prompt tokens were cached, more than prompts of one "
                "workload share"
            )
    return None


def _simulated_acceptance(run: Run) -> str | None:
    if run.simulated_acceptance is None:
        return None
    return f"acceptance is simulated ({run.simulated_acceptance}): it says nothing about the drafter"


def distinct_share(output_ids: Sequence[int], n: int = 4) -> float | None:
    """Distinct n-grams / all n-grams of a text; None for a text too short to tell."""
    if len(output_ids) < _SHORTEST_JUDGED_TEXT:
        return None
    grams = [tuple(output_ids[i : i + n]) for i in range(len(output_ids) - n + 1)]
    return len(set(grams)) / len(grams)


def _degenerate_output(run: Run) -> str | None:
    shares = [share for s in run.samples() if (share := distinct_share(s.output_ids)) is not None]
    if not shares or stats.median(shares) >= _LEAST_DISTINCT:
        return None
    return (
        f"the median answer has {stats.median(shares):.1%} distinct 4-grams: the model repeats itself, and "
        "repetition is drafted for free"
    )


RULES: Final[Mapping[str, Callable[[Run], str | None]]] = MappingProxyType(
    {
        "request-error": _request_error,
        "output-length": _output_length,
        "missing-spec-verify-ct": _missing_spec_verify_ct,
        "not-drafting": _not_drafting,
        "cached-tokens": _cached_tokens,
        "simulated-acceptance": _simulated_acceptance,
        "degenerate-output": _degenerate_output,
    }
)


def violations(run: Run) -> tuple[Violation, ...]:
    """Return every rule that the run breaks, waived ones too."""
    found = ((name, rule(run)) for name, rule in RULES.items())
    return tuple(Violation(rule=name, reason=reason) for name, reason in found if reason is not None)
