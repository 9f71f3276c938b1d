from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

from pytest_specdec.errors import WorkloadError
from pytest_specdec.long_context import BYTES_PER_TOKEN
from pytest_specdec.model import Prompt
from pytest_specdec.workloads import MIXED_SHARES, built_in, content_hash, load_workload, synthetic_workload


def written(directory: Path, *lines: str, name: str = "mine.jsonl") -> str:
    path = directory / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


SIZES = {
    "chat": 20,
    "code": 20,
    "extraction": 10,
    "long-context": 8,
    "mathematics": 10,
    "mixed": 80,
    "repetition": 10,
    "smoke": 4,
    "summarising": 8,
    "translation": 10,
    "synthetic-512": 16,
}
#: Prompts of one set that begin alike find each other's beginning in the cache.
LONGEST_SHARED_BEGINNING = 24


@pytest.mark.parametrize(("name", "count"), SIZES.items())
def test_the_built_in_sets_have_their_size(name: str, count: int) -> None:
    prompts = load_workload(name).prompts

    assert len(prompts) == count
    assert len({(prompt.text, prompt.input_ids) for prompt in prompts}) == count
    assert len({prompt.id for prompt in prompts}) == count


def test_there_are_ninety_six_prompts_of_which_a_third_goes_on() -> None:
    prompts = [prompt for name in MIXED_SHARES for prompt in load_workload(name).prompts]

    assert len(prompts) == 96
    assert sum(bool(prompt.turns) for prompt in prompts) == 37
    assert max(len(prompt.turns) for prompt in prompts) == 2, "three turns"


@pytest.mark.parametrize(
    ("name", "content_hash"),
    [
        ("chat", "62c69d988e64"),
        ("code", "3ea4b9ebdc85"),
        ("extraction", "bd0e917d81e2"),
        ("long-context", "c9f95f0ca295"),
        ("long-context-16k", "c55075843de3"),
        ("mathematics", "612bfb1337a9"),
        ("mixed", "c59cf9f9b30a"),
        ("repetition", "7951380c9a10"),
        ("smoke", "df00ab1881b4"),
        ("summarising", "c56066120729"),
        ("synthetic-512", "6ed510955ed9"),
        ("translation", "5348bbf0f6c9"),
    ],
)
def test_the_built_in_sets_do_not_change_unnoticed(name: str, content_hash: str) -> None:
    """A changed prompt makes every recorded baseline of its set invalid."""
    assert load_workload(name).content_hash[:12] == content_hash


@pytest.mark.parametrize("name", SIZES)
def test_prompts_of_a_set_share_no_long_beginning(name: str) -> None:
    prompts = load_workload(name).prompts
    begun = [(prompt.input_ids or tuple(prompt.text.encode()))[:LONGEST_SHARED_BEGINNING] for prompt in prompts]

    assert len(set(begun)) == len(begun)


@pytest.mark.parametrize("name", [name for name in SIZES if not name.startswith("synthetic")])
def test_prompts_are_clean_text(name: str) -> None:
    """Chat templates strip blanks at the ends, and a control character is an accident."""
    for prompt in load_workload(name).prompts:
        for text in (prompt.text, *prompt.turns):
            assert text == text.strip(), prompt.id
            assert len(text) > 40, prompt.id
            assert not [
                letter for letter in text if unicodedata.category(letter) in ("Cc", "Co", "Cn") and letter not in "\n\t"
            ], prompt.id
            assert "{" not in text or name in ("code", "mixed", "repetition"), "a slot that nothing was put into"


def test_translations_are_in_the_languages_they_say() -> None:
    letters = {
        prompt.category: "".join(unicodedata.name(letter, "").split()[0] for letter in prompt.text if letter.isalpha())
        for prompt in load_workload("translation").prompts
    }

    assert {kind for kind, names in letters.items() if "CJK" in names} == {"zh-en", "ja-en"}
    assert {kind for kind, names in letters.items() if "HIRAGANA" in names} == {"ja-en"}
    assert len(letters) == 10, "ten directions"


