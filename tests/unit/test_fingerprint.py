from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_specdec.errors import HostError
from pytest_specdec.fingerprint import (
    engine_facts,
    environment_variables,
    git_commit,
    node_facts,
    simulated_acceptance,
    slug,
)
from pytest_specdec.hosts import Completed, LocalHost
from tests.fakes.host import FakeHost, told

BLACKWELL = "NVIDIA RTX PRO 6000 Blackwell Server Edition, 580.95.05, 97887, 600.00, 2430, 12481\n"


def cpu_host(cpuinfo: str) -> FakeHost:
    host = FakeHost()
    host.write(Path("/proc/cpuinfo"), cpuinfo)
    return host


def test_a_gpu_node_is_called_after_count_and_full_name() -> None:
    host = FakeHost()
    host.answers["nvidia-smi"] = told(BLACKWELL * 8)

    node = node_facts(host, device="cuda")

    assert (node.slug, node.kind) == ("8x-rtx-pro-6000-blackwell-server-edition", "cuda")
    assert node.facts["gpu_count"] == 8
    assert node.facts["gpu_names"] == ["NVIDIA RTX PRO 6000 Blackwell Server Edition"] * 8
    assert node.facts["driver_version"] == "580.95.05"
    assert node.facts["gpu_power_limit_w"] == [600.0] * 8
    assert node.facts["gpu_memory_mib"] == [97887.0] * 8
    assert node.facts["gpu_max_sm_mhz"] == [2430.0] * 8


def test_unlike_gpus_are_each_counted() -> None:
    host = FakeHost()
    host.answers["nvidia-smi"] = told("NVIDIA A100-SXM4-80GB, 550, 81920, 400, 1410, 1593\n" * 2 + BLACKWELL)

    assert node_facts(host, device="cuda").slug == "2x-a100-sxm4-80gb-1x-rtx-pro-6000-blackwell-server-edition"


def test_a_number_that_the_card_does_not_tell_is_none() -> None:
    host = FakeHost()
    host.answers["nvidia-smi"] = told("NVIDIA GB10, 580, [N/A], [N/A], 3003, [N/A]\n")

    node = node_facts(host, device="cuda")

    assert node.slug == "1x-gb10"
    assert (node.facts["gpu_memory_mib"], node.facts["gpu_max_sm_mhz"]) == ([None], [3003.0])


def test_nvidia_smi_is_asked_for_plain_values() -> None:
    host = FakeHost()
    host.answers["nvidia-smi"] = told(BLACKWELL)

    node_facts(host, device="cuda")

    query = "--query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.memory"
    assert host.commands == [("nvidia-smi", query, "--format=csv,noheader,nounits")]


def test_a_node_without_nvidia_smi_names_the_way_without_a_gpu() -> None:
    with pytest.raises(HostError, match=r"fakehost: nvidia-smi can't be run: .* run with --specdec-device=cpu$"):
        node_facts(FakeHost(), device="cuda")


def test_an_nvidia_smi_that_fails_is_quoted() -> None:
    host = FakeHost()
    host.answers["nvidia-smi"] = told("NVIDIA-SMI has failed because it couldn't communicate.\n", returncode=9)

    with pytest.raises(HostError, match=r"nvidia-smi ended with exit code 9 and said: NVIDIA-SMI has failed"):
        node_facts(host, device="cuda")


def test_an_answer_of_another_shape_is_shown() -> None:
    host = FakeHost()
    host.answers["nvidia-smi"] = told("No devices were found\n")

    with pytest.raises(HostError, match=r"was asked for --query-gpu=.* and answered 'No devices were found'"):
        node_facts(host, device="cuda")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("AMD EPYC", "cpu-amd-epyc-2c"),
        ("AMD EPYC 9B14 96-Core Processor", "cpu-amd-epyc-9b14-96-core-2c"),
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "cpu-intel-xeon-platinum-8481c-2c"),
    ],
)
def test_a_cpu_node_is_called_after_model_and_cores(model: str, expected: str) -> None:
    host = cpu_host("".join(f"processor\t: {n}\nmodel name\t: {model}\nflags\t: fpu\n\n" for n in range(2)))

    node = node_facts(host, device="cpu")

    assert (node.slug, node.kind) == (expected, "cpu")
    assert node.facts == {"cpu_model": model, "cpu_count": 2}


