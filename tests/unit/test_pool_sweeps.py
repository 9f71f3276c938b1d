"""Sweeps: every point once, then those that may still be the best; nothing for a point that failed."""

from __future__ import annotations

import pytest

from pytest_specdec.errors import LaunchError
from pytest_specdec.plan import Plan, PlannedTest, build_plan
from pytest_specdec.pool import ServerPool
from pytest_specdec.spec import ServerSpec
from tests.unit.test_pool import World, want

A = ServerSpec.tiny("a")
B, C, D = (A.but(name, f"--tp {tp}") for name, tp in (("b", 2), ("c", 3), ("d", 4)))


def point(
    spec: ServerSpec, concurrency: int = 1, *, of: str | None = "t", control: ServerSpec | None = None
) -> PlannedTest:
    """A test of one point of a sweep; of None: a plain test."""
    return PlannedTest(
        nodeid=f"{of}[{spec.name}-{concurrency}]",
        spec=spec,
        measurement=want(spec, concurrency),
        rounds=1,
        warmup=0,
        control=control,
        sweep=of,
    )


def plan_of(*tests: PlannedTest, launches: int = 1, most: int = 3) -> Plan:
    return build_plan(tests, lambda _: launches, sweep_launches=most)


def ask_all(pool: ServerPool, *tests: PlannedTest) -> list[int]:
    """Ask for each test's measurement; returns how many launches it has."""
    return [len(pool.measured(test.measurement)) for test in tests if test.measurement is not None]


def test_every_point_is_launched_once_and_then_again_those_that_may_be_the_best() -> None:
    world = World(passes=[{"a", "c"}, {"c"}])
    tests = [point(A), point(B), point(C)]

    assert ask_all(world.pool_of(plan_of(*tests)), *tests) == [2, 1, 3]

    assert world.starts == ["a 0", "b 0", "c 0", "a 1", "c 1", "c 2"]


def test_the_first_that_asks_has_its_whole_sweep_taken_and_the_others_launch_nothing() -> None:
    world = World(passes=[{"b"}])
    pool = world.pool_of(plan_of(point(A), point(B), point(C, of=None)))

    pool.measured(want(B, 1))
    assert world.starts == ["a 0", "b 0", "b 1"]
    pool.measured(want(A, 1))

    assert world.starts == ["a 0", "b 0", "b 1"]


@pytest.mark.parametrize("failure", ["b 0", "b 0 c1"])
def test_a_point_that_failed_takes_no_further_launch_and_the_others_do(failure: str) -> None:
    world = World(fails={failure}, passes=[{"a", "b"}, {"b"}])
    plan = plan_of(point(A), point(B))
    pool = world.pool_of(plan)

    assert len(pool.measured(want(A, 1))) == 2

    assert world.starts == ["a 0", "b 0", "a 1"]
    failed = pool.points(plan.sweeps[0])[want(B, 1).key]
    assert isinstance(failed, Exception)


def test_a_point_whose_further_launch_fails_has_failed() -> None:
    world = World(fails={"b 1"}, passes=[{"a", "b"}, {"a", "b"}])
    plan = plan_of(point(A), point(B))
    pool = world.pool_of(plan)

    assert ask_all(pool, point(A)) == [3]
    with pytest.raises(LaunchError, match="b did not start"):
        pool.measured(want(B, 1))

    assert world.starts == ["a 0", "b 0", "a 1", "b 1", "a 2"]


def test_no_point_takes_more_launches_than_the_plan_says_whatever_is_asked_for() -> None:
    world = World(passes=10 * [{"a", "b"}])
    plan = plan_of(point(A), point(B), most=2)

    assert ask_all(world.pool_of(plan), point(A), point(B)) == [2, 2]

    assert [one.most_launches for one in plan.specs] == [2, 2]


def test_sweeps_over_the_same_specs_share_their_launches() -> None:
    """One test function at two concurrencies is two sweeps: the first pass and each further one serve both."""
    world = World(passes=[{"a", "b"}, {"a"}])
    tests = [point(spec, concurrency) for spec in (A, B) for concurrency in (1, 4)]
    plan = plan_of(*tests)

    assert [sweep.name for sweep in plan.sweeps] == ["t chat--c1--o512", "t chat--c4--o512"]
    assert ask_all(world.pool_of(plan), *tests) == [3, 3, 2, 2]

    assert world.starts == ["a 0", "b 0", "a 1", "b 1", "a 2"]


def test_a_measurement_in_two_sweeps_is_taken_once_a_launch() -> None:
    world = World(passes=[{"a", "b", "c"}])
    tests = [point(A), point(B), point(A, of="u"), point(C, of="u")]

    assert ask_all(world.pool_of(plan_of(*tests)), *tests) == [2, 2, 2, 2]

    assert world.starts == ["a 0", "b 0", "c 0", "a 1", "b 1", "c 1"]


def test_a_sweep_leaves_what_is_in_none_alone() -> None:
    world = World()
    tests = [point(A), point(B), point(A, 4, of=None), point(D, of=None)]
    pool = world.pool_of(plan_of(*tests))

    pool.measured(want(A, 1))

    assert world.events == [
        *("start a 0", "measure a c1", "measure a c4", "stop a"),
        *("start b 0", "measure b c1"),
    ]


def test_points_beside_a_control_have_their_blocks_first() -> None:
    world = World(passes=[{"b"}])
    tests = [point(B, control=A), point(C, control=A)]
    plan = plan_of(*tests)

    assert ask_all(world.pool_of(plan), *tests) == [3, 2]

    assert world.starts == ["a 0", "b 0", "b 1", "a 1", "a 2", "c 0", "c 1", "a 3", "b 2"]
    assert [(one.spec.name, one.launches, one.most_launches) for one in plan.specs] == [
        ("b", 2, 3),
        ("c", 2, 3),
        ("a", 4, 4),
    ]


def test_of_what_was_not_measured_there_is_nothing_and_asking_launches_nothing() -> None:
    world = World()
    plan = plan_of(point(A), point(B))
    (sweep,) = plan.sweeps

    assert world.pool_of(plan).points(sweep) == {want(A, 1).key: (), want(B, 1).key: ()}

    assert world.events == []


def test_the_points_are_what_each_measurement_has() -> None:
    world = World(fail_start={"b"}, passes=[{"a"}])
    plan = plan_of(point(A), point(B))
    pool = world.pool_of(plan)
    measured = pool.measured(want(A, 1))

    found = pool.points(plan.sweeps[0])

    assert found[want(A, 1).key] == measured
    with pytest.raises(LaunchError, match="b did not start") as caught:
        pool.measured(want(B, 1))
    assert found[want(B, 1).key] is caught.value
