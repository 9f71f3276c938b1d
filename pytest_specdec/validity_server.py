"""Validity rules that look at the server of a run: what it was told, what it can hold, and what its log says."""

from __future__ import annotations

import re
from typing import Final

from pytest_specdec import stats
from pytest_specdec.validity_run import (
    FINE,
    NO_LOG,
    NOT_OURS,
    SIMULATED_ACCEPTANCE,
    Answer,
    Run,
    broken,
    not_applicable,
    not_checked,
)

#: Of the decode lines of a run, this share may come from batches that no graph was captured for: rare batches of
#: another kind fall back one at a time.
_UNGRAPHED_SHARE: Final = 0.1
#: Below this share of the concurrency the batch was not what was asked for; in a closed loop one or two slots are
#: on their way from one request to the next.
_LEAST_RUNNING: Final = 0.9
#: Decode lines are samples: this many are needed before the fullest of them is called the batch.
_LINES_FOR_A_BATCH: Final = 5
_TIMES_DISAGREE: Final = 0.02


def flush_failed(run: Run) -> Answer:
    """A round begins with an empty prefix cache, or its times are those of a cache nobody described."""
    if not run.cache_flushed:
        return not_applicable("the cache was left as it was, on purpose")
    failed = [(done.index + 1, done.flush_error) for done in run.rounds if done.flush_error is not None]
    if not failed:
        return FINE
    number, error = failed[0]
    return broken(f"the prefix cache could not be flushed before {len(failed)} rounds; round {number}: {error}")


def simulated_acceptance(run: Run) -> Answer:
    """SGLang can be told to make up how many draft tokens are right."""
    seen = {name: str(run.facts[f"env.{name}"]) for name in SIMULATED_ACCEPTANCE if f"env.{name}" in run.facts}
    for name, value in re.findall(r"\b((?:SGLANG_)?SIMULATE_ACC_LEN)=(\S+)", run.command):
        seen.setdefault(name, value)
    # SGLang's own reading: what is not above zero is off.
    on = [f"{name}={value}" for name, value in seen.items() if not _is_off(value)]
    if on:
        return broken(f"acceptance is simulated ({on[0]}): it says nothing about the drafter")
    return NOT_OURS if run.attached and run.drafting else FINE


def _is_off(value: str) -> bool:
    try:
        return float(value) <= 0
    except ValueError:
        return not value


def cuda_graphs_off(run: Run) -> Answer:
    """Compare the batch with those that graphs were captured for, and with what the decode lines say.

    SGLang counts a batch in requests; with drafting each of them brings num_draft_tokens rows, and the graphs are
    captured for that. A batch above the largest one runs without, and never recovers by itself.
    """
    if not run.on_cuda:
        return not_applicable("only CUDA has CUDA graphs")
    told = [line for line in run.decode_lines() if line.cuda_graph is not None]
    without = [line for line in told if not line.cuda_graph]
    if len(without) > _UNGRAPHED_SHARE * len(told):
        most = max(line.running for line in without)
        return broken(
            f"{len(without)} of {len(told)} decode lines say cuda graph: False (up to {most} requests running): the "
            f"batch of {_batch(run)} ran without CUDA graphs. {_how_to_capture(run)}"
        )
    if any(line.running >= run.batch for line in told) or (told and run.open_loop):
        return FINE
    largest = _largest_captured(run)
    if largest and run.batch > largest and run.open_loop:
        return not_checked(f"whether more than {largest} requests, the most with a graph, ran at once is not known")
    if largest is not None and run.batch > largest:
        captured = (
            f"CUDA graphs were captured for up to {largest} requests" if largest else "no CUDA graph was captured"
        )
        return broken(f"{captured}, and the batch has {_batch(run)}. {_how_to_capture(run)}")
    if largest is None and not told:
        return not_checked("neither /server_info nor a decode line tells for which batches graphs were captured")
    return FINE


def _batch(run: Run) -> str:
    width = run.args.get("speculative_num_draft_tokens") if run.drafting else None
    rows = f", {run.batch * width} rows with {width} draft tokens each" if isinstance(width, int) else ""
    return (
        f"{'up to ' if run.open_loop else ''}{run.batch} requests"
        + ("" if run.ranks == 1 else " a data-parallel rank")
        + rows
    )


def _how_to_capture(run: Run) -> str:
    if run.args.get("disable_cuda_graph") is True:
        return "They are switched off (--disable-cuda-graph)"
    return "Raise --cuda-graph-max-bs-decode (--cuda-graph-max-bs before 0.5.15)"


