"""What a session will measure, from what its tests ask for."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_specdec.errors import UserInputError
from pytest_specdec.model import Measurement, Sampling, Workload
from pytest_specdec.plan import PlannedTest, build_plan, order_by_spec
from pytest_specdec.spec import ServerSpec

CHAT = Workload(name="chat", prompts=(), content_hash="c" * 64)


def spec(name: str = "a", flags: str = "") -> ServerSpec:
    return ServerSpec.tiny(name, flags)


def asks(
    nodeid: str,
    server: ServerSpec,
    *,
    workload: Workload | None = CHAT,
    concurrency: int = 1,
    sampling: Sampling | None = None,
    rounds: int = 5,
) -> PlannedTest:
    measurement = None
    if workload is not None:
        measurement = Measurement(
            spec=server, workload=workload, concurrency=concurrency, sampling=sampling or Sampling()
        )
    return PlannedTest(nodeid=nodeid, spec=server, measurement=measurement, rounds=rounds, warmup=1)


def test_equal_specs_that_are_distinct_objects_share_their_launches() -> None:
    plan = build_plan([asks("t1", spec()), asks("t2", spec(), concurrency=4)], lambda _: 1)

    assert [(one.spec.name, len(one.measurements), one.launches) for one in plan.specs] == [("a", 2, 1)]
    assert plan.specs[0].nodeids == ("t1", "t2")


def test_tests_of_equal_identity_share_one_measurement_with_the_most_rounds() -> None:
    plan = build_plan([asks("t1", spec(), rounds=3), asks("t2", spec(), rounds=7)], lambda _: 1)

    (measurement,) = plan.specs[0].measurements
    assert measurement.rounds == 7


def test_a_shared_measurement_waives_what_any_of_its_tests_waives() -> None:
    one = dataclasses.replace(asks("t1", spec()), waived=frozenset({"retraction"}))
    other = dataclasses.replace(asks("t2", spec()), waived=frozenset({"degenerate-output"}))
    third = dataclasses.replace(asks("t3", spec(), concurrency=4), waived=frozenset({"gpu-slowdown"}))

    shared, apart = build_plan([one, other, third], lambda _: 1).specs[0].measurements

    assert shared.waived == {"retraction", "degenerate-output"}
    assert apart.waived == {"gpu-slowdown"}


def test_a_spec_is_launched_as_often_as_its_most_demanding_measurement_wants() -> None:
    tests = [asks("t1", spec()), asks("t2", spec(), concurrency=8)]

    plan = build_plan(tests, lambda m: 5 if m.concurrency == 8 else 1)

    assert plan.specs[0].launches == 5


def test_a_test_that_only_borrows_the_server_needs_one_launch() -> None:
    plan = build_plan([asks("t1", spec(), workload=None)], lambda _: 5)

    assert plan.specs[0].launches == 1


def test_two_specs_of_one_name_and_different_content_are_refused() -> None:
    with pytest.raises(UserInputError) as caught:
        build_plan([asks("t1", spec("a")), asks("t2", spec("a", "--tp 2"))], lambda _: 1)

    text = str(caught.value)
    assert text.startswith("two server specs are named 'a' but differ:\n  t1: ")
    assert "\n  t2: " in text
    assert text.endswith("give one of them another name")


def test_two_measurements_for_one_baseline_path_are_refused_with_what_differs() -> None:
    other = Workload(name="chat", prompts=(), content_hash="d" * 64)

    with pytest.raises(UserInputError, match=r"a--chat--c1--o512\.json but differ in the content of workload"):
        build_plan([asks("t1", spec()), asks("t2", spec(), workload=other)], lambda _: 1)


def test_sampling_that_is_not_greedy_has_a_path_of_its_own() -> None:
    warm = asks("t2", spec(), sampling=Sampling(temperature=0.7))

    plan = build_plan([asks("t1", spec()), warm], lambda _: 1)

    keys = [planned.measurement.key for planned in plan.specs[0].measurements]
    assert keys[0] == "a--chat--c1--o512"
    assert keys[1].startswith("a--chat--c1--o512--")
    assert len(keys[1]) == len(keys[0]) + 2 + 8


def test_the_plan_tells_specs_measurements_and_launches() -> None:
    plan = build_plan([asks("t1", spec("a")), asks("t2", spec("b", "--tp 2"), workload=None)], lambda _: 5)

    assert plan.lines() == [
        "specdec plan: 2 server specs, 1 measurement, 6 launches",
        "  a: 5 launches; chat c1 o512 (5+1 rounds)",
        "  b: 1 launch; server only",
    ]


@pytest.mark.parametrize(
    ("costs", "head", "first"),
    [
        ({"a": 540.0, "b": 360.0}, "6 launches, about 51 min of loading", "  a: 5 launches of about 9 min; "),
        (
            {"a": 10.0},
            "6 launches, about 50 s of loading for 5 of them, not known for the others",
            "  a: 5 launches of",
        ),
        (
            {"b": 119.0},
            "6 launches, about 119 s of loading for 1 of them, not known for the others",
            "  a: 5 launches; ",
        ),
    ],
)
def test_the_plan_tells_what_its_launches_cost_as_far_as_it_is_known(
    costs: dict[str, float], head: str, first: str
) -> None:
    plan = build_plan([asks("t1", spec("a")), asks("t2", spec("b", "--tp 2"), workload=None)], lambda _: 5)

    lines = plan.lines(lambda planned: costs.get(planned.name))

    assert lines[0] == f"specdec plan: 2 server specs, 1 measurement, {head}"
    assert lines[1].startswith(first)


def test_an_empty_plan_says_nothing() -> None:
    assert build_plan([], lambda _: 1).lines() == []


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        (["a", "b", "a"], [0, 2, 1]),
        (["b", None, "a", None, "b", "a"], [0, 1, 4, 3, 2, 5]),
        ([None, None], [0, 1]),
        (["a", "a", "b"], [0, 1, 2]),
    ],
)
def test_equal_specs_become_neighbours_and_other_tests_stay_put(keys: list[str | None], order: list[int]) -> None:
    assert order_by_spec(keys) == order
