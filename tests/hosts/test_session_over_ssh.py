"""A whole pytest session against a GPU host that is reached by SSH, as from a laptop."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_specdec.host_locks import HostLocks
from tests.hosts.sshd import ALIAS, Sshd, make_sshd
from tests.plugin.conftest import TEST_B, Suite
from tests.plugin.test_life_cycle import held_by_a_worker, servers_of, start, wait_for

NVIDIA_SMI = """#!/bin/sh
case "$1" in
*compute-apps*) ;;
*uuid*) echo "0, GPU-1, 97887, 97000" ;;
*) echo "NVIDIA RTX PRO 6000 Blackwell Server Edition, 580.65.06, 97887, 600.00, 2430, 14001" ;;
esac
"""


@pytest.fixture
def laptop(pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """A suite whose ``ssh`` knows the GPU host, and which has no GPU driver of its own."""
    return Suite(pytester)


def make_box(directory: Path) -> Sshd:
    """A GPU host with a driver, and with a cache, and so a lock, of its own."""
    tools = directory / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(NVIDIA_SMI)
    (tools / "nvidia-smi").chmod(0o755)
    # A login shell sets PATH from start-up files; this one stands for a user whose files know the tools.
    shell = tools / "shell"
    shell.write_text(f'#!/bin/sh\nexport PATH={tools}:$PATH\n[ "$1" = -l ] && shift\nexec /bin/sh "$@"\n')
    shell.chmod(0o755)
    server = make_sshd(directory / "s", f"SetEnv SHELL={shell} PYTEST_SPECDEC_CACHE={directory / 'cache'}")
    server.start()
    return server


@pytest.fixture
def gpu_box(laptop: Suite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = make_box(tmp_path_factory.mktemp("box"))
    ssh = laptop.python.parent / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh {" ".join(server.options)} "$@"\n')
    ssh.chmod(0o755)
    yield server
    server.stop()


@pytest.fixture
def second_box(gpu_box: Sshd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Another one, in the same configuration of the client."""
    server = make_box(tmp_path_factory.mktemp("second"))
    config = gpu_box.directory / "config"
    other = (server.directory / "config").read_text().replace(f"Host {ALIAS}", "Host second-box")
    config.write_text(config.read_text() + other)
    yield server
    server.stop()


def gpu_suite(laptop: Suite) -> None:
    laptop.write(
        "GPU = ServerSpec.from_command('gpu', f'python -m sglang.launch_server --model-path {MODEL}"
        " --speculative-algorithm NGRAM')\nGPU = GPU.but('gpu', env=ENV)\n" + TEST_B.replace("[B]", "[GPU]")
    )


def start_and_measure(laptop: Suite) -> subprocess.Popen[str]:
    """Start a session that has measured and sleeps, with its server up."""
    gpu_suite(laptop)
    path = laptop.root / "test_suite.py"
    path.write_text(
        path.read_text().replace(
            "specdec_benchmark()\n", "import time; specdec_benchmark(check=False); time.sleep(90)\n"
        )
    )
    session = start(laptop, "--gpu-host=gpu-box", **on_path(laptop))
    wait_for((laptop.root / ".specdec" / "results.json").exists, deadline_s=60)
    return session


def on_path(laptop: Suite) -> dict[str, str]:
    return {"PATH": f"{laptop.python.parent}:{os.environ['PATH']}", "PYTEST_SPECDEC_NODE": ""}


def test_servers_start_there_and_results_are_kept_here(laptop: Suite, gpu_box: Sshd) -> None:
    gpu_suite(laptop)

    result = laptop.run("--gpu-host=gpu-box", "--update-baselines", "--specdec-launches=1", env=on_path(laptop))

    assert result.ret == 0
    node = "1x-rtx-pro-6000-blackwell-server-edition"
    stored = json.loads((laptop.root / "baselines" / node / "gpu--smoke--c1--o31.json").read_text())
    assert stored["metrics"]["accept_length"]["launches"] == [[3.0, 3.0]]
    assert stored["metrics"]["decode_tok_s"]["gate"] is True, "a GPU's throughput gates"
    assert stored["environment"]["driver_version"] == "580.65.06"
    (log,) = (laptop.root / ".specdec" / "logs").glob("*gpu*.log")
    assert "The server is fired up and ready to roll!" in log.read_text()
    assert laptop.launches == 1
    assert not servers_of(laptop)


