"""What a session judges by: one budget for all its gated metrics, and whether another launch is worth it.

How bounds are worked out is told in tests/fakes/judged.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_specdec.baseline import Baseline, Identity, read_baseline, write_baseline
from pytest_specdec.fingerprint import NodeFacts
from pytest_specdec.judging import Judging
from pytest_specdec.model import LaunchRounds, Measurement, MetricVerdict, Verdict
from pytest_specdec.observed import GpuProcess, GpuSpan, GpuState
from pytest_specdec.plan import PlannedMeasurement, PlannedTest, build_plan
from pytest_specdec.pool import Legs
from pytest_specdec.results import BenchmarkResult
from pytest_specdec.serving import Serving
from pytest_specdec.spec import ServerSpec
from tests.fakes.judged import NODE, PROVENANCE, alarm, five, half_width, metric
from tests.fakes.samples import launch_record, measurement, one_round, sample
from tests.unit.test_declare import settings

#: 39 tokens after the first chunk in 13 verify steps: the accept length is 3 at every speed.
ACCEPT_LENGTH = 3.0


class FakeServing:
    """What judging asks of serving."""

    node = NodeFacts(slug=NODE, kind="cuda", facts={})
    git_commit = None


def want(concurrency: int) -> Measurement:
    return measurement("one", concurrency=concurrency)


def launches(*speeds: float, concurrency: int = 1) -> list[LaunchRounds]:
    """Launches of one round, whose streams decode at these speeds (tok/s); none is a request that failed."""
    found = []
    for index, speed in enumerate(speeds):
        request = sample(last_token_s=1 + 39 / speed, done_s=1 + 39 / speed, server_e2e_s=1 + 39 / speed)
        if math.isnan(speed):
            request = sample(error="HTTP 500")
        done = one_round(*concurrency * (request,))
        found.append(LaunchRounds(launch=launch_record(index=index), warmup=(), rounds=(done,)))
    return found


class Session:
    """Baselines on disk, and the judging of a session that plans one measurement for each concurrency."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def record(
        self,
        concurrency: int,
        *,
        node: str = NODE,
        speed: float = 100.0,
        floor: float | None = None,
        of: Measurement | None = None,
    ) -> Path:
        """Write a baseline with two gated metrics: decode speed and acceptance."""
        asked = of or want(concurrency)
        identity = Identity(
            model=asked.spec.model,
            model_revision=None,
            draft=None,
            draft_revision=None,
            workload_hash=asked.workload.content_hash,
            sampling=asked.sampling.identity(),
            output_tokens=asked.output_tokens,
            concurrency=concurrency,
        )
        path = self.root / node / f"{asked.key}.json"
        write_baseline(
            path,
            Baseline(
                identity=identity,
                environment={},
                provenance=PROVENANCE,
                metrics={
                    "decode_tok_s": five("decode_tok_s", speed, gate=True, floor=floor),
                    "accept_length": five("accept_length", ACCEPT_LENGTH),
                },
            ),
        )
        return path

    def plans(self, *concurrencies: int, **changes: Any) -> Judging:
        judging = Judging(
            settings(device="cuda", baselines_dir=self.root, **{"max_launches": 1, **changes}),
            cast(Serving, FakeServing()),
            command="pytest",
        )
        tests = [
            PlannedTest(nodeid=f"t{c}", spec=want(c).spec, measurement=want(c), rounds=1, warmup=0)
            for c in concurrencies
        ]
        judging.judge_for(build_plan(tests, judging.launches_for))
        return judging


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path / "baselines")


def speed_row(judging: Judging, concurrency: int, *speeds: float) -> MetricVerdict:
    result = judging.judge(want(concurrency), launches(*speeds, concurrency=concurrency), waived=frozenset())
    return next(row for row in result.comparison.metrics if row.metric == "decode_tok_s")


def shares(row: MetricVerdict, speed: float) -> int:
    """Return of how many gated metrics the bound of an alarm is that of one."""
    for metrics in range(1, 50):
        if row.change_high == pytest.approx(speed / 100 * math.exp(half_width(alarm(metrics))) - 1, rel=1e-9):
            return metrics
    raise AssertionError(f"{row.change_high} is no share")


