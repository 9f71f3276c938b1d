from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_specdec.answers import answer_text, sample_of
from pytest_specdec.http_stream import Answer
from pytest_specdec.model import Prompt

PROMPT = Prompt(id="p1", category="c", text="Hello")


def event(text: str, ids: list[int], tokens: int, **meta: Any) -> bytes:
    told = {"text": text, "output_ids": ids, "meta_info": {"completion_tokens": tokens, **meta}}
    return b"data: " + json.dumps(told, separators=(",", ":")).encode()


INCREMENTS = Answer(
    sent=10.0,
    times=[11.0, 12.0, 13.0],
    tokens=[1, 3, 4],
    kept=[event("a", [5], 1), event("bc", [6, 7], 3), event("", [], 4, e2e_latency=2.5)],
    done=13.0,
)


def test_what_increments_say_is_put_together() -> None:
    got = sample_of(PROMPT, INCREMENTS, began=10.0)

    assert got.error is None
    assert got.output_ids == (5, 6, 7)
    assert (got.completion_tokens, got.server_e2e_s) == (4, 2.5)
    assert answer_text(INCREMENTS) == "abc"


def test_ids_are_not_looked_for_in_the_text() -> None:
    answer = Answer(
        times=[1.0, 2.0],
        tokens=[1, 2],
        kept=[event('"output_ids":[9,9]', [5], 1), event('"output_ids":[', [6], 2)],
    )

    assert sample_of(PROMPT, answer, began=0.0).output_ids == (5, 6)


def test_an_answer_without_a_text_has_none_to_go_on_from() -> None:
    with pytest.raises(ValueError, match="the answer has no text"):
        answer_text(Answer(kept=[b'data: {"output_ids":[1]}']))


def test_a_sample_tells_its_turn_and_when_it_was_due() -> None:
    got = sample_of(PROMPT, INCREMENTS, began=8.0, turn=2, due=9.5)

    assert (got.prompt_id, got.turn, got.scheduled_s, got.sent_s) == ("p1", 2, 1.5, 2.0)
    assert sample_of(PROMPT, INCREMENTS, began=8.0).scheduled_s is None
