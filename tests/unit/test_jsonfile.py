from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec import jsonfile
from pytest_specdec.errors import BaselineFileError


def refusal(path: Path) -> str:
    """What reading the file is refused with, after its path."""
    with pytest.raises(BaselineFileError) as caught:
        jsonfile.read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_a_document_is_written_sorted_indented_and_with_a_newline_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"

    jsonfile.write(path, {"b": [1, 2.0], "a": {"é": None, "c": True}})

    assert path.read_text(encoding="utf-8") == (
        '{\n  "a": {\n    "c": true,\n    "é": null\n  },\n  "b": [\n    1,\n    2.0\n  ]\n}\n'
    )


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (3.14159265, 3.14159),
        (89.4999999, 89.5),
        (0.000123456789, 0.000123457),
        (1234567.0, 1234570.0),
        (-2 / 3, -0.666667),
        (0.0, 0.0),
    ],
)
def test_floats_are_written_with_six_significant_digits(tmp_path: Path, number: float, expected: float) -> None:
    jsonfile.write(tmp_path / "a.json", {"x": [number]})

    assert jsonfile.fixed(number) == expected
    assert jsonfile.read(tmp_path / "a.json") == {"x": [expected]}


def test_whole_numbers_keep_all_their_digits(tmp_path: Path) -> None:
    jsonfile.write(tmp_path / "a.json", {"seed": 2**63 + 1})

    assert jsonfile.read(tmp_path / "a.json")["seed"] == 2**63 + 1


def test_more_digits_are_kept_when_asked_for(tmp_path: Path) -> None:
    jsonfile.write(tmp_path / "a.json", {"started_unix_s": 1796000000.125}, digits=15)

    assert jsonfile.read(tmp_path / "a.json")["started_unix_s"] == 1796000000.125


def test_writing_what_was_read_gives_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    jsonfile.write(path, {"x": [math.pi, 1e-7, 1e22], "y": (1, 2)})
    first = path.read_bytes()

    jsonfile.write(path, jsonfile.read(path))

    assert path.read_bytes() == first


def test_rounding_gives_what_a_file_would_give_back(tmp_path: Path) -> None:
    value = {"a": (1.23456789, {"b": 2.0}), "c": "text", "d": 3}
    jsonfile.write(tmp_path / "a.json", value)

    assert (
        jsonfile.rounded(value)
        == jsonfile.read(tmp_path / "a.json")
        == {"a": [1.23457, {"b": 2.0}]}
        | {
            "c": "text",
            "d": 3,
        }
    )


def test_a_file_keeps_its_mode_and_a_new_one_can_be_read_by_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"

    jsonfile.write(path, {})
    assert path.stat().st_mode & 0o777 == 0o644

    path.chmod(0o600)
    jsonfile.write(path, {"x": 1})
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("value", "name"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), (10**400, "Infinity")]
)
def test_a_number_that_could_not_be_read_back_is_not_written(tmp_path: Path, value: float, name: str) -> None:
    path = tmp_path / "a.json"
    jsonfile.write(path, {"x": 1})

    with pytest.raises(ValueError, match=r"can't be written") as caught:
        jsonfile.write(path, {"metrics": {"ttft_ms": [1.0, value]}})

    assert str(caught.value) == f"{path}: metrics.ttft_ms[1]: {name} can't be written: it could not be read back"
    assert jsonfile.read(path) == {"x": 1}


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.mkdir()  # a directory can't be replaced by a file

    with pytest.raises(OSError, match="directory"):
        jsonfile.write(path, {"x": 1})

    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]
    assert path.is_dir()


