"""The harness's figures beside the server's own: what a real server's log says of the same rounds."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_specdec import decode_log
from pytest_specdec.observed import DecodeLine
from pytest_specdec.results import BenchmarkResult
from tests.perf.cpu_specs import BASE, STANDALONE

#: A line every 5 steps: of each answer all but the first few are covered, so that both sides see the same time on a
#: machine whose speed varies.
OFTEN = "--decode-log-interval 5"
PLAIN, DRAFTING = BASE.but("tiny-base-logged", OFTEN), STANDALONE.but("tiny-standalone-logged", OFTEN)

pytestmark = pytest.mark.specdec(workload="smoke", output_tokens=256, rounds=2, warmup=1, waive=["degenerate-output"])


def decode_lines(result: BenchmarkResult) -> list[DecodeLine]:
    """What the server's log said during the rounds."""
    spans = [done.log for done in result.launches[0].rounds]
    return [line for span in spans if span is not None for line in span.decode]


@pytest.mark.parametrize("sglang_server", [PLAIN, DRAFTING], indirect=True)
def test_decode_throughput_agrees_with_the_decode_lines(specdec_benchmark: Any) -> None:
    """Pooled on both sides: tokens after each first chunk by their time, and steps by theirs."""
    result = specdec_benchmark(check=False)

    requests = [sample for done in result.launches[0].rounds for sample in done.requests]
    tokens = sum(sample.completion_tokens - sample.first_chunk_tokens for sample in requests)
    seconds = sum(sample.last_token_s - sample.first_token_s for sample in requests)
    lines = decode_lines(result)
    assert sum(line.steady for line in lines) >= 10 * len(requests)
    assert decode_log.decode_tok_s(lines) == pytest.approx(tokens / seconds, rel=0.03)


@pytest.mark.parametrize("sglang_server", [DRAFTING], indirect=True)
def test_the_accept_length_agrees_with_the_decode_lines(specdec_benchmark: Any) -> None:
    """A line has two decimals, and does not see the last steps of an answer."""
    result = specdec_benchmark(check=False)

    assert decode_log.accept_length(decode_lines(result)) == pytest.approx(result.accept_length.value, rel=0.01)


@pytest.mark.parametrize("sglang_server", [PLAIN, DRAFTING], indirect=True)
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
