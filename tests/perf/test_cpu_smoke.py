"""The smoke of the CPU engine: the whole path on real SGLang, with a tiny model.

Absolute throughput on a shared CPU says little, so it is advisory; what must hold anywhere is acceptance (an
exact count) and that drafting pays: the slowest drafting round beats the fastest round without.
"""

from __future__ import annotations

import pytest

from pytest_specdec import ServerSpec

BASE = ServerSpec.tiny("tiny-base")
STANDALONE = BASE.but(
    "tiny-standalone",
    "--speculative-algorithm STANDALONE --speculative-draft-model-path tiny:target"
    " --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
)
NGRAM = BASE.but("tiny-ngram", "--speculative-algorithm NGRAM --speculative-num-draft-tokens 8")

# The model's weights are random: its text is degenerate by nature, and that says nothing about a change.
pytestmark = pytest.mark.specdec(workload="smoke", output_tokens=64, rounds=3, waive=["degenerate-output"])


@pytest.mark.parametrize("sglang_server", [BASE, STANDALONE], indirect=True)
def test_cpu_smoke(specdec_benchmark) -> None:  # type: ignore[no-untyped-def]  # the fixture's type is for users' editors
    specdec_benchmark()
