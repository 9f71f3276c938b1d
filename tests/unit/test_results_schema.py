"""The published schema of a measurement's metrics and validity, held against what the program writes."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jsonschema
import pytest

from pytest_specdec import results, validity
from pytest_specdec.metrics import METRICS, accept_histogram
from pytest_specdec.model import Comparison, GoodputLimits, LaunchRounds, Measurement, Verdict
from pytest_specdec.validity_run import Run
from tests.fakes.samples import launch_record, measurement, one_round, sample

SCHEMA = json.loads(resources.files("pytest_specdec").joinpath("schemas/measurement.schema.json").read_text("utf-8"))


def document(measured: Measurement, *, histogram: tuple[int, ...] | None = (1, 2, 0)) -> dict[str, Any]:
    """What is written of 100 requests in one round."""
    requests = [sample(str(i), accept_histogram=histogram, arrivals=((1.0, 1), (2.0, 40))) for i in range(100)]
    record = launch_record(server_args={"speculative_num_draft_tokens": 4})
    launch = LaunchRounds(launch=record, warmup=(), rounds=(one_round(*requests),))
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
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
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
    assert {spec.unit for spec in METRICS.values()} == set(SCHEMA["$defs"]["metric"]["properties"]["unit"]["enum"])


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
