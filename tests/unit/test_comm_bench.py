"""What the probe is asked, and what becomes of its answer. The probe itself runs in tests/perf, with a real torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec import comm_bench, comm_probe
from pytest_specdec.comm_bench import AllReduce
from pytest_specdec.communication import Traffic
from pytest_specdec.errors import HostError, UserInputError
from tests.fakes.host import FakeHost, told

CONTRACT = Traffic(calls=122, message_bytes=43008)


def wanted(**more: Any) -> AllReduce:
    return AllReduce(**{"backend": "nccl", "world_size": 8, "traffic": CONTRACT, **more})


def answering(answer: object, **more: Any) -> FakeHost:
    host = FakeHost()
    host.answers["python"] = told(f"NCCL version 2.27\n{comm_probe.MARK}{json.dumps(answer)}\n", **more)
    return host


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({}, "all-reduce--nccl--w8--122x43008"),
        ({"algorithm": "Tree"}, "all-reduce--nccl--w8--122x43008--tree"),
        ({"graph": False}, "all-reduce--nccl--w8--122x43008--eager"),
        ({"backend": "gloo", "world_size": 2, "graph": False}, "all-reduce--gloo--w2--122x43008"),
    ],
)
def test_a_key_tells_everything_that_changes_the_latency(more: dict[str, Any], key: str) -> None:
    assert wanted(**more).key == key


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"world_size": 0}, "world_size of at least 1, got 0"),
        ({"backend": "gloo", "algorithm": "Tree"}, "gloo has one algorithm; 'Tree' is NCCL's: leave it out"),
        ({"algorithm": "allreduce:tree;x"}, "give one algorithm, such as Tree or Ring"),
    ],
)
def test_what_can_not_be_timed_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        wanted(**more)


def test_the_probe_is_sent_as_text_with_its_request_and_the_algorithm_in_the_environment() -> None:
    host = answering({"rounds_us": [40.0], "torch_version": "2.14.1", "nccl_version": None})

    found = comm_bench.measure(host, "python", wanted(algorithm="Ring"), rounds=1, warmup=0, timeout_s=20.0)

    assert found.rounds_us == (40.0,)
    assert found.facts == {"torch_version": "2.14.1"}
    ((_, dash_c, source, request),) = host.commands
    assert dash_c == "-c"
    assert source == Path(comm_probe.__file__).read_text(encoding="utf-8")
    assert json.loads(request)["timeout_s"] == 20.0
    assert host.variables == [{"NCCL_ALGO": "Ring"}]


def test_what_the_ranks_said_is_in_the_error() -> None:
    host = answering({"error": "rank 3: RuntimeError: NCCL error"}, stderr="a\nncclSystemError: /dev/shm is full\n")

    with pytest.raises(HostError, match="w8--122x43008 can't be timed with python: rank 3: RuntimeError: NCCL error\n"):
        comm_bench.measure(host, "python", wanted())


def test_a_probe_that_says_nothing_is_told_by_its_exit_code() -> None:
    host = FakeHost()
    host.answers["python"] = told("hello\n", returncode=1, stderr="ModuleNotFoundError: No module named 'torch'\n")

    with pytest.raises(HostError, match="exit code 1\nModuleNotFoundError: No module named 'torch'"):
        comm_bench.measure(host, "python", wanted())


@pytest.mark.parametrize("rounds", [[], [12.0, 0.0], [float("nan")]])
def test_times_that_are_none_are_refused(rounds: list[float]) -> None:
    with pytest.raises(HostError, match="which are no times"):
        comm_bench.measure(answering({"rounds_us": rounds}), "python", wanted())