def test_the_gated_metrics_of_the_whole_plan_share_the_false_alarms(session: Session) -> None:
    for concurrency in (1, 4, 8):
        session.record(concurrency)

    assert shares(speed_row(session.plans(1), 1, 99.0), 99) == 2
    assert shares(speed_row(session.plans(1, 4, 8), 1, 99.0), 99) == 6


def test_what_has_no_samples_no_baseline_or_does_not_gate_takes_no_share(session: Session) -> None:
    for concurrency in (1, 4, 8):
        session.record(concurrency)
    advisory = read_baseline(session.record(4))
    metrics = {name: dataclasses.replace(entry, gate=False) for name, entry in advisory.metrics.items()}
    write_baseline(session.record(4), dataclasses.replace(advisory, metrics=metrics))
    floors = {"decode_tok_s": metric("decode_tok_s", floor=50.0, gate=True)}
    write_baseline(session.record(8), dataclasses.replace(advisory, metrics=floors))

    assert shares(speed_row(session.plans(1, 4, 8, 16), 1, 99.0), 99) == 2


def test_a_broken_file_of_another_measurement_takes_no_share(session: Session) -> None:
    session.record(1)
    session.record(4).write_text("{", encoding="utf-8")

    assert shares(speed_row(session.plans(1, 4), 1, 99.0), 99) == 2


def test_what_is_called_leaves_more_for_what_is_judged_later_and_not_for_what_was_judged_before(
    session: Session,
) -> None:
    for concurrency in (1, 4, 8):
        session.record(concurrency)
    judging = session.plans(1, 4, 8)

    assert shares(speed_row(judging, 1, 99.0), 99) == 6
    assert speed_row(judging, 4, 80.0).verdict is Verdict.REGRESSION
    assert shares(speed_row(judging, 8, 99.0), 99) == 5
    assert shares(speed_row(judging, 1, 99.0), 99) == 6, "its answer does not depend on when it is asked"
    assert shares(speed_row(judging, 8, 99.0), 99) == 5


def test_a_measurement_that_is_judged_again_does_not_count_itself(session: Session) -> None:
    for concurrency in (1, 4):
        session.record(concurrency)
    judging = session.plans(1, 4)

    first = speed_row(judging, 4, 80.0)
    assert speed_row(judging, 4, 80.0) == first
    assert shares(speed_row(judging, 1, 99.0), 99) == 3


def planned(concurrency: int, *, waived: Iterable[str] = ()) -> PlannedMeasurement:
    return PlannedMeasurement(measurement=want(concurrency), rounds=1, warmup=0, launches=1, waived=frozenset(waived))


#: A loss of 1.9 % is open at each look: within the tolerance, and more than passes.
OPEN = 98.1


@pytest.mark.parametrize(
    ("speeds", "most", "wanted"),
    [
        ((100.0,), 3, False),
        ((80.0,), 3, False),
        ((120.0,), 3, False),
        ((OPEN,), 3, True),
        ((OPEN, OPEN), 3, True),
        ((OPEN, OPEN, OPEN), 3, False),
        ((OPEN,), 1, False),
        ((math.nan,), 3, False),
    ],
)
def test_another_launch_is_wanted_for_what_is_too_close_while_there_are_some(
    session: Session, speeds: tuple[float, ...], most: int, wanted: bool
) -> None:
    session.record(1)
    judging = session.plans(1, max_launches=most)

    assert judging.wants_more(planned(1), launches(*speeds)) is wanted
    assert not judging.wants_more(dataclasses.replace(planned(1), judged=False), launches(*speeds)), "a dead end's"


def test_what_a_test_waives_does_not_keep_a_close_answer_from_another_launch(session: Session) -> None:
    session.record(1)
    lost = dataclasses.replace(
        launches(OPEN)[0], rounds=(one_round(*launches(OPEN)[0].rounds[0].requests, sample(error="HTTP 500")),)
    )
    judging = session.plans(1, max_launches=3)

    assert not judging.wants_more(planned(1), [lost])
    assert judging.wants_more(planned(1, waived=["request-error"]), [lost])


