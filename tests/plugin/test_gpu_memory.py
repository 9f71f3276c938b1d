"""A session on a GPU host waits for the memory of a server that it ended; nvidia-smi is a stand-in on the PATH."""

from __future__ import annotations

import os

import pytest

from tests.plugin.conftest import TEST_B, Suite

#: The first two answers (preflight, before the launch) and those from the sixth on are of a free GPU. What is asked
#: while rounds run is not counted, and not answered.
NVIDIA_SMI = """#!/bin/sh
case "$1" in
*compute-apps*) ;;
*clocks_*) exit 2 ;;
*uuid*)
    echo >>{calls}
    free=97000
    case $(wc -l <{calls}) in 3 | 4 | 5) free=9000 ;; esac
    {then}
    echo "0, GPU-1, 97887, $free" ;;
*) echo "NVIDIA RTX PRO 6000 Blackwell Server Edition, 580.65.06, 97887, 600.00, 2430, 14001" ;;
esac
"""
GPU = """
GPU = ServerSpec.from_command(
    'gpu', f'python -m sglang.launch_server --model-path {MODEL} --speculative-algorithm NGRAM --port 30000'
).but('gpu', env=ENV)
"""


@pytest.mark.parametrize("death", ["", "start"], ids=["served", "did not start"])
@pytest.mark.parametrize(
    ("then", "told"),
    [
        ("", None),
        ('[ $free = 97000 ] || { echo "NVML: Unknown Error"; exit 9; }', "can't be told: localhost: nvidia-smi"),
    ],
    ids=["comes back", "driver fails"],
)
def test_the_memory_of_a_server_is_waited_for(suite: Suite, then: str, told: str | None, death: str) -> None:
    suite.write(GPU + TEST_B.replace("[B]", "[GPU]"))
    calls = suite.root / "calls"
    smi = suite.python.parent / "nvidia-smi"
    smi.write_text(NVIDIA_SMI.format(calls=calls, then=then))
    smi.chmod(0o755)

    result = suite.run(
        "--gpu-host",
        "--update-baselines",
        "--specdec-launches=1",
        env={"PATH": f"{smi.parent}:{os.environ['PATH']}", "FAKE_DIE": death},
    )

    assert result.ret == (12 if death else 0), "what was measured stands"
    assert len(calls.read_text()) == (6 if told is None else 3)
    text = result.stdout.str()
    assert ("GPU memory" in text) is (told is not None)
    assert told is None or told in text
    assert text.count("--port 30000 of its command is not used") == 1
