"""``--specdec-keep-servers``: a launch that the next run of pytest has for nothing, and no other server's place."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.waiting import is_alive
from tests.plugin.conftest import TEST_B, Suite
from tests.plugin.test_life_cycle import servers_of, start, wait_for

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


def test_a_record_holds_no_secret_and_is_its_owner_s(suite: Suite) -> None:
    suite.write(TEST_B)

    suite.run("--update-baselines", "--specdec-launches=1", KEEP, env={"HF_TOKEN": "hf_5ecret5ecret"})

    (path,) = (suite.root / "cache" / "servers").glob("*.json")
    assert "hf_5ecret5ecret" not in path.read_text()
    assert "HF_TOKEN" in json.loads(path.read_text())["environment"]
    assert path.stat().st_mode & 0o077 == 0
    end_kept(suite)


def test_another_spec_ends_the_kept_server_and_only_the_last_one_is_kept(kept: Suite) -> None:
    kept.write(TEST_A + TEST_B.replace("output_tokens=31", "output_tokens=30"))
    (before,) = servers_of(kept)

    result = kept.run("-v", "test_suite.py::test_a", KEEP)

    assert kept.launches == 2
    assert "(b, up for 0 min): it serves b" in result.stdout.str()
    (after,) = servers_of(kept)
    assert after != before
    assert [record["spec_name"] for record in records(kept)] == ["a"]


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"NCCL_ALGO": "Tree"}, "in the environment NCCL_ALGO is new"),
        ({"PATH": f"{os.environ['PATH']}:/opt"}, "in the environment PATH has another value"),
    ],
)
def test_another_environment_is_another_launch(kept: Suite, env: dict[str, str], told: str) -> None:
    result = kept.run("-v", KEEP, env=env)

    assert kept.launches == 2
    assert told in result.stdout.str()
    assert len(servers_of(kept)) == 1


def test_another_sglang_is_another_launch(kept: Suite) -> None:
    (path,) = (kept.root / "cache" / "servers").glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "sglang_version": "0.5.22"}))

    result = kept.run("-v", KEEP)

    assert kept.launches == 2
    assert "it runs SGLang 0.5.22, a launch would have 0.5.23" in result.stdout.str()


def test_a_baseline_is_recorded_on_a_fresh_launch(kept: Suite) -> None:
    result = kept.run("-v", "--update-baselines", "--specdec-launches=1")

    assert result.ret == 0
    assert kept.launches == 2
    assert "baselines are recorded on fresh launches (--update-baselines)" in result.stdout.str()
    assert servers_of(kept) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kept_server_that_died_is_launched_again(kept: Suite, number: int) -> None:
    (server,) = servers_of(kept)
    os.kill(server, number)
    wait_for(lambda: not servers_of(kept))

    result = kept.run(KEEP)

    assert result.ret == 0
    assert kept.launches == 2


@pytest.mark.parametrize("adopted", [False, True])
def test_a_killed_session_ends_even_a_server_that_was_to_be_kept(kept: Suite, adopted: bool) -> None:
    end_kept(kept)
    if adopted:
        # Started as below: pytester's own runs have another environment.
        start(kept, KEEP).communicate(timeout=60)
    launched = kept.launches
    body = "import time; specdec_benchmark(check=False); time.sleep(60)\n"
    kept.write(TEST_B.replace("specdec_benchmark()\n", body))
    (kept.root / ".specdec" / "results.json").unlink()
    session = start(kept, KEEP)
    wait_for((kept.root / ".specdec" / "results.json").exists)
    assert len(servers_of(kept)) == 1
    assert kept.launches == (launched if adopted else launched + 1)

    session.kill()
    killed = time.monotonic()
    session.communicate(timeout=20)
    wait_for(lambda: not servers_of(kept), deadline_s=12)

    assert time.monotonic() - killed < 10
    wait_for(lambda: not records(kept))


def test_when_its_lease_has_run_out_nothing_is_left(suite: Suite) -> None:
    suite.write(TEST_B)
    suite.run("--update-baselines", "--specdec-launches=1", "--specdec-keep-servers=2")
    (record,) = records(suite)
    directory = Path(record["directory"])
    assert directory.exists()

    wait_for(lambda: not servers_of(suite))

    wait_for(lambda: not records(suite) and not directory.exists())
    wait_for(lambda: not is_alive(record["supervisor"]))


def test_a_server_that_has_lost_its_supervisor_is_ended_by_the_next_run(kept: Suite) -> None:
    (record,) = records(kept)
    os.kill(record["supervisor"], signal.SIGKILL)

    result = kept.run("-v")

    assert result.ret == 0
    assert kept.launches == 2
    assert "its supervisor is gone" in result.stdout.str()
    assert (servers_of(kept), records(kept)) == ([], [])
    assert not Path(record["directory"]).exists()


def test_an_interrupted_session_keeps_what_it_had(kept: Suite) -> None:
    body = "import time; specdec_benchmark(check=False); time.sleep(60)\n"
    kept.write(TEST_B.replace("specdec_benchmark()\n", body))
    (kept.root / ".specdec" / "results.json").unlink()
    session = start(kept, KEEP)
    wait_for((kept.root / ".specdec" / "results.json").exists)

    session.send_signal(signal.SIGINT)
    session.communicate(timeout=40)

    assert session.returncode == 2
    assert len(servers_of(kept)) == 1
    assert [record["state"] for record in records(kept)] == ["kept"]


@pytest.mark.parametrize("given", ["no", "0"])
def test_the_option_can_be_turned_off(suite: Suite, given: str) -> None:
    suite.write(TEST_B)

    result = suite.run(
        "--update-baselines",
        "--specdec-launches=1",
        f"--specdec-keep-servers={given}",
        env={"PYTEST_SPECDEC_KEEP_SERVERS": "60"},
    )

    assert result.ret == 0
    assert (servers_of(suite), records(suite)) == ([], [])


def test_under_xdist_the_host_is_handed_on(suite: Suite) -> None:
    suite.write(TEST_A + TEST_B)

    result = suite.run("-n", "2", "--update-baselines", "--specdec-launches=1", KEEP)

    assert result.ret == 0
    assert suite.launches == 2
    assert len(servers_of(suite)) == len(records(suite)) == 1
    end_kept(suite)
