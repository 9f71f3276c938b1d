"""How often servers are launched, and what a failure costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from pytest_specdec.errors import InfrastructureError, LaunchError, MeasurementError, SpecdecError
from pytest_specdec.model import LaunchRecord, LaunchRounds, Measurement, Workload
from pytest_specdec.plan import Plan, PlannedMeasurement, PlannedTest, Sweep, build_plan
from pytest_specdec.pool import Keep, Served, ServerPool
from pytest_specdec.spec import ServerSpec
from tests.fakes.samples import one_round, sample

CHAT = Workload(name="chat", prompts=(), content_hash="c" * 64)
A, B = ServerSpec.tiny("a"), ServerSpec.tiny("b", "--tp 2")


def record(spec: ServerSpec, index: int, *, adopted: bool = False) -> LaunchRecord:
    return LaunchRecord(
        index=index,
        spec_name=spec.name,
        spec_hash=spec.content_hash,
        command="",
        host="here",
        node="cpu-x-2c",
        started_unix_s=0.0,
        ready_s=1.0,
        log_path="",
        sglang_version=None,
        drafting=False,
        server_args={},
        facts={},
        adopted=adopted,
    )


class FakeServed:
    def __init__(self, world: World, spec: ServerSpec, index: int) -> None:
        self.record = record(spec, index, adopted=spec.name in world.kept)
        self.world = world
        self.name = spec.name
        self.dead = False

    def check_alive(self) -> None:
        if self.dead:
            raise LaunchError(f"{self.name} died")

    def stop(self) -> None:
        self.world.events.append(f"stop {self.name}")


@dataclass
class World:
    """Counts what a pool does, and fails where it is told to."""

    events: list[str] = field(default_factory=list)
    fail_start: set[str] = field(default_factory=set)
    fail_measure: set[int] = field(default_factory=set)
    die_measure: set[int] = field(default_factory=set)
    #: The server dies in the last round, or only requests fail.
    die_late: set[int] = field(default_factory=set)
    lose_requests: set[int] = field(default_factory=set)
    #: Names of specs whose servers an earlier session has left up.
    kept: set[str] = field(default_factory=set)
    #: By concurrency, after how many launches an answer is clear; one that is not here never asks for more.
    clear_after: dict[int, int] = field(default_factory=dict)
    #: Indexes of launches that fail.
    fail_launch: set[int] = field(default_factory=set)
    #: Single launches ("b 1") and measurements ("b 1 c4") that fail, and measurements in which the server dies.
    fails: set[str] = field(default_factory=set)
    dies: set[str] = field(default_factory=set)
    #: Names of specs that are refused without a launch.
    refused: set[str] = field(default_factory=set)
    #: Pass after pass, the names of the points of sweeps that may still be the best.
    passes: list[set[str]] = field(default_factory=list)
    passed: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)

    @property
    def starts(self) -> list[str]:
        """The launches in order: a spec's name and the index among its own."""
        return [event.removeprefix("start ") for event in self.events if event.startswith("start ")]

    def start(self, spec: ServerSpec, index: int) -> FakeServed:
        self.events.append(f"start {spec.name} {index}")
        if spec.name in self.fail_start or index in self.fail_launch or f"{spec.name} {index}" in self.fails:
            raise LaunchError(f"{spec.name} did not start")
        return FakeServed(self, spec, index)

    def measure(self, served: Served, planned: PlannedMeasurement) -> LaunchRounds:
        concurrency = planned.measurement.concurrency
        self.events.append(f"measure {served.record.spec_name} c{concurrency}")
        this = f"{served.record.spec_name} {served.record.index} c{concurrency}"
        if concurrency in self.die_measure or this in self.dies:
            assert isinstance(served, FakeServed)
            served.dead = True
            raise MeasurementError("connection dropped")
        if concurrency in self.fail_measure or this in self.fails:
            raise MeasurementError("no tokens")
        lost = one_round(sample(error="the connection ended"))
        if concurrency in self.die_late:
            assert isinstance(served, FakeServed)
            served.dead = True
        rounds = (lost,) if concurrency in self.die_late | self.lose_requests else ()
        return LaunchRounds(launch=served.record, warmup=(), rounds=rounds)

    def wants_more(self, planned: PlannedMeasurement, launches: tuple[LaunchRounds, ...]) -> bool:
        concurrency = planned.measurement.concurrency
        self.asked.append(f"c{concurrency} after {len(launches)}")
        assert [one.launch.spec_name for one in launches] == len(launches) * [planned.measurement.spec.name]
        return len(launches) < self.clear_after.get(concurrency, 0)

    def check(self, spec: ServerSpec) -> None:
        self.checked.append(spec.name)
        if spec.name in self.refused:
            raise LaunchError(f"{spec.name} is refused")

    def died(self, spec: ServerSpec, index: int, error: InfrastructureError) -> None:
        self.deaths.append(f"{spec.name} {index}: {error}")

    def contending(
        self, sweep: Sweep, _taken: Mapping[str, tuple[LaunchRounds, ...] | SpecdecError]
    ) -> list[PlannedMeasurement]:
        done = self.passed.get(sweep.name, 0)
        self.passed[sweep.name] = done + 1
        named = self.passes[done] if done < len(self.passes) else set()
        return [point for point in sweep.points if point.measurement.spec.name in named]

    def keep(self, served: Served) -> None:
        self.events.append(f"keep {served.record.spec_name}")

    def pool(
        self, *wanted: tuple[ServerSpec, int | None], launches: int = 1, keeps: bool = False, keeps_late: bool = True
    ) -> ServerPool:
        tests = [
            PlannedTest(
                nodeid=f"t{i}",
                spec=spec,
                measurement=None if c is None else want(spec, c),
                rounds=1,
                warmup=0,
            )
            for i, (spec, c) in enumerate(wanted)
        ]
        keep = self.keep if keeps else None
        return self.pool_of(build_plan(tests, lambda _: launches), keep=keep, keeps_late=keeps_late)

    def pool_of(self, plan: Plan, *, keep: Keep | None = None, keeps_late: bool = True) -> ServerPool:
        return ServerPool(
            plan,
            start=self.start,
            measure=self.measure,
            wants_more=self.wants_more,
            contending=self.contending,
            check=self.check,
            died=self.died,
            keep=keep,
            keeps_late=keeps_late,
        )


