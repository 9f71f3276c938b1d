"""A chat template in pieces: cut, checked, and put around what is said."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_specdec.conversation import Message, as_sent, cut, trial_conversations
from pytest_specdec.errors import WorkloadError
from pytest_specdec.model import ChatTemplate, Prompt

PROMPTS = (Prompt(id="a", category="c", text="One?", turns=("Two?",)), Prompt(id="b", category="c", text="Other?"))
SINGLE = PROMPTS[1:]


def chatml(messages: list[Message]) -> str:
    said = "".join(f"<|{m['role']}|>{m['content']}<|end|>\n" for m in messages)
    return f"<|system|>Help.<|end|>\n{said}<|assistant|>"


def stripping(messages: list[Message]) -> str:
    return "".join(m["content"].replace("\n", " ") for m in messages)


def forgetful(messages: list[Message]) -> str:
    """Begins an answer with reasoning, and leaves it out of answers that lie back."""
    return chatml(messages) + "<think>"


def rendered(template: Callable[[list[Message]], str]) -> list[str]:
    return [template(messages) for messages in trial_conversations()]


def test_a_template_is_cut_and_put_together_again() -> None:
    template = cut(rendered(chatml))

    assert template == ChatTemplate(
        before="<|system|>Help.<|end|>\n<|user|>", after_user="<|end|>\n<|assistant|>", after_answer="<|end|>\n<|user|>"
    )
    (first, _) = as_sent(PROMPTS, template)
    messages = [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Two?"},
    ]
    assert first.text == chatml(messages[:1])
    assert first.text + "Yes." + first.turns[0] == chatml(messages)


def test_without_a_template_further_turns_follow_after_an_empty_line() -> None:
    (first, second) = as_sent(PROMPTS, None)

    assert (first.text, first.turns) == ("One?", ("\n\nTwo?",))
    assert second == PROMPTS[1]


def test_a_template_that_forgets_reasoning_takes_single_turns_only() -> None:
    template = cut(rendered(forgetful))

    assert template.after_answer is None
    assert as_sent(SINGLE, template)[0].text.endswith("<|assistant|><think>")
    with pytest.raises(WorkloadError, match="a has 2 turns, and the model's chat template writes an answer that lies"):
        as_sent(PROMPTS, template)


@pytest.mark.parametrize("template", [stripping, lambda _: "always the same"])
def test_a_template_that_changes_what_is_said_is_refused(template: Callable[[list[Message]], str]) -> None:
    with pytest.raises(WorkloadError, match="its chat template does not leave what a user says as it is"):
        cut(rendered(template))


def test_token_ids_fit_no_template() -> None:
    ids = Prompt(id="s", category="c", input_ids=(1, 2))

    assert as_sent([ids], None) == (ids,)
    with pytest.raises(WorkloadError, match="s: token ids can't be put into a chat template"):
        as_sent([ids], cut(rendered(chatml)))


def test_templates_are_told_apart_by_their_hash() -> None:
    assert cut(rendered(chatml)).short_hash != cut(rendered(forgetful)).short_hash
