"""Validity rules that look at the requests of a run: what was asked for, what came, and what came for free."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from pytest_specdec import stats
from pytest_specdec.conversation import as_sent
from pytest_specdec.metrics import distinct_share
from pytest_specdec.validity_run import FINE, Answer, Run, broken, not_applicable, not_checked

#: At most this far from 1.0, nothing was accepted. An absolute bound: near 1.0 a percentage means nothing.
_NOTHING_ACCEPTED: Final = 0.005
#: Below this share of distinct 4-grams a text is repetition, which any drafter predicts.
_LEAST_DISTINCT: Final = 0.1
#: A text that repeats itself so much more than the one it is compared with is another kind of text.
_LEAST_OF_BEFORE: Final = 0.5
#: Cached prompt tokens that do not speak of a warm cache: a beginning-of-text token and a template's first.
_CACHED_ALLOWANCE: Final = 2
_NO_ANSWER: Final = not_checked("no request was answered")
_NOT_DRAFTING: Final = not_applicable("the server does not draft")


def request_error(run: Run) -> Answer:
    """Every request has to be answered."""
    failed = [sample for done in run.rounds for sample in done.requests if sample.error is not None]
    if not failed:
        return FINE
    total = sum(len(done.requests) for done in run.rounds)
    return broken(f"{len(failed)} of {total} requests failed; the first, {failed[0].prompt_id}: {failed[0].error}")


def output_length(run: Run) -> Answer:
    """Every answer has the tokens that were asked for: speed and acceptance change along a text."""
    wanted = run.measurement.output_tokens
    wrong = [s for s in run.samples() if s.completion_tokens != wanted or s.finish_reason != "length"]
    if not wrong:
        return FINE
    first = wrong[0]
    return broken(
        f"{len(wrong)} requests did not end at {wanted} tokens; the first, {first.prompt_id}: "
        f"{first.completion_tokens} tokens, finish reason {first.finish_reason!r}. "
        "Rounds of different lengths can't be compared"
    )


def missing_spec_verify_ct(run: Run) -> Answer:
    """A drafting server has to say how often it verified."""
    if not run.drafting:
        return _NOT_DRAFTING
    missing = sum(sample.verify_steps is None for sample in run.samples())
    if not missing:
        return FINE
    return broken(
        f"the server drafts, but {missing} requests came without spec_verify_ct, so the accept length is not "
        "known (not 1.0); is it a version before 0.4.2, or a proxy that drops meta_info?"
    )


def not_drafting(run: Run) -> Answer:
    """A drafting server whose draft tokens are never right serves slower than without, and says nothing."""
    if not run.drafting:
        return _NOT_DRAFTING
    samples = list(run.samples())
    if not samples:
        return _NO_ANSWER
    if any(sample.verify_steps is None for sample in samples):
        return not_checked("the accept length is not known: see missing-spec-verify-ct")
    verified = sum(sample.verify_steps or 0 for sample in samples)
    if verified == 0:
        return broken("the server drafts, but made no verify step")
    length = sum(sample.completion_tokens - sample.first_chunk_tokens for sample in samples) / verified
    if abs(length - 1.0) > _NOTHING_ACCEPTED:
        return FINE
    return broken(
        f"accept length is {length:.3f}: the server drafts and no draft token is ever right. Draft and target "
        "do not match (algorithm EAGLE with an EAGLE3 draft is silent, so is an untrained draft)"
    )


def cached_tokens(run: Run) -> Answer:
    """Compare with what a round's own prompts share.

    A token stands for at least one byte, so a prompt can find no more tokens cached than the bytes it shares
    with the beginning of another prompt, a chat template's included; one that begins with the whole of another can
    also find that one's output. A prompt that is sent twice may find all of itself, and a further turn the request
    before it and its answer. Of the requests sent before any was answered, one comes before any other and finds
    nothing. Where the cache was left as it was on purpose, there is nothing to compare with.
    """
    if not run.cache_flushed:
        return not_applicable("the cache was left as it was, on purpose")
    allowed = _cached_allowances(run)
    for done in run.rounds:
        answered = [sample for sample in done.requests if sample.error is None]
        begun_s = min((sample.first_token_s for sample in answered), default=0.0)
        # In an open loop the concurrency can be all of the prompts.
        first = sorted(answered, key=lambda sample: sample.sent_s)[: run.measurement.concurrency]
        first = [sample for sample in first if sample.sent_s <= begun_s]
        if first and (least := min(sample.cached_tokens for sample in first)) > _CACHED_ALLOWANCE:
            return broken(
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
                return broken(
                    f"round {done.index + 1}: {sample.prompt_id} found {sample.cached_tokens} of its "
                    f"{sample.prompt_tokens} prompt tokens cached, at most {most} can come from the round's other "
                    "prompts: something else uses the server"
                )
    return FINE


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


def degenerate_output(run: Run) -> Answer:
    """Compare with what the baseline's own answers were like, where that is known.

    A model whose text repeats itself by nature is comparable with itself; one that begins to is broken, and its
    acceptance rises.
    """
    shares = [share for s in run.samples() if (share := distinct_share(s.output_ids)) is not None]
    if not shares:
        return not_checked("no answer is long enough, or none came with its token ids")
    share, before = stats.median(shares), run.distinct_before
    if before is not None and share < before * _LEAST_OF_BEFORE:
        return broken(
            f"the median answer has {share:.1%} distinct 4-grams, the baseline's had {before:.1%}: the model repeats "
            "itself as it did not before, and repetition is drafted for free"
        )
    if before is not None or share >= _LEAST_DISTINCT:
        return FINE
    return broken(
        f"the median answer has {share:.1%} distinct 4-grams: the model repeats itself, and "
        "repetition is drafted for free"
    )
