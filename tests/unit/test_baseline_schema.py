"""The published schema of baseline files, held against the program that reads and writes them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_specdec import jsonfile
from pytest_specdec.baseline import BY_CATEGORY, SCHEMA_VERSION, read_baseline, to_document, write_baseline
from pytest_specdec.baseline_admin import SCHEMA_PATH
from pytest_specdec.errors import BaselineFileError
from pytest_specdec.metrics import METRICS

ROOT = Path(__file__).parents[2]
VERSIONS = ROOT / "tests" / "data" / "baselines"
SCHEMA = json.loads(SCHEMA_PATH.read_text("utf-8"))
Key = str | int
Place = tuple[Key, ...]


def fits(document: object) -> bool:
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(document)


def is_read(path: Path, document: object) -> bool:
    path.write_text(json.dumps(document), encoding="utf-8")
    try:
        read_baseline(path)
    except BaselineFileError:
        return False
    return True


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("baselines/*/*.json")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_every_committed_baseline_fits_and_is_written_as_the_program_would(tmp_path: Path, path: Path) -> None:
    assert fits(jsonfile.read(path))

    write_baseline(tmp_path / "a.json", read_baseline(path))
    assert (tmp_path / "a.json").read_text("utf-8") == path.read_text("utf-8")


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_a_file_of_each_version_is_kept_and_fits_once_it_is_read(version: int) -> None:
    stored = VERSIONS / f"version-{version}.json"

    assert jsonfile.read(stored)[jsonfile.VERSION_KEY] == version
    assert fits(jsonfile.rounded(to_document(read_baseline(stored))))
    assert fits(jsonfile.read(stored)) == (version == SCHEMA_VERSION)


def test_the_schema_is_valid_and_of_the_version_that_is_written() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)

    assert SCHEMA["properties"][jsonfile.VERSION_KEY] == {"const": SCHEMA_VERSION}
    assert SCHEMA["$id"] == f"pytest-specdec/baseline/{SCHEMA_VERSION}"


def full(*metrics: str) -> dict[str, Any]:
    """A document with every key that there is, and these metrics."""
    document: dict[str, Any] = jsonfile.read(VERSIONS / f"version-{SCHEMA_VERSION}.json")
    limits = {"e2e_ms": 900.0, "tpot_ms": 20.0, "ttft_ms": 500.0}
    document["identity"] |= {"request_rate": 2.5, "chat_template": True, "goodput": limits}
    document["provenance"]["note"] = "by hand"
    document["categories"] = {"code": {name: [3.1, 3.0] for name in BY_CATEGORY}, "prose": {}}
    # No mean: it follows from the launches, which a schema can't hold; tests of the reader do.
    entry = {"gate": True, "tolerance": 0.02, "floor": 1.0, "launches": [[1.0, 2.0], [3.0]], "note": "x"}
    document["metrics"] = {
        name: {
            **entry,
            "direction": METRICS[name].direction,
            "unit": METRICS[name].unit,
            "sd_within": 0.1,
            "sd_between": 0.1,
            "detectable_change": 0.03,
        }
        for name in metrics
    }
    return document


def test_the_schema_has_the_keys_that_the_program_has() -> None:
    written = to_document(read_baseline(VERSIONS / f"version-{SCHEMA_VERSION}.json"))
    document = full("decode_tok_s")

    assert set(SCHEMA["properties"]) == set(written)
    assert set(SCHEMA["properties"]["identity"]["properties"]) == {*written["identity"], *document["identity"]}
    assert set(SCHEMA["properties"]["provenance"]["properties"]) == {*written["provenance"], "note"}
    assert set(SCHEMA["properties"]["metrics"]["properties"]) == set(METRICS)
    assert set(SCHEMA["$defs"]["metric"]["properties"]) == set(written["metrics"]["decode_tok_s"])
    assert set(SCHEMA["$defs"]["metric"]["properties"]) == {*document["metrics"]["decode_tok_s"], "mean"}
    assert set(SCHEMA["properties"]["categories"]["additionalProperties"]["properties"]) == set(BY_CATEGORY)


def places(value: object, place: Place = ()) -> Iterator[Place]:
    """Yield where each value of a document stands."""
    if place:
        yield place
    if place[:1] == ("environment",):
        return
    entries: list[tuple[Key, object]] = []
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value))
    for key, entry in entries:
        yield from places(entry, (*place, key))


#: Beside the values of other kinds: the edges of ranges, and texts that are times or words of ours.
OTHERS: tuple[object, ...] = (
    None, True, -1, 0, 1, 2, 0.5, -0.5, 10**300, "", "x", "program", "document", "higher", "lower", "ms", "tok/s",
    [], [[]], [[1.0], []], [[0.0]], [[1.0, "x"]], [None], {}, {"x": 1.0}, {"temperature": "x"},
    "2026-11-29T12:00:00Z", "2026-11-29T12:00:00.123456+00:00", "2026-11-29T12:00:00.1Z", "2026-11-29T12:00Z",
    "2026-11-29 12:00:00Z", "20261129T120000Z", "2026-11-29", "2026-11-29T12:00:00", "2026-11-29T12:00:00+01:00",
    "2026-11-29T12:00:00-00:00",
)  # fmt: skip


def changed(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield copies that differ in one place: a value is another, is gone, or has a key beside it that is unknown."""
    for *way, last in places(document):
        for what in ("gone", "unknown", *OTHERS):
            spoiled = copy.deepcopy(document)
            at: Any = spoiled
            for key in way:
                at = at[key]
            if what == "gone":
                del at[last]
            elif what == "unknown":
                if not isinstance(at, dict):
                    continue
                at["unknown"] = 1
            else:
                at[last] = what
            yield f"{(*way, last)}: {what!r}", spoiled


@pytest.mark.parametrize("source", ["program", "document"])
def test_the_schema_and_the_program_refuse_the_same_files(tmp_path: Path, source: str) -> None:
    document = full("decode_tok_s")
    document["provenance"]["source"] = source
    assert fits(document)

    judged = [(what, fits(one), is_read(tmp_path / "a.json", one)) for what, one in changed(document)]

    # The program reads older versions too; the schema is of the one that is written.
    older = [version for version in OTHERS if type(version) is int and 0 < version < SCHEMA_VERSION]
    assert [what for what, schema, program in judged if schema != program] == [
        f"{(jsonfile.VERSION_KEY,)}: {version}" for version in older
    ]
    assert {program for _, _, program in judged} == {True, False}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_has_its_own_unit_and_direction(tmp_path: Path, name: str) -> None:
    document = full(name)
    assert (fits(document), is_read(tmp_path / "a.json", document)) == (True, True)
    other_direction = {"higher": "lower", "lower": "higher"}[METRICS[name].direction]
    for key, other in (("unit", "parsec"), ("direction", other_direction)):
        spoiled = copy.deepcopy(document)
        spoiled["metrics"][name][key] = other

        assert (fits(spoiled), is_read(tmp_path / "a.json", spoiled)) == (False, False), key