def want(spec: ServerSpec, concurrency: int) -> Measurement:
    return Measurement(spec=spec, workload=CHAT, concurrency=concurrency)


def test_one_launch_takes_every_measurement_of_its_spec() -> None:
    world = World()
    pool = world.pool((A, 1), (A, 4), (A, 1))

    pool.measured(want(A, 4))
    pool.measured(want(A, 1))

    assert world.events == ["start a 0", "measure a c1", "measure a c4"]


def test_another_spec_stops_the_server_that_runs() -> None:
    world = World()
    pool = world.pool((A, 1), (B, 1))

    pool.measured(want(A, 1))
    pool.measured(want(B, 1))
    pool.close()

    assert world.events == ["start a 0", "measure a c1", "stop a", "start b 0", "measure b c1", "stop b"]
    assert pool.launch_count == 2


def test_several_launches_are_separate_starts() -> None:
    world = World()
    pool = world.pool((A, 1), launches=3)

    rounds = pool.measured(want(A, 1))

    assert [one.launch.index for one in rounds] == [0, 1, 2]
    assert world.events.count("stop a") == 2


def test_free_use_comes_after_the_measurements_on_the_same_launch() -> None:
    world = World()
    pool = world.pool((A, None), (A, 1))

    served = pool.server(A)

    assert served.record.spec_name == "a"
    assert world.events == ["start a 0", "measure a c1"]
    assert pool.server(A) is served


def test_free_use_after_the_server_was_stopped_starts_it_again_unmeasured() -> None:
    world = World()
    pool = world.pool((A, 1), (B, 1))
    pool.measured(want(A, 1))
    pool.measured(want(B, 1))

    assert pool.server(A).record.index == 1

    assert world.events[-2:] == ["stop b", "start a 1"]


