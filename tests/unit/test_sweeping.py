"""How the points of a sweep stand in a session, by what was taken of each."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jsonschema
import pytest

from pytest_specdec import sweeping
from pytest_specdec.errors import LaunchError, SpecdecError
from pytest_specdec.metrics import speed_of
from pytest_specdec.model import LaunchRounds, Measurement
from pytest_specdec.plan import PlannedMeasurement, Sweep
from pytest_specdec.ranking import Point
from pytest_specdec.spec import ServerSpec
from tests.fakes.samples import launch_record, measurement, one_round, sample

PUBLISHED = json.loads(resources.files("pytest_specdec").joinpath("schemas/results.schema.json").read_text("utf-8"))
SCHEMA = {**PUBLISHED, "required": ["sweeps"], "properties": {"sweeps": PUBLISHED["properties"]["sweeps"]}}
A = ServerSpec("a", "/models/a")
B, C = (A.but(name, f"--tp {tp}") for name, tp in (("b", 2), ("c", 4)))


def want(spec: ServerSpec, **known: Any) -> Measurement:
    return Measurement(spec=spec, workload=measurement("one").workload, **{"output_tokens": 40, **known})


def sweep_of(*specs: ServerSpec) -> Sweep:
    points = (PlannedMeasurement(measurement=want(spec), rounds=1, warmup=0, launches=1) for spec in specs)
    return Sweep(name="f w--c1--o40", points=tuple(points))


def launches(*speeds: float) -> tuple[LaunchRounds, ...]:
    """Launches of one round whose stream decodes its 39 tokens after the first at these speeds (tok/s)."""
    rounds = (one_round(sample(last_token_s=1 + 39 / speed, done_s=1 + 39 / speed)) for speed in speeds)
    return tuple(
        LaunchRounds(launch=launch_record(index=i), warmup=(), rounds=(done,)) for i, done in enumerate(rounds)
    )


def taken(**found: tuple[LaunchRounds, ...] | SpecdecError) -> sweeping.Taken:
    return {f"{name}--w--c1--o40": measured for name, measured in found.items()}


def names(points: list[PlannedMeasurement]) -> list[str]:
    return [point.measurement.spec.name for point in points]


@pytest.mark.parametrize(
    ("known", "metric"),
    [
        ({}, "decode_tok_s"),
        ({"concurrency": 16}, "system_tok_s"),
        ({"concurrency": 16, "request_rate": 4.0}, "decode_tok_s"),
        ({"request_rate": 4.0}, "decode_tok_s"),
    ],
)
def test_points_are_ranked_by_the_throughput_that_gates_there(known: dict[str, Any], metric: str) -> None:
    assert speed_of(want(A, **known)) == metric


def test_a_point_is_its_speeds_by_launch_or_the_first_line_of_what_it_failed_of() -> None:
    long = "cuda-graph-capture-oom: " + 100 * "x"
    found = sweeping.points(
        sweep_of(A, B, C), taken(a=launches(50.0, 52.0), b=LaunchError(f"\n{long}\nits log\n"), c=())
    )

    (of_a,) = [point for point in found if point.name == "a"]
    assert [pytest.approx((speed,)) for speed in (50.0, 52.0)] == list(of_a.launches)
    assert found[1:] == [Point(name="b", failure=long[:80]), Point(name="c")]


def test_points_of_which_nothing_was_taken_yet_are_wanted_first() -> None:
    known = taken(a=launches(50.0), b=(), c=LaunchError("did not start"))

    assert names(sweeping.contending(sweep_of(A, B, C), known, most_launches=3)) == ["b"]


def test_those_that_may_be_the_best_are_wanted_again_up_to_the_most_launches() -> None:
    """Launch noise is 2.7 %: 1 % apart can't be told, half as fast can."""
    sweep = sweep_of(A, B, C)

    def contending(each: int, most: int) -> list[str]:
        known = taken(a=launches(*each * (100.0,)), b=launches(*each * (99.0,)), c=launches(50.0))
        return names(sweeping.contending(sweep, known, most_launches=most))

    assert contending(1, 3) == contending(2, 3) == ["a", "b"]
    assert contending(3, 3) == []
    assert contending(2, 2) == contending(1, 1) == []
    assert contending(3, 9) == [], "three looks are all that the 5 % are shared over"


def test_a_point_that_failed_is_not_wanted_again() -> None:
    known = taken(a=launches(100.0), b=launches(100.0), c=LaunchError("did not start"))

    assert names(sweeping.contending(sweep_of(A, B, C), known, most_launches=3)) == ["a", "b"]


@pytest.mark.parametrize(
    "known",
    [
        taken(a=launches(100.0, 101.0), b=launches(99.0, 100.0), c=launches(50.0)),
        taken(a=launches(100.0), b=LaunchError("did not start"), c=()),
        taken(a=LaunchError("no"), b=LaunchError("no"), c=LaunchError("no")),
    ],
)
def test_its_object_in_the_results_is_as_the_schema_says(known: sweeping.Taken) -> None:
    document = sweeping.document(sweep_of(A, B, C), known, most_launches=3)

    jsonschema.Draft202012Validator(SCHEMA).validate({"sweeps": [json.loads(json.dumps(document))]})


def test_its_object_tells_how_each_point_stands() -> None:
    known = taken(a=launches(100.0), b=LaunchError("did not start\nlog"), c=launches(50.0))

    document = sweeping.document(sweep_of(A, B, C), known, most_launches=3)

    assert (document["name"], document["metric"], document["unit"]) == ("f w--c1--o40", "decode_tok_s", "tok/s")
    assert [(row["name"], row["word"], row["launches"], row["reason"]) for row in document["points"]] == [
        ("a", "best", 1, ""),
        ("b", "failed", 0, "did not start"),
        ("c", "worse", 1, ""),
    ]
    assert document["points"][2]["behind"] == pytest.approx(0.5)
    assert document["conclusion"].startswith("best: a, 100")
    assert document["confidence"] == 0.95