def test_a_text_with_undecodable_bytes_is_written_and_read_back(tmp_path: Path) -> None:
    value = b"/data/\xff".decode("utf-8", "surrogateescape")

    jsonfile.write(tmp_path / "a.json", {"env.LD_PRELOAD": value})

    assert jsonfile.read(tmp_path / "a.json") == {"env.LD_PRELOAD": value}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"a": {"b": 1, "b": 2}}',
            "key 'b' stands twice in one object; delete one of them",
        ),
        (
            '{"a": {"tolerance": NaN}}',
            "a.tolerance: NaN is not a number that can be judged by; write a finite one",
        ),
        (
            '{"launches": [[1.0], [2.0, -Infinity]]}',
            "launches[1][1]: -Infinity is not a number that can be judged by; write a finite one",
        ),
        ('{"x": 1e999}', "x: Infinity is not a number that can be judged by; write a finite one"),
        (
            '{"x": 1' + "0" * 400 + "}",
            "x: Infinity is not a number that can be judged by; write a finite one",
        ),
        ("[1, 2]", "expected a JSON object, got list; restore it from version control"),
        ("null", "expected a JSON object, got NoneType; restore it from version control"),
        (
            "",
            "not JSON at line 1, column 1 (Expecting value); it may be half written: restore it from version control",
        ),
        (
            '{"a": 1}\n<<<<<<< HEAD\n',
            "not JSON at line 2, column 1 (Extra data); it may be half written: restore it from version control",
        ),
    ],
)
def test_what_is_no_strict_document_is_refused_with_its_place_and_a_remedy(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, encoding="utf-8")

    assert refusal(path) == said


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    jsonfile.write(path, {"metrics": {"decode_tok_s": {"floor": 89.5, "note": "né"}}})
    whole = path.read_bytes()

    for length in range(len(whole) - 1):  # without the newline at its end the file is still whole
        path.write_bytes(whole[:length])
        assert refusal(path).endswith("restore it from version control")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": "\xff"}', "can't be read: 'utf-8' codec can't decode byte 0xff in position 7"),
        (b'{"x": ' + b"1" * 5000 + b"}", "can't be read: Exceeds the limit (4300"),
        (b'{"x": ' + b"[" * 100_000, "can't be read: "),
    ],
)
def test_bytes_that_can_not_be_read_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)

    message = refusal(path)

    assert message.startswith(said)
    assert message.endswith("; restore it from version control")


def test_a_file_that_is_not_there_is_refused_as_one_that_can_not_be_read(tmp_path: Path) -> None:
    assert refusal(tmp_path / "a.json").startswith("can't be read: [Errno 2] No such file or directory")


def renamed(document: dict[str, Any]) -> dict[str, Any]:
    return {"schema_version": 1, "new": document["old"]}


def doubled(document: dict[str, Any]) -> dict[str, Any]:
    return {"new": document["new"] * 2}


def test_a_document_is_brought_to_the_current_version_step_by_step() -> None:
    document = {"schema_version": 1, "old": 21}

    after = jsonfile.migrated(Path("a.json"), document, current=3, migrations={1: renamed, 2: doubled})

    assert after == {"schema_version": 3, "new": 42}


def test_a_document_of_the_current_version_is_left_alone() -> None:
    document = {"schema_version": 3, "x": 1}

    assert jsonfile.migrated(Path("a.json"), document, current=3, migrations={}) == {"schema_version": 3, "x": 1}


@pytest.mark.parametrize("version", ['"1"', "true", "0", "1.0", "null"])
def test_a_document_without_a_version_is_refused(version: str) -> None:
    value = json.loads(version)

    with pytest.raises(BaselineFileError) as caught:
        jsonfile.migrated(Path("a.json"), {"schema_version": value}, current=1, migrations={})

    assert str(caught.value) == (
        f"a.json: schema_version: expected a whole number of at least 1, got {value!r}; without it the file can't be "
        "understood: restore it or record it again"
    )


def test_a_document_that_a_newer_program_wrote_is_refused() -> None:
    with pytest.raises(BaselineFileError) as caught:
        jsonfile.migrated(Path("a.json"), {"schema_version": 4}, current=3, migrations={})

    assert str(caught.value) == "a.json: schema_version is 4, and this pytest-specdec reads up to 3: upgrade it"


def test_a_document_too_old_to_migrate_is_refused() -> None:
    with pytest.raises(BaselineFileError) as caught:
        jsonfile.migrated(Path("a.json"), {"schema_version": 1}, current=3, migrations={2: doubled})

    assert str(caught.value) == (
        "a.json: schema_version is 1, too old to be read: record it again with --update-baselines"
    )
