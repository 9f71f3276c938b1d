"""Prompts from a user's file: plain JSONL, MT-bench's ``question.jsonl``, ShareGPT, and bench_serving's custom sets.

What a line is, is told by its keys. An answer that stands in a conversation is left out: the server's own answer
takes its place.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_specdec.errors import WorkloadError
from pytest_specdec.model import Prompt

ENDINGS: Final = (".jsonl", ".json")
_PLAIN: Final = frozenset({"id", "category", "text", "prompt", "turns"})
#: MT-bench and Spec-Bench; a reference answer is of no use here.
_QUESTION: Final = frozenset({"question_id", "category", "turns", "reference"})
_CONVERSATIONS: Final = ("conversations", "conversation")
_USERS: Final = frozenset({"human", "user"})


@dataclass(frozen=True, slots=True)
class _Row:
    """One object of a file; ``where`` names file and line."""

    value: Any
    where: str
    number: int


def read_prompts(path: Path, *, first: int | None = None) -> tuple[Prompt, ...]:
    """Read the prompts of a file, only the ``first`` so many when that is given.

    A ``.json`` file is one array, a ``.jsonl`` file has an object a line.

    Raises:
        WorkloadError: a line can't be read, two prompts have one id, or there is none; with file, line and key.
    """
    prompts: list[Prompt] = []
    seen: set[str] = set()
    for row in itertools.islice(_rows(path), first):
        prompt = _prompt(row, path.stem)
        if prompt.id in seen:
            raise WorkloadError(f"{row.where}: two prompts have the id {prompt.id!r}")
        seen.add(prompt.id)
        prompts.append(prompt)
    if not prompts:
        raise WorkloadError(f'{path}: no prompts; write one JSON object a line, such as {{"text": "..."}}')
    return tuple(prompts)


def _rows(path: Path) -> Iterator[_Row]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: can't be read as a workload: {error}") from None
    return _array(path, text) if path.suffix == ".json" else _lines(path, text)


def _lines(path: Path, text: str) -> Iterator[_Row]:
    # Not splitlines(): a line separator (U+2028) may stand unescaped within a JSON string.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise WorkloadError(f"{where}: not a JSON object: {error}") from None
        yield _Row(value, where, number)


def _array(path: Path, text: str) -> Iterator[_Row]:
    """Read one entry after the other, so that each has a line."""
    decoder = json.JSONDecoder()
    at, line, number = _past_blanks(text, 0), 1, 1
    if text[at : at + 1] != "[":
        raise WorkloadError(f"{path}: expected a JSON array of conversations; a file of lines ends in .jsonl")
    line += text.count("\n", 0, at)
    end = at + 1
    while True:
        at = _past_blanks(text, end)
        line += text.count("\n", end, at)
        if text[at : at + 1] == "]":
            return
        if number > 1:
            if text[at : at + 1] != ",":
                raise WorkloadError(f"{path}:{line}: expected ',' or ']' after entry {number - 1} of the array")
            end, at = at + 1, _past_blanks(text, at + 1)
            line += text.count("\n", end, at)
        try:
            value, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise WorkloadError(f"{path}:{error.lineno}: entry {number} is not JSON: {error.msg}") from None
        yield _Row(value, f"{path}:{line}", number)
        line += text.count("\n", at, end)
        number += 1


def _past_blanks(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\r", "\n", "\ufeff"):
        at += 1
    return at


def _prompt(row: _Row, stem: str) -> Prompt:
    value = row.value
    if not isinstance(value, dict):
        raise WorkloadError(f"{row.where}: expected a JSON object, got {type(value).__name__}")
    named = next((key for key in _CONVERSATIONS if key in value), None)
    if named is not None:
        said = _user_turns(row, named, value[named])
        prompt_id = value.get("id", f"p{row.number}")
    else:
        said = _said(row, value)
        prompt_id = str(value["question_id"]) if "question_id" in value else value.get("id", f"p{row.number}")
    category = value.get("category", stem)
    for name, given in (("id", prompt_id), ("category", category)):
        # '#' marks the copies of a prompt that a round sends more than once.
        if not isinstance(given, str) or not given or "#" in given:
            raise WorkloadError(f"{row.where}: {name}: expected a string that is not empty, without '#', got {given!r}")
        _refuse_half_a_pair(row.where, name, given)
    return Prompt(id=prompt_id, category=category, text=said[0], turns=said[1:])


def _said(row: _Row, value: Mapping[str, Any]) -> tuple[str, ...]:
    """What the user says, turn by turn, in a plain line or a question of MT-bench."""
    known = _QUESTION if "question_id" in value else _PLAIN
    unknown = sorted(set(value) - known)
    if unknown:
        raise WorkloadError(
            f"{row.where}: unknown key {unknown[0]!r}; a prompt has text (or prompt, or turns), id, category"
        )
    words = [key for key in ("text", "prompt", "turns") if key in value]
    if len(words) > 1:
        raise WorkloadError(f"{row.where}: {words[0]} and {words[1]} are two words for the same; keep one of them")
    if words == ["turns"] or "question_id" in value:
        turns = value.get("turns")
        if not isinstance(turns, list) or not turns:
            raise WorkloadError(f"{row.where}: turns: expected a list of what the user says, got {turns!r}")
        return tuple(_text(row, f"turns[{index}]", turn) for index, turn in enumerate(turns))
    key = words[0] if words else "text"
    return (_text(row, key, value.get(key)),)


def _user_turns(row: _Row, key: str, messages: object) -> tuple[str, ...]:
    """The user's part of a conversation: ``from`` and ``value`` as in ShareGPT, or ``role`` and ``content``."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise WorkloadError(f"{row.where}: {key}: expected a list of messages, got {messages!r:.80}")
    said = []
    for index, message in enumerate(messages):
        speaker = message.get("from", message.get("role", "user" if index % 2 == 0 else "assistant"))
        if speaker in _USERS:
            word = "content" if "content" in message else "value"
            said.append(_text(row, f"{key}[{index}].{word}", message.get(word)))
    if not said:
        raise WorkloadError(f"{row.where}: {key}: no message of the user's (from: human, or role: user)")
    return tuple(said)


def _text(row: _Row, name: str, given: object) -> str:
    if not isinstance(given, str) or not given:
        raise WorkloadError(f"{row.where}: {name}: expected a string that is not empty, got {given!r}")
    _refuse_half_a_pair(row.where, name, given)
    return given


def _refuse_half_a_pair(where: str, name: str, text: str) -> None:
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise WorkloadError(f"{where}: {name}: holds half a surrogate pair, which no encoding can send")