def test_a_launch_that_failed_is_paid_once_and_told_to_every_test() -> None:
    world = World(fail_start={"a"})
    pool = world.pool((A, 1), (A, 4), (A, None))

    for concurrency in (1, 4):
        with pytest.raises(LaunchError, match="a did not start"):
            pool.measured(want(A, concurrency))
    with pytest.raises(LaunchError, match="a did not start"):
        pool.server(A)

    assert world.events == ["start a 0"]


def test_a_measurement_that_fails_leaves_the_others_alone() -> None:
    world = World(fail_measure={4})
    pool = world.pool((A, 4), (A, 1))

    with pytest.raises(MeasurementError, match="no tokens"):
        pool.measured(want(A, 4))

    assert len(pool.measured(want(A, 1))) == 1
    assert world.events == ["start a 0", "measure a c4", "measure a c1"]


def test_a_server_that_dies_while_measuring_is_the_reason_for_all_that_is_left() -> None:
    world = World(die_measure={4})
    pool = world.pool((A, 1), (A, 4), (A, 8))

    assert len(pool.measured(want(A, 1))) == 1
    for concurrency in (4, 8):
        with pytest.raises(LaunchError, match="a died"):
            pool.measured(want(A, concurrency))

    assert world.events == ["start a 0", "measure a c1", "measure a c4", "stop a"]


def test_a_server_that_died_in_the_last_round_is_the_reason_and_not_its_requests() -> None:
    world = World(die_late={4}, lose_requests={1})
    pool = world.pool((A, 1), (A, 4), (A, 8))

    assert len(pool.measured(want(A, 1))) == 1, "requests that fail on a server that lives are judged"
    for concurrency in (4, 8):
        with pytest.raises(LaunchError, match="a died"):
            pool.measured(want(A, concurrency))

    assert world.events == ["start a 0", "measure a c1", "measure a c4", "stop a"]


def test_finished_stops_only_the_spec_that_is_named() -> None:
    world = World()
    pool = world.pool((A, 1), (B, 1))
    pool.measured(want(A, 1))

    pool.finished(B)
    assert "stop a" not in world.events
    pool.finished(A)

    assert world.events[-1] == "stop a"
    pool.close()
    assert world.events.count("stop a") == 1


def test_only_the_last_server_is_kept_and_only_at_the_end() -> None:
    world = World()
    pool = world.pool((A, 1), (B, 1), keeps=True)
    pool.measured(want(A, 1))
    pool.finished(A)
    pool.measured(want(B, 1))
    pool.finished(B)
    assert world.events[2:] == ["stop a", "start b 0", "measure b c1"]

    pool.close()
    pool.close()

    assert world.events[5:] == ["keep b"]


def test_where_others_wait_for_the_host_a_server_is_kept_as_soon_as_it_is_done_with() -> None:
    world = World()
    pool = world.pool((A, 1), keeps=True, keeps_late=False)
    pool.measured(want(A, 1))

    pool.finished(A)

    assert world.events[-1] == "keep a"


def test_between_launches_of_one_spec_nothing_is_kept() -> None:
    world = World()
    world.pool((A, 1), launches=2, keeps=True).measured(want(A, 1))

    assert [event for event in world.events if "measure" not in event] == ["start a 0", "stop a", "start a 1"]


def test_a_server_that_died_is_not_kept() -> None:
    world = World(die_measure={1})
    pool = world.pool((A, 1), keeps=True)
    with pytest.raises(LaunchError, match="a died"):
        pool.measured(want(A, 1))

    pool.close()

    assert world.events[-1] == "stop a"


def test_an_adopted_server_is_no_launch_of_this_session() -> None:
    world = World(kept={"a"})
    pool = world.pool((A, 1), (B, 1))
    pool.measured(want(A, 1))
    pool.measured(want(B, 1))

    assert pool.launch_count == 1


