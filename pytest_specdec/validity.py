"""Whether a run may be judged at all: named rules, each with its reason.

A rule that does not apply says nothing. A test may waive a rule by name; what was waived is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from pytest_specdec import stats
from pytest_specdec.conversation import as_sent
from pytest_specdec.model import ChatTemplate, Measurement, RequestSample, Round, Violation

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
    cache_flushed: bool = True
    template: ChatTemplate | None = None
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
    """Compare with what a round's own prompts share.

    A token stands for at least one byte, so a prompt can find no more tokens cached than the bytes it shares
    with the beginning of another prompt, a chat template's included; one that begins with the whole of another can
    also find that one's output. A prompt that is sent twice may find all of itself, and a further turn the request
    before it and its answer. Of the requests sent first, as many as run beside each other, one comes before any
    other and finds nothing. Where the cache was left as it was on purpose, there is nothing to compare with.
    """
    if not run.cache_flushed:
        return None
    allowed = _cached_allowances(run)
    for done in run.rounds:
        answered = [sample for sample in done.requests if sample.error is None]
        first = sorted(answered, key=lambda sample: sample.sent_s)[: run.measurement.concurrency]
        if first and (least := min(sample.cached_tokens for sample in first)) > _CACHED_ALLOWANCE:
            return (
                f"round {done.index + 1}: each of the first {len(first)} requests found at least {least} prompt tokens "
                "cached after a flush: something else uses the server"
            )
        copied = {sample.prompt_id.partition("#")[0] for sample in answered if "#" in sample.prompt_id}
        earlier = {(sample.prompt_id, sample.turn): sample for sample in answered}
        for sample in answered:
            most = allowed.get(sample.prompt_id)
            before = earlier.get((sample.prompt_id, sample.turn - 1))
            if before is not None and "#" not in sample.prompt_id:
                most = before.prompt_tokens + before.completion_tokens + _CACHED_ALLOWANCE
            if most is not None and sample.prompt_id not in copied and sample.cached_tokens > most:
                return (
                    f"round {done.index + 1}: {sample.prompt_id} found {sample.cached_tokens} of its "
                    f"{sample.prompt_tokens} prompt tokens cached, at most {most} can come from the round's other "
                    "prompts: something else uses the server"
                )
    return None


def _cached_allowances(run: Run) -> dict[str, int]:
    """The most tokens that each prompt can find cached when every prompt is sent once."""
    sent = as_sent(run.measurement.workload.prompts, run.template)
    texts = sorted((prompt.input_ids or tuple(prompt.text.encode()), prompt.id) for prompt in sent)
    most = dict.fromkeys((prompt_id for _, prompt_id in texts), 0)
    # In sorted order the longest common beginning is with a neighbour, and a text follows those it begins with.
    for (one, one_id), (other, other_id) in pairwise(texts):
        unequal = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        shared = next(unequal, min(len(one), len(other)))
        most[one_id] = max(most[one_id], shared)
        most[other_id] = max(most[other_id], shared)
    begun: list[tuple[int, ...]] = []
    for text, prompt_id in texts:
        while begun and text[: len(begun[-1])] != begun[-1]:
            begun.pop()
        if begun:
            most[prompt_id] = max(most[prompt_id], len(begun[-1]) + run.measurement.output_tokens)
        begun.append(text)
    return {prompt_id: tokens + _CACHED_ALLOWANCE for prompt_id, tokens in most.items()}


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
