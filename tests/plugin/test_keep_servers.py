"""``--specdec-keep-servers``: a launch that the next run of pytest has for nothing, and no other server's place."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.plugin.conftest import TEST_B, Suite
from tests.plugin.test_life_cycle import servers_of, wait_for

TEST_A = TEST_B.replace("[B]", "[A]").replace("test_b", "test_a")
KEEP = "--specdec-keep-servers=60"


def records(suite: Suite) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (suite.root / "cache" / "servers").glob("*.json")]


def end_kept(suite: Suite) -> None:
    for path in (suite.root / "cache" / "servers").glob("*.json"):
        supervisor = json.loads(path.read_text())["supervisor"]
        os.kill(supervisor, signal.SIGTERM)
        wait_for(lambda path=path: not path.exists())  # type: ignore[misc]
    for pid in servers_of(suite):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def kept(suite: Suite) -> Iterator[Suite]:
    """A suite for one spec, which has been run once and has left its server up."""
    suite.write(TEST_B)
    assert suite.run("--update-baselines", "--specdec-launches=1", KEEP).ret == 0
    assert (suite.launches, len(servers_of(suite)), len(records(suite))) == (1, 1, 1)
    yield suite
    end_kept(suite)


def test_the_next_run_has_the_server_for_nothing(kept: Suite) -> None:
    (before,) = servers_of(kept)

    result = kept.run("-v", KEEP)

    assert result.ret == 0
    assert kept.launches == 1
    assert servers_of(kept) == [before]
    text = result.stdout.str()
    assert "adopted the kept server" in text
    assert "measured on a server that an earlier run launched at" in text
    (measured,) = kept.results["measurements"]
    assert [launch["adopted"] for launch in measured["launches"]] == [True]
    assert kept.results["launch_count"] == 0


def test_a_run_without_the_option_takes_it_and_ends_it(kept: Suite) -> None:
    result = kept.run()

    assert result.ret == 0
    assert kept.launches == 1
    assert (servers_of(kept), records(kept)) == ([], [])
