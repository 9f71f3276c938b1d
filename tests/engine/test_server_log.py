"""The harness's figures beside the server's own: what a real server's log says of the same rounds."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_specdec import decode_log
from tests.perf.cpu_specs import BASE, STANDALONE

# Long answers: a decode line comes every 40 steps, and the first one after a prefill says nothing of decoding.
pytestmark = pytest.mark.specdec(workload="smoke", output_tokens=512, rounds=1, warmup=1, waive=["degenerate-output"])


@pytest.mark.parametrize("sglang_server", [BASE, STANDALONE], indirect=True)
def test_decode_throughput_agrees_with_the_decode_lines(specdec_benchmark: Any) -> None:
    """Pooled on both sides: tokens after each first chunk by their time, and steps by theirs."""
    result = specdec_benchmark(check=False)

    (done,) = result.launches[0].rounds
    assert done.log is not None
    tokens = sum(sample.completion_tokens - sample.first_chunk_tokens for sample in done.requests)
    seconds = sum(sample.last_token_s - sample.first_token_s for sample in done.requests)
    assert sum(line.steady for line in done.log.decode) >= 2 * len(done.requests)
    assert decode_log.decode_tok_s(done.log.decode) == pytest.approx(tokens / seconds, rel=0.03)


@pytest.mark.parametrize("sglang_server", [STANDALONE], indirect=True)
def test_the_accept_length_agrees_with_the_decode_lines(specdec_benchmark: Any) -> None:
    """A line has two decimals, and does not see the last steps of an answer."""
    result = specdec_benchmark(check=False)

    (done,) = result.launches[0].rounds
    assert done.log is not None
    assert decode_log.accept_length(done.log.decode) == pytest.approx(result.accept_length.value, rel=0.01)


@pytest.mark.parametrize("sglang_server", [BASE, STANDALONE], indirect=True)
def test_a_quiet_run_breaks_no_rule(specdec_benchmark: Any) -> None:
    """What needs a GPU says that it does not apply; everything else was looked at."""
    found = {finding.rule: finding for finding in specdec_benchmark(check=False).validity}

    refused = {name for name, finding in found.items() if finding.status == "broken" and finding.refuses}
    assert refused <= {"degenerate-output"}
    assert {name for name, finding in found.items() if finding.status == "not-checked"} == set()
    for name in ("retraction", "server-restarted", "client-cpu-saturated", "flush-failed", "simulated-acceptance"):
        assert found[name].status == "fine", found[name]
    for name in ("cuda-graphs-off", "foreign-gpu-process", "gpu-slowdown"):
        assert found[name].status == "not-applicable", found[name]
