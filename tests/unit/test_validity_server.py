"""The rules that look at the server, each with what breaks it and what does not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pytest_specdec.decode_log import parse
from pytest_specdec.observed import LogSpan, ServerMark
from pytest_specdec.spec import ServerSpec
from pytest_specdec.validity import RULES
from pytest_specdec.validity_run import Answer, Run
from tests.fakes.samples import measurement, one_round, sample

QUIET = LogSpan(decode=(), retractions=(), restarts=0)


def ask(rule: str, *, log: LogSpan | None = QUIET, concurrency: int = 1, **known: Any) -> Answer:
    """What a rule says of a run of one round with this log."""
    requests = known.pop("requests", (sample(),))
    flush_error = known.pop("flush_error", None)
    plain = {"drafting": True, "measurement": measurement("one", concurrency=concurrency)}
    rounds = (one_round(*requests, log=log, flush_error=flush_error),)
    return RULES[rule].check(Run(**{**plain, "rounds": rounds, **known}))


def decode_lines(*pairs: str) -> LogSpan:
    """A log with a decode line for each of these."""
    return parse("".join(f"[2026-04-15 22:13:40 TP0] Decode batch, {pair}\n" for pair in pairs))


def graphs(*told: tuple[int, bool]) -> LogSpan:
    """A log of decode lines with so many running requests, with a graph or without."""
    return decode_lines(
        *(f"#running-req: {n}, cuda graph: {on}, gen throughput (token/s): 9.0, #queue-req: 0" for n, on in told)
    )


class TestFlushFailed:
    def test_a_refused_flush_is_told_with_its_reason(self) -> None:
        said = ask("flush-failed", flush_error="POST /flush_cache: HTTP 400: requests are running")

        assert said.status == "broken"
        assert said.reason.endswith("before 1 rounds; round 1: POST /flush_cache: HTTP 400: requests are running")

    def test_a_flushed_cache_is_fine_and_one_left_alone_on_purpose_is_not_asked(self) -> None:
        assert ask("flush-failed").status == "fine"
        assert ask("flush-failed", cache_flushed=False).status == "not-applicable"


class TestOpenLoop:
    """The concurrency is a cap there, which need not be reached."""

    OPEN = dataclasses.replace(measurement("one", concurrency=64), request_rate=4.0)

    def test_a_server_that_runs_fewer_at_once_is_what_is_measured(self) -> None:
        facts = {"max_running_requests": 48}

        said = ask("running-batch-below-concurrency", measurement=self.OPEN, facts=facts)

        assert said.status == "not-applicable"
        assert ask("running-batch-below-concurrency", concurrency=64, facts=facts).status == "broken"

    def test_what_ran_decides_whether_graphs_were_off(self) -> None:
        known: dict[str, Any] = {"on_cuda": True, "facts": {"decode_cuda_graph_bs": [1, 2, 4, 8]}}

        assert ask("cuda-graphs-off", concurrency=64, **known).status == "broken"
        assert ask("cuda-graphs-off", measurement=self.OPEN, **known).status == "not-checked"
        assert ask("cuda-graphs-off", measurement=self.OPEN, log=graphs((6, True)), **known).status == "fine"
        without = ask("cuda-graphs-off", measurement=self.OPEN, log=graphs((9, False)), **known)
        assert without.status == "broken"
        assert "(up to 9 requests running): the batch of up to 64 requests" in without.reason


class TestSimulatedAcceptance:
    @pytest.mark.parametrize(
        "known",
        [
            {"facts": {"env.SGLANG_SIMULATE_ACC_LEN": "3"}},
            {"command": "docker run -e SGLANG_SIMULATE_ACC_LEN=3 lmsysorg/sglang python3 -m sglang.launch_server"},
        ],
        ids=["environment", "launcher"],
    )
    def test_it_is_told_with_what_simulates_it(self, known: dict[str, Any]) -> None:
        assert ask("simulated-acceptance", **known).reason == (
            "acceptance is simulated (SGLANG_SIMULATE_ACC_LEN=3): it says nothing about the drafter"
        )

    @pytest.mark.parametrize("value", ["-1", "0", "-1.0", ""])
    def test_a_value_that_sglang_takes_for_off_is_fine(self, value: str) -> None:
        assert ask("simulated-acceptance", facts={"env.SGLANG_SIMULATE_ACC_LEN": value}).status == "fine"

    def test_a_server_of_somebody_elses_may_simulate_unseen(self) -> None:
        assert ask("simulated-acceptance", attached=True).status == "not-checked"
        assert ask("simulated-acceptance", attached=True, drafting=False).status == "fine"


class TestCudaGraphsOff:
    def test_decode_lines_without_a_graph_are_told(self) -> None:
        said = ask("cuda-graphs-off", on_cuda=True, log=graphs((67, False), (23, True)), concurrency=67)

        assert said.status == "broken"
        assert said.reason.startswith(
            "1 of 2 decode lines say cuda graph: False (up to 67 requests running): the batch of 67 requests ran "
            "without CUDA graphs. Raise --cuda-graph-max-bs-decode"
        )

    def test_a_rare_line_without_a_graph_is_let_pass(self) -> None:
        log = graphs(*[(8, True)] * 10, (8, False))

        assert ask("cuda-graphs-off", on_cuda=True, log=log, concurrency=8).status == "fine"

    def test_a_batch_above_the_captured_ones_is_told_before_any_line(self) -> None:
        said = ask(
            "cuda-graphs-off",
            on_cuda=True,
            concurrency=64,
            facts={"decode_cuda_graph_bs": [1, 2, 4, 8, 16, 32]},
            args={"speculative_num_draft_tokens": 4},
        )

        assert said.reason.startswith(
            "CUDA graphs were captured for up to 32 requests, and the batch has 64 requests, 256 rows with 4 draft "
            "tokens each."
        )

    @pytest.mark.parametrize(
        ("known", "said"),
        [
            ({"facts": {"decode_cuda_graph_bs": []}}, "no CUDA graph was captured"),
            ({"args": {"disable_cuda_graph": True}}, "switched off (--disable-cuda-graph)"),
            ({"args": {"cuda_graph_max_bs": 4}, "concurrency": 5}, "for up to 4 requests"),
        ],
        ids=["empty", "disabled", "an older version"],
    )
    def test_graphs_that_are_off_are_told(self, known: dict[str, Any], said: str) -> None:
        assert said in ask("cuda-graphs-off", on_cuda=True, **known).reason

    def test_the_batch_of_a_data_parallel_rank_is_what_counts(self) -> None:
        known: dict[str, Any] = {"facts": {"decode_cuda_graph_bs": [1, 8]}, "concurrency": 64, "on_cuda": True}

        assert ask("cuda-graphs-off", args={"dp_size": 8}, **known).status == "fine"
        assert "16 requests a data-parallel rank" in ask("cuda-graphs-off", args={"dp_size": 4}, **known).reason

    def test_a_full_batch_with_a_graph_outweighs_what_the_server_tells(self) -> None:
        known: dict[str, Any] = {"facts": {"decode_cuda_graph_bs": [1]}, "concurrency": 8, "on_cuda": True}

        assert ask("cuda-graphs-off", log=graphs((8, True)), **known).status == "fine"

    def test_within_the_captured_batches_it_is_fine(self) -> None:
        known: dict[str, Any] = {"facts": {"decode_cuda_graph_bs": [1, 2, 4]}, "on_cuda": True}

        assert ask("cuda-graphs-off", concurrency=3, **known).status == "fine"

    def test_where_nothing_tells_it_is_not_checked(self) -> None:
        assert ask("cuda-graphs-off", on_cuda=True).status == "not-checked"

    def test_a_cpu_has_none(self) -> None:
        lines = decode_lines("#running-req: 1, cpu graph: False, gen throughput (token/s): 28.74, #queue-req: 0")

        assert ask("cuda-graphs-off", log=lines).status == "not-applicable"


class TestRunningBatch:
    def lines(self, running: int, *, queued: int = 0, count: int = 5) -> LogSpan:
        return decode_lines(*[f"#running-req: {running}, gen throughput (token/s): 9.0, #queue-req: {queued}"] * count)

    def test_a_limit_below_the_concurrency_is_told(self) -> None:
        said = ask("running-batch-below-concurrency", concurrency=64, facts={"max_running_requests": 48})

        assert said.reason.startswith("the server runs at most 48 requests at once, and 64 were asked for")
        assert "--max-running-requests" in said.reason

    def test_the_limit_is_a_data_parallel_ranks(self) -> None:
        known: dict[str, Any] = {"facts": {"max_running_requests": 48}, "args": {"dp_size": 2}}

        assert ask("running-batch-below-concurrency", concurrency=64, log=self.lines(64), **known).status == "fine"

    def test_a_batch_that_never_was_as_full_as_asked_is_told(self) -> None:
        said = ask("running-batch-below-concurrency", concurrency=64, log=self.lines(48, queued=16))

        assert said.reason == "at most 48 requests ran at once, while up to 16 waited, and 64 were asked for"

    def test_a_slot_between_two_requests_is_let_pass(self) -> None:
        assert ask("running-batch-below-concurrency", concurrency=64, log=self.lines(62)).status == "fine"

    def test_data_parallel_ranks_are_added_up(self) -> None:
        text = "".join(
            f"[2026-04-15 22:13:40 DP{rank} TP{rank}] Decode batch, #running-req: 8, #queue-req: 0\n"
            for rank in (0, 1, 0, 1, 0, 1)
        )

        assert ask("running-batch-below-concurrency", concurrency=16, log=parse(text)).status == "fine"

    def test_few_lines_tell_nothing(self) -> None:
        said = ask("running-batch-below-concurrency", concurrency=64, log=self.lines(3, count=4))

        assert said.status == "not-checked"
        assert said.reason.startswith("4 decode lines in the rounds are too few to tell")

    def test_of_a_server_of_somebody_elses_only_the_limit_is_known(self) -> None:
        known: dict[str, Any] = {"attached": True, "log": None, "concurrency": 64}

        assert ask("running-batch-below-concurrency", **known).status == "not-checked"
        limited = ask("running-batch-below-concurrency", facts={"max_running_requests": 48}, **known)
        assert limited.status == "broken"

    def test_one_request_at_a_time_always_runs(self) -> None:
        assert ask("running-batch-below-concurrency").status == "not-applicable"


class TestRetraction:
    def test_a_retraction_is_told_with_its_line(self) -> None:
        log = parse(
            "[2026-02-03 11:10:46 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1, "
            "#new_tokens_gained: 660672, #new_token_ratio: 0.5980 -> 1.0000\n"
        )

        assert ask("retraction", log=log).reason == (
            "the server took requests back 1 times for want of KV cache; the first: Retract requests. "
            "#retracted_reqs: 1, #new_tokens_gained: 660672, #new_token_ratio: 0.5980 -> 1.0000"
        )

    def test_a_log_without_one_is_fine_and_no_log_tells_nothing(self) -> None:
        assert ask("retraction").status == "fine"
        assert ask("retraction", log=None).status == "not-checked"
        assert ask("retraction", log=None, attached=True).reason.startswith("the server was already running")


class TestServerRestarted:
    FIRST = ServerMark(random_seed=7, startup="{'load_weight': 1.5}")

    def test_a_start_in_the_log_of_a_round_is_told(self) -> None:
        log = parse("[2026-11-29 12:22:58] INFO:     Started server process [4242]\n")

        assert ask("server-restarted", log=log).reason.endswith("during a round: its log says so")

    @pytest.mark.parametrize(
        ("after", "what"),
        [
            (ServerMark(random_seed=8, startup="{'load_weight': 1.5}"), "random seed"),
            (ServerMark(random_seed=7, startup="{'load_weight': 1.6}"), "start-up times"),
        ],
    )
    def test_another_start_is_told_by_what_it_changes(self, after: ServerMark, what: str) -> None:
        said = ask("server-restarted", marks=(self.FIRST, after))

        assert said.reason == (f"the server was started again between the first round and the last: its {what} changed")

    def test_the_same_start_is_fine(self) -> None:
        assert ask("server-restarted", marks=(self.FIRST, self.FIRST)).status == "fine"
        older = ServerMark(random_seed=7)
        assert ask("server-restarted", marks=(older, older)).status == "fine"

    def test_a_seed_that_the_spec_gives_tells_nothing(self) -> None:
        seeded = measurement(
            "one", spec=ServerSpec.from_command("a", "python -m sglang.launch_server --model-path /m --random-seed 7")
        )
        older = ServerMark(random_seed=7)

        assert ask("server-restarted", marks=(older, older), measurement=seeded).status == "not-checked"
        assert ask("server-restarted", marks=(self.FIRST, self.FIRST), measurement=seeded).status == "fine"

    def test_a_server_that_does_not_answer_any_more_is_not_checked(self) -> None:
        assert ask("server-restarted", marks=None).status == "not-checked"


class TestServerTimes:
    def test_an_end_to_end_time_more_than_two_percent_apart_is_told(self) -> None:
        said = ask("server-times-disagree", requests=(sample(server_e2e_s=1.95),))

        assert said.status == "broken"
        assert said.reason.startswith(
            "the client's and the server's own figures differ, medians: end-to-end time (s) 2 here, 1.95 there (+2.6%)."
        )

    def test_a_decode_throughput_apart_is_told_where_the_server_tells_its_own(self) -> None:
        # 39 tokens in 1 s after the first.
        assert ask("server-times-disagree", requests=(sample(server_decode_tok_s=39.5),)).status == "fine"
        assert (
            "decode throughput (tok/s) 39 here, 40 there (-2.5%)"
            in ask("server-times-disagree", requests=(sample(server_decode_tok_s=40.0),)).reason
        )

    def test_a_first_chunk_of_several_tokens_can_not_be_compared(self) -> None:
        several = sample(first_chunk_tokens=3, server_decode_tok_s=90.0)

        assert ask("server-times-disagree", requests=(several,)).status == "fine"

    def test_one_request_apart_among_good_ones_is_let_pass(self) -> None:
        requests = sample(server_e2e_s=1.0), sample(server_e2e_s=1.99), sample(server_e2e_s=1.98)

        assert ask("server-times-disagree", requests=requests).status == "fine"

    def test_a_server_that_tells_no_times_is_not_checked(self) -> None:
        assert ask("server-times-disagree", requests=(sample(server_e2e_s=None),)).status == "not-checked"

    def test_it_does_not_refuse(self) -> None:
        assert not RULES["server-times-disagree"].refuses
