"""From what a workload's users say to what is sent: the chat template around it, and what joins the turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from pytest_specdec.errors import WorkloadError
from pytest_specdec.model import ChatTemplate, Prompt

#: What stands before a further turn where no template does.
RAW_JOINT: Final = "\n\n"
Message = dict[str, str]

#: Words that no template writes by itself.
_WORDS: Final = tuple(f"zq{number}xv" for number in range(1, 6))
#: The same among things that a template may treat in a way of its own: a heading, code, tags, several lines.
_MARKED: Final = tuple(
    f"# {word}\n\n```python\nprint('{{{{ {word} }}}}')\n```\n - ü 漢字 & <b>\"{word}\"" for word in _WORDS
)
_TRIALS: Final = tuple(words[:count] for words in (_WORDS, _MARKED) for count in (1, 3, 5))


def as_sent(prompts: Iterable[Prompt], template: ChatTemplate | None) -> tuple[Prompt, ...]:
    """Return the prompts as the client sends them.

    ``text`` is the whole first request. Each of ``turns`` is what is appended to the text so far and the answer that
    came to it, to the letter; the sum is the next request.

    Raises:
        WorkloadError: a prompt has several turns, or token ids for its text, and the template takes only one text.
    """
    return tuple(_as_sent(prompt, template) for prompt in prompts)


def _as_sent(prompt: Prompt, template: ChatTemplate | None) -> Prompt:
    if template is None:
        return dataclasses.replace(prompt, turns=tuple(f"{RAW_JOINT}{turn}" for turn in prompt.turns))
    if prompt.input_ids is not None:
        raise WorkloadError(f"{prompt.id}: token ids can't be put into a chat template; say chat_template=False")
    if prompt.turns and template.after_answer is None:
        raise WorkloadError(
            f"{prompt.id} has {len(prompt.turns) + 1} turns, and the model's chat template writes an answer that lies "
            "back in another way than it begins the next one (templates that leave out earlier reasoning do that), "
            "so what a further turn has to look like is not known; take a workload of single turns, or say "
            "chat_template=False"
        )
    return dataclasses.replace(
        prompt,
        text=f"{template.before}{prompt.text}{template.after_user}",
        turns=tuple(f"{template.after_answer}{turn}{template.after_user}" for turn in prompt.turns),
    )


def trial_conversations() -> list[list[Message]]:
    """Conversations of one, two and three turns whose rendering tells how a template is cut."""
    return [_messages(said) for said in _TRIALS]


def cut(rendered: Sequence[str]) -> ChatTemplate:
    """Cut a template into its pieces, from what it makes of the trial conversations, in their order.

    The pieces are put together again for each of them. Where only those of a single turn come out right,
    ``after_answer`` is None.

    Raises:
        WorkloadError: not even those do.
    """
    user, answer, again = _WORDS[:3]
    before, found, after_user = rendered[0].partition(user)
    after_answer = rendered[1].partition(answer)[2].partition(again)[0]
    single = ChatTemplate(before=before, after_user=after_user, after_answer=None)
    if not found or not all(_assembled(single, said) == made for said, made in _made(rendered) if len(said) == 1):
        raise WorkloadError("its chat template does not leave what a user says as it is")
    whole = dataclasses.replace(single, after_answer=after_answer)
    return whole if all(_assembled(whole, said) == made for said, made in _made(rendered)) else single


def _made(rendered: Sequence[str]) -> list[tuple[tuple[str, ...], str]]:
    return list(zip(_TRIALS, rendered, strict=True))


def _messages(said: Sequence[str]) -> list[Message]:
    return [{"role": "assistant" if index % 2 else "user", "content": text} for index, text in enumerate(said)]


def _assembled(template: ChatTemplate, said: Sequence[str]) -> str:
    around = (template.after_user, template.after_answer or "")
    return template.before + "".join(text + around[index % 2] for index, text in enumerate(said))