def test_a_failure_there_is_told_here_with_its_log(laptop: Suite, gpu_box: Sshd) -> None:
    gpu_suite(laptop)
    path = laptop.root / "test_suite.py"
    path.write_text(path.read_text().replace("env=ENV)", "env={**ENV, 'FAKE_DIE': 'start'})"))

    result = laptop.run("--gpu-host=gpu-box", env=on_path(laptop))

    assert result.ret == 12
    assert "OSError: no such model: /nowhere" in result.stdout.str()
    (log,) = (laptop.root / ".specdec" / "logs").glob("*gpu*.log")
    assert "OSError: no such model: /nowhere" in log.read_text()


def test_a_killed_session_ends_its_servers_there_within_ten_seconds(laptop: Suite, gpu_box: Sshd) -> None:
    session = start_and_measure(laptop)
    assert servers_of(laptop)

    session.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    session.communicate(timeout=20)
    wait_for(lambda: not servers_of(laptop), deadline_s=12)

    assert time.monotonic() - killed < 10


def test_a_killed_worker_ends_its_servers_there_within_ten_seconds(laptop: Suite, gpu_box: Sshd) -> None:
    gpu_suite(laptop)
    session, worker = held_by_a_worker(laptop, "--gpu-host=gpu-box", **on_path(laptop))
    assert servers_of(laptop)

    os.kill(worker, signal.SIGKILL)
    killed = time.monotonic()
    wait_for(lambda: not servers_of(laptop), deadline_s=12)

    assert time.monotonic() - killed < 10
    session.communicate(timeout=60)
    assert session.returncode == 1


def test_the_host_is_had_by_one_session_whichever_machine_it_runs_on(
    laptop: Suite, gpu_box: Sshd, tmp_path_factory: pytest.TempPathFactory
) -> None:
    gpu_suite(laptop)
    path = laptop.root / "test_suite.py"
    path.write_text(path.read_text().replace("output_tokens=31", "output_tokens=200"))
    first = start(laptop, "--gpu-host=gpu-box", "--specdec-rounds=6", "--specdec-report=one", **on_path(laptop))
    wait_for(lambda: bool(servers_of(laptop)))

    other_laptop = {**on_path(laptop), "PYTEST_SPECDEC_CACHE": str(tmp_path_factory.mktemp("other"))}
    second = start(laptop, "--gpu-host=gpu-box", "--specdec-rounds=1", "--specdec-report=two", **other_laptop)
    said, _ = second.communicate(timeout=90)
    first.communicate(timeout=90)

    assert f"waiting for gpu-box: root@{socket.gethostname()} (process {first.pid}, gpu) measures there" in said
    assert laptop.launches == 2
    (lock_dir,) = (gpu_box.directory.parent / "cache").glob("locks")
    assert [path.name for path in lock_dir.iterdir()] == ["host.lock"]


def test_the_lock_goes_with_a_killed_session(laptop: Suite, gpu_box: Sshd) -> None:
    session = start_and_measure(laptop)
    lock = gpu_box.directory.parent / "cache" / "locks"
    assert HostLocks(lock, "me").whole() is not None

    session.kill()
    session.communicate(timeout=20)

    wait_for(lambda: HostLocks(lock, "me").whole() is None, deadline_s=12)


def test_workers_take_hosts_from_the_pool(laptop: Suite, gpu_box: Sshd, second_box: Sshd) -> None:
    laptop.write(
        "GPU = ServerSpec.from_command('one', f'python -m sglang.launch_server --model-path {MODEL}')\n"
        "GPU = GPU.but('one', env=ENV)\n"
        "TWO = GPU.but('two', '--speculative-algorithm NGRAM')\n" + TEST_B.replace("[B]", "[GPU, TWO]")
    )

    result = laptop.run("-n", "2", "--gpu-host=gpu-box", "--gpu-host=second-box", env=on_path(laptop))

    assert result.ret == 11
    hosts = [entry["launches"][0]["host"] for entry in laptop.results["measurements"]]
    assert sorted(hosts) == ["gpu-box", "second-box"]
    assert not servers_of(laptop)