def test_mixed_takes_its_shares_in_order_and_names_their_sets() -> None:
    prompts = load_workload("mixed").prompts

    assert Counter(prompt.category for prompt in prompts) == MIXED_SHARES
    assert sum(MIXED_SHARES.values()) == 80
    first = prompts[40]
    whole = load_workload("mathematics").prompts[0]
    assert (first.id, first.text, first.turns) == ("mathematics.tank", whole.text, whole.turns)


@pytest.mark.parametrize(
    ("name", "tokens"), [("long-context", 4000), ("long-context-1k", 1000), ("long-context-16k", 16000)]
)
def test_long_prompts_come_close_to_their_budget_and_stay_below(name: str, tokens: int) -> None:
    for prompt in load_workload(name).prompts:
        assert 0.9 * tokens < len(prompt.text.encode()) / BYTES_PER_TOKEN <= tokens, prompt.id


def test_long_context_is_named_with_its_budget() -> None:
    assert load_workload("long-context").name == "long-context-4k"
    assert load_workload("long-context") == load_workload("long-context-4k")


def test_synthetic_prompts_have_the_tokens_of_their_name_in_the_safe_range() -> None:
    workload = load_workload("synthetic-300")

    assert workload.synthetic
    assert {len(prompt.input_ids or ()) for prompt in workload.prompts} == {300}
    ids = {number for prompt in workload.prompts for number in prompt.input_ids or ()}
    assert min(ids) >= 100
    assert max(ids) < 8000
    assert len(ids) > 3000, "they are spread over the range"


def test_synthetic_prompts_follow_from_seed_and_range() -> None:
    one = synthetic_workload(8, prompts=2, end_id=500)

    assert one == synthetic_workload(8, prompts=2, end_id=500)
    assert one.content_hash != synthetic_workload(8, prompts=2, seed=1, end_id=500).content_hash
    assert all(100 <= number < 500 for prompt in one.prompts for number in prompt.input_ids or ())


def test_a_range_without_ids_is_refused() -> None:
    with pytest.raises(WorkloadError, match="16 prompts of 8 ids from 100 to below 50 can't be made"):
        synthetic_workload(8, end_id=50)


def test_the_first_prompts_of_a_set_have_a_name_of_their_own() -> None:
    few = load_workload("chat", first=3)

    assert few.name == "chat-3"
    assert few.prompts == load_workload("chat").prompts[:3]
    with pytest.raises(WorkloadError, match="chat: first: expected a whole number of at least 1, got 0"):
        load_workload("chat", first=0)


def test_the_content_hash_is_over_ids_categories_and_texts_in_order(tmp_path: Path) -> None:
    workload = load_workload(written(tmp_path, '{"id": "a", "category": "c", "text": "é"}', '{"text": "two"}'))

    content = '[["a", "c", "é"], ["p2", "mine", "two"]]'
    assert workload.content_hash == hashlib.sha256(content.encode()).hexdigest()


def test_the_content_hash_is_over_turns_and_token_ids_too() -> None:
    one = Prompt(id="a", category="c", text="one")
    hashes = {
        content_hash([prompt])
        for prompt in (
            one,
            Prompt(id="a", category="c", text="one", turns=("two",)),
            Prompt(id="a", category="c", input_ids=(1, 2)),
            Prompt(id="a", category="c", input_ids=(12,)),
        )
    }

    assert len(hashes) == 4


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
        "there is no workload 'chatt'. Did you mean 'chat'? Built in are chat, code, extraction, long-context, "
        "long-context-<N>k, mathematics, mixed, repetition, smoke, summarising, synthetic-<tokens>, translation; "
        "a path that ends in .jsonl or .json is read as a file"
    )
    assert {name for name in built_in() if "<" not in name} == set(SIZES) - {"synthetic-512"}


def test_an_unknown_name_without_a_near_one_still_lists_them() -> None:
    with pytest.raises(WorkloadError, match=r"^there is no workload 'zzz'\. Built in are chat, code, extraction, "):
        load_workload("zzz")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{oops", "not a JSON object: Expecting property name"),
        ("[1]", "expected a JSON object, got list"),
        ('{"txt": "x"}', "unknown key 'txt'; a prompt has text (or prompt, or turns), id, category"),
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

    with pytest.raises(WorkloadError, match=r"mine\.jsonl:2: two prompts have the id 'a'$"):
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
