"""The smoke of the CPU engine: the whole path on real SGLang, with a tiny model.

Absolute throughput on a shared CPU says little, so it is advisory there; acceptance is an exact count and gates
on every machine, against ``baselines/any/``.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.perf.cpu_specs import BASE, STANDALONE

# The model's weights are random: its text may be degenerate, and that says nothing about a change.
pytestmark = pytest.mark.specdec(workload="smoke", output_tokens=64, rounds=3, waive=["degenerate-output"])


@pytest.mark.parametrize("sglang_server", [BASE, STANDALONE], indirect=True)
def test_cpu_smoke(specdec_benchmark: Any) -> None:
    specdec_benchmark()
