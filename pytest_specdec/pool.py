"""The session's servers: one runs at a time, and while it is up it takes every measurement planned for it.

The pool owns servers; tests only borrow them. A launch that failed is not tried again for the next test of
the same spec: nine minutes are paid once, and every test that depended on them gets the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pytest_specdec.errors import InfrastructureError, LaunchError, SpecdecError
from pytest_specdec.model import LaunchRecord, LaunchRounds, Measurement
from pytest_specdec.plan import Pair, Plan, PlannedMeasurement, SpecPlan, Sweep
from pytest_specdec.spec import ServerSpec


class Served(Protocol):
    """A server that is up, as the pool needs it."""

    @property
    def record(self) -> LaunchRecord:
        """What is known about this launch."""

    def check_alive(self) -> None:
        """Raise :class:`LaunchError` with the reason when the server has died."""

    def stop(self) -> None:
        """End the server and everything it started; safe to call twice."""


Start = Callable[[ServerSpec, int], Served]
Measure = Callable[[Served, PlannedMeasurement], LaunchRounds]
Keep = Callable[[Served], None]
#: Whether what was measured so far is too close to call, and another launch may be spent on it.
WantsMore = Callable[[PlannedMeasurement, tuple[LaunchRounds, ...]], bool]
#: Which points of a sweep deserve another launch, by what there is of each: its rounds, or what kept it from any.
Contending = Callable[[Sweep, "Mapping[str, tuple[LaunchRounds, ...] | SpecdecError]"], "Sequence[PlannedMeasurement]"]


@dataclass(slots=True)
class _Taken:
    """What the pool has of one spec. ``complete``: what was measured of it is not added to any more."""

    begun: bool = False
    complete: bool = False
    launches: int = 0
    rounds: dict[str, list[LaunchRounds]] = field(default_factory=dict)
    errors: dict[str, SpecdecError] = field(default_factory=dict)
    failure: InfrastructureError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Legs:
    """The launches of one block in which one measurement was taken on a control and a treatment, A B B A."""

    control: tuple[LaunchRounds, LaunchRounds]
    treatment: tuple[LaunchRounds, LaunchRounds]


@dataclass(slots=True)
class _Block:
    """What the pool has of one pair: the legs that were taken, by measurement, in the order they ran."""

    legs: dict[str, list[LaunchRounds]] = field(default_factory=dict)
    errors: dict[str, SpecdecError] = field(default_factory=dict)


class ServerPool:
    """Launches, measures and stops; ``start`` brings a server up, ``measure`` takes one measurement on it.

    ``start`` is given the spec and the index of the launch among this session's launches of that spec. When the planned
    launches of a spec are done, ``wants_more`` is asked for each of its measurements, again and again until it says
    no of all; the points of a sweep are launched in turn, then again while ``contending`` names some. With ``keep`` the
    last server is handed to it at the end, instead of being stopped. ``check`` raises for what can't be launched,
    before the other one of a block is; ``died`` is told of a server that died after its launch.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        start: Start,
        measure: Measure,
        wants_more: WantsMore | None = None,
        contending: Contending | None = None,
        check: Callable[[ServerSpec], None] | None = None,
        died: Callable[[ServerSpec, int, InfrastructureError], None] | None = None,
        keep: Keep | None = None,
        keeps_late: bool = True,
    ) -> None:
        self._plan = plan
        self._start = start
        self._measure = measure
        self._wants_more = wants_more
        self._contending = contending
        self._check = check
        self._died = died
        self._swept: set[str] = set()
        self._keep = keep
        self._keeps_late = keep is not None and keeps_late
        self._taken: dict[str, _Taken] = {}
        self._blocks: dict[tuple[str, str], _Block] = {}
        self._running: tuple[str, Served] | None = None
        self.launch_count = 0

    def measured(self, measurement: Measurement) -> tuple[LaunchRounds, ...]:
        """Return the rounds of a planned measurement, taking them first when this is the first to ask.

        Raises the :class:`SpecdecError` that kept them from being taken, the same one each time.
        """
        taken = self._take(measurement.spec)
        error = taken.errors.get(measurement.key)
        if error is not None:
            raise error
        return tuple(taken.rounds[measurement.key])

    def beside(self, measurement: Measurement, control: Measurement) -> Legs:
        """Return the legs of a planned measurement and of the same one on its control, taking them first.

        Raises the :class:`SpecdecError` that kept any of the four from being taken, the same one each time.
        """
        self._take(measurement.spec)
        block = self._block(measurement.spec, control.spec)
        for one in (control, measurement):
            if one.key in block.errors:
                raise block.errors[one.key]
        a1, a2 = block.legs[control.key]
        b1, b2 = block.legs[measurement.key]
        return Legs(control=(a1, a2), treatment=(b1, b2))

    def _block(self, treatment: ServerSpec, control: ServerSpec) -> _Block:
        """Return a pair's block, run when it hasn't been."""
        (pair,) = [pair for pair in self._plan.pairs if pair.key == (control.content_hash, treatment.content_hash)]
        if pair.key not in self._blocks:
            self._blocks[pair.key] = block = _Block()
            self._run(pair, block)
        return self._blocks[pair.key]

    def _run(self, pair: Pair, block: _Block) -> None:
        """Launch control, treatment, treatment, control, as long as there is something that all four can give.

        A launch that fails ends the block for all of its tests. A measurement that one spec can't give is of no use
        on the other.
        """
        order = ((pair.control, pair.of_control), (pair.treatment, pair.of_treatment))
        both = [(a.measurement.key, b.measurement.key) for a, b in zip(pair.of_control, pair.of_treatment, strict=True)]
        refused = self._refused(pair.control) or self._refused(pair.treatment)
        if refused is not None:
            block.errors = {key: refused for keys in both for key in keys}
            return
        for spec, wanted in (order[0], order[1], order[1], order[0]):
            failed = self._leg(spec, wanted, block)
            for keys in both:
                error = next((block.errors[key] for key in keys if key in block.errors), failed)
                if error is not None:
                    block.errors |= dict.fromkeys(keys, error)
            if all(key in block.errors for keys in both for key in keys):
                break
        if not self._plan.of(pair.control).nodeids:
            self._release(pair.control)

    def _refused(self, spec: ServerSpec) -> SpecdecError | None:
        """Why a spec can't be launched, as far as that is known without a launch."""
        taken = self._taken.setdefault(spec.content_hash, _Taken())
        if taken.failure is None and self._check is not None:
            try:
                self._check(spec)
            except InfrastructureError as error:
                taken.errors |= {one.measurement.key: error for one in self._lacking(spec, taken)}
                taken.failure = error
        return taken.failure

    def _leg(self, spec: ServerSpec, wanted: Sequence[PlannedMeasurement], block: _Block) -> SpecdecError | None:
        """Launch once for a block, which serves the spec's other measurements as well; returns why it didn't serve.

        A measurement that could not be taken is left out of the legs that follow. One that has the launches which its
        own tests asked for keeps them, whatever becomes of this one.
        """
        taken = self._taken.setdefault(spec.content_hash, _Taken())
        if taken.failure is not None:
            return taken.failure
        wanted = [one for one in wanted if one.measurement.key not in block.errors]
        keys = {one.measurement.key for one in wanted}
        lacking = {
            one.measurement.key: one
            for one in self._lacking(spec, taken)
            if one.alone or one.measurement.key not in block.errors
        }
        leg = _Taken(launches=taken.launches)
        self._one_launch(spec, [*wanted, *(one for key, one in lacking.items() if key not in keys)], leg)
        taken.launches, taken.failure = leg.launches, leg.failure
        for key, done in leg.rounds.items():
            if key in keys:
                block.legs.setdefault(key, []).extend(done)
            if not taken.complete:
                taken.rounds.setdefault(key, []).extend(done)
        taken.errors |= {key: error for key, error in leg.errors.items() if key in lacking}
        block.errors |= {key: error for key, error in leg.errors.items() if key in keys}
        return leg.failure

    def _release(self, spec: ServerSpec) -> None:
        """Stop a control's server: no test uses it by itself."""
        if self._running is not None and self._running[0] == spec.content_hash:
            self._stop()

    def _lacking(self, spec: ServerSpec, taken: _Taken) -> list[PlannedMeasurement]:
        """Return the planned measurements of a spec that need another launch."""
        if taken.complete or taken.failure is not None:
            return []
        planned = [p for p in self._plan.of(spec).measurements if p.measurement.key not in taken.errors]
        return [p for p in planned if len(taken.rounds.get(p.measurement.key, [])) < p.launches]

    def server(self, spec: ServerSpec) -> Served:
        """Return a running server for free use, measured first, started when it isn't up."""
        taken = self._take(spec)
        if taken.failure is not None:
            raise taken.failure
        if self._running is not None and self._running[0] == spec.content_hash:
            served = self._running[1]
            served.check_alive()
            return served
        try:
            return self._launch(spec, taken)
        except InfrastructureError as error:
            taken.failure = error
            raise

    def running(self, spec: ServerSpec) -> Served | None:
        """Return this spec's server if it is up now."""
        return self._running[1] if self._running is not None and self._running[0] == spec.content_hash else None

    def finished(self, spec: ServerSpec) -> None:
        """Stop this spec's server if it runs: no later test wants it.

        One that is to be kept waits for the end, for until then a killed session has to end it; under pytest-xdist it
        does not wait, because the worker that has the host would make all others wait too.
        """
        if self._running is not None and self._running[0] == spec.content_hash and not self._keeps_late:
            self.close()

    def close(self) -> None:
        """Stop whatever runs, or have it kept."""
        if self._keep is None:
            self._stop()
        elif self._running is not None:
            running, self._running = self._running[1], None
            self._keep(running)

    def _stop(self) -> None:
        if self._running is not None:
            running, self._running = self._running[1], None
            running.stop()

    def _take(self, spec: ServerSpec) -> _Taken:
        taken = self._taken.setdefault(spec.content_hash, _Taken())
        if taken.begun:
            return taken
        # Set before, not after: a fault of our own must not start the same nine minutes again.
        taken.begun = True
        planned = self._plan.of(spec)
        self._take_blocks(spec)
        self._take_sweeps(self._plan.sweeps_with(spec))
        if taken.failure is None and not taken.launches and not taken.errors:
            self._one_launch(spec, self._lacking(spec, taken), taken)
        while lacking := self._lacking(spec, taken):
            self._one_launch(spec, lacking, taken)
        while taken.failure is None and (close := self._too_close(planned, taken)):
            self._one_launch(spec, close, taken)
        taken.complete = True
        return taken

    def _take_blocks(self, spec: ServerSpec) -> None:
        """Run the blocks of a treatment, and of a control as many as serve its own tests: others come when asked for.

        What is measured beside controls only has failed when none of its blocks gave it.
        """
        planned, taken = self._plan.of(spec), self._taken[spec.content_hash]
        as_treatment = [pair for pair in self._plan.pairs if pair.key[1] == spec.content_hash]
        as_control = [pair for pair in self._plan.pairs if pair.key[0] == spec.content_hash]
        first = [*as_treatment, *as_control][: planned.blocks_first]
        blocks = [self._block(pair.treatment, pair.control) for pair in first]
        for key in (one.measurement.key for one in planned.measurements if not one.alone):
            failed = [block.errors[key] for block in blocks if key in block.errors]
            if failed and not any(key in block.legs and key not in block.errors for block in blocks):
                taken.errors.setdefault(key, failed[0])

    def _take_sweeps(self, sweeps: Sequence[Sweep]) -> None:
        """Launch every point in turn, then those that may still be the best again, pass after pass.

        The sweeps share specs, so they share launches.
        """
        if self._swept.issuperset(sweep.name for sweep in sweeps):
            return
        self._swept.update(sweep.name for sweep in sweeps)
        for spec in (point.measurement.spec for sweep in sweeps for point in sweep.points):
            taken = self._taken.setdefault(spec.content_hash, _Taken())
            self._take_blocks(spec)
            while lacking := self._lacking(spec, taken):
                self._one_launch(spec, lacking, taken)
        while self._contending is not None:
            again: dict[ServerSpec, dict[str, PlannedMeasurement]] = {}
            for point in (point for sweep in sweeps for point in self._contending(sweep, self.points(sweep))):
                if self._open(point):
                    again.setdefault(point.measurement.spec, {})[point.measurement.key] = point
            if not again:
                break
            for spec, points in again.items():
                self._one_launch(spec, list(points.values()), self._taken[spec.content_hash])

    def _open(self, point: PlannedMeasurement) -> bool:
        """Whether a point can have another launch: it serves, and the plan is not spent."""
        spec = point.measurement.spec
        taken = self._taken[spec.content_hash]
        serves = taken.failure is None and point.measurement.key not in taken.errors
        return serves and taken.launches < self._plan.of(spec).most_launches

    def points(self, sweep: Sweep) -> dict[str, tuple[LaunchRounds, ...] | SpecdecError]:
        """Return what there is of each point, by its measurement's key; nothing is launched for it."""
        found: dict[str, tuple[LaunchRounds, ...] | SpecdecError] = {}
        for point in sweep.points:
            key = point.measurement.key
            taken = self._taken.get(point.measurement.spec.content_hash, _Taken())
            found[key] = taken.errors.get(key) or tuple(taken.rounds.get(key, ()))
        return found

    def _too_close(self, planned: SpecPlan, taken: _Taken) -> list[PlannedMeasurement]:
        """Return the measurements whose answer another launch could change."""
        if self._wants_more is None:
            return []
        complete = [p for p in planned.measurements if p.measurement.key not in taken.errors]
        return [p for p in complete if self._wants_more(p, tuple(taken.rounds[p.measurement.key]))]

    def _one_launch(self, spec: ServerSpec, wanted: Sequence[PlannedMeasurement], taken: _Taken) -> None:
        """Launch once and take these measurements; whatever keeps one from being taken is remembered as its error."""
        try:
            served = self._launch(spec, taken)
        except InfrastructureError as error:
            taken.failure = error
            self._fail(wanted, taken, error)
            return
        for one in wanted:
            try:
                rounds = self._measure(served, one)
                if _lost_requests(rounds):
                    # No request follows the last round, which a dead server would have refused.
                    served.check_alive()
            except SpecdecError as error:
                taken.errors[one.measurement.key] = error
                died = _death_of(served)
                if died is not None:
                    if self._died is not None:
                        self._died(spec, taken.launches - 1, died)
                    taken.errors[one.measurement.key] = died
                    taken.failure = died
                    self._fail(wanted, taken, died)
                    self._stop()
                    return
            else:
                taken.rounds.setdefault(one.measurement.key, []).append(rounds)

    def _launch(self, spec: ServerSpec, taken: _Taken) -> Served:
        self._stop()
        index, taken.launches = taken.launches, taken.launches + 1
        self.launch_count += 1
        served = self._start(spec, index)
        # A server that an earlier session left up was launched there.
        self.launch_count -= served.record.adopted
        self._running = (spec.content_hash, served)
        return served

    @staticmethod
    def _fail(wanted: Sequence[PlannedMeasurement], taken: _Taken, error: SpecdecError) -> None:
        """Give the reason to each measurement of a launch that this launch has not yet taken; others keep theirs."""
        for one in wanted:
            key = one.measurement.key
            if all(done.launch.index != taken.launches - 1 for done in taken.rounds.get(key, [])):
                taken.errors.setdefault(key, error)


def _lost_requests(launch: LaunchRounds) -> bool:
    return any(sample.error is not None for done in launch.rounds for sample in done.requests)


def _death_of(served: Served) -> LaunchError | None:
    try:
        served.check_alive()
    except LaunchError as error:
        return error
    return None
