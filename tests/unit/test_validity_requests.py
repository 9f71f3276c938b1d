"""The rules that look at requests, each with what breaks it and what does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from pytest_specdec.model import ChatTemplate, Prompt, RequestSample
from pytest_specdec.validity import RULES
from pytest_specdec.validity_run import Run
from tests.fakes.samples import measurement, one_round, sample

REQUEST_RULES = (
    "request-error",
    "output-length",
    "missing-spec-verify-ct",
    "not-drafting",
    "cached-tokens",
    "degenerate-output",
)


def run_of(
    *requests: RequestSample,
    drafting: bool = True,
    concurrency: int = 1,
    texts: Sequence[str] = ("one", "two"),
    cache_flushed: bool = True,
    distinct_before: float | None = None,
) -> Run:
    """A run of one round."""
    return Run(
        measurement=measurement(*texts, concurrency=concurrency),
        rounds=(one_round(*requests),),
        drafting=drafting,
        cache_flushed=cache_flushed,
        distinct_before=distinct_before,
    )


def broken(
    *requests: RequestSample,
    drafting: bool = True,
    concurrency: int = 1,
    texts: Sequence[str] = ("one", "two"),
    distinct_before: float | None = None,
) -> dict[str, str]:
    """What a run of one round breaks: reasons by rule."""
    run = run_of(*requests, drafting=drafting, concurrency=concurrency, texts=texts, distinct_before=distinct_before)
    answers = {name: RULES[name].check(run) for name in REQUEST_RULES}
    return {name: answer.reason for name, answer in answers.items() if answer.status == "broken"}


def test_a_good_run_breaks_no_rule() -> None:
    assert broken(sample("p1"), sample("p2")) == {}


def test_a_server_that_does_not_draft_needs_no_verify_count() -> None:
    assert broken(sample(verify_steps=None, accept_histogram=None), drafting=False) == {}


def test_a_run_without_rounds_breaks_no_rule() -> None:
    run = Run(measurement=measurement("one"), rounds=(), drafting=True)

    assert {RULES[name].check(run).status for name in REQUEST_RULES} == {"fine", "not-checked"}


def test_a_failed_request_is_counted_and_the_first_is_told() -> None:
    found = broken(sample("p1"), sample("p2", error="HTTP 500: boom"), sample("p3", error="late"))

    assert found == {"request-error": "2 of 3 requests failed; the first, p2: HTTP 500: boom"}


def test_a_round_in_which_everything_failed_is_told_by_one_rule() -> None:
    assert list(broken(sample(error="HTTP 500", verify_steps=None))) == ["request-error"]


@pytest.mark.parametrize(("tokens", "reason"), [(39, "length"), (40, "stop"), (41, "length"), (40, None)])
def test_another_length_or_end_than_asked_for_is_refused(tokens: int, reason: str | None) -> None:
    found = broken(sample("p1"), sample("p2", completion_tokens=tokens, finish_reason=reason))

    assert found == {
        "output-length": f"1 requests did not end at 40 tokens; the first, p2: {tokens} tokens, "
        f"finish reason {reason!r}. Rounds of different lengths can't be compared"
    }


def test_a_drafting_server_without_a_verify_count_is_invalid_and_not_one() -> None:
    found = broken(sample("p1"), sample("p2", verify_steps=None))

    assert list(found) == ["missing-spec-verify-ct"]
    assert found["missing-spec-verify-ct"].startswith(
        "the server drafts, but 1 requests came without spec_verify_ct, so the accept length is not known (not 1.0)"
    )


def test_a_draft_that_is_never_right_is_told() -> None:
    found = broken(sample(verify_steps=39))  # as many steps as tokens after the first chunk

    assert list(found) == ["not-drafting"]
    assert found["not-drafting"].startswith(
        "accept length is 1.000: the server drafts and no draft token is ever right"
    )
    assert "EAGLE with an EAGLE3 draft" in found["not-drafting"]


def test_a_draft_that_is_seldom_right_is_drafting() -> None:
    # 39 / 38 = 1.026.
    assert broken(sample(verify_steps=38)) == {}


def test_whether_it_drafts_is_judged_over_all_requests() -> None:
    # (39 + 39) / (39 + 13) = 1.5, though the first on its own accepts nothing.
    assert broken(sample("p1", verify_steps=39), sample("p2", verify_steps=13)) == {}


def test_a_drafting_server_that_never_verified_is_told() -> None:
    assert broken(sample(verify_steps=0)) == {"not-drafting": "the server drafts, but made no verify step"}


def test_a_warm_cache_is_seen_at_the_first_request() -> None:
    found = broken(sample("p1", cached_tokens=9, sent_s=0.0), sample("p2", sent_s=2.0))

    assert list(found) == ["cached-tokens"]
    assert found["cached-tokens"] == (
        "round 1: each of the first 1 requests found at least 9 prompt tokens cached after a flush: "
        "something else uses the server"
    )


def test_a_token_or_two_that_begin_every_prompt_may_be_cached() -> None:
    assert broken(sample("p1", cached_tokens=2), sample("p2", cached_tokens=2, sent_s=2.0)) == {}


def test_requests_sent_together_may_be_served_in_any_order() -> None:
    """The one sent second can be the first to be served: then the one sent first finds its beginning."""
    texts = ("Write a poem", "Write a letter")
    together = sample("p1", cached_tokens=4, sent_s=0.0), sample("p2", sent_s=0.001)

    assert broken(*together, texts=texts, concurrency=2) == {}
    assert list(broken(*together, texts=texts, concurrency=1)) == ["cached-tokens"]


@pytest.mark.parametrize(("cached", "rules"), [(10, []), (11, ["cached-tokens"])])
def test_a_prompt_finds_no_more_than_what_it_shares_with_another(cached: int, rules: list[str]) -> None:
    # "Write a " is 8 bytes, so at most 8 tokens; and 2 that may begin any prompt.
    found = broken(
        sample("p1"), sample("p2", cached_tokens=cached, sent_s=2.0), texts=("Write a poem", "Write a letter")
    )

    assert list(found) == rules
    if rules:
        assert found["cached-tokens"].startswith("round 1: p2 found 11 of its 10 prompt tokens cached, at most 10 can")


@pytest.mark.parametrize(("cached", "rules"), [(46, []), (47, ["cached-tokens"])])
def test_a_prompt_that_goes_on_where_another_ends_may_find_its_output_too(cached: int, rules: list[str]) -> None:
    # "Once" is 4 bytes, then 40 output tokens, then 2.
    texts = ("Once", "Once upon", "Once again")
    found = broken(sample("p1"), sample("p3", cached_tokens=cached, sent_s=2.0), texts=texts)

    assert list(found) == rules


def test_a_prompt_that_is_sent_twice_may_find_all_of_itself() -> None:
    sent = [sample("p1"), sample("p2", cached_tokens=10), sample("p1#2", cached_tokens=9), sample("p2#2")]

    assert broken(*sent, concurrency=4) == {}


def test_an_answer_that_repeats_itself_is_degenerate() -> None:
    found = broken(sample(output_ids=(7,) * 40))

    # 37 4-grams, 1 of them distinct.
    assert found == {
        "degenerate-output": "the median answer has 2.7% distinct 4-grams: the model repeats itself, and "
        "repetition is drafted for free"
    }


def test_one_degenerate_answer_among_good_ones_is_let_pass() -> None:
    assert broken(sample("p1", output_ids=(7,) * 40), sample("p2"), sample("p3")) == {}


@pytest.mark.parametrize("ids", [(), (7,) * 31])
def test_repetition_is_not_judged_on_a_short_answer_or_without_ids(ids: tuple[int, ...]) -> None:
    assert broken(sample(output_ids=ids)) == {}


def test_what_can_not_be_said_says_why() -> None:
    silent = run_of(sample(verify_steps=None, output_ids=()), cache_flushed=False)

    assert RULES["not-drafting"].check(silent).reason == "the accept length is not known: see missing-spec-verify-ct"
    assert RULES["degenerate-output"].check(silent).status == "not-checked"
    assert RULES["cached-tokens"].check(silent).status == "not-applicable"
    assert RULES["not-drafting"].check(run_of(sample(), drafting=False)).status == "not-applicable"
    assert RULES["not-drafting"].check(run_of(sample(error="late"))).status == "not-checked"


#: 37 4-grams of 20 ids over and over: 20 of them distinct, 54 %.
HALF = tuple(i % 20 for i in range(40))


def test_a_text_is_judged_against_what_the_baseline_was_like() -> None:
    """Far above the bound for texts in general, and another kind of text than what was recorded."""
    assert broken(sample(output_ids=tuple(i % 10 for i in range(40))), distinct_before=1.0) == {
        "degenerate-output": "the median answer has 27.0% distinct 4-grams, the baseline's had 100.0%: the model "
        "repeats itself as it did not before, and repetition is drafted for free"
    }


@pytest.mark.parametrize(("ids", "before"), [(HALF, 1.0), ((7,) * 40, 0.03), ((7,) * 40, 0.05)])
def test_a_text_like_the_baselines_is_let_pass_however_degenerate(ids: tuple[int, ...], before: float) -> None:
    assert broken(sample(output_ids=ids), distinct_before=before) == {}


@pytest.mark.parametrize(("cached", "rules"), [(52, []), (53, ["cached-tokens"])])
def test_a_further_turn_finds_no_more_than_the_request_before_and_its_answer(cached: int, rules: list[str]) -> None:
    first = sample("p1", prompt_tokens=10, completion_tokens=40)
    second = sample("p1", turn=2, sent_s=3.0, prompt_tokens=60, cached_tokens=cached)

    assert list(broken(first, second)) == rules


@pytest.mark.parametrize(("cached", "rules"), [(10, []), (11, ["cached-tokens"])])
def test_prompts_share_the_beginning_of_their_template(cached: int, rules: list[str]) -> None:
    run = Run(
        measurement=measurement("one", "two"),
        rounds=(one_round(sample("p1"), sample("p2", sent_s=1.0, cached_tokens=cached)),),
        drafting=True,
        template=ChatTemplate(before="<|user|>", after_user="<|end|>", after_answer=None),
    )

    assert [name for name in REQUEST_RULES if RULES[name].check(run).status == "broken"] == rules, (
        "eight bytes, and two tokens"
    )


@pytest.mark.parametrize(("cached", "rules"), [(4, []), (5, ["cached-tokens"])])
def test_token_ids_are_compared_as_they_are(cached: int, rules: list[str]) -> None:
    ids = {"p1": (500, 600, 700), "p2": (500, 600, 800)}
    prompts = tuple(Prompt(id=name, category="c", input_ids=given) for name, given in ids.items())
    plain = measurement("one")
    run = Run(
        measurement=dataclasses.replace(plain, workload=dataclasses.replace(plain.workload, prompts=prompts)),
        rounds=(one_round(sample("p1"), sample("p2", sent_s=1.0, cached_tokens=cached)),),
        drafting=True,
    )

    assert [name for name in REQUEST_RULES if RULES[name].check(run).status == "broken"] == rules, (
        "two ids, and two tokens"
    )


@pytest.mark.parametrize(("second_sent_s", "rules"), [(0.4, []), (2.0, ["cached-tokens"])])
def test_in_an_open_loop_only_what_was_sent_before_the_first_answer_began_came_first(
    second_sent_s: float, rules: list[str]
) -> None:
    """The cap of an open loop can be as many as there are prompts."""
    texts = ("Write a poem", "Write a letter")
    warm, cold = sample("p1", cached_tokens=4), sample("p2", sent_s=second_sent_s)

    assert list(broken(warm, cold, texts=texts, concurrency=2)) == rules
