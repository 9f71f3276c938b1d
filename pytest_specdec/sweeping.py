"""Sweeps in a session: which points get another launch, and how the points stand at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pytest_specdec import results
from pytest_specdec.errors import SpecdecError
from pytest_specdec.metrics import METRICS, speed_of
from pytest_specdec.model import LaunchRounds, Measurement, RoundsByLaunch
from pytest_specdec.noise import PRIORS
from pytest_specdec.plan import PlannedMeasurement, Sweep
from pytest_specdec.ranking import LOOKS, Point, further_launches, rank
from pytest_specdec.sweep_report import conclusion

#: What there is of each point, by its measurement's key.
Taken = Mapping[str, "tuple[LaunchRounds, ...] | SpecdecError"]
_FAILURE_SHOWN: Final = 80


def contending(sweep: Sweep, taken: Taken, *, most_launches: int) -> list[PlannedMeasurement]:
    """Return the points that deserve another launch: those that may still be the best, up to ``most_launches``."""
    spec = METRICS[speed_of(sweep.points[0].measurement)]
    further = further_launches(
        points(sweep, taken),
        spec.direction,
        prior=PRIORS[spec.unit],
        smallest_sigma=spec.smallest_sigma,
        looks=min(LOOKS, most_launches),
    )
    wanted = set(further.names)
    return [point for point in sweep.points if point.measurement.spec.name in wanted]


def points(sweep: Sweep, taken: Taken) -> list[Point]:
    """Return the points as the ranking takes them: rounds by launch of their throughput, or why there are none."""
    found = []
    for point in sweep.points:
        measured, name = taken[point.measurement.key], point.measurement.spec.name
        if isinstance(measured, SpecdecError):
            reason = str(measured).strip().partition("\n")[0]
            found.append(Point(name=name, failure=reason[:_FAILURE_SHOWN]))
        else:
            found.append(Point(name=name, launches=_values(point.measurement, measured)))
    return found


def _values(measurement: Measurement, launches: Sequence[LaunchRounds]) -> RoundsByLaunch:
    return results.rounds_by_launch(launches, measurement).get(speed_of(measurement), ()) if launches else ()


def document(sweep: Sweep, taken: Taken, *, most_launches: int) -> dict[str, Any]:
    """Return a sweep's object in ``results.json``: its ranking, and what it comes to in a sentence."""
    metric = speed_of(sweep.points[0].measurement)
    spec = METRICS[metric]
    ranking = rank(
        points(sweep, taken),
        spec.direction,
        prior=PRIORS[spec.unit],
        smallest_sigma=spec.smallest_sigma,
        looks=min(LOOKS, most_launches),
    )
    return {
        "name": sweep.name,
        "metric": metric,
        "unit": spec.unit,
        "confidence": ranking.confidence,
        "basis": ranking.basis,
        "conclusion": conclusion(ranking, unit=spec.unit),
        "points": [dataclasses.asdict(row) for row in ranking.rows],
    }
