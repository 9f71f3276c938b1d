"""The first node's control: Kimi-K2.5 INT4 on eight GPUs, held to the floor of the first contract, 89.5 tok/s."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_specdec import ServerSpec

CONTROL = ServerSpec.from_command(
    "kimi-k2.5-int4",
    "python -m sglang.launch_server --model-path /data/models/kimi-k2.5-int4 --tp 8"
    " --cuda-graph-max-bs-decode 128 --disable-custom-all-reduce",
)


@pytest.mark.specdec(workload="chat")
@pytest.mark.parametrize("sglang_server", [CONTROL], indirect=True)
def test_throughput(specdec_benchmark: Any) -> None:
    specdec_benchmark()
