"""The published schema of ``results.json`` and ``rounds.jsonl``, held against what the program writes."""

from __future__ import annotations

import dataclasses
import json
from importlib import resources
from typing import Any

import jsonschema
import pytest

from pytest_specdec import results, validity
from pytest_specdec.metrics import METRICS, accept_histogram
from pytest_specdec.model import (
    Comparison,
    GoodputLimits,
    LaunchRounds,
    Measurement,
    MetricVerdict,
    Round,
    Verdict,
)
from pytest_specdec.observed import DecodeLine, GpuProcess, GpuSpan, GpuState, LogSpan
from pytest_specdec.validity_run import Run
from tests.fakes.samples import launch_record, measurement, one_round, sample

PUBLISHED = json.loads(resources.files("pytest_specdec").joinpath("schemas/results.schema.json").read_text("utf-8"))
SCHEMA = {**PUBLISHED, "$ref": "#/$defs/measurement", "required": [], "properties": {}}
LINE = {**PUBLISHED, "$ref": "#/$defs/roundEntry", "required": [], "properties": {}}
#: All that can be seen beside a round.
SEEN: dict[str, Any] = {
    "client_cpu_share": 0.1,
    "log": LogSpan(
        decode=(DecodeLine(rank="", running=1, queued=0, tok_s=9.5, accept_length=None, cuda_graph=True, steady=True),),
        retractions=(),
        restarts=0,
    ),
    "gpu": GpuSpan(
        gpus=(
            GpuState(
                index="0",
                uuid="GPU-1",
                samples=3,
                sm_mhz=2400.0,
                power_w=300.0,
                temperature_c=60.0,
                slowdowns=(),
                power_capped_share=0.0,
            ),
        ),
        processes=(GpuProcess(uuid="GPU-1", pid=7, name="python", own=True),),
    ),
}


def document(measured: Measurement, *, histogram: tuple[int, ...] | None = (1, 2, 0)) -> dict[str, Any]:
    """What is written of 100 requests in one round."""
    requests = [sample(str(i), accept_histogram=histogram, arrivals=((1.0, 1), (2.0, 40))) for i in range(100)]
    record = launch_record(server_args={"speculative_num_draft_tokens": 4})
    launch = LaunchRounds(launch=record, warmup=(), rounds=(one_round(*requests, **SEEN),))
    values = results.rounds_by_launch([launch], measured)
    result = results.BenchmarkResult(
        measurement=measured,
        node="cpu-test",
        launches=(launch,),
        metrics={name: results.summarise(name, rows) for name, rows in values.items()},
        accept_histogram=accept_histogram(launch.rounds),
        comparison=Comparison(
            verdict=Verdict.PASS,
            metrics=(),
            violations=(),
            baseline_path=None,
            split=None,
            environment_changes=(),
            notes=(),
        ),
        validity=validity.findings([Run.of(measured, launch, on_cuda=False)]),
    )
    written: dict[str, Any] = json.loads(json.dumps(results.to_json(result)))
    return written


def limited() -> Measurement:
    plain = measurement("one")
    return Measurement(
        spec=plain.spec, workload=plain.workload, output_tokens=40, goodput=GoodputLimits(ttft_ms=1000, tpot_ms=20)
    )


def test_what_is_written_follows_the_schema_with_every_metric_in_it() -> None:
    jsonschema.Draft202012Validator.check_schema(PUBLISHED)
    written = document(limited())

    jsonschema.validate(written, SCHEMA)
    assert set(written["metrics"]) | {"ttft_scheduled_ms"} == set(METRICS), "a closed loop has no schedule"
    assert written["acceptance_by_position"] == [pytest.approx(2 / 3), 0.0]
    # 26 ms a token: no request is good.
    assert (written["goodput_limits"], written["metrics"]["goodput"]["value"]) == (
        {"tpot_ms": 20.0, "ttft_ms": 1000.0},
        0.0,
    )
    assert [finding["rule"] for finding in written["validity"]] == list(validity.RULES)


def test_what_is_not_known_is_null() -> None:
    written = document(measurement("one"), histogram=None)

    jsonschema.validate(written, SCHEMA)
    assert (written["accept_histogram"], written["acceptance_by_position"], written["goodput_limits"]) == (None,) * 3


def test_a_launch_has_one_value_of_a_metric_of_its_own() -> None:
    written = document(measurement("one"))["metrics"]

    assert (written["ttft_p99_ms"]["per"], written["ttft_p99_ms"]["rounds_by_launch"]) == ("launch", [[1000.0]])
    assert written["ttft_ms"]["per"] == "round"


def test_the_schema_knows_every_unit() -> None:
    assert {spec.unit for spec in METRICS.values()} == set(PUBLISHED["$defs"]["metric"]["properties"]["unit"]["enum"])


def test_every_round_is_there_without_its_requests_and_a_line_of_its_own_has_both() -> None:
    measured = measurement("one")
    (entry,) = document(measured)["rounds"]

    assert set(entry["round"]) == {field.name for field in dataclasses.fields(Round)} - {"requests", "log"}
    assert (entry["launch"], entry["metrics"]["ttft_ms"], entry["accept_histogram"]) == (0, 1000.0, [100, 200, 0])

    seen = one_round(sample("p1", arrivals=((1.0, 1), (2.0, 40))), **SEEN)
    line = json.loads(json.dumps(results.round_json(seen, measured, launch_record())))
    jsonschema.validate(line, LINE)
    assert set(line["round"]) == {field.name for field in dataclasses.fields(Round)}


@pytest.mark.parametrize("definition", ["measurement", "judged", "launch", "round", "request"])
def test_every_key_that_is_written_is_described_and_required(definition: str) -> None:
    written = document(limited())
    seen = one_round(sample("p1"), **SEEN)
    row = results.round_json(seen, measurement("one"), launch_record())["round"]
    keys = {
        "measurement": set(written),
        "judged": {field.name for field in dataclasses.fields(MetricVerdict)},
        "launch": set(written["launches"][0]),
        "round": set(row),
        "request": set(row["requests"][0]),
    }[definition]

    described = PUBLISHED["$defs"][definition]
    assert set(described["properties"]) == keys
    assert set(described["required"]) == keys - ({"requests", "log"} if definition == "round" else set())


def test_the_schema_knows_every_verdict() -> None:
    assert PUBLISHED["$defs"]["verdict"]["enum"] == [str(verdict) for verdict in Verdict]


@pytest.mark.parametrize(
    "spoiled",
    [
        {"rule": "x", "status": "skipped", "reason": "y", "refuses": True, "waived": False},
        {"rule": "x", "status": "not-checked", "reason": "", "refuses": True, "waived": False},
    ],
)
def test_a_finding_that_is_none_is_refused(spoiled: dict[str, Any]) -> None:
    written = document(measurement("one"))
    written["validity"].append(spoiled)

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(written, SCHEMA)
