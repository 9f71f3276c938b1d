"""The harness's figures beside the server's own: what a real server's log and its answers say of the same rounds."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_specdec import decode_log
from pytest_specdec.model import Prompt, RequestSample, Workload
from pytest_specdec.observed import DecodeLine
from pytest_specdec.results import BenchmarkResult
from tests.engine.conftest import OUTPUT_TOKENS
from tests.perf.cpu_specs import BASE, STANDALONE

#: A line every 5 steps: of each answer all but the first few are covered, so that both sides see the same time on a
#: machine whose speed varies.
OFTEN = "--decode-log-interval 5"
PLAIN = BASE.but("tiny-base-logged", OFTEN)
#: It also tells the times of each request, and streams what is new instead of everything so far.
DRAFTING = STANDALONE.but("tiny-standalone-told", f"{OFTEN} --enable-metrics --incremental-streaming-output")

TALK = Prompt(id="talk", category="talk", text="Where is the harbour?", turns=("And the lighthouse?",))

pytestmark = pytest.mark.specdec(workload="smoke", output_tokens=256, rounds=2, warmup=1, waive=["degenerate-output"])


def samples(result: BenchmarkResult) -> list[RequestSample]:
    """Every request of the rounds."""
    return [sample for done in result.launches[0].rounds for sample in done.requests]


def decode_lines(result: BenchmarkResult) -> list[DecodeLine]:
    """What the server's log said during the rounds."""
    spans = [done.log for done in result.launches[0].rounds]
    return [line for span in spans if span is not None for line in span.decode]


@pytest.mark.parametrize("sglang_server", [PLAIN, DRAFTING], indirect=True)
def test_decode_throughput_agrees_with_the_decode_lines(specdec_benchmark: Any) -> None:
    """Pooled on both sides: tokens after each first chunk by their time, and steps by theirs."""
    result = specdec_benchmark(check=False)

    requests = samples(result)
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


@pytest.mark.parametrize("sglang_server", [DRAFTING], indirect=True)
def test_times_agree_with_those_that_the_server_tells_of_each_request(specdec_benchmark: Any) -> None:
    """Decode throughput one by one, by the rule's 2 %; end-to-end times in the median, as the rule has it."""
    result = specdec_benchmark(check=False)

    for sample in samples(result):
        decode_s = sample.last_token_s - sample.first_token_s
        assert sample.first_chunk_tokens == 1
        assert sample.server_decode_tok_s == pytest.approx((sample.completion_tokens - 1) / decode_s, rel=0.02)
        assert sample.server_e2e_s is not None
    (found,) = [finding for finding in result.validity if finding.rule == "server-times-disagree"]
    assert found.status == "fine", found


@pytest.mark.parametrize("sglang_server", [DRAFTING], indirect=True)
def test_a_stream_of_increments_is_read_whole(specdec_benchmark: Any, reference_ids: dict[str, list[int]]) -> None:
    """Each chunk has only new token ids; together they are those of transformers, which wrote fewer."""
    result = specdec_benchmark(check=False)

    assert result.launches[0].launch.server_args["incremental_streaming_output"] is True
    ids = result.output_ids()
    assert {name: list(answer[:OUTPUT_TOKENS]) for name, answer in ids.items()} == reference_ids
    assert {len(answer) for answer in ids.values()} == {256}
    for sample in samples(result):
        assert sample.arrivals[-1][1] == sample.completion_tokens == 256


@pytest.mark.specdec(
    workload=Workload(name="talk", prompts=(TALK,), content_hash="0" * 64), output_tokens=16, rounds=1, warmup=0
)
@pytest.mark.parametrize("sglang_server", [DRAFTING], indirect=True)
def test_a_further_turn_follows_the_whole_text_of_an_answer_in_increments(specdec_benchmark: Any) -> None:
    """The second prompt has the first answer in it: more than both questions alone."""
    first, second = samples(specdec_benchmark(check=False))

    assert (first.error, second.error) == (None, None)
    assert second.prompt_tokens >= first.prompt_tokens + first.completion_tokens
