"""What `scripts/demo --study` runs: a study of six server specs on the CPU engine, with everything a study has.

The tiny target is held up by 15 ms a step, as a larger one would be: only then can drafting win anything.
"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_specdec import ServerSpec, sweep

pytestmark = pytest.mark.specdec(workload="smoke", output_tokens=32, rounds=3, waive=["degenerate-output"])

CONTROL = ServerSpec.tiny("base", env={"SPECDEC_CPU_SLOWDOWN_MS": "15"})
DRAFTING = CONTROL.but(
    "draft", "--speculative-algorithm STANDALONE --speculative-draft-model-path tiny:target --speculative-eagle-topk 1"
)
#: 1 and 3 draft steps. The draft is the target itself, so that every draft token is right.
ONE_STEP, THREE_STEPS = sweep(DRAFTING, "--speculative-num-steps", [1, 3])
#: A draft that is right for a part of the tokens, and far too many steps of it.
TOO_DEEP = CONTROL.but(
    "too-deep",
    "--speculative-algorithm STANDALONE --speculative-draft-model-path tiny:standalone-draft"
    " --speculative-num-steps 24 --speculative-eagle-topk 1 --speculative-num-draft-tokens 25",
)


@pytest.mark.specdec(control=CONTROL)
@pytest.mark.parametrize("sglang_server", [THREE_STEPS], indirect=True)
def test_drafting_beside_none(specdec_benchmark: Any) -> None:
    assert specdec_benchmark().speedup.low > 1


@pytest.mark.specdec(sweep=True)
@pytest.mark.parametrize("sglang_server", [ONE_STEP, THREE_STEPS], indirect=True)
def test_draft_steps(specdec_benchmark: Any) -> None:
    specdec_benchmark(check=False)


@pytest.mark.dead_end("spec-flags-incomplete", reason="steps alone are not enough: SGLang wants all three or none")
@pytest.mark.parametrize(
    "sglang_server",
    [DRAFTING.but("steps-alone", "--speculative-num-steps 3", drop="--speculative-eagle-topk")],
    indirect=True,
)
def test_steps_alone(specdec_benchmark: Any) -> None:
    specdec_benchmark()


@pytest.mark.dead_end(slower_than=40.0, reason="24 draft steps cost more than the few tokens that are right")
@pytest.mark.parametrize("sglang_server", [TOO_DEEP], indirect=True)
def test_too_many_steps(specdec_benchmark: Any) -> None:
    specdec_benchmark()


# Not so any more: the flag is translated for the SGLang that is found.
@pytest.mark.dead_end("flag-ambiguous", reason="SGLang 0.5.20 took --cuda-graph-max-bs away")
@pytest.mark.parametrize("sglang_server", [CONTROL.but("old-flag", "--cuda-graph-max-bs 8")], indirect=True)
def test_a_flag_that_is_gone(specdec_benchmark: Any) -> None:
    specdec_benchmark()