def test_an_open_answer_on_a_server_that_is_not_ours_stays_open(session: Session) -> None:
    session.record(1)
    judging = session.plans(1, max_launches=3, url="http://127.0.0.1:30000", node=NODE)

    assert not judging.wants_more(planned(1), launches(OPEN))
    assert speed_row(judging, 1, OPEN).verdict is Verdict.INCONCLUSIVE


def test_no_launch_is_spent_on_what_can_not_be_judged(session: Session) -> None:
    judging = session.plans(1, max_launches=3)
    assert not judging.wants_more(planned(1), launches(OPEN)), "there is no baseline"

    session.record(1).write_text("{", encoding="utf-8")
    assert not session.plans(1, max_launches=3).wants_more(planned(1), launches(OPEN)), "its own test tells why"


def test_recording_takes_the_launches_that_were_planned_for_it(session: Session) -> None:
    session.record(1)
    judging = session.plans(1, max_launches=3, update="all", node=NODE)

    assert not judging.wants_more(planned(1), launches(*5 * (OPEN,)))


def test_a_measurement_records_what_each_class_of_task_came_to(session: Session) -> None:
    judging = session.plans(1, update="all", node=NODE)
    two = [sample("p1", category="prose"), sample("p2", category="table", verify_steps=3)]
    taken = [LaunchRounds(launch=launch_record(index=i), warmup=(), rounds=(one_round(*two),)) for i in range(2)]

    judging.judge(want(1), taken, waived=frozenset())

    (update,) = judging.updates()
    (written,) = update.files.values()
    assert written.categories == {
        "prose": {"accept_length": (3.0, 3.0), "verify_rate": (13.0, 13.0)},
        "table": {"accept_length": (13.0, 13.0), "verify_rate": (3.0, 3.0)},
    }


def test_of_a_single_class_of_task_nothing_is_kept_beside_the_whole(session: Session) -> None:
    judging = session.plans(1, update="all", node=NODE)

    judging.judge(want(1), launches(100.0), waived=frozenset())

    (update,) = judging.updates()
    (written,) = update.files.values()
    assert written.categories == {}


def test_what_was_good_and_is_judged_invalid_later_is_not_recorded(session: Session) -> None:
    judging = session.plans(1, update="all", node=NODE)
    judging.judge(want(1), launches(100.0), waived=frozenset())
    assert [update.key for update in judging.updates()] == [want(1).key]

    judging.judge(want(1), launches(100.0, math.nan), waived=frozenset())

    assert judging.updates() == ()


def of_spec(name: str, flags: str = "") -> Measurement:
    return measurement("one", spec=ServerSpec(name, "/models/a", args=flags))


CONTROL, TREATMENT = of_spec("base"), of_spec("a", "--ep 8 --attention-backend triton")


def beside(
    judging: Judging, control: tuple[float, float] = (100.0, 100.0), treatment: tuple[float, float] = (150.0, 150.0)
) -> tuple[BenchmarkResult, BenchmarkResult]:
    a1, a2 = launches(*control)
    b1, b2 = launches(*treatment)
    b1, b2 = (dataclasses.replace(one, launch=launch_record(facts={"max_total_num_tokens": 9})) for one in (b1, b2))
    legs = Legs(control=(a1, a2), treatment=(b1, b2))
    return judging.judge_beside(TREATMENT, [b1, b2], CONTROL, legs, waived=frozenset())


def pair(session: Session, **changes: Any) -> Judging:
    """The judging of a session that plans one measurement beside its control."""
    judging = Judging(
        settings(device="cuda", baselines_dir=session.root, node=NODE, **{"max_launches": 1, **changes}),
        cast(Serving, FakeServing()),
        command="pytest",
    )
    test = PlannedTest(nodeid="t", spec=TREATMENT.spec, measurement=TREATMENT, rounds=1, warmup=0, control=CONTROL.spec)
    judging.judge_for(build_plan([test], judging.launches_for))
    return judging


