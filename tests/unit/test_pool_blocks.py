"""Control and treatment: which launches a block takes, whom they serve, and what a failure costs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_specdec.errors import LaunchError, MeasurementError, SpecdecError
from pytest_specdec.model import LaunchRounds
from pytest_specdec.plan import Plan, PlannedTest, build_plan
from pytest_specdec.pool import ServerPool
from pytest_specdec.spec import ServerSpec
from tests.unit.test_pool import World, want

A = ServerSpec.tiny("a")
B, C, D = (A.but(name, f"--tp {tp}") for name, tp in (("b", 2), ("c", 3), ("d", 4)))


def asks(spec: ServerSpec, concurrency: int | None = 1, *, control: ServerSpec | None = None) -> PlannedTest:
    """What a test asks for; without a concurrency it only borrows the server."""
    measurement = None if concurrency is None else want(spec, concurrency)
    nodeid = f"{spec.name} c{concurrency} beside {control}"
    return PlannedTest(nodeid=nodeid, spec=spec, measurement=measurement, rounds=1, warmup=0, control=control)


def plan_of(*tests: PlannedTest, launches: int = 1, most: int | None = None) -> Plan:
    return build_plan(tests, lambda _: launches, lambda _: most or launches)


def ask(pool: ServerPool, test: PlannedTest) -> Sequence[LaunchRounds]:
    """Ask as a session does; returns the launches of the measurement."""
    measurement, control = test.measurement, test.control_measurement
    if measurement is None:
        pool.server(test.spec)
        return ()
    launches = pool.measured(measurement)
    if control is not None:
        pool.beside(measurement, control)
    return launches


def ask_all(pool: ServerPool, tests: Sequence[PlannedTest], *, times: int = 2) -> dict[str, str | int]:
    """Ask for every test, and again; returns how many launches each has, or what it is told."""
    said: dict[str, str | int] = {}
    for test in times * tuple(tests):
        told: str | int
        try:
            told = len(ask(pool, test))
        except SpecdecError as error:
            told = str(error)
        assert said.setdefault(test.nodeid, told) == told, "an answer stays what it is"
    return said


def indexes(launches: Sequence[LaunchRounds]) -> list[tuple[str, int]]:
    return [(one.launch.spec_name, one.launch.index) for one in launches]


def test_a_block_is_a_b_b_a_and_a_control_that_nothing_else_wants_is_stopped() -> None:
    world = World()
    pool = world.pool_of(plan_of(asks(B, control=A)))

    legs = pool.beside(want(B, 1), want(A, 1))

    assert world.events == [
        *("start a 0", "measure a c1", "stop a"),
        *("start b 0", "measure b c1", "stop b"),
        *("start b 1", "measure b c1", "stop b"),
        *("start a 1", "measure a c1", "stop a"),
    ]
    assert indexes(legs.control) == [("a", 0), ("a", 1)]
    assert indexes(legs.treatment) == [("b", 0), ("b", 1)]
    assert pool.launch_count == 4


def test_all_measurements_of_a_pair_share_its_block() -> None:
    world = World()
    tests = [asks(B, 1, control=A), asks(B, 4, control=A)]

    assert set(ask_all(world.pool_of(plan_of(*tests)), tests).values()) == {2}

    assert world.starts == ["a 0", "b 0", "b 1", "a 1"]
    assert [event for event in world.events if event.startswith("measure")] == [
        f"measure {name} c{concurrency}" for name in "abba" for concurrency in (1, 4)
    ]


def test_the_launches_of_a_block_serve_the_plain_tests_of_both_specs() -> None:
    world = World()
    tests = [asks(A, 1), asks(A, 8), asks(A, None), asks(B, 1, control=A), asks(B, 4)]
    pool = world.pool_of(plan_of(*tests))

    said = ask_all(pool, tests)

    assert world.starts == ["a 0", "b 0", "b 1", "a 1"]
    # What only plain tests want is taken as often as they want it.
    assert [world.events.count(f"measure {one}") for one in ("a c1", "a c8", "b c1", "b c4")] == [2, 1, 2, 1]
    assert list(said.values()) == [2, 1, 0, 2, 1]
    assert world.events[-1] == "measure a c1", "a server that tests of its own use stays up"


def test_the_first_block_serves_a_control_s_own_tests_and_later_ones_change_nothing_of_them() -> None:
    world = World()
    tests = [asks(A), asks(B, control=A), asks(C, control=A)]
    pool = world.pool_of(plan_of(*tests))

    before = pool.measured(want(A, 1))
    assert world.starts == ["a 0", "b 0", "b 1", "a 1"]
    ask_all(pool, tests)

    assert world.starts == ["a 0", "b 0", "b 1", "a 1", "a 2", "c 0", "c 1", "a 3"]
    assert indexes(before) == indexes(pool.measured(want(A, 1))) == [("a", 0), ("a", 1)]
    assert indexes(pool.beside(want(C, 1), want(A, 1)).control) == [("a", 2), ("a", 3)]
    assert indexes(pool.beside(want(B, 1), want(A, 1)).control) == [("a", 0), ("a", 1)]


SUITES = {
    "control first": [asks(A), asks(B, control=A), asks(C, control=A)],
    "control last": [asks(B, control=A), asks(C, control=A), asks(A)],
    "control between": [asks(B, control=A), asks(A), asks(C, control=A)],
    "borrowed": [asks(A, None), asks(B, control=A), asks(C, control=A)],
    "only beside": [asks(B, control=A), asks(C, control=A)],
    "a treatment is a control too": [asks(B), asks(B, control=A), asks(C, control=B), asks(A)],
    "two controls": [asks(B, control=A), asks(B, control=C)],
}


@pytest.mark.parametrize("launches", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("suite", SUITES)
def test_there_are_as_many_launches_as_the_plan_says(suite: str, launches: int) -> None:
    world = World()
    plan = plan_of(*SUITES[suite], launches=launches)

    ask_all(world.pool_of(plan), SUITES[suite], times=1)

    taken = {one.spec.name: sum(start.startswith(one.spec.name) for start in world.starts) for one in plan.specs}
    assert taken == {one.spec.name: one.launches for one in plan.specs}


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("suite", SUITES)
def test_close_answers_take_no_more_launches_than_the_plan_says(suite: str, most: int) -> None:
    world = World(clear_after={1: most})
    plan = plan_of(*SUITES[suite], most=most)

    ask_all(world.pool_of(plan), SUITES[suite], times=1)

    for one in plan.specs:
        taken = sum(start.startswith(one.spec.name) for start in world.starts)
        assert one.launches <= taken <= one.most_launches, one.spec.name


def test_a_block_that_comes_after_a_close_answer_adds_its_launches_to_the_most() -> None:
    world = World(clear_after={1: 3})
    tests = SUITES["control first"]
    plan = plan_of(*tests, most=3)

    ask_all(world.pool_of(plan), tests)

    assert sum(start.startswith("a") for start in world.starts) == plan.of(A).most_launches == 5


#: Of each launch that fails: what is launched in all, and what plain tests have (1 launch, or the failure).
FAILED_LEGS = [
    ("a 0", ["a 0", "b 0"], {"a c8": "a did not start", "b c8": 1}),
    ("b 0", ["a 0", "b 0"], {"a c8": 1, "b c8": "b did not start"}),
    ("b 1", ["a 0", "b 0", "b 1"], {"a c8": 1, "b c8": 1}),
    ("a 1", ["a 0", "b 0", "b 1", "a 1"], {"a c8": 1, "b c8": 1}),
]


@pytest.mark.parametrize(("failed", "starts", "plain"), FAILED_LEGS)
def test_a_launch_that_fails_ends_its_block_and_takes_nothing_from_plain_tests(
    failed: str, starts: list[str], plain: dict[str, str | int]
) -> None:
    world = World(fails={failed})
    tests = [asks(B, 1, control=A), asks(B, 4, control=A), asks(A, 8), asks(B, 8)]

    said = ask_all(world.pool_of(plan_of(*tests)), tests)

    reason = f"{failed[0]} did not start"
    assert said == {
        "b c1 beside a": reason,
        "b c4 beside a": reason,
        "a c8 beside None": plain["a c8"],
        "b c8 beside None": plain["b c8"],
    }
    assert world.starts == starts


def test_a_plain_test_keeps_the_launch_that_it_asked_for_when_the_block_wants_the_same_measurement() -> None:
    world = World(fails={"b 1"})
    plain, beside = asks(B), asks(B, control=A)
    pool = world.pool_of(plan_of(beside, plain))

    assert indexes(ask(pool, plain)) == [("b", 0)]
    with pytest.raises(LaunchError, match="b did not start"):
        ask(pool, beside)


def test_a_plain_test_that_wants_more_launches_than_there_were_is_told_of_the_failure() -> None:
    world = World(fails={"b 1"})
    plain = asks(B)
    pool = world.pool_of(plan_of(asks(B, control=A), plain, launches=2))

    with pytest.raises(LaunchError, match="b did not start"):
        ask(pool, plain)


@pytest.mark.parametrize("failed", ["a 0 c4", "b 0 c4", "b 1 c4", "a 1 c4"])
def test_a_measurement_that_can_not_be_taken_on_one_leg_does_not_end_the_others(failed: str) -> None:
    world = World(fails={failed})
    tests = [asks(B, 1, control=A), asks(B, 4, control=A)]
    pool = world.pool_of(plan_of(*tests))

    with pytest.raises(MeasurementError, match="no tokens"):
        pool.beside(want(B, 4), want(A, 4))
    assert indexes(pool.beside(want(B, 1), want(A, 1)).control) == [("a", 0), ("a", 1)]

    assert world.starts == ["a 0", "b 0", "b 1", "a 1"]
    legs = ["a 0 c4", "b 0 c4", "b 1 c4", "a 1 c4"]
    measured = sum(world.events.count(f"measure {name} c4") for name in "ab")
    assert measured == legs.index(failed) + 1, "what one leg lacks makes the others useless"


def test_a_block_of_which_nothing_is_left_is_not_gone_on_with() -> None:
    world = World(fails={"a 0 c1"})
    tests = [asks(B, control=A), asks(B, 4)]

    said = ask_all(world.pool_of(plan_of(*tests)), tests)

    assert said == {"b c1 beside a": "no tokens", "b c4 beside None": 1}
    assert world.starts == ["a 0", "b 0"]
    assert world.events[2] == "stop a"


def test_a_server_that_dies_in_a_leg_is_told_once_with_its_launch() -> None:
    world = World(dies={"b 1 c1"})
    tests = [asks(B, 1, control=A), asks(B, 4, control=A), asks(A)]

    said = ask_all(world.pool_of(plan_of(*tests)), tests)

    assert said == {"b c1 beside a": "b died", "b c4 beside a": "b died", "a c1 beside None": 1}
    assert world.deaths == ["b 1: b died"]
    assert world.starts == ["a 0", "b 0", "b 1"]


def test_a_treatment_that_is_refused_costs_no_launch_of_its_control() -> None:
    world = World(refused={"b"})
    tests = [asks(B, control=A)]

    assert ask_all(world.pool_of(plan_of(*tests)), tests) == {"b c1 beside a": "b is refused"}

    assert (world.starts, world.checked) == ([], ["a", "b"])


@pytest.mark.parametrize("plain", [asks(A, 1), asks(A, 4), asks(A, None)])
def test_a_control_that_is_refused_is_not_launched_for_its_plain_tests_either(plain: PlannedTest) -> None:
    world = World(refused={"a"})
    tests = [plain, asks(B, control=A), asks(B, 4)]

    said = ask_all(world.pool_of(plan_of(*tests)), tests)

    assert said == {plain.nodeid: "a is refused", "b c1 beside a": "a is refused", "b c4 beside None": 1}
    assert (world.starts, world.checked) == (["b 0"], ["a"])


def test_a_refusal_after_a_control_was_measured_leaves_what_was_measured() -> None:
    world = World()
    tests = [asks(A, 1), asks(A, 8), asks(B, control=A), asks(C, control=A)]
    pool = world.pool_of(plan_of(*tests))
    ask(pool, tests[2])
    world.refused.add("a")

    assert [len(ask(pool, test)) for test in tests[:2]] == [2, 1]
    with pytest.raises(LaunchError, match="a is refused"):
        ask(pool, tests[3])
    assert [len(ask(pool, test)) for test in tests[:2]] == [2, 1]
    assert world.starts == ["a 0", "b 0", "b 1", "a 1"]


@pytest.mark.parametrize(
    ("failed", "starts"),
    [("a 0", ["a 0"]), ("a 2", ["a 0", "b 0", "b 1", "a 1", "a 2"])],
)
def test_a_control_that_failed_is_not_launched_for_another_treatment(failed: str, starts: list[str]) -> None:
    world = World(fails={failed})
    tests = [asks(A), *(asks(treatment, control=A) for treatment in (B, C, D))]

    said = ask_all(world.pool_of(plan_of(*tests)), tests)

    assert said["d c1 beside a"] == said["c c1 beside a"] == "a did not start"
    assert said["a c1 beside None"] == ("a did not start" if failed == "a 0" else 2)
    assert world.starts == starts


def test_a_control_that_fails_takes_nothing_from_what_is_beside_another_one() -> None:
    world = World(fail_start={"a"})
    tests = [asks(B, control=A), asks(B, control=C)]

    said = ask_all(world.pool_of(plan_of(*tests)), tests)

    assert said == {"b c1 beside a": "a did not start", "b c1 beside c": 2}
    assert world.starts == ["a 0", "c 0", "b 0", "b 1", "c 1"]


def test_a_recording_takes_the_launches_that_a_block_lacks() -> None:
    world = World()
    pool = world.pool_of(plan_of(asks(B, control=A), launches=5))

    launches = pool.measured(want(B, 1))

    assert indexes(launches) == [("b", index) for index in range(5)]
    assert world.starts == ["a 0", "b 0", "b 1", "a 1", "b 2", "b 3", "b 4"]


def test_a_recording_takes_no_further_launch_for_a_block_that_failed() -> None:
    world = World(fails={"a 1"})
    tests = [asks(B, control=A)]

    ask_all(world.pool_of(plan_of(*tests, launches=5)), tests)

    assert world.starts == ["a 0", "b 0", "b 1", "a 1"]


def test_the_same_error_is_raised_each_time() -> None:
    pool = World(fails={"b 0"}).pool_of(plan_of(asks(B, control=A)))
    caught = []
    for _ in range(2):
        for raises in (lambda: pool.measured(want(B, 1)), lambda: pool.beside(want(B, 1), want(A, 1))):
            with pytest.raises(LaunchError) as error:
                raises()
            caught.append(error.value)

    assert all(error is caught[0] for error in caught)
