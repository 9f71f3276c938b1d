"""What a session will measure, known before anything runs.

A test declares a measurement; tests of equal identity share it; measurements of one spec share its launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pytest_specdec.errors import UserInputError
from pytest_specdec.model import Measurement
from pytest_specdec.spec import ServerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTest:
    """What one test asks for. ``measurement`` is None for a test that only borrows the server.

    ``spec`` is what will be launched: the stand-in where one takes the spec's place.
    """

    nodeid: str
    spec: ServerSpec
    measurement: Measurement | None
    rounds: int
    warmup: int
    waived: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMeasurement:
    """A measurement with its sampling plan: rounds a launch, launches, and the most that a close answer may take.

    ``waived``: rules that any of its tests waives.
    """

    measurement: Measurement
    rounds: int
    warmup: int
    launches: int
    most_launches: int = 1
    waived: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecPlan:
    """All that a session wants of one spec; ``nodeids`` are the tests that use it, in running order."""

    spec: ServerSpec
    measurements: tuple[PlannedMeasurement, ...]
    nodeids: tuple[str, ...]

    @property
    def launches(self) -> int:
        """Launches needed: those of its most demanding measurement; one when tests only borrow the server."""
        return max((planned.launches for planned in self.measurements), default=1)

    @property
    def most_launches(self) -> int:
        """Launches that there may be when answers are close."""
        return max((self.launches, *(planned.most_launches for planned in self.measurements)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The session's specs in running order."""

    specs: tuple[SpecPlan, ...]

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Every measurement, in running order."""
        return tuple(planned.measurement for spec in self.specs for planned in spec.measurements)

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
        measurements = sum(len(planned.measurements) for planned in self.specs)
        costs = [(planned, expected_s(planned.spec)) for planned in self.specs]
        head = f"specdec plan: {_n(len(self.specs), 'server spec')}, {_n(measurements, 'measurement')}, "
        head += _launches(self.specs) + _loading(costs)
        return [head, *(f"  {_spec_line(planned, cost_s)}" for planned, cost_s in costs)]


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
    return f"{planned.spec.name}: {_launches([planned])}{each}; {what or 'server only'}"


def check_names(tests: Iterable[PlannedTest]) -> None:
    """Refuse two specs of one name and different content, and two measurements for one baseline path.

    Raises :class:`UserInputError` naming both tests and what differs.
    """
    by_name: dict[str, PlannedTest] = {}
    by_key: dict[str, PlannedTest] = {}
    for test in tests:
        other = by_name.setdefault(test.spec.name, test)
        if other.spec.content_hash != test.spec.content_hash:
            raise UserInputError(
                f"two server specs are named {test.spec.name!r} but differ:\n"
                f"  {other.nodeid}: {other.spec.masked_command}\n"
                f"  {test.nodeid}: {test.spec.masked_command}\n"
                "give one of them another name"
            )
        if test.measurement is None:
            continue
        same_path = by_key.setdefault(test.measurement.key, test)
        assert same_path.measurement is not None
        if same_path.measurement != test.measurement:
            raise UserInputError(
                f"two measurements would share the baseline {test.measurement.key}.json but differ in "
                f"{_difference(same_path.measurement, test.measurement)}:\n"
                f"  {same_path.nodeid}\n  {test.nodeid}\n"
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
) -> Plan:
    """Group tests, in running order, into what each spec has to serve.

    ``most_launches_for`` tells how many launches a close answer may take. Measurements shared by several tests take
    the most rounds that any of them asks for.
    """
    tests = list(tests)
    check_names(tests)
    order: dict[str, list[PlannedTest]] = {}
    for test in tests:
        order.setdefault(test.spec.content_hash, []).append(test)
    most_for = most_launches_for or launches_for
    return Plan(specs=tuple(_plan_spec(group, launches_for, most_for) for group in order.values()))


def _plan_spec(
    group: list[PlannedTest], launches_for: Callable[[Measurement], int], most_for: Callable[[Measurement], int]
) -> SpecPlan:
    wanted: dict[str, list[PlannedTest]] = {}
    for test in group:
        if test.measurement is not None:
            wanted.setdefault(test.measurement.key, []).append(test)
    measurements = []
    for sharing in wanted.values():
        measurement = sharing[0].measurement
        assert measurement is not None
        measurements.append(
            PlannedMeasurement(
                measurement=measurement,
                rounds=max(test.rounds for test in sharing),
                warmup=max(test.warmup for test in sharing),
                launches=launches_for(measurement),
                most_launches=most_for(measurement),
                waived=frozenset[str]().union(*(test.waived for test in sharing)),
            )
        )
    return SpecPlan(
        spec=group[0].spec,
        measurements=tuple(measurements),
        nodeids=tuple(test.nodeid for test in group),
    )


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
