from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specdec.hosts import Completed, LocalHost
from pytest_specdec.log_trouble import trouble_of
from tests.fakes.host import FakeHost, told

LOG = Path("/logs/base.log")


def test_a_log_that_can_grow_is_no_trouble_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    assert trouble_of(LocalHost(), tmp_path / "base.log") is None
    assert list(tmp_path.iterdir()) == []


def test_a_log_in_a_place_that_is_not_there_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert trouble_of(LocalHost(), tmp_path / "file" / "base.log") in {"Not a directory", "Directory nonexistent"}


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (
            told(stderr="head: error writing 'standard output': No space left on device\n", returncode=1),
            "No space left on device",
        ),
        (
            told(stderr="sh: 1: cannot create /logs/base.room: Read-only file system\n", returncode=2),
            "Read-only file system",
        ),
        (told(returncode=3), "exit code 3"),
        (told(), None),
    ],
)
def test_the_reason_is_the_systems(answer: Completed, trouble: str | None) -> None:
    host = FakeHost()
    host.answers["sh"] = answer

    assert trouble_of(host, LOG) == trouble
    assert host.commands[0][-1] == "/logs/base.room"


def test_a_host_that_is_away_is_no_trouble_of_the_log() -> None:
    assert trouble_of(FakeHost(), LOG) is None
