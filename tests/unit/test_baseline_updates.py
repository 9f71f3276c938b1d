"""One process writes what all of a session's processes want to record."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec import baseline_updates
from pytest_specdec.baseline import Baseline, read_baseline
from pytest_specdec.baseline_store import Change
from pytest_specdec.errors import InfrastructureError
from pytest_specdec.judging import Update
from tests.fakes.judged import IDENTITY, NODE, PROVENANCE, five


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "baselines"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "report"


def update(root: Path, key: str, speed: float = 100.0, *, node: str = NODE) -> Update:
    path = root / node / f"{key}.json"
    recorded = Baseline(
        identity=IDENTITY,
        environment={},
        provenance=PROVENANCE,
        metrics={"decode_tok_s": five("decode_tok_s", speed)},
        categories={"code": {"accept_length": (3.0,)}},
    )
    change = Change(path=path, metric="decode_tok_s", unit="tok/s", old=None, new=speed, loosened=False)
    return Update(key=key, files={path: recorded}, changes=(change,))


def process(*updates: Update, failed: tuple[str, ...] = ()) -> dict[str, Any]:
    """What one process hands over, as it is after it travelled."""
    found: dict[str, Any] = json.loads(json.dumps({"wanted": baseline_updates.wanted(updates), "failed": list(failed)}))
    return found


def told(table: list[str]) -> list[str]:
    """The rows of a table without its head, one space between words."""
    head, *rows = table
    assert head.split() == ["baseline", "metric", "old", "new", "change"]
    return [" ".join(row.split()) for row in rows]


def test_what_was_wanted_is_written_and_lies_in_the_report_as_well(root: Path, report: Path) -> None:
    one, other = update(root, "a--chat--c1--o512"), update(root, "b--chat--c1--o512", node="any")

    lines = baseline_updates.write([process(one, other)], root=root, report_dir=report)

    for path, recorded in (*one.files.items(), *other.files.items()):
        assert read_baseline(path) == recorded
        assert (report / "baselines" / path.relative_to(root)).read_bytes() == path.read_bytes()
    assert told(lines) == [
        "a--chat--c1--o512.json decode_tok_s - 100 tok/s new",
        "b--chat--c1--o512.json decode_tok_s - 100 tok/s new",
    ]


def test_what_failed_in_any_process_is_not_written(root: Path, report: Path) -> None:
    good, bad = update(root, "good--chat--c1--o512"), update(root, "bad--chat--c1--o512")

    lines = baseline_updates.write(
        [process(good, bad), process(failed=("bad--chat--c1--o512",))], root=root, report_dir=report
    )

    assert [path.name for path in root.glob("*/*")] == ["good--chat--c1--o512.json"]
    assert [path.name for path in (report / "baselines").glob("*/*")] == ["good--chat--c1--o512.json"]
    assert told(lines) == ["good--chat--c1--o512.json decode_tok_s - 100 tok/s new"]


def test_of_two_processes_that_want_the_same_the_first_is_written(root: Path, report: Path) -> None:
    first, second = update(root, "a--chat--c1--o512", 100.0), update(root, "a--chat--c1--o512", 120.0)

    lines = baseline_updates.write([process(first), process(second)], root=root, report_dir=report)

    (path,) = first.files
    assert read_baseline(path).metrics["decode_tok_s"].mean == 100.0
    assert told(lines) == ["a--chat--c1--o512.json decode_tok_s - 100 tok/s new"]


def test_recording_twice_gives_the_same_bytes(root: Path, report: Path) -> None:
    wanted = process(update(root, "a--chat--c1--o512", 100 / 3))
    baseline_updates.write([wanted], root=root, report_dir=report)
    (path,) = root.glob("*/*.json")
    before = path.read_bytes()

    baseline_updates.write([wanted], root=root, report_dir=report)

    assert path.read_bytes() == before


def test_nothing_wanted_is_nothing_written(root: Path, report: Path) -> None:
    assert baseline_updates.write([process(), process(failed=("x",))], root=root, report_dir=report) == []
    assert not root.exists()
    assert not report.exists()


def test_a_file_that_can_not_be_written_is_told_with_where_the_measured_values_are(root: Path, report: Path) -> None:
    wanted = update(root, "a--chat--c1--o512")
    root.mkdir()
    (root / NODE).write_text("a file where a directory belongs", encoding="utf-8")

    with pytest.raises(InfrastructureError) as caught:
        baseline_updates.write([process(wanted)], root=root, report_dir=report)

    (path,) = wanted.files
    assert str(caught.value).startswith(f"{path}: the new baseline can't be written: ")
    assert str(caught.value).endswith(f"; what was measured is in {report}")


def test_a_report_that_can_not_be_written_is_told_too(root: Path, report: Path) -> None:
    report.write_text("a file where a directory belongs", encoding="utf-8")

    with pytest.raises(InfrastructureError, match="the new baseline can't be written"):
        baseline_updates.write([process(update(root, "a--chat--c1--o512"))], root=root, report_dir=report)


def test_changes_are_told_with_what_they_loosen(root: Path, report: Path) -> None:
    wanted = update(root, "a--chat--c1--o512", 90.0)
    (change,) = wanted.changes
    loosened = dataclasses.replace(wanted, changes=(dataclasses.replace(change, old=100.0, loosened=True),))

    assert told(baseline_updates.write([process(loosened)], root=root, report_dir=report)) == [
        "a--chat--c1--o512.json decode_tok_s 100 90 tok/s -10.0% LOOSENED"
    ]
