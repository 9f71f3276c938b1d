"""What `scripts/demo` runs: one server without drafting and one with, on the CPU engine.

With ``SPECDEC_DEMO=regression`` SGLang is told to act as if about half of the draft tokens were wrong: a loss of
the drafter, which the harness has to find and to name. Simulated acceptance never becomes a baseline.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from pytest_specdec import ServerSpec

REGRESSION = os.environ.get("SPECDEC_DEMO") == "regression"

BASE = ServerSpec.tiny("tiny-base")
DRAFTING = BASE.but(
    "tiny-standalone",
    "--speculative-algorithm STANDALONE --speculative-draft-model-path tiny:target"
    " --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
    env={"SGLANG_SIMULATE_ACC_LEN": "2"} if REGRESSION else {},
)

WAIVED = ["degenerate-output", *(["simulated-acceptance"] if REGRESSION else [])]


@pytest.mark.specdec(workload="smoke", output_tokens=64, rounds=3, waive=WAIVED)
@pytest.mark.parametrize("sglang_server", [BASE, DRAFTING], indirect=True)
def test_throughput(specdec_benchmark: Any) -> None:
    specdec_benchmark()
