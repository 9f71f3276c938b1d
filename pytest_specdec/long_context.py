"""Long prompts of a given size, put together from sentences of our own with words that change.

The sentences and words are data (``workload_sets/long-context.json``). A document repeats its sentences with other
words, as logs, minutes and inventories do: a drafter that copies finds more here than in a novel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_specdec.model import Prompt
from pytest_specdec.synthetic import numbers

_PARTS: Final = Path(__file__).parent / "workload_sets" / "long-context.json"
_SLOT: Final = re.compile(r"\{(\w+)\}")
CATEGORY: Final = "long-context"
#: Without the model's tokenizer a budget is an estimate. English text has 4 to 5 bytes a token in large vocabularies.
BYTES_PER_TOKEN: Final = 4


def prompts(budget_tokens: int) -> tuple[Prompt, ...]:
    """Make the set with prompts of about ``budget_tokens`` tokens (bytes / 4): a document, then a question on it."""
    parts: Mapping[str, Any] = json.loads(_PARTS.read_text(encoding="utf-8"))
    return tuple(_prompt(document, parts["words"], budget_tokens) for document in parts["documents"])


def _prompt(document: Mapping[str, Any], words: Mapping[str, Sequence[str]], budget_tokens: int) -> Prompt:
    left = budget_tokens * BYTES_PER_TOKEN - len(document["opening"]) - len(document["question"])
    written: list[str] = []
    while True:
        paragraph = _paragraph(document, words, number=len(written) + 1)
        left -= len(paragraph) + 2
        if left < 0 and written:
            break
        written.append(paragraph)
    return Prompt(
        id=document["id"],
        category=CATEGORY,
        text="\n\n".join([document["opening"], *written, document["question"]]),
        turns=tuple(document.get("turns", ())),
    )


def _paragraph(document: Mapping[str, Any], words: Mapping[str, Sequence[str]], *, number: int) -> str:
    """Write a numbered paragraph of three or four of the document's sentences, in an order of its own."""
    sentences: Sequence[str] = document["sentences"]
    picks = iter(numbers(f"{document['id']}/{number}", 100, below=2**32))
    order = sorted(range(len(sentences)), key=lambda _: next(picks))[: 3 + next(picks) % 2]

    def word(slot: re.Match[str]) -> str:
        pick = next(picks)
        return str(2 + pick % 97) if slot[1] == "number" else words[slot[1]][pick % len(words[slot[1]])]

    written = (_SLOT.sub(word, sentences[index]) for index in order)
    return " ".join([f"{document['heading']} {number}.", *(text[0].upper() + text[1:] for text in written)])
