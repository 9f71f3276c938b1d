"""What a measurement came to, by class of task."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_specdec import results
from pytest_specdec.model import (
    CategoryChange,
    Comparison,
    EnvironmentChange,
    LaunchRecord,
    LaunchRounds,
    RequestSample,
    Verdict,
)
from pytest_specdec.results import BenchmarkResult
from tests.fakes.samples import measurement, one_round, sample

RECORD = LaunchRecord(
    index=0,
    spec_name="a",
    spec_hash="0",
    command="python -m sglang.launch_server",
    host="here",
    node="cpu-x-2c",
    started_unix_s=0.0,
    ready_s=1.0,
    log_path=None,
    sglang_version="0.5.23",
    drafting=True,
    server_args={},
    facts={},
)


MEASUREMENT = measurement("one", "two")


def launch(*rounds: tuple[RequestSample, ...]) -> LaunchRounds:
    done = tuple(one_round(*requests, index=index) for index, requests in enumerate(rounds))
    return LaunchRounds(launch=RECORD, warmup=(), rounds=done)


#: 39 tokens after the first chunk, in one second: 3 a step for prose, 13 a step for a table that repeats itself.
PROSE = sample("p1", category="prose", verify_steps=13)
TABLE = sample("p2", category="table", verify_steps=3)


def test_each_category_has_its_own_acceptance_and_speed() -> None:
    slower = sample("p1", category="prose", verify_steps=13, last_token_s=3.0)

    found = results.by_category([launch((PROSE, TABLE), (slower, TABLE))], MEASUREMENT)

    assert list(found) == ["prose", "table"]
    assert [category.requests for category in found.values()] == [2, 2]
    assert found["prose"].metrics["accept_length"].launches == ((3.0, 3.0),)
    assert found["table"].metrics["accept_length"].launches == ((13.0, 13.0),)
    assert found["prose"].metrics["decode_tok_s"].launches == ((39.0, 19.5),)
    assert found["table"].metrics["verify_rate"].value == pytest.approx(3.0)


def test_a_category_without_drafting_has_its_speed_alone() -> None:
    plain = sample(verify_steps=None, accept_histogram=None)

    found = results.by_category([launch((plain,))], MEASUREMENT)

    assert list(found["c"].metrics) == ["decode_tok_s"]


def test_a_failed_request_counts_for_no_value() -> None:
    failed = sample("p3", category="table", error="HTTP 500")

    found = results.by_category([launch((PROSE, failed))], MEASUREMENT)

    assert found["table"].requests == 1
    assert found["table"].metrics == {}


def result(*launches: LaunchRounds) -> BenchmarkResult:
    comparison = Comparison(
        verdict=Verdict.PASS,
        metrics=(),
        violations=(),
        baseline_path=None,
        split=None,
        environment_changes=(),
        notes=(),
    )
    return BenchmarkResult(
        measurement=MEASUREMENT,
        node="cpu-x-2c",
        launches=launches,
        metrics={},
        accept_histogram=None,
        comparison=comparison,
        by_category=results.by_category(launches, MEASUREMENT),
    )


def test_the_document_lists_the_categories_in_the_order_of_the_prompts() -> None:
    document = results.to_json(result(launch((TABLE, PROSE))))

    assert [entry["category"] for entry in document["categories"]] == ["table", "prose"]
    assert document["categories"][1]["metrics"]["accept_length"]["value"] == pytest.approx(3.0)
    assert document["chat_template"] is False


def test_the_answers_of_a_conversation_are_kept_apart() -> None:
    second = sample("p1", turn=2, output_ids=(7,))

    assert result(launch((sample("p1", output_ids=(1,)), second))).output_ids() == {"p1": (1,), "p1 turn 2": (7,)}


def test_a_value_is_the_geometric_mean_over_launches_of_their_geometric_means() -> None:
    summary = results.summarise("decode_tok_s", ((80.0, 125.0), (), (121.0,)))

    assert summary.value == pytest.approx(110.0)  # sqrt(80 * 125) is 100, sqrt(100 * 121)
    assert (summary.median, summary.low, summary.high) == (121.0, 80.0, 125.0)


def test_the_document_holds_why_a_speed_changed_and_what_differs_around_it() -> None:
    comparison = dataclasses.replace(
        result(launch((PROSE,))).comparison,
        cause="engine",
        environment_changes=(EnvironmentChange(key="args.tp_size", before="8", after="4"),),
        categories=(CategoryChange(category="prose", accept_length=-0.1, verify_rate=None),),
    )

    document = results.to_json(dataclasses.replace(result(launch((PROSE,))), comparison=comparison))

    assert document["cause"] == "engine"
    assert document["environment_changes"] == [{"key": "args.tp_size", "before": "8", "after": "4"}]
    assert document["category_changes"] == [{"category": "prose", "accept_length": -0.1, "verify_rate": None}]
    assert results.to_json(result(launch((PROSE,))))["cause"] is None
