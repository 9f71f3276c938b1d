from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pytest_specdec.errors import WorkloadError
from pytest_specdec.model import Prompt
from pytest_specdec.workloads import built_in, load_workload


def written(directory: Path, *lines: str, name: str = "mine.jsonl") -> str:
    path = directory / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("name", "count"), [("chat", 16), ("code", 8), ("smoke", 4)])
def test_the_built_in_sets_have_their_size(name: str, count: int) -> None:
    workload = load_workload(name)

    assert workload.name == name
    assert len(workload.prompts) == count
    assert len({prompt.text for prompt in workload.prompts}) == count


@pytest.mark.parametrize(
    ("name", "content_hash"),
    [
        ("chat", "2939b8b45c70"),
        ("code", "61aa20b8c124"),
        ("smoke", "df00ab1881b4"),
    ],
)
def test_the_built_in_sets_do_not_change_unnoticed(name: str, content_hash: str) -> None:
    """A changed prompt makes every recorded baseline of its set invalid."""
    assert load_workload(name).content_hash[:12] == content_hash


@pytest.mark.parametrize("name", ["chat", "code", "smoke"])
def test_prompts_of_a_set_share_no_long_beginning(name: str) -> None:
    """What they share is found in the cache by the second of them."""
    texts = [prompt.text for prompt in load_workload(name).prompts]

    assert len({text[:24] for text in texts}) == len(texts)


def test_the_content_hash_is_over_ids_categories_and_texts_in_order(tmp_path: Path) -> None:
    workload = load_workload(written(tmp_path, '{"id": "a", "category": "c", "text": "é"}', '{"text": "two"}'))

    content = '[["a", "c", "é"], ["p2", "mine", "two"]]'
    assert workload.content_hash == hashlib.sha256(content.encode()).hexdigest()


def test_a_users_file_gives_ids_and_categories_where_it_has_none(tmp_path: Path) -> None:
    workload = load_workload(written(tmp_path, '{"prompt": "one"}', "", '{"text": "two", "id": "second"}'))

    assert workload.name == "mine"
    assert workload.prompts == (
        Prompt(id="p1", category="mine", text="one"),
        Prompt(id="second", category="mine", text="two"),
    )


def test_a_line_separator_within_a_text_ends_no_line(tmp_path: Path) -> None:
    workload = load_workload(written(tmp_path, '{"text": "one\u2028two"}'))

    assert [prompt.text for prompt in workload.prompts] == ["one\u2028two"]


def test_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b'{"text": "one"}\r\n{"text": "two"}\r\n')

    assert [prompt.text for prompt in load_workload(str(path)).prompts] == ["one", "two"]


def test_an_unknown_name_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(WorkloadError) as raised:
        load_workload("chatt")

    assert str(raised.value) == (
        "there is no workload 'chatt'. Did you mean 'chat'? Built in are chat, code, smoke; "
        "a path that ends in .jsonl is read as a file"
    )
    assert built_in() == ("chat", "code", "smoke")


def test_an_unknown_name_without_a_near_one_still_lists_them() -> None:
    with pytest.raises(WorkloadError, match=r"^there is no workload 'zzz'\. Built in are chat, code, smoke;"):
        load_workload("zzz")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{oops", "not a JSON object: Expecting property name"),
        ("[1]", "expected a JSON object, got list"),
        ('{"txt": "x"}', "unknown key 'txt'; a prompt has text (or prompt), id, category"),
        ("{}", "text: expected a string that is not empty, got None"),
        ('{"text": ""}', "text: expected a string that is not empty, got ''"),
        ('{"prompt": 3}', "prompt: expected a string that is not empty, got 3"),
        ('{"text": "x", "prompt": "y"}', "text and prompt are two words for the same; keep one of them"),
        ('{"text": "x", "id": 7}', "id: expected a string that is not empty, without '#', got 7"),
        ('{"text": "x", "id": "a#2"}', "id: expected a string that is not empty, without '#', got 'a#2'"),
        ('{"text": "x", "category": ""}', "category: expected a string that is not empty, without '#', got ''"),
        ('{"text": "\\ud83d"}', "text: holds half a surrogate pair, which no encoding can send"),
    ],
)
def test_a_bad_line_is_refused_with_file_line_and_key(tmp_path: Path, line: str, said: str) -> None:
    path = written(tmp_path, '{"text": "good"}', line)

    with pytest.raises(WorkloadError) as raised:
        load_workload(path)

    assert str(raised.value).startswith(f"{path}:2: {said}")


def test_two_prompts_of_one_id_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, '{"text": "x", "id": "a"}', '{"text": "y", "id": "a"}')

    with pytest.raises(WorkloadError, match=r"mine\.jsonl: two prompts have the id 'a'$"):
        load_workload(path)


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"mine\.jsonl: no prompts; write one JSON object a line"):
        load_workload(written(tmp_path, ""))


def test_a_file_that_is_not_there_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"gone\.jsonl: can't be read as a workload: .*No such file"):
        load_workload(str(tmp_path / "gone.jsonl"))


def test_a_file_whose_name_cannot_name_a_baseline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"My Set\.jsonl: a workload is named after its file"):
        load_workload(written(tmp_path, '{"text": "x"}', name="My Set.jsonl"))
