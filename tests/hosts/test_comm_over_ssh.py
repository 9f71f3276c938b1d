"""All-reduces are timed on the host that is named, over a real ssh."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_specdec import comm_bench
from pytest_specdec.comm_bench import AllReduce
from pytest_specdec.communication import Traffic
from pytest_specdec.ssh import SshHost


def test_the_probe_goes_there_as_text_and_its_figures_come_home(ssh_host: SshHost, tmp_path: Path) -> None:
    python = tmp_path / "python"
    site = Path(__file__).parents[1] / "fakes" / "site"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} FAKE_ALL_REDUCE_US=3000 exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    wanted = AllReduce(backend="nccl", world_size=2, traffic=Traffic(calls=4, message_bytes=64), algorithm="Tree")

    found = comm_bench.measure(ssh_host, str(python), wanted, rounds=2, warmup=0, timeout_s=30)

    assert found.rounds_us == pytest.approx((3000.0, 3000.0))
    assert found.facts == {"torch_version": "2.14.1+fake", "nccl_version": "2.27.5"}
