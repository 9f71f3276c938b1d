"""Looking after committed baselines, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec import baseline_admin as admin
from pytest_specdec.cli import main
from pytest_specdec.errors import BaselineFileError

DATA = Path(__file__).parents[1] / "data" / "baselines"
VERSION_1, VERSION_2 = DATA / "version-1.json", DATA / "version-2.json"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with one sound file, named after what it holds."""
    document = json.loads(VERSION_2.read_text())
    identity = document["identity"]
    path = tmp_path / "baselines" / "node" / f"s--w--c{identity['concurrency']}--o{identity['output_tokens']}.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document))
    return tmp_path / "baselines"


def only(root: Path) -> Path:
    (path,) = root.glob("*/*.json")
    return path


def edit(path: Path, **changes: Any) -> Path:
    """Change entries, by their place: ``metrics__decode_tok_s__floor``."""
    document = json.loads(path.read_text())
    for place, value in changes.items():
        *way, last = place.split("__")
        at = document
        for name in way:
            at = at[name]
        at[last] = value
    path.write_text(json.dumps(document))
    return path


def test_sound_files_are_sound(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baselines", "verify", str(root)]) == 0
    assert capsys.readouterr().out == f"1 files, all sound\nthe format, as a JSON Schema: {admin.SCHEMA_PATH}\n"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"identity__concurrency": 7}, "identity.concurrency is 7, and the file's name says c"),
        ({"identity__output_tokens": 7}, "identity.output_tokens is 7, and the file's name says o"),
        ({"metrics__decode_tok_s__tolerance": -0.1}, "metrics.decode_tok_s.tolerance: expected a number"),
    ],
)
def test_broken_files_are_named_with_the_reason(
    root: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    path = edit(only(root), **changes)

    assert main(["baselines", "verify", str(root)]) == 1
    out = capsys.readouterr().out
    assert str(path) in out
    assert said in out


def test_a_name_that_no_test_looks_for_is_a_problem(root: Path) -> None:
    only(root).rename(root / "node" / "old-name.json")

    assert "so no test looks at it" in admin.problems(root)[0]


def test_a_missing_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baselines", "verify", str(tmp_path / "nowhere")]) == 2
    assert "no such directory" in capsys.readouterr().err


def test_what_differs_between_two_files_is_told(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = only(root)
    new = tmp_path / "new.json"
    new.write_text(old.read_text())
    assert main(["baselines", "diff", str(old), str(new)]) == 0
    assert capsys.readouterr().out == "no difference\n"

    edit(new, metrics__decode_tok_s__floor=50.0, metrics__decode_tok_s__gate=False)
    assert main(["baselines", "diff", str(old), str(new)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "decode_tok_s gate: True -> False" in lines
    assert any(line.startswith("decode_tok_s floor: ") and line.endswith("-> 50.0") for line in lines)


def test_directories_are_compared_file_by_file(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "node").mkdir(parents=True)
    (other / "node" / "x--w--c1--o9.json").write_text(only(root).read_text())

    assert admin.difference(root, other) == [
        f"{only(root).relative_to(root)}: only in {root}",
        f"node/x--w--c1--o9.json: only in {other}",
    ]


def test_a_file_and_a_directory_are_not_compared(root: Path) -> None:
    with pytest.raises(BaselineFileError, match="one is a directory"):
        admin.difference(root, only(root))


def test_one_file_is_shown_whole(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baselines", "show", str(only(root))]) == 0
    out = capsys.readouterr().out
    assert "  identity:" in out
    assert "      launch 1: " in out


def test_a_listing_survives_a_broken_file(root: Path) -> None:
    (root / "node" / "broken--w--c1--o9.json").write_text("{")

    lines = admin.listing(root)

    assert len(lines) == 3
    assert any("broken: see `pytest-specdec baselines verify`" in line for line in lines)


def test_files_of_the_current_version_are_left_alone(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = only(root).read_bytes()

    assert main(["baselines", "migrate", str(root)]) == 0
    assert capsys.readouterr().out == "every file is of the current version\n"
    assert only(root).read_bytes() == before


def test_files_of_an_older_version_are_rewritten(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = only(root)
    old.write_bytes(VERSION_1.read_bytes())

    assert main(["baselines", "migrate", str(root)]) == 0
    assert capsys.readouterr().out == f"rewritten: {old}\n"
    expected = json.loads(VERSION_2.read_text())
    del expected["categories"]
    assert json.loads(old.read_text()) == expected
    assert main(["baselines", "migrate", str(root)]) == 0
    assert json.loads(old.read_text()) == expected