def _largest_captured(run: Run) -> int | None:
    """The largest captured batch, 0 for none; None where it isn't told."""
    if run.args.get("disable_cuda_graph") is True:
        return 0
    for sizes in (run.facts.get("decode_cuda_graph_bs"), run.args.get("cuda_graph_bs")):
        if isinstance(sizes, list) and all(isinstance(size, int) for size in sizes):
            return max(sizes, default=0)
    most = run.args.get("cuda_graph_max_bs")
    return most if isinstance(most, int) else None


def running_batch_below_concurrency(run: Run) -> Answer:
    """Requests that queue at the server make a measurement of another concurrency, under this one's name.

    Drafting caps the running requests at 48 where nothing else was said, with no more than a warning.
    """
    wanted = run.measurement.concurrency
    if wanted == 1:
        return not_applicable("one request at a time always runs")
    if run.open_loop:
        return not_applicable("in an open loop the concurrency is a cap, and a request that queues is part of it")
    limit = run.facts.get("max_running_requests", run.args.get("max_running_requests"))
    if isinstance(limit, int) and limit * run.ranks < wanted:
        return broken(
            f"the server runs at most {limit * run.ranks} requests at once, and {wanted} were asked for: the rest "
            "queued. Give --max-running-requests (drafting caps it at 48 where it isn't given)"
        )
    lines = run.decode_lines()
    if len(lines) < _LINES_FOR_A_BATCH:
        if run.attached:
            return NOT_OURS
        return not_checked(
            f"{len(lines)} decode lines in the rounds are too few to tell (one is printed every "
            "--decode-log-interval steps)"
        )
    fullest: dict[str, int] = {}
    for line in lines:
        fullest[line.rank] = max(fullest.get(line.rank, 0), line.running)
    running = sum(fullest.values())
    if running >= _LEAST_RUNNING * wanted:
        return FINE
    queued = max((line.queued or 0 for line in lines), default=0)
    waiting = f", while up to {queued} waited" if queued else ""
    return broken(f"at most {running} requests ran at once{waiting}, and {wanted} were asked for")


def retraction(run: Run) -> Answer:
    """A server that runs out of KV cache takes requests back and starts them again: what is timed is that."""
    told = [line for done in run.rounds if done.log is not None for line in done.log.retractions]
    if told:
        return broken(f"the server took requests back {len(told)} times for want of KV cache; the first: {told[0]}")
    if run.has_log:
        return FINE
    return NOT_OURS if run.attached else NO_LOG


def server_restarted(run: Run) -> Answer:
    """All rounds of a launch have to come from one start of the server."""
    if any(done.log is not None and done.log.restarts for done in run.rounds):
        return broken("the server was started again during a round: its log says so")
    if run.marks is None:
        return not_checked("/server_info did not answer after the last round")
    before, after = run.marks
    if before != after:
        what = "random seed" if before.random_seed != after.random_seed else "start-up times"
        return broken(f"the server was started again between the first round and the last: its {what} changed")
    seeded = run.measurement.spec.has("--random-seed")
    if before.startup is None and (seeded or before.random_seed is None):
        return not_checked("/server_info tells nothing that another start would change")
    return FINE


def server_times_disagree(run: Run) -> Answer:
    """Compare the client's times with the server's own, request by request, and show the median difference.

    End to end with ``e2e_latency``; the decode throughput with ``decode_throughput``, which a server with metrics on
    tells. That one counts from the first token, so the client's is taken over the same tokens here.
    """
    pairs: dict[str, list[tuple[float, float]]] = {"end-to-end time (s)": [], "decode throughput (tok/s)": []}
    for s in run.samples():
        if s.server_e2e_s:
            pairs["end-to-end time (s)"].append((s.last_token_s - s.sent_s, s.server_e2e_s))
        elapsed_s = s.last_token_s - s.first_token_s
        # A first chunk of several tokens hides from the client when the first of them was there.
        if s.server_decode_tok_s and elapsed_s > 0 and s.first_chunk_tokens == 1:
            pairs["decode throughput (tok/s)"].append(((s.completion_tokens - 1) / elapsed_s, s.server_decode_tok_s))
    told = {what: both for what, both in pairs.items() if both}
    if not told:
        return not_checked("the server does not tell its own times (e2e_latency)")
    apart = {what: stats.median([ours / theirs - 1 for ours, theirs in both]) for what, both in told.items()}
    wrong = [
        f"{what} {stats.median([ours for ours, _ in told[what]]):.4g} here, "
        f"{stats.median([theirs for _, theirs in told[what]]):.4g} there ({share:+.1%})"
        for what, share in apart.items()
        if abs(share) > _TIMES_DISAGREE
    ]
    if not wrong:
        return FINE
    return broken(
        f"the client's and the server's own figures differ, medians: {'; '.join(wrong)}. What lies between them is the "
        "network, or a client that is too slow"
    )