def test_a_cpu_that_does_not_tell_its_model_is_called_after_its_architecture() -> None:
    node = node_facts(cpu_host("processor\t: 0\nprocessor\t: 1\nprocessor\t: 2\n"), device="cpu")

    assert node.slug.startswith("cpu-")
    assert node.slug.endswith("-3c")
    assert node.slug.count("-") >= 2


def test_a_slug_holds_lower_case_letters_digits_dots_and_single_dashes() -> None:
    assert slug(" RTX (PRO)  6000/v1.5 ") == "rtx-pro-6000-v1.5"


def test_the_engine_s_versions_come_from_its_python() -> None:
    host = FakeHost()
    host.answers["/venv/bin/python"] = told("os Linux-6.1\npython_version 3.11.7\ncuda_version 13.0.96\n")

    assert engine_facts(host, "/venv/bin/python") == {
        "os": "Linux-6.1",
        "python_version": "3.11.7",
        "cuda_version": "13.0.96",
    }


def test_versions_are_read_from_the_metadata_of_what_is_installed(tmp_path: Path) -> None:
    for name, version in (("torch", "2.14.1"), ("nvidia_cuda_runtime_cu12", "12.8.90"), ("sglang", "0.5.99")):
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)

    facts = engine_facts(LocalHost(), str(python))

    assert (facts["torch_version"], facts["cuda_version"], facts["sglang_version"]) == ("2.14.1", "12.8.90", "0.5.99")
    assert facts["python_version"] == ".".join(map(str, sys.version_info[:3]))


def test_a_python_that_fails_is_quoted() -> None:
    host = FakeHost()
    host.answers["python"] = told(stderr="Traceback\nMemoryError", returncode=1)

    with pytest.raises(HostError, match=r"fakehost: python was asked for versions, ended with 1 and said: MemoryError"):
        engine_facts(host, "python")


def test_variables_that_change_a_server_are_kept_and_secrets_masked() -> None:
    environ = {
        "NCCL_ALGO": "Tree",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "SGLANG_API_KEY": "hidden",
        "OMP_NUM_THREADS": "2",
        "TORCHDYNAMO_DISABLE": "1",
        "LD_PRELOAD": "/lib/tcmalloc.so",
        "HOME": "/root",
        "MY_CUDA_HOME": "/x",
    }

    assert environment_variables(environ) == {
        "env.CUDA_VISIBLE_DEVICES": "0,1",
        "env.LD_PRELOAD": "/lib/tcmalloc.so",
        "env.NCCL_ALGO": "Tree",
        "env.OMP_NUM_THREADS": "2",
        "env.SGLANG_API_KEY": "***",
        "env.TORCHDYNAMO_DISABLE": "1",
    }


@pytest.mark.parametrize(("changed", "expected"), [("", "abc123"), (" M a.py\n", "abc123+")])
def test_a_commit_says_whether_files_differ_from_it(changed: str, expected: str) -> None:
    def git(argv: Sequence[str]) -> Completed:
        assert list(argv[:3]) == ["git", "-C", "/suite"]
        return told("abc123\n" if argv[3] == "rev-parse" else changed)

    host = FakeHost()
    host.answers["git"] = git

    assert git_commit(host, Path("/suite")) == expected


def test_outside_of_git_there_is_no_commit(tmp_path: Path) -> None:
    host = FakeHost()

    assert git_commit(host, Path("/suite")) is None

    host.answers["git"] = told(stderr="fatal: not a git repository", returncode=128)
    assert git_commit(host, Path("/suite")) is None


def test_a_real_repository_tells_its_commit(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(["git", *identity, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-q", "-m", "one")

    commit = git("rev-parse", "HEAD")
    assert git_commit(LocalHost(), tmp_path) == commit
    (tmp_path / "a").write_text("2")
    assert git_commit(LocalHost(), tmp_path) == f"{commit}+"


def test_acceptance_that_a_launcher_simulates_is_found_in_the_servers_own_environment() -> None:
    host = FakeHost()
    host.write(Path("/proc/10/environ"), "PATH=/bin\0")
    host.write(Path("/proc/11/environ"), "PATH=/bin\0SGLANG_SIMULATE_ACC_LEN=3\0SECRET=x\0")

    assert simulated_acceptance(host, (10, 11, 12)) == {"env.SGLANG_SIMULATE_ACC_LEN": "3"}


def test_a_process_that_can_not_be_read_simulates_nothing() -> None:
    class Refusing(FakeHost):
        def read_from(self, path: Path, offset: int) -> bytes:
            raise PermissionError(path)

    assert simulated_acceptance(Refusing(), (1,)) == {}
