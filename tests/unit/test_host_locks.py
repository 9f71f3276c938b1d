"""Who has a host: the rules, and that they hold between processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_specdec import host_locks
from pytest_specdec.host_locks import HostLocks

SCRIPT = Path(host_locks.__file__)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "locks"


def test_a_whole_host_is_had_by_one(directory: Path) -> None:
    one, other = HostLocks(directory, "one"), HostLocks(directory, "other")

    assert one.whole() is None
    assert one.whole() is None, "asked again, it is had still"
    assert other.whole() == "one"
    one.release()
    one.release()
    assert other.whole() is None


def test_gpus_are_shared_out_without_overlap(directory: Path) -> None:
    one, other, third = (HostLocks(directory, name) for name in ("one", "other", "third"))

    assert one.some(["0", "1", "2"], 2) == ["0", "1"]
    assert other.some(["0", "1", "2"], 1) == ["2"]
    assert third.some(["1", "2"], 1) == "other"
    one.release()
    assert third.some(["1", "2"], 1) == ["1"]


def test_a_share_that_is_too_small_is_given_back(directory: Path) -> None:
    one, other, third = (HostLocks(directory, name) for name in ("one", "other", "third"))
    one.some(["1"], 1)

    assert other.some(["0", "1"], 2) == "one"
    assert third.some(["0"], 1) == ["0"]


def test_the_whole_host_waits_for_those_who_share_it_and_lets_nobody_new_in(directory: Path) -> None:
    sharing, whole, late = (HostLocks(directory, name) for name in ("sharing", "whole", "late"))
    sharing.some(["0", "1"], 1)

    assert whole.whole() == "sharing"
    assert late.some(["0", "1"], 1) == "whole"
    sharing.release()
    assert whole.whole() is None


def test_a_share_waits_for_the_whole_host(directory: Path) -> None:
    whole, sharing = HostLocks(directory, "whole"), HostLocks(directory, "sharing")
    whole.whole()

    assert sharing.some(["0"], 1) == "whole"


def start(directory: Path, **request: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-I", "-S", "-c", SCRIPT.read_text()]
    asked = json.dumps({"directory": str(directory), "who": "script", **request})
    return subprocess.Popen([*words, asked], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("request_", "held"), [({}, None), ({"gpus": ["0", "1"], "count": 1}, ["1"])])
def test_the_script_waits_tells_and_holds_until_it_is_killed(
    directory: Path, request_: dict[str, object], held: list[str] | None
) -> None:
    mine, before = HostLocks(directory, "mine"), HostLocks(directory, "before")
    if held is not None:
        before.some(["0"], 1)
    mine.whole()
    script = start(directory, **request_)
    assert script.stdout is not None
    try:
        assert json.loads(script.stdout.readline()) == {"busy": "mine"}
        mine.release()
        answer = json.loads(script.stdout.readline())
        while "busy" in answer:
            answer = json.loads(script.stdout.readline())
        assert answer == {"held": held}
        assert HostLocks(directory, "late").some(["0", "1"], 2) == "script"
    finally:
        script.kill()
        script.wait()
        script.stdout.close()
    assert HostLocks(directory, "late").some(["1"], 1) == ["1"]
    before.release()
