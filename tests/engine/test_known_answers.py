"""Answers that are known in advance, on real servers: acceptance by arithmetic, token ids by transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_specdec import Verdict, metrics
from tests.engine.conftest import OUTPUT_TOKENS
from tests.perf.cpu_specs import BASE, EAGLE, EAGLE3, EAGLE3_TREE, NGRAM, STANDALONE, STANDALONE_TREE, STEPS

ALL = [BASE, STANDALONE, STANDALONE_TREE, NGRAM, EAGLE, EAGLE3, EAGLE3_TREE]
DRAFTING = ALL[1:]

pytestmark = pytest.mark.specdec(workload="smoke", output_tokens=OUTPUT_TOKENS, rounds=3, waive=["degenerate-output"])


@pytest.mark.parametrize("sglang_server", ALL, indirect=True)
def test_greedy_token_ids_are_those_of_another_implementation(
    specdec_benchmark: Any, reference_ids: dict[str, list[int]]
) -> None:
    """Drafting changes how fast tokens come, never which: all servers give what transformers gives."""
    result = specdec_benchmark(check=False)

    assert {name: list(ids) for name, ids in result.output_ids().items()} == reference_ids


@pytest.mark.parametrize("concurrency", [4])
@pytest.mark.parametrize("sglang_server", ALL, indirect=True)
def test_greedy_token_ids_do_not_depend_on_the_batch(
    specdec_benchmark: Any, reference_ids: dict[str, list[int]]
) -> None:
    result = specdec_benchmark(check=False)

    assert {name: list(ids) for name, ids in result.output_ids().items()} == reference_ids


@pytest.mark.parametrize("sglang_server", [STANDALONE], indirect=True)
def test_a_draft_equal_to_the_target_is_always_right(specdec_benchmark: Any) -> None:
    """After the prefill's token n - 1 are left, at most steps + 1 a verify step: so many steps and no more."""
    result = specdec_benchmark(check=False)

    expected = (OUTPUT_TOKENS - 1) / math.ceil((OUTPUT_TOKENS - 1) / (STEPS + 1))
    assert result.accept_length.launches == ((expected,) * 3,)
    assert result.accept_histogram is not None
    assert sum(result.accept_histogram[:STEPS]) == 0, "no verify step with a wrong draft token"


@pytest.mark.parametrize("sglang_server", [STANDALONE_TREE], indirect=True)
def test_a_draft_that_is_partly_right_is_counted_branch_by_branch(specdec_benchmark: Any) -> None:
    """The histogram and the pooled quotient are two counts of the same: right drafts plus one token a step."""
    result = specdec_benchmark(check=False)

    assert result.accept_histogram is not None
    steps = sum(result.accept_histogram)
    right = sum(k * count for k, count in enumerate(result.accept_histogram))
    assert 1.3 < result.accept_length.value < 4
    # The last step of an answer may be cut off at the asked length, so the quotient can be a little smaller.
    assert result.accept_length.value == pytest.approx(1 + right / steps, rel=0.05)


@pytest.mark.parametrize("sglang_server", [EAGLE, EAGLE3, EAGLE3_TREE], indirect=True)
def test_an_untrained_draft_reads_one_and_fails_as_not_drafting(specdec_benchmark: Any) -> None:
    result = specdec_benchmark(check=False)

    assert result.accept_length.value == pytest.approx(1.0, abs=0.005)
    assert result.verdict is Verdict.INVALID
    assert [violation.rule for violation in result.comparison.violations] == ["not-drafting"]


@pytest.mark.parametrize("sglang_server", [NGRAM, STANDALONE, STANDALONE_TREE, EAGLE3], indirect=True)
def test_decode_throughput_is_accept_length_times_verify_rate(specdec_benchmark: Any) -> None:
    """For each stream by its own counts, and for each round by the values that are reported."""
    result = specdec_benchmark(check=False)

    for launch in result.launches:
        for done in launch.rounds:
            for sample in done.requests:
                speed = metrics.decode_tok_s(sample)
                parts = metrics.accept_length(sample), metrics.verify_rate(sample)
                assert None not in (speed, *parts)
                assert speed == pytest.approx(parts[0] * parts[1], rel=1e-12)  # type: ignore[operator]  # not None
            values = metrics.round_metrics(done, 1)
            assert values["decode_tok_s"] == pytest.approx(values["accept_length"] * values["verify_rate"], rel=1e-12)


@pytest.mark.parametrize("sglang_server", [BASE], indirect=True)
def test_a_server_that_does_not_draft_has_no_accept_length(specdec_benchmark: Any) -> None:
    result = specdec_benchmark(check=False)

    assert "accept_length" not in result.metrics
    assert result.accept_histogram is None
    assert not result.launches[0].launch.drafting


@pytest.mark.parametrize("sglang_server", ALL, indirect=True)
def test_rounds_are_complete_and_cold(specdec_benchmark: Any) -> None:
    """Each round sends each prompt once, after a flush, and gets exactly the tokens that were asked for."""
    result = specdec_benchmark(check=False)

    (launch,) = result.launches
    assert len(launch.rounds) == 3
    assert len(launch.warmup) == 1
    for done in launch.rounds:
        assert {sample.error for sample in done.requests} == {None}
        assert {sample.completion_tokens for sample in done.requests} == {OUTPUT_TOKENS}
        assert {sample.finish_reason for sample in done.requests} == {"length"}
        assert done.requests[0].cached_tokens == 0


@pytest.mark.parametrize("sglang_server", DRAFTING, indirect=True)
def test_the_server_tells_what_it_is(sglang_server: Any, specdec_benchmark: Any) -> None:
    specdec_benchmark(check=False)

    info = sglang_server.info
    assert info.drafting
    assert info.version == "0.5.23"
    assert info.args["speculative_algorithm"] == sglang_server.spec.get("--speculative-algorithm")[0]
    assert "The server is fired up and ready to roll!" in sglang_server.log_path.read_text(errors="replace")


@pytest.mark.parametrize("sglang_server", [BASE], indirect=True)
def test_text_goes_in_and_comes_out(sglang_server: Any) -> None:
    answer = sglang_server.generate("Grüße aus Köln, 你好", output_tokens=8)

    assert len(answer.output_ids) == 8
    assert isinstance(answer.text, str)
