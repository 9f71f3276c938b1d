"""What a session will measure, known before anything runs.

A test declares a measurement; tests of equal identity share it; measurements of one spec share its launches.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_specdec.errors import UserInputError
from pytest_specdec.model import DeadEnd, Measurement
from pytest_specdec.spec import ServerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTest:
    """What one test asks for. ``measurement`` is None for a test that only borrows the server.

    ``spec`` is what will be launched: the stand-in where one takes the spec's place. ``control`` is what it is
    measured beside, in blocks of four launches A B B A. ``sweep`` names the test function whose parameters are the
    points of one sweep. ``dead_end`` is what an experiment that is known to fail is
    known by.
    """

    nodeid: str
    spec: ServerSpec
    measurement: Measurement | None
    rounds: int
    warmup: int
    waived: frozenset[str] = frozenset()
    control: ServerSpec | None = None
    sweep: str | None = None
    dead_end: DeadEnd | None = None

    @property
    def control_measurement(self) -> Measurement | None:
        """The same measurement on the control; None without one."""
        if self.control is None or self.measurement is None:
            return None
        return dataclasses.replace(self.measurement, spec=self.control)

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """What has to be measured for this test, on its own spec and on the control's."""
        return tuple(one for one in (self.measurement, self.control_measurement) if one is not None)

    @property
    def is_judged(self) -> bool:
        """Whether its measurement may be judged: outside of its versions a dead end is an ordinary test."""
        return self.dead_end is None or self.dead_end.versions is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMeasurement:
    """A measurement with its sampling plan: rounds a launch, launches, and the most that a close answer may take.

    ``waived``: rules that any of its tests waives. ``alone``: a test wants it by itself, without a control.
    ``judged`` is False for what only dead ends measure: one launch tells whether they hold, and nothing is compared.
    """

    measurement: Measurement
    rounds: int
    warmup: int
    launches: int
    most_launches: int = 1
    waived: frozenset[str] = frozenset()
    alone: bool = True
    judged: bool = True


