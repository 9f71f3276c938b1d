"""What a session will measure, from what its tests ask for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pytest_specdec.errors import UserInputError
from pytest_specdec.model import Measurement, Sampling, Workload
from pytest_specdec.plan import Plan, PlannedTest, build_plan, order_by_spec
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


def beside(
    server: ServerSpec, control: ServerSpec, *, nodeid: str | None = None, concurrency: int = 1, **known: Any
) -> PlannedTest:
    test = asks(nodeid or f"{server.name} beside {control.name} c{concurrency}", server, concurrency=concurrency)
    return dataclasses.replace(test, control=control, **known)


A, B, C, D, E = (spec(name, f"--tp {tp}") for tp, name in enumerate("abcde", start=1))


def test_a_pair_is_a_block_of_two_launches_of_each_spec_whatever_there_is_to_measure() -> None:
    plan = build_plan([beside(B, A), beside(B, A, concurrency=4), beside(B, A, nodeid="again")], lambda _: 1)

    (pair,) = plan.pairs
    assert (pair.control, pair.treatment) == (A, B)
    assert [one.measurement.key for one in pair.of_control] == ["a--chat--c1--o512", "a--chat--c4--o512"]
    assert [one.measurement.key for one in pair.of_treatment] == ["b--chat--c1--o512", "b--chat--c4--o512"]
    assert [(one.spec.name, one.launches, one.most_launches, one.nodeids == ()) for one in plan.specs] == [
        ("b", 2, 2, False),
        ("a", 2, 2, True),
    ]


def test_a_control_is_measured_as_its_treatment_is() -> None:
    test = beside(B, A, waived=frozenset({"retraction"}), rounds=7, warmup=2)

    (pair,) = build_plan([test, beside(B, A, nodeid="again")], lambda _: 1).pairs

    (of_control,), (of_treatment,) = pair.of_control, pair.of_treatment
    assert dataclasses.replace(of_control, measurement=of_treatment.measurement) == of_treatment
    assert (of_control.rounds, of_control.warmup, of_control.waived) == (7, 2, frozenset({"retraction"}))
    assert of_control.measurement == dataclasses.replace(of_treatment.measurement, spec=A)


def test_a_measurement_is_wanted_alone_where_a_test_has_no_control() -> None:
    plan = build_plan([beside(B, A), beside(B, A, concurrency=4), asks("t", B)], lambda _: 1)

    assert [(one.measurement.concurrency, one.alone) for one in plan.of(B).measurements] == [(1, True), (4, False)]


@pytest.mark.parametrize(
    ("tests", "launches"),
    [
        ([beside(B, A)], {"a": 2, "b": 2}),
        # A block's launches serve plain tests.
        ([asks("t", A), asks("u", B), beside(B, A)], {"a": 2, "b": 2}),
        ([asks("t", A, workload=None), beside(B, A)], {"a": 2, "b": 2}),
        # A block with each treatment.
        ([asks("t", A), beside(B, A), beside(C, A)], {"a": 4, "b": 2, "c": 2}),
        ([beside(B, A), beside(B, C)], {"a": 2, "b": 4, "c": 2}),
        ([beside(B, A), beside(C, B)], {"a": 2, "b": 4, "c": 2}),
        # A pair, and three specs by themselves: seven.
        (
            [asks("t", A), beside(B, A), asks("c", C), asks("d", D), asks("e", E)],
            {"a": 2, "b": 2, "c": 1, "d": 1, "e": 1},
        ),
    ],
)
def test_launches_are_counted_by_blocks_and_by_plain_tests(tests: list[PlannedTest], launches: dict[str, int]) -> None:
    plan = build_plan(tests, lambda _: 1)

    assert {one.spec.name: one.launches for one in plan.specs} == launches


@pytest.mark.parametrize(
    ("launches", "least", "first"), [(1, 4, 1), (2, 4, 1), (3, 4, 2), (4, 4, 2), (5, 5, 2), (9, 9, 2)]
)
def test_a_control_runs_as_many_blocks_first_as_serve_its_own_tests(launches: int, least: int, first: int) -> None:
    plan = build_plan([asks("t", A), beside(B, A), beside(C, A)], lambda _: launches)

    assert (plan.of(A).launches, plan.of(A).blocks_first) == (least, first)
    assert (plan.of(B).launches, plan.of(B).blocks_first) == (max(2, launches), 1)


@pytest.mark.parametrize(("most", "of_control", "of_treatment"), [(1, 4, 2), (2, 4, 2), (3, 5, 3), (4, 6, 4)])
def test_a_close_answer_comes_before_the_later_blocks_of_a_control(
    most: int, of_control: int, of_treatment: int
) -> None:
    plan = build_plan([asks("t", A), beside(B, A), beside(C, A)], lambda _: 1, lambda _: most)

    assert (plan.of(A).most_launches, plan.of(B).most_launches) == (of_control, of_treatment)


def test_a_test_that_measures_nothing_makes_no_pair() -> None:
    plan = build_plan([dataclasses.replace(asks("t", B, workload=None), control=A)], lambda _: 1)

    assert (plan.pairs, [one.spec.name for one in plan.specs]) == ((), ["b"])


def test_the_plan_tells_pairs_and_controls_with_what_they_cost() -> None:
    tests = [beside(B, A), beside(C, A), asks("d", D), asks("e", E, workload=None)]

    lines = build_plan(tests, lambda _: 1, lambda _: 3).lines(lambda _: 540.0)

    assert lines == [
        # 4 + 2 + 2 + 1 + 1 launches of nine minutes; three of each treatment and of d when answers are close.
        "specdec plan: 5 server specs, 4 measurements, 10 to 14 launches, about 90 to 126 min of loading",
        "  b: 2 to 3 launches of about 9 min; chat c1 o512 (5+1 rounds)",
        "  c: 2 to 3 launches of about 9 min; chat c1 o512 (5+1 rounds)",
        "  d: 1 to 3 launches of about 9 min; chat c1 o512 (5+1 rounds)",
        "  e: 1 launch of about 9 min; server only",
        "  a: 4 launches of about 9 min; control only",
        "  b beside a: a block A B B A",
        "  c beside a: a block A B B A",
    ]


def test_seven_launches_of_nine_minutes_are_about_63() -> None:
    tests = [asks("t", A), beside(B, A), *(asks(one.name, one) for one in (C, D, E))]

    head = build_plan(tests, lambda _: 1).lines(lambda _: 540.0)[0]

    assert head == "specdec plan: 5 server specs, 5 measurements, 7 launches, about 63 min of loading"


@pytest.mark.parametrize(
    "tests",
    [
        [asks("t1", A), beside(B, spec("a", "--tp 8"), nodeid="t2")],
        [beside(B, A, nodeid="t1"), beside(C, spec("a", "--tp 8"), nodeid="t2")],
        [beside(B, A, nodeid="t1"), asks("t2", spec("a", "--tp 8"))],
    ],
)
def test_a_control_has_its_name_for_itself_too(tests: list[PlannedTest]) -> None:
    with pytest.raises(UserInputError, match=r"two server specs are named 'a' but differ:\n  t1: .*\n  t2: "):
        build_plan(tests, lambda _: 1)


def test_a_control_s_measurement_has_its_baseline_path_for_itself_too() -> None:
    other = Workload(name="chat", prompts=(), content_hash="d" * 64)

    with pytest.raises(UserInputError, match=r"share the baseline a--chat--c1--o512\.json but differ in the content"):
        build_plan([asks("t1", A, workload=other), beside(B, A, nodeid="t2")], lambda _: 1)


def point(server: ServerSpec, *, of: str = "f", concurrency: int = 1, control: ServerSpec | None = None) -> PlannedTest:
    test = asks(f"{of}[{server.name}-{concurrency}]", server, concurrency=concurrency)
    return dataclasses.replace(test, sweep=of, control=control)


def names(plan: Plan) -> dict[str, list[str]]:
    return {sweep.name: [one.measurement.spec.name for one in sweep.points] for sweep in plan.sweeps}


def test_sweeps_are_grouped_by_function_and_by_all_of_a_measurement_but_its_spec() -> None:
    tests = [point(one, concurrency=concurrency) for one in (A, B) for concurrency in (1, 4)]
    tests += [point(B, of="g"), point(C, of="g"), point(D, of="alone"), asks("plain", E)]

    assert names(build_plan(tests, lambda _: 1)) == {
        "f chat--c1--o512": ["a", "b"],
        "f chat--c4--o512": ["a", "b"],
        "g chat--c1--o512": ["b", "c"],
    }


def test_a_point_that_two_tests_measure_is_one_point() -> None:
    again = dataclasses.replace(point(A), nodeid="f[again]", rounds=9)
    plan = build_plan([point(A), again, point(B)], lambda _: 1)

    assert names(plan) == {"f chat--c1--o512": ["a", "b"]}
    assert plan.sweeps[0].points[0].rounds == 9


def test_a_point_may_take_the_launches_of_a_sweep_and_other_specs_may_not() -> None:
    plan = build_plan([point(A), point(B), asks("c", C)], lambda _: 1, sweep_launches=3)

    assert [(one.spec.name, one.launches, one.most_launches) for one in plan.specs] == [
        ("a", 1, 3),
        ("b", 1, 3),
        ("c", 1, 1),
    ]
    assert plan.lines()[0].endswith("3 to 7 launches")
    assert plan.lines()[-1] == "  sweep f chat--c1--o512: 2 points, ranked"


def test_what_is_measured_together_has_one_that_stands_for_all() -> None:
    plan = build_plan(
        [beside(B, A), beside(C, A), point(C), point(D), asks("e", E), beside(spec("g"), spec("h", "--tp 8"))],
        lambda _: 1,
    )

    groups: dict[str, set[str]] = {}
    for one in plan.specs:
        groups.setdefault(plan.together()[one.spec.content_hash], set()).add(one.spec.name)

    assert sorted(map(sorted, groups.values())) == [["a", "b", "c", "d"], ["e"], ["g", "h"]]
    assert set(plan.together()) == {one.spec.content_hash for one in plan.specs}


def test_sweeps_that_share_specs_go_together_and_a_shared_control_does_not_join_them() -> None:
    tests = [point(A), point(B), point(B, of="g"), point(C, of="g"), point(D, of="h", control=A), point(E, of="h")]
    plan = build_plan(tests, lambda _: 1)

    assert [sweep.name.split()[0] for sweep in plan.sweeps_with(C)] == ["g", "f"]
    assert [sweep.name.split()[0] for sweep in plan.sweeps_with(E)] == ["h"]
    assert plan.sweeps_with(spec("other", "--tp 9")) == ()


def test_a_spec_that_is_not_planned_has_no_plan() -> None:
    with pytest.raises(KeyError, match="b"):
        build_plan([asks("t", A)], lambda _: 1).of(B)
