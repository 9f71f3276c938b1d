"""How long launches took, kept in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_specdec.launch_history import LaunchHistory, PastLaunch

PAST = PastLaunch(ready_s=541.25, phase_s={"imports": 20.0, "weights": 500.5})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "launches.json"


def test_the_last_launch_of_a_spec_on_a_host_is_remembered(path: Path) -> None:
    LaunchHistory(path).add("a1", "blackwell", PastLaunch(ready_s=900.0, phase_s={}), at_unix_s=1.0)
    LaunchHistory(path).add("a1", "blackwell", PAST, at_unix_s=2.0)

    assert LaunchHistory(path).last("a1", "blackwell") == PAST


@pytest.mark.parametrize(("spec_hash", "host"), [("b2", "blackwell"), ("a1", "localhost")])
def test_another_spec_or_host_has_a_time_of_its_own(path: Path, spec_hash: str, host: str) -> None:
    history = LaunchHistory(path)
    history.add("a1", "blackwell", PAST, at_unix_s=1.0)

    assert history.last(spec_hash, host) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema_version": 2, "launches": {}}',
        '{"schema_version": 1}',
        '{"schema_version": 1, "launches": {"h a1": {"ready_s": "soon", "phase_s": {}, "at_unix_s": 1}}}',
        '{"schema_version": 1, "launches": {"h a1": {"ready_s": 1, "phase_s": [], "at_unix_s": 1}}}',
        '{"schema_version": 1, "launches": {"h a1": 3}}',
    ],
)
def test_a_broken_file_is_none_and_is_replaced(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    history = LaunchHistory(path)

    assert history.last("a1", "h") is None
    history.add("a1", "h", PAST, at_unix_s=1.0)
    assert history.last("a1", "h") == PAST


def test_the_file_is_bounded_and_loses_the_oldest(path: Path) -> None:
    path.parent.mkdir()
    launches = {f"h {n}": {"ready_s": 1.0, "phase_s": {}, "at_unix_s": 1e9 + n} for n in range(300)}
    path.write_text(json.dumps({"schema_version": 1, "launches": launches}), encoding="utf-8")
    history = LaunchHistory(path)

    history.add("new", "h", PAST, at_unix_s=2e9)

    assert (history.last("0", "h"), history.last("new", "h")) == (None, PAST)
    assert history.last("1", "h") is not None


def test_a_place_that_can_not_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    history = LaunchHistory(tmp_path / "file" / "launches.json")

    history.add("a1", "h", PAST, at_unix_s=1.0)

    assert history.last("a1", "h") is None