#: Launches of each of its two specs in a block A B B A.
LEGS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A control and a treatment that are measured in one block, with all that tests want of the two together.

    The lists have one entry a measurement, in the same order.
    """

    control: ServerSpec
    treatment: ServerSpec
    of_control: tuple[PlannedMeasurement, ...]
    of_treatment: tuple[PlannedMeasurement, ...]

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from other pairs."""
        return self.control.content_hash, self.treatment.content_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Points that are ranked: one measurement on several specs, in the order of the test's parameters."""

    name: str
    points: tuple[PlannedMeasurement, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The content hashes of its points' specs, in order."""
        return tuple(point.measurement.spec.content_hash for point in self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecPlan:
    """All that a session wants of one spec; ``nodeids`` are the tests that use it, in running order.

    ``as_treatment`` and ``as_control``: in how many pairs it is which. A control that no test uses by itself has
    blocks only.
    """

    spec: ServerSpec
    measurements: tuple[PlannedMeasurement, ...]
    nodeids: tuple[str, ...]
    as_treatment: int = 0
    as_control: int = 0

    @property
    def _alone(self) -> int:
        """Launches that its own tests need: as its most demanding measurement; one when they only borrow it."""
        return max((planned.launches for planned in self.measurements), default=1 if self.nodeids else 0)

    @property
    def blocks_first(self) -> int:
        """Blocks to run when it is first asked for: all as a treatment, as a control what its own tests need."""
        needed = math.ceil(self._alone / LEGS)
        return self.as_treatment + min(self.as_control, max(0, needed - self.as_treatment))

    @property
    def launches(self) -> int:
        """Launches needed. Those of its blocks serve its other measurements as well."""
        return max(self._alone, LEGS * (self.as_treatment + self.as_control))

    @property
    def most_launches(self) -> int:
        """Launches that there may be when answers are close; a block that comes after such an answer adds its own."""
        later = LEGS * (self.as_treatment + self.as_control - self.blocks_first)
        return max((self.launches, *(planned.most_launches + later for planned in self.measurements)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The session's specs in running order."""

    specs: tuple[SpecPlan, ...]
    pairs: tuple[Pair, ...] = ()
    sweeps: tuple[Sweep, ...] = ()

    def together(self) -> dict[str, str]:
        """Return, for each spec's content hash, the one that stands for all that are measured with it.

        A control and its treatment, and the points of a sweep, belong to one process: what one of them takes, the
        others are compared with.
        """
        chief = {spec.spec.content_hash: spec.spec.content_hash for spec in self.specs}

        def find(key: str) -> str:
            while chief[key] != key:
                key = chief[key]
            return key

        linked: list[tuple[str, ...]] = [pair.key for pair in self.pairs]
        linked += [sweep.keys for sweep in self.sweeps]
        for first, *others in linked:
            for other in others:
                chief[find(other)] = find(first)
        return {key: find(key) for key in chief}

    def sweeps_with(self, spec: ServerSpec) -> tuple[Sweep, ...]:
        """Return the sweeps that a spec is a point of, and those that share specs with them: they share launches."""
        keys, found = {spec.content_hash}, dict[str, Sweep]()
        while more := [one for one in self.sweeps if one.name not in found and not keys.isdisjoint(one.keys)]:
            found |= {one.name: one for one in more}
            keys.update(*(one.keys for one in more))
        return tuple(found.values())

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Every measurement that is judged once, in running order, those of controls among them."""
        alone = [planned.measurement for spec in self.specs for planned in spec.measurements if planned.judged]
        beside = [planned.measurement for pair in self.pairs for planned in pair.of_control]
        return tuple({one.key: one for one in (*alone, *beside)}.values())

    def of(self, spec: ServerSpec) -> SpecPlan:
        """The part of the plan for this spec, by content: equal specs need not be one object."""
        for planned in self.specs:
            if planned.spec.content_hash == spec.content_hash:
                return planned
        raise KeyError(spec.name)

    def lines(self, expected_s: Callable[[ServerSpec], float | None] = lambda _spec: None) -> list[str]:
        """Describe the plan in a few lines for the terminal.

        ``expected_s`` tells how many seconds a launch of a spec takes, None where that is not known: the plan is
        shown with its cost.
        """
        if not self.specs:
            return []
        measurements = len(self.measurements)
        costs = [(planned, expected_s(planned.spec)) for planned in self.specs]
        head = f"specdec plan: {_n(len(self.specs), 'server spec')}, {_n(measurements, 'measurement')}, "
        head += _launches(self.specs) + _loading(costs)
        pairs = [f"  {pair.treatment.name} beside {pair.control.name}: a block A B B A" for pair in self.pairs]
        sweeps = [f"  sweep {sweep.name}: {len(sweep.points)} points, ranked" for sweep in self.sweeps]
        return [head, *(f"  {_spec_line(planned, cost_s)}" for planned, cost_s in costs), *pairs, *sweeps]


def _n(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _launches(specs: Sequence[SpecPlan]) -> str:
    """How many launches these specs take: a range where answers may turn out to be close."""
    least, most = sum(planned.launches for planned in specs), sum(planned.most_launches for planned in specs)
    return _n(least, "launch", "launches") if least == most else f"{least} to {most} launches"


def _loading(costs: list[tuple[SpecPlan, float | None]]) -> str:
    """What all launches cost together, as far as it is known."""
    known = [(planned, cost_s) for planned, cost_s in costs if cost_s is not None]
    if not known:
        return ""
    least = sum(planned.launches * cost_s for planned, cost_s in known)
    most = sum(planned.most_launches * cost_s for planned, cost_s in known)
    counted = _launches([planned for planned, _ in known]).removesuffix(" launches").removesuffix(" launch")
    of_all = "" if len(known) == len(costs) else f" for {counted} of them, not known for the others"
    return f", about {_range(least, most)} of loading{of_all}"


def _range(least_s: float, most_s: float) -> str:
    """Two durations in the unit of the longer one; one where they read the same."""
    unit = "s" if most_s < 120 else "min"
    shown = [f"{seconds if unit == 's' else seconds / 60:.0f}" for seconds in (least_s, most_s)]
    return f"{' to '.join(dict.fromkeys(shown))} {unit}"


def _spec_line(planned: SpecPlan, cost_s: float | None) -> str:
    what = ", ".join(
        f"{m.measurement.workload.name} c{m.measurement.concurrency} o{m.measurement.output_tokens}"
        f"{'' if m.measurement.request_rate is None else f' r{m.measurement.request_rate:g}/s'}"
        f" ({m.rounds}+{m.warmup} rounds)"
        for m in planned.measurements
    )
    each = "" if cost_s is None else f" of about {_range(cost_s, cost_s)}"
    what = what or ("server only" if planned.nodeids else "control only")
    return f"{planned.spec.name}: {_launches([planned])}{each}; {what}"


def check_names(tests: Iterable[PlannedTest]) -> None:
    """Refuse two specs of one name and different content, and two measurements for one baseline path.

    Raises :class:`UserInputError` naming both tests and what differs.
    """
    by_name: dict[str, tuple[ServerSpec, str]] = {}
    by_key: dict[str, tuple[Measurement, str]] = {}
    for test in tests:
        for spec in filter(None, (test.spec, test.control)):
            other, nodeid = by_name.setdefault(spec.name, (spec, test.nodeid))
            if other.content_hash != spec.content_hash:
                raise UserInputError(
                    f"two server specs are named {spec.name!r} but differ:\n"
                    f"  {nodeid}: {other.masked_command}\n"
                    f"  {test.nodeid}: {spec.masked_command}\n"
                    "give one of them another name"
                )
        for measurement in test.measurements:
            same_path, nodeid = by_key.setdefault(measurement.key, (measurement, test.nodeid))
            if same_path != measurement:
                raise UserInputError(
                    f"two measurements would share the baseline {measurement.key}.json but differ in "
                    f"{_difference(same_path, measurement)}:\n"
                    f"  {nodeid}\n  {test.nodeid}\n"
                    "give the workload or the spec another name"
                )


def _difference(one: Measurement, other: Measurement) -> str:
    if one.workload.content_hash != other.workload.content_hash:
        return f"the content of workload {one.workload.name!r}"
    if one.sampling != other.sampling:
        return "their sampling"
    if one.goodput != other.goodput:
        return "their limits for goodput"
    return "their server spec"


def build_plan(
    tests: Iterable[PlannedTest],
    launches_for: Callable[[Measurement], int],
    most_launches_for: Callable[[Measurement], int] | None = None,
    *,
    sweep_launches: int = 1,
) -> Plan:
    """Group tests, in running order, into what each spec has to serve.

    ``most_launches_for`` tells how many launches a close answer may take, ``sweep_launches`` how many a point of a
    sweep. Measurements shared by several tests take the most rounds that any of them asks for.
    """
    tests = list(tests)
    check_names(tests)
    most_for = most_launches_for or launches_for
    order: dict[str, list[PlannedTest]] = {}
    paired: dict[tuple[str, str], list[PlannedTest]] = {}
    for test in tests:
        order.setdefault(test.spec.content_hash, []).append(test)
        if test.control is not None and test.measurement is not None:
            paired.setdefault((test.control.content_hash, test.spec.content_hash), []).append(test)
    pairs = tuple(_plan_pair(group) for group in paired.values())
    as_control = collections.Counter(pair.key[0] for pair in pairs)
    as_treatment = collections.Counter(pair.key[1] for pair in pairs)
    swept = {test.measurement.key for test in tests if test.sweep is not None and test.measurement is not None}

    def most_of(measurement: Measurement) -> int:
        return max(most_for(measurement), sweep_launches if measurement.key in swept else 1)

    specs = [
        SpecPlan(
            spec=group[0].spec,
            measurements=_planned(group, launches_for, most_of),
            nodeids=tuple(test.nodeid for test in group),
            as_treatment=as_treatment[key],
            as_control=as_control[key],
        )
        for key, group in order.items()
    ]
    controls = {pair.control.content_hash: pair.control for pair in pairs if pair.control.content_hash not in order}
    specs += [
        SpecPlan(spec=control, measurements=(), nodeids=(), as_control=as_control[key])
        for key, control in controls.items()
    ]
    return Plan(specs=tuple(specs), pairs=pairs, sweeps=_sweeps(tests, specs))


def _sweeps(tests: list[PlannedTest], specs: list[SpecPlan]) -> tuple[Sweep, ...]:
    """Group the points of sweeps: by test function, and by all of a measurement but its spec."""
    planned = {one.measurement.key: one for spec in specs for one in spec.measurements}
    points: dict[str, dict[str, PlannedMeasurement]] = {}
    for test in tests:
        if test.sweep is not None and test.measurement is not None:
            _, _, rest = test.measurement.key.partition("--")
            points.setdefault(f"{test.sweep} {rest}", {})[test.measurement.key] = planned[test.measurement.key]
    return tuple(Sweep(name=name, points=tuple(found.values())) for name, found in points.items() if len(found) > 1)


def _plan_pair(group: list[PlannedTest]) -> Pair:
    control = group[0].control
    assert control is not None
    of_treatment = _planned(group, lambda _: LEGS, lambda _: LEGS)
    return Pair(
        control=control,
        treatment=group[0].spec,
        of_treatment=of_treatment,
        of_control=tuple(
            dataclasses.replace(planned, measurement=dataclasses.replace(planned.measurement, spec=control))
            for planned in of_treatment
        ),
    )


def _planned(
    group: list[PlannedTest], launches_for: Callable[[Measurement], int], most_for: Callable[[Measurement], int]
) -> tuple[PlannedMeasurement, ...]:
    """Return the measurements of these tests, each once."""
    wanted: dict[str, list[PlannedTest]] = {}
    for test in group:
        if test.measurement is not None:
            wanted.setdefault(test.measurement.key, []).append(test)
    measurements = []
    for sharing in wanted.values():
        measurement = sharing[0].measurement
        assert measurement is not None
        judged = any(test.is_judged for test in sharing)
        measurements.append(
            PlannedMeasurement(
                measurement=measurement,
                rounds=max(test.rounds for test in sharing),
                warmup=max(test.warmup for test in sharing),
                launches=launches_for(measurement) if judged else 1,
                most_launches=most_for(measurement) if judged else 1,
                waived=frozenset[str]().union(*(test.waived for test in sharing)),
                alone=any(test.control is None for test in sharing),
                judged=judged,
            )
        )
    return tuple(measurements)


def order_by_spec(keys: list[str | None]) -> list[int]:
    """Where each position's item comes from, so that equal keys are neighbours and other items stay put.

    ``keys[i]`` is the spec key of item i, or None for an item that is not ours. Ours keep their own slots;
    groups come in order of first appearance and are stable within.
    """
    slots = [index for index, key in enumerate(keys) if key is not None]
    first_seen: dict[str, int] = {}
    for index in slots:
        key = keys[index]
        assert key is not None
        first_seen.setdefault(key, index)
    ordered = sorted(slots, key=lambda index: (first_seen[keys[index] or ""], index))
    result = list(range(len(keys)))
    for slot, source in zip(slots, ordered, strict=True):
        result[slot] = source
    return result