def test_after_the_planned_launches_it_is_asked_whether_an_answer_is_too_close() -> None:
    world = World()
    pool = world.pool((A, 1), (A, 4), launches=2)

    pool.measured(want(A, 1))
    pool.measured(want(A, 4))

    assert world.asked == ["c1 after 2", "c4 after 2"]
    assert pool.launch_count == 2


def test_only_what_is_too_close_is_measured_again_until_it_is_not() -> None:
    world = World(clear_after={4: 3, 8: 2})
    pool = world.pool((A, 1), (A, 4), (A, 8))

    assert [len(pool.measured(want(A, concurrency))) for concurrency in (1, 4, 8)] == [1, 3, 2]

    assert world.events == [
        *("start a 0", "measure a c1", "measure a c4", "measure a c8", "stop a"),
        *("start a 1", "measure a c4", "measure a c8", "stop a"),
        *("start a 2", "measure a c4"),
    ]
    assert [one.launch.index for one in pool.measured(want(A, 4))] == [0, 1, 2]
    assert world.asked[-3:] == ["c1 after 1", "c4 after 3", "c8 after 2"]


def test_the_further_launches_of_one_spec_come_before_another_spec() -> None:
    world = World(clear_after={1: 2})
    pool = world.pool((A, 1), (B, 4))

    pool.measured(want(A, 1))
    pool.measured(want(B, 4))

    assert [event for event in world.events if event.startswith("start")] == ["start a 0", "start a 1", "start b 0"]


def test_a_further_launch_that_fails_is_the_reason_for_those_that_wanted_it() -> None:
    world = World(clear_after={4: 2}, fail_launch={1})
    pool = world.pool((A, 1), (A, 4))

    with pytest.raises(LaunchError, match="a did not start"):
        pool.measured(want(A, 4))

    assert len(pool.measured(want(A, 1))) == 1
    assert [event for event in world.events if event.startswith("start")] == ["start a 0", "start a 1"]
    assert world.asked == ["c1 after 1", "c4 after 1"], "nothing is asked after a failure"


def test_a_further_measurement_that_fails_leaves_the_others_their_launches() -> None:
    class Second(World):
        def measure(self, served: Served, planned: PlannedMeasurement) -> LaunchRounds:
            self.fail_measure = {4} if served.record.index == 1 else set()
            return super().measure(served, planned)

    world = Second(clear_after={4: 3, 8: 3})
    pool = world.pool((A, 4), (A, 8))

    with pytest.raises(MeasurementError, match="no tokens"):
        pool.measured(want(A, 4))
    assert len(pool.measured(want(A, 8))) == 3
    assert not any(asked.startswith("c4") for asked in world.asked[2:])


def test_nothing_is_asked_of_what_could_not_be_measured() -> None:
    for world in (World(fail_start={"a"}), World(fail_measure={1}), World(die_measure={1})):
        with pytest.raises((LaunchError, MeasurementError)):
            world.pool((A, 1)).measured(want(A, 1))
        assert world.asked == []


def test_a_server_for_free_use_that_does_not_start_again_is_not_tried_a_third_time() -> None:
    world = World(fails={"a 1"})
    pool = world.pool((A, 1), (B, 1))
    pool.measured(want(A, 1))
    pool.measured(want(B, 1))

    for _ in range(2):
        with pytest.raises(LaunchError, match="a did not start"):
            pool.server(A)

    assert world.starts == ["a 0", "b 0", "a 1"]


def test_a_server_that_dies_while_it_is_measured_is_told_once() -> None:
    world = World(dies={"a 1 c4"})
    pool = world.pool((A, 1), (A, 4), (A, 8), launches=2)

    for concurrency in (4, 8):
        with pytest.raises(LaunchError, match="a died"):
            pool.measured(want(A, concurrency))

    assert world.deaths == ["a 1: a died"]


def test_a_server_for_free_use_is_the_one_of_the_last_launch() -> None:
    world = World(clear_after={1: 2})
    pool = world.pool((A, 1), (A, None))

    assert pool.server(A).record.index == 1
    assert world.events == ["start a 0", "measure a c1", "stop a", "start a 1", "measure a c1"]
