"""``pytest-specdec servers``: what was kept is listed, stopped and adopted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.plugin.conftest import TEST_B, Suite
from tests.plugin.test_keep_servers import KEEP, end_kept, kept, records
from tests.plugin.test_life_cycle import servers_of, start, wait_for

__all__ = ["kept"]


def servers(suite: Suite, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTEST_SPECDEC_CACHE": str(suite.root / "cache")}
    command = [sys.executable, "-m", "pytest_specdec.cli", "servers", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def short_id(suite: Suite) -> str:
    (record,) = records(suite)
    return str(record["token"])[:8]


@pytest.mark.parametrize("words", [(), ("list",), ("list", "--gpu-host"), ("--gpu-host=here",)])
def test_they_are_listed(kept: Suite, words: tuple[str, ...]) -> None:
    done = servers(kept, *words)

    assert (done.returncode, done.stderr) == (0, "")
    head, row = done.stdout.splitlines()
    (record,) = records(kept)
    assert head.split() == ["id", "spec", "state", "port", "up", "for", "lease", "left", "sglang", "log"]
    pattern = rf"{short_id(kept)}  b +kept +{record['port']}  \d+ s +\d+ s +0\.5\.23  /.*-b-0-\d+\.log"
    assert re.fullmatch(pattern, row), row


@pytest.mark.parametrize("words", [("--json",), ("list", "--json")])
def test_they_are_listed_as_json(kept: Suite, words: tuple[str, ...]) -> None:
    told = json.loads(servers(kept, *words).stdout)

    (server,) = told["servers"]
    assert told["host"] == "localhost"
    assert (server["id"], server["spec"], server["state"]) == (short_id(kept), "b", "kept")
    assert servers_of(kept) == [server["pid"]]
    assert 30 < server["lease_left_s"] <= 60
    assert server["command"].startswith("FAKE_COUNTER=")


def test_where_none_is_kept_that_is_said(suite: Suite) -> None:
    done = servers(suite)

    assert done.returncode == 0
    assert done.stdout == "no server is kept on localhost; --specdec-keep-servers leaves one up\n"
    assert json.loads(servers(suite, "--json").stdout) == {"host": "localhost", "servers": []}
    assert servers(suite, "stop", "--all").returncode == 0


@pytest.mark.parametrize("by", ["id", "the beginning of it", "--all"])
def test_one_is_stopped(kept: Suite, by: str) -> None:
    given = {"id": short_id(kept), "the beginning of it": short_id(kept)[:3], "--all": "--all"}[by]

    done = servers(kept, "stop", given)

    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"stopped [0-9a-f]{8} \(b\) on localhost\n", done.stdout)
    assert servers_of(kept) == []
    wait_for(lambda: not records(kept))


@pytest.mark.parametrize("action", ["stop", "adopt"])
def test_an_unknown_id_is_told_with_those_there_are(kept: Suite, action: str) -> None:
    done = servers(kept, action, "zzz")

    assert (done.returncode, done.stdout) == (2, "")
    there = f"there are: {short_id(kept)} (b)"
    assert done.stderr == f"pytest-specdec servers: 'zzz' is no kept server's id on localhost; {there}\n"
    assert len(servers_of(kept)) == 1


@pytest.mark.parametrize(
    "words", [("stop",), ("stop", "--all", "abc"), ("adopt", "abc", "--lease=0"), ("--gpu-host=-x",)]
)
def test_words_that_say_nothing_are_refused(suite: Suite, words: tuple[str, ...]) -> None:
    done = servers(suite, *words)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("pytest-specdec servers: ")


def test_an_adopted_one_stays_longer_and_the_next_run_measures_on_it(kept: Suite) -> None:
    (record,) = records(kept)

    done = servers(kept, "adopt", short_id(kept), "--lease=300")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"adopted {short_id(kept)} (b) on localhost: it stays up for 5 min from now on",
        f"url:      http://127.0.0.1:{record['port']}",
        f"log:      {record['log_path']}",
        "measure:  pytest --specdec-keep-servers -k b",
    ]
    (server,) = json.loads(servers(kept, "--json").stdout)["servers"]
    assert 60 < server["lease_left_s"] <= 300
    assert kept.run(KEEP).ret == 0
    assert kept.launches == 1


def test_one_that_a_run_holds_is_left_to_it(kept: Suite) -> None:
    end_kept(kept)
    # Started as the next one is: pytester's own runs have another environment.
    start(kept, KEEP).communicate(timeout=60)
    kept.write(TEST_B.replace("specdec_benchmark()\n", "import time; specdec_benchmark(check=False); time.sleep(60)\n"))
    session = start(kept, KEEP)
    wait_for(lambda: any(record["state"] == "held" for record in records(kept)))

    given = short_id(kept)
    done = [servers(kept, *words) for words in (("stop", given), ("adopt", given), ("stop", "--all"))]

    session.kill()
    session.communicate(timeout=20)
    assert [one.returncode for one in done] == [2, 2, 0]
    assert "held by a run of pytest" in done[0].stderr