def test_a_treatment_is_held_to_its_control_and_told_with_what_they_differ_by(session: Session) -> None:
    result, own = beside(pair(session))

    assert (result.verdict, own.verdict) == (Verdict.PASS, Verdict.NO_BASELINE)
    assert (result.measurement.key, own.measurement.key) == (TREATMENT.key, CONTROL.key)
    assert own.beside is None
    assert result.beside is not None
    assert result.speedup.ratio == pytest.approx(1.5)
    assert result.speedup.metric == "decode_tok_s"
    assert result.beside.difference.intended == (
        "--ep-size: (not set) -> 8",
        "--attention-backend: (not set) -> triton",
    )
    assert [change.key for change in result.beside.difference.effective] == ["max_total_num_tokens"]
    assert not result.beside.moved


@pytest.mark.parametrize(("recorded", "moved"), [(100.0, False), (130.0, True), (80.0, True)])
def test_a_control_is_judged_by_its_own_baseline(session: Session, recorded: float, moved: bool) -> None:
    session.record(1, of=CONTROL, speed=recorded)
    session.record(1, of=TREATMENT, speed=150.0)

    result, _ = beside(pair(session))

    assert result.beside is not None
    assert result.beside.moved is moved
    assert result.verdict is (Verdict.INCONCLUSIVE if moved else Verdict.PASS)
    assert result.speedup.conclusive


def test_the_legs_are_held_to_the_noise_in_the_control_s_baseline(session: Session) -> None:
    """It never varied: legs 3 % apart disagree, which throughput's prior would have explained."""
    assert beside(pair(session), control=(100.0, 103.0))[0].speedup.conclusive

    session.record(1, of=CONTROL, speed=101.5)

    assert not beside(pair(session), control=(100.0, 103.0))[0].speedup.conclusive


def test_a_control_of_which_a_request_failed_makes_the_treatment_invalid(session: Session) -> None:
    result, own = beside(pair(session), control=(100.0, math.nan))

    assert (result.verdict, own.verdict) == (Verdict.INVALID, Verdict.INVALID)
    assert "control" in [violation.rule for violation in result.comparison.violations]


def test_a_treatment_is_recorded_and_the_launches_of_its_control_are_not(session: Session) -> None:
    judging = pair(session, update="all")

    result, _ = beside(judging)

    assert result.verdict is Verdict.PASS
    assert [update.key for update in judging.updates()] == [TREATMENT.key]


@pytest.mark.parametrize("control", [(100.0, 200.0), (100.0, math.nan)])
def test_what_is_inconclusive_or_invalid_beside_its_control_is_not_recorded(
    session: Session, control: tuple[float, float]
) -> None:
    judging = pair(session, update="all")

    beside(judging, control=control)

    assert judging.updates() == ()


def test_clocks_that_the_gpus_ran_at_are_part_of_the_environment(session: Session) -> None:
    """The slowest of the server's own GPUs over all rounds, in steps of 50 MHz; another's GPU does not count."""
    own = GpuProcess(uuid="GPU-0", pid=1, name="sglang::scheduler", own=True)

    def seen(mhz: float, *, capped: float) -> GpuSpan:
        state = GpuState(
            index="0",
            uuid="GPU-0",
            samples=4,
            sm_mhz=mhz,
            power_w=300.0,
            temperature_c=60.0,
            slowdowns=(),
            power_capped_share=capped,
        )
        idle = dataclasses.replace(state, index="1", uuid="GPU-1", sm_mhz=180.0)
        return GpuSpan(gpus=(state, idle), processes=(own,))

    (launch,) = launches(100.0)
    (done,) = launch.rounds
    rounds = tuple(dataclasses.replace(done, gpu=seen(mhz, capped=share)) for mhz, share in ((2430, 0.0), (2418, 0.9)))
    judging = session.plans(1, update="all", node=NODE)

    judging.judge(want(1), [dataclasses.replace(launch, rounds=rounds)], waived=frozenset())

    (update,) = judging.updates()
    (written,) = update.files.values()
    assert written.environment["gpu_measured_sm_mhz"] == 2400
    assert written.environment["gpu_power_capped"] is True
