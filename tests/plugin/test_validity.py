"""Runs that may not be judged, as a whole session sees them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.conftest import TEST_B, Suite

SMI = Path(__file__).parent.parent / "fakes" / "nvidia_smi.py"
RETRACTED = "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.5980 -> 1.0000"


def findings(suite: Suite) -> dict[str, Any]:
    """What each rule said of the one measurement of the last run."""
    (entry,) = suite.results["measurements"]
    return {finding["rule"]: finding for finding in entry["validity"]}


@pytest.mark.parametrize(
    ("env", "rule", "said"),
    [
        ({"FAKE_SAY": RETRACTED}, "retraction", "took requests back 8 times"),
        ({"FAKE_NO_FLUSH": "1"}, "flush-failed", "could not be flushed before 2 rounds"),
    ],
)
def test_a_run_that_something_spoiled_is_invalid_and_never_a_baseline(
    suite: Suite, env: dict[str, str], rule: str, said: str
) -> None:
    suite.write(TEST_B)

    result = suite.run("--update-baselines", "--specdec-launches=1", env=env)

    assert result.ret == 11, result.stdout.str()
    result.stdout.fnmatch_lines([f"*{rule}: *{said}*"])
    assert findings(suite)[rule]["status"] == "broken"
    assert not suite.baseline("b--smoke--c1--o31").exists()


def test_what_was_not_checked_is_in_the_report_with_its_reason(suite: Suite) -> None:
    suite.write(TEST_B.replace('"smoke",', '"smoke", concurrency=4,'))

    suite.run("--update-baselines", "--specdec-launches=1")

    told = findings(suite)["running-batch-below-concurrency"]
    assert told["status"] == "not-checked"
    assert told["reason"].startswith("0 decode lines in the rounds are too few to tell")
    report = (suite.root / ".specdec" / "report.html").read_text()
    assert "<b>running-batch-below-concurrency</b>: 0 decode lines in the rounds" in report


def test_goodput_is_counted_under_the_limits_that_a_test_states(suite: Suite) -> None:
    suite.write(TEST_B.replace('"smoke",', '"smoke", goodput={"ttft_ms": 60_000, "e2e_ms": 60_000},'))

    assert suite.run("--update-baselines", "--specdec-launches=1").ret == 0

    (entry,) = suite.results["measurements"]
    assert entry["goodput_limits"] == {"ttft_ms": 60_000.0, "e2e_ms": 60_000.0}
    assert entry["metrics"]["goodput_share"]["value"] == 1.0
    recorded = json.loads(suite.baseline("b--smoke--c1--o31").read_text())
    assert recorded["identity"]["goodput"] == {"ttft_ms": 60_000, "e2e_ms": 60_000}


def test_other_limits_for_goodput_are_another_measurement(suite: Suite) -> None:
    suite.write(TEST_B + TEST_B.replace('"smoke",', '"smoke", goodput={"ttft_ms": 1},').replace("test_b", "test_c"))

    result = suite.run()

    assert result.ret == 4
    assert "differ in their limits for goodput" in result.stderr.str() + result.stdout.str()


CUDA = """
SPEC = ServerSpec.from_command('gpu', f'python -m sglang.launch_server --model-path {MODEL}')
@pytest.mark.specdec(workload='smoke', output_tokens=31, rounds=2, warmup=1)
@pytest.mark.parametrize('sglang_server', [SPEC], indirect=True)
def test_gpu(specdec_benchmark):
    specdec_benchmark(check=False)
"""
CALM = ", ".join(["Not Active"] * 5)
HOT = "Active, Active, Not Active, Not Active, Active"


@pytest.mark.parametrize(
    ("reasons", "stranger", "broken"),
    [
        (CALM, "", set()),
        (HOT, "", {"gpu-slowdown"}),
        (CALM, "GPU-0, 1, python\n", {"foreign-gpu-process"}),
        (CALM, "GPU-1, 1, python\n", set()),
    ],
    ids=["quiet", "hot", "a stranger", "a stranger elsewhere"],
)
def test_the_gpus_of_the_host_are_watched_through_the_rounds(
    suite: Suite, reasons: str, stranger: str, broken: set[str]
) -> None:
    """On a host whose ``nvidia-smi`` is a stand-in: the server's own process is told from a stranger's."""
    smi = suite.root / "bin" / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\nexec {sys.executable} -S {SMI} "$@"\n', encoding="utf-8")
    smi.chmod(0o755)
    (suite.root / "gpus.csv").write_text(f"0, GPU-0, 2100, 301.50, 88, {reasons}\n", encoding="utf-8")
    (suite.root / "processes.csv").write_text(stranger, encoding="utf-8")
    (suite.root / "memory.csv").write_text("0, GPU-0, 97887, 97000\n", encoding="utf-8")
    (suite.root / "node.csv").write_text("NVIDIA X, 580.65.06, 97887, 600.00, 2430, 14001\n", encoding="utf-8")
    suite.write(CUDA)
    env = {
        "PATH": f"{suite.root / 'bin'}:{os.environ['PATH']}",
        "FAKE_SMI_DIR": str(suite.root),
        "FAKE_GPU": str(suite.root),
        # Slow enough for a look or two at the GPUs in each round.
        "FAKE_STEP_MS": "5",
    }

    result = suite.run("--gpu-host", env=env)

    assert result.ret == 0, result.stdout.str()
    told = findings(suite)
    looked_at = {name: told[name]["status"] for name in ("gpu-slowdown", "foreign-gpu-process")}
    assert looked_at == {name: "broken" if name in broken else "fine" for name in looked_at}, told
    rounds = [json.loads(line)["round"] for line in (suite.root / ".specdec" / "rounds.jsonl").read_text().splitlines()]
    assert all(done["gpu"]["gpus"][0]["power_capped_share"] == float(reasons == HOT) for done in rounds)
