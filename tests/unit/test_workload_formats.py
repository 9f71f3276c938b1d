"""User files of four kinds, told apart by their keys; a bad line is named by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec.errors import WorkloadError
from pytest_specdec.model import Prompt
from pytest_specdec.workloads import load_workload


def written(directory: Path, text: str, name: str = "mine.jsonl") -> str:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def prompts(directory: Path, *rows: Any, name: str = "mine.jsonl") -> tuple[Prompt, ...]:
    text = json.dumps(rows) if name.endswith(".json") else "\n".join(map(json.dumps, rows))
    return load_workload(written(directory, text, name)).prompts


SHAREGPT = {
    "id": "abc_0",
    "conversations": [
        {"from": "system", "value": "Be short."},
        {"from": "human", "value": "Hello"},
        {"from": "gpt", "value": "Hi"},
        {"from": "human", "value": "And now?"},
    ],
}


def test_a_plain_line_may_have_turns(tmp_path: Path) -> None:
    assert prompts(tmp_path, {"id": "a", "turns": ["one", "two", "three"]}) == (
        Prompt(id="a", category="mine", text="one", turns=("two", "three")),
    )


def test_questions_of_mt_bench(tmp_path: Path) -> None:
    row = {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."], "reference": ["x", "y"]}

    assert prompts(tmp_path, row, name="question.jsonl") == (
        Prompt(id="81", category="writing", text="Write.", turns=("Again.",)),
    )


@pytest.mark.parametrize("name", ["sharegpt.json", "sharegpt.jsonl"])
def test_of_a_sharegpt_conversation_the_humans_part_is_taken(tmp_path: Path, name: str) -> None:
    assert prompts(tmp_path, SHAREGPT, name=name) == (
        Prompt(id="abc_0", category="sharegpt", text="Hello", turns=("And now?",)),
    )


@pytest.mark.parametrize("key", ["conversations", "conversation"])
@pytest.mark.parametrize("word", ["content", "value"])
def test_custom_sets_of_bench_serving(tmp_path: Path, key: str, word: str) -> None:
    """Roles may be missing: then the turns alternate."""
    with_roles = {key: [{"role": "user", word: "one"}, {"role": "assistant", word: "yes"}]}
    without = {key: [{word: "two"}, {word: "no"}, {word: "three"}]}

    assert prompts(tmp_path, with_roles, without) == (
        Prompt(id="p1", category="mine", text="one"),
        Prompt(id="p2", category="mine", text="two", turns=("three",)),
    )


def test_only_so_many_prompts_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, '{"text": "one"}\n{"text": "two"}\n{broken\n')

    workload = load_workload(path, first=2)

    assert (workload.name, len(workload.prompts)) == ("mine-2", 2)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"conversations": []}, "conversations: no message of the user's (from: human, or role: user)"),
        ({"conversations": "x"}, "conversations: expected a list of messages, got 'x'"),
        ({"conversations": [{"from": "gpt", "value": "x"}]}, "conversations: no message of the user's"),
        (
            {"conversations": [{"from": "human", "value": ""}]},
            "conversations[0].value: expected a string that is not empty, got ''",
        ),
        ({"question_id": 1, "turns": []}, "turns: expected a list of what the user says, got []"),
        ({"question_id": 1, "turns": ["x", 2]}, "turns[1]: expected a string that is not empty, got 2"),
        ({"question_id": 1}, "turns: expected a list of what the user says, got None"),
        ({"question_id": 1, "turns": ["x"], "ref": 1}, "unknown key 'ref'"),
        ({"turns": ["x"], "text": "y"}, "text and turns are two words for the same; keep one of them"),
    ],
)
def test_a_bad_line_of_any_kind_is_named(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkloadError) as raised:
        prompts(tmp_path, {"text": "good"}, row)

    assert str(raised.value).startswith(f"{tmp_path / 'mine.jsonl'}:2: {said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[\n{"text": "a"},\n\n{"text": 1}\n]', ":4: text: expected a string that is not empty, got 1"),
        ('[{"text": "a"},\n{oops}]', ":2: entry 2 is not JSON: Expecting property name"),
        ('[{"text": "a"}\n{"text": "b"}]', ":2: expected ',' or ']' after entry 1 of the array"),
        ('[{"text": "a"}', ":1: expected ',' or ']' after entry 1 of the array"),
        ('{"text": "a"}', ": expected a JSON array of conversations; a file of lines ends in .jsonl"),
        ("[]", ": no prompts; write one JSON object a line"),
    ],
)
def test_a_bad_entry_of_an_array_is_named_by_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text, "mine.json")

    with pytest.raises(WorkloadError) as raised:
        load_workload(path)

    assert str(raised.value).startswith(f"{path}{said}")
