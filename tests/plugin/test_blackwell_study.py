"""The study of the first node on the fake engine: each dead end prints the log that was recorded of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.conftest import Suite

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "data" / "cases"
STUDY = "tests/perf/test_blackwell_study.py"
#: What is measured on a GPU; less will do here.
SIZE = '{"workload": "chat", "rounds": 2}'
NAME = "kimi-k2.5-int4"
NVIDIA_SMI = """#!/bin/sh
case "$1" in
*compute-apps*) ;;
*clocks_*) exit 2 ;;
*uuid*) for i in 0 1 2 3 4 5 6 7; do echo "$i, GPU-$i, 97887, 97000"; done ;;
*) for i in 0 1 2 3 4 5 6 7; do
    echo "NVIDIA RTX PRO 6000 Blackwell Server Edition, 580.65.06, 97887, 600.00, 2430, 14001"
done ;;
esac
"""
#: Models lie elsewhere here, and servers are the fake engine's: some die with a log, others say a line of one.
CONFTEST = """
def pytest_specdec_adapt_spec(spec, config):
    env = {'FAKE_COUNTER': %(counter)r, **%(env)r.get(spec.name, {})}

    def here(spec):
        named = (spec.model, spec.draft_model, 'tiny:target')
        return spec.with_paths({path: %(model)r for path in named if path}).but(spec.name, env=env)

    standin = spec.cpu_standin and here(spec.cpu_standin)
    return here(spec).but(spec.name, cpu_standin=standin)
"""
#: How a spec dies, by the end of its name.
DEATHS = {
    "fusion": "26-flashinfer-no-arch-12",
    "nccl-tree": "kinds/nccl-tree-in-graphs",
    "symm-mem": "24-symm-mem-keyerror-12",
    "a2a": "37-flashinfer-a2a-needs-cutlass",
    "ep": "kinds/experts-no-room",
}


class Study(Suite):
    """The study's files in a scratch suite."""

    def run_study(
        self,
        *tests: str,
        options: Sequence[str] = ("--gpu-host",),
        env: Mapping[str, Mapping[str, str]] | None = None,
        host_env: Mapping[str, str] | None = None,
    ) -> pytest.RunResult:
        """Run tests of it (none: all) on eight GPUs that a stand-in for nvidia-smi shows.

        ``env`` is by the end of a server's name, ``host_env`` for everything.
        """
        shutil.copytree(ROOT / "tests" / "perf", self.root / "tests" / "perf")
        file = self.root / STUDY
        text = file.read_text(encoding="utf-8")
        assert text.count(SIZE) == 1
        file.write_text(text.replace(SIZE, '{"workload": "smoke", "output_tokens": 31, "rounds": 1}'), encoding="utf-8")
        (self.root / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = --import-mode=importlib\n")
        values: dict[str, Any] = {
            "counter": str(self.counter),
            "model": str(self.model),
            "env": {f"{NAME}-{name}": dict(given) for name, given in (env or {}).items()},
        }
        (self.root / "conftest.py").write_text(CONFTEST % values)
        smi = self.python.parent / "nvidia-smi"
        smi.write_text(NVIDIA_SMI)
        smi.chmod(0o755)
        path = f"{smi.parent}:{os.environ['PATH']}"
        words = [f"{STUDY}::{name}" for name in tests] or [STUDY]
        return self.run(
            *words, *options, "--specdec-warmup=0", "--specdec-node=blackwell", env={"PATH": path, **(host_env or {})}
        )

    def dead_ends(self) -> dict[str, tuple[str, str | None]]:
        """What became of each: the outcome, and what was seen, by the end of the server's name."""
        return {
            entry["server"].removeprefix(f"{NAME}-"): (entry["outcome"], entry["seen"])
            for entry in self.results["dead_ends"]
        }


@pytest.fixture
def study(pytester: pytest.Pytester) -> Study:
    return Study(pytester)


def dying(*names: str) -> dict[str, dict[str, str]]:
    return {name: {"FAKE_LOG": str(CASES / f"{DEATHS[name]}.txt")} for name in names}


LEFT_OUT = {"FAKE_SAY": (CASES / "23-custom-ar-pcie-warning.txt").read_text(encoding="utf-8").splitlines()[-1]}


def test_each_dead_end_of_0_5_23_holds_by_its_recorded_log(study: Study) -> None:
    env = {**dying("fusion", "nccl-tree", "ep"), "custom-all-reduce": LEFT_OUT}

    result = study.run_study(
        "test_flashinfer_fusion", "test_nccl_tree", "test_expert_parallelism", "test_custom_all_reduce", env=env
    )

    assert result.ret == 0, result.stdout.str()
    assert study.dead_ends() == {
        "fusion": ("holds", "flashinfer-no-arch-list"),
        "nccl-tree": ("holds", "nccl-tree-cuda-graph"),
        "ep": ("holds", "oom-expert-parallel"),
        "custom-all-reduce": ("holds", "custom-all-reduce-unavailable"),
    }
    assert study.launches == 4


def test_those_of_older_versions_hold_there(study: Study) -> None:
    result = study.run_study(
        "test_symmetric_memory",
        "test_all_to_all_alone",
        env=dying("symm-mem", "a2a"),
        host_env={"FAKE_VERSION": "0.5.12"},
    )

    assert result.ret == 0, result.stdout.str()
    assert study.dead_ends() == {
        "symm-mem": ("holds", "symm-mem-keyerror-12"),
        "a2a": ("holds", "flashinfer-a2a-needs-cutlass"),
    }
    assert study.launches == 4, "a block begins with its control"


def test_those_of_older_versions_are_measured_beside_the_control_today(study: Study) -> None:
    result = study.run_study("test_symmetric_memory")

    assert result.ret == 0, result.stdout.str()
    assert study.dead_ends() == {"symm-mem": ("outside-versions", None)}
    assert study.launches == 4


@pytest.mark.parametrize(("step_ms", "outcome"), [("40", "holds"), ("10", "revived")], ids=["25 tok/s", "100 tok/s"])
def test_the_custom_all_reduce_is_a_dead_end_by_its_speed(study: Study, step_ms: str, outcome: str) -> None:
    result = study.run_study("test_custom_all_reduce", env={"custom-all-reduce": {"FAKE_STEP_MS": step_ms}})

    assert result.ret == (0 if outcome == "holds" else 1), result.stdout.str()
    assert study.dead_ends() == {"custom-all-reduce": (outcome, None)}


def test_without_a_gpu_host_each_test_is_collected_and_skipped_with_what_it_needs(study: Study) -> None:
    result = study.run_study(options=["-rs"])

    assert result.ret == 0
    assert set(result.parseoutcomes()) == {"skipped"}, result.stdout.str()
    assert "needs a GPU host: give --gpu-host" in result.stdout.str()
    assert study.launches == 0


def test_its_cpu_forms_are_measured_as_stand_ins(study: Study) -> None:
    result = study.run_study(options=["--specdec-max-launches=1"], host_env={"SPECDEC_STUDY": "cpu"})

    assert result.ret == 0, result.stdout.str()
    servers = {entry["server"] for entry in study.results["measurements"]}
    assert {f"{NAME}@cpu-standin", f"{NAME}-ngram@cpu-standin"} <= servers
    assert all(server.endswith("@cpu-standin") for server in servers)
    assert len(servers) == 11
