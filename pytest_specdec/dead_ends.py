"""Dead ends: experiments that are known to fail, kept as tests; whether they still do, and in the same way."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from pytest_specdec import metrics, report, results, validity
from pytest_specdec.diagnose import diagnose
from pytest_specdec.errors import FailureCause, InfrastructureError, LaunchError, MeasurementError
from pytest_specdec.expected import fits, is_outside, is_same, tells
from pytest_specdec.hosts import PythonFound
from pytest_specdec.model import DeadEnd, LaunchRecord, LaunchRounds, Measurement, Violation
from pytest_specdec.plan import PlannedTest
from pytest_specdec.pool import ServerPool
from pytest_specdec.preflight import Preflight
from pytest_specdec.spec import ServerSpec
from pytest_specdec.validity_run import Run

#: In this order where a measurement is shown.
_SHOWN: Final = ("decode_tok_s", "system_tok_s", "output_tok_s", "accept_length", "verify_rate", "ttft_ms", "tpot_ms")

#: ``invalid``: a server that came up was measured, and the measurement can't be judged.
Outcome = Literal["holds", "differs", "revived", "outside-versions", "invalid"]
_STATUS: Final[Mapping[Outcome, str]] = {"differs": "dead-end-differs", "revived": "revived", "invalid": "invalid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What became of a dead end.

    ``seen`` is the name of what happened, None for a server that works; ``detail`` says it in a line, ``message`` is
    what a failed test shows. ``metrics`` are geometric means over launches.
    """

    outcome: Outcome
    seen: str | None
    detail: str
    message: str
    sglang_version: str | None
    log_path: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    at: dt.datetime

    @property
    def status(self) -> str | None:
        """The status word of a failed report, None where the test is no failure."""
        return _STATUS.get(self.outcome)


class Site(Protocol):
    """Where servers run, as far as it is asked here; :class:`pytest_specdec.serving.Serving` is one."""

    def sglang_version(self, spec: ServerSpec) -> str | None:
        """Return the version that a spec will run on, None where that is not known."""

    def python(self, spec: ServerSpec) -> PythonFound | None:
        """Return the Python that runs SGLang for a spec, None where its launcher brings one."""

    def header(self) -> dict[str, Any]:
        """Return what the results document says about the whole run."""


class DeadEnds:
    """The dead ends of one session: each is tried once, and what came of it is kept for the report."""

    def __init__(self, site: Site, *, on_cuda: bool, notify: Callable[[str], None]) -> None:
        self._site = site
        self._on_cuda = on_cuda
        self._notify = notify
        self._tests: dict[str, list[PlannedTest]] = {}
        self._found: dict[str, tuple[PlannedTest, DeadEnd, Found]] = {}

    def plan(self, tests: Iterable[PlannedTest]) -> None:
        """Take note of who else wants a server: what a dead end expects is a failure to every other test."""
        for test in tests:
            self._tests.setdefault(test.spec.content_hash, []).append(test)

    def found(self, test: PlannedTest, pool: ServerPool) -> Found | None:
        """Try a test's dead end, once: launch, and measure what the test declares. None for an ordinary test.

        Raises what says nothing about the experiment, such as a host that does not answer.
        """
        if test.dead_end is None:
            return None
        if test.nodeid not in self._found:
            self._found[test.nodeid] = (test, test.dead_end, self._try(test, test.dead_end, pool))
        found = self._found[test.nodeid][2]
        return None if found.outcome == "outside-versions" else found

    def _try(self, test: PlannedTest, dead_end: DeadEnd, pool: ServerPool) -> Found:
        version = None if dead_end.versions is None else self._site.sglang_version(test.spec)
        if is_outside(dead_end.versions, version):
            detail = f"SGLang {version} is outside of {dead_end.versions}: an ordinary test"
            self._notify(f"{test.nodeid}: dead end {dead_end.expected}: {detail}")
            return _found("outside-versions", None, detail, version)
        try:
            if test.measurement is None:
                return self._came_up(test, dead_end, pool, pool.server(test.spec).record)
            launches = pool.measured(test.measurement)
        except LaunchError as error:
            if error.cause is None or not tells(dead_end, error.cause):
                raise
            return _failed(test, dead_end, error, error.cause, version or self._known_version(test))
        return self._came_up(test, dead_end, pool, launches[-1].launch, test.measurement, launches)

    def _known_version(self, test: PlannedTest) -> str | None:
        with contextlib.suppress(InfrastructureError):
            found = self._site.python(test.spec)
            return None if found is None else found.sglang_version
        return None

    def _came_up(
        self,
        test: PlannedTest,
        dead_end: DeadEnd,
        pool: ServerPool,
        launch: LaunchRecord,
        measurement: Measurement | None = None,
        launches: Sequence[LaunchRounds] = (),
    ) -> Found:
        """Tell whether a server that came up serves as badly as expected, or works."""
        seen, *warned = _named_by(_log_of(pool, test, launch))
        summaries = {} if measurement is None else _summaries(measurement, launches)
        values = {name: summary.value for name, summary in summaries.items()}

        def came(outcome: Outcome, detail: str, *lines: str, name: str | None = seen) -> Found:
            where = f"server:    SGLang {launch.sglang_version} on {launch.node}, log {launch.log_path}"
            message = _message(test, dead_end, outcome, detail, [where, *lines])
            return _found(outcome, name, detail, launch.sglang_version, message, launch.log_path, values)

        if dead_end.diagnosis is not None and dead_end.diagnosis in (seen, *warned):
            said = f"{dead_end.diagnosis}: its log says so while it serves"
            return came("holds", said, name=dead_end.diagnosis)
        violations = self._violations(test, measurement, launches)
        failed = [violation.reason for violation in violations if violation.rule == "request-error"]
        if failed:
            said = "no diagnosis" if seen is None else seen
            return came("differs", f"{said}: it came up, and requests failed: {failed[0]}")
        figures = [f"  {line}" for line in _figures(summaries)]
        if violations:
            why = "; ".join(f"{violation.rule}: {violation.reason}" for violation in violations)
            return came("invalid", f"it came up, and was not measured validly: {why}", *figures)
        if measurement is None:
            return came("revived", f"it came up, ready after {launch.ready_s:.1f} s", name=None)
        metric = metrics.speed_of(measurement)
        if metric not in values:
            raise MeasurementError(
                f"{measurement.key}: {metric} does not follow from its rounds; send more or longer ones"
            )
        measured = f"{metric} {report.number(values[metric])} tok/s"
        if dead_end.slower_than is None:
            return came("revived", f"it works: {measured}", *figures, name=None)
        if values[metric] <= dead_end.slower_than:
            return came("holds", f"{measured}, not above {dead_end.slower_than:g}", name=None)
        return came("revived", f"it works: {measured}, above {dead_end.slower_than:g}", *figures, name=None)

    def _violations(
        self, test: PlannedTest, measurement: Measurement | None, launches: Sequence[LaunchRounds]
    ) -> tuple[Violation, ...]:
        if measurement is None:
            return ()
        runs = [Run.of(measurement, launch, on_cuda=self._on_cuda) for launch in launches]
        return validity.violations(validity.findings(runs, waived=test.waived))

    def expects(self, spec: ServerSpec, checked: Preflight) -> bool:
        """Tell whether what the preflight found wrong with a spec is what each of its tests expects."""
        cause = FailureCause(
            names=tuple(problem.rule for problem in checked.problems), category="preflight", phase="preflight"
        )
        tests = self._tests.get(spec.content_hash, [])
        return bool(tests) and all(
            test.dead_end is not None
            and not is_outside(test.dead_end.versions, checked.sglang_version)
            and fits(test.dead_end, cause)
            for test in tests
        )

    def unexpected(self, failures: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the failures of servers that not all of their tests expect."""
        holding = {nodeid for nodeid, (_, _, found) in self._found.items() if found.outcome == "holds"}
        expected = {
            tests[0].spec.name for tests in self._tests.values() if all(test.nodeid in holding for test in tests)
        }
        return [failure for failure in failures if failure["server"] not in expected]

    def entries(self) -> list[dict[str, Any]]:
        """Return what ``results.json`` holds of the dead ends that were tried."""
        node = self._site.header()["node"] if self._found else ""
        return [
            {
                "nodeid": test.nodeid,
                "server": test.spec.name,
                "spec_hash": test.spec.content_hash,
                "command": test.spec.masked_command,
                "expected": dead_end.expected,
                "outcome": found.outcome,
                "seen": found.seen,
                "reason": dead_end.reason,
                "link": dead_end.link,
                "versions": dead_end.versions,
                "sglang_version": found.sglang_version,
                "node": node,
                "at": found.at.isoformat(timespec="seconds"),
                "log_path": found.log_path,
                "metrics": dict(found.metrics),
                "detail": found.detail,
            }
            for _, (test, dead_end, found) in sorted(self._found.items())
            if found.outcome != "invalid"
        ]


def _found(
    outcome: Outcome,
    seen: str | None,
    detail: str,
    version: str | None,
    message: str = "",
    log_path: str | None = None,
    values: Mapping[str, float] | None = None,
) -> Found:
    return Found(
        outcome=outcome,
        seen=seen,
        detail=detail,
        message=message,
        sglang_version=version,
        log_path=log_path,
        metrics=values or {},
        at=dt.datetime.now(dt.timezone.utc),
    )


def _failed(
    test: PlannedTest, dead_end: DeadEnd, error: LaunchError, cause: FailureCause, version: str | None
) -> Found:
    """What a launch that failed is: the expected failure, or another one."""
    by_name = [name for name in cause.names if dead_end.diagnosis is not None and is_same(dead_end.diagnosis, name)]
    seen = ", ".join(by_name or cause.names) or None
    where = "the preflight found it" if cause.phase == "preflight" else f"in phase {cause.phase}"
    detail = f"{seen or 'no diagnosis'}, {where}"
    if fits(dead_end, cause):
        if not by_name:
            detail += f"; {dead_end.diagnosis} is provisional, so that phase and exit were compared"
        return _found("holds", seen, detail, version, log_path=error.log_path)
    message = _message(test, dead_end, "differs", detail, str(error).splitlines())
    return _found("differs", seen, detail, version, message, error.log_path)


_HEADS: Final[Mapping[Outcome, str]] = {
    "differs": "this dead end fails differently",
    "revived": "REVIVED: this dead end works",
    "invalid": "whether this dead end works can't be told",
}


def _message(test: PlannedTest, dead_end: DeadEnd, outcome: Outcome, detail: str, lines: Sequence[str]) -> str:
    head = [
        f"{test.spec.name}: {_HEADS.get(outcome, outcome)}",
        f"  expected:  {dead_end.expected}",
        f"  seen:      {detail}",
        f"  reason:    {dead_end.reason}",
        *([] if dead_end.link is None else [f"  link:      {dead_end.link}"]),
        f"  command:   {test.spec.masked_command}",
        *(f"  {line}" for line in lines),
    ]
    if outcome == "revived":
        head.append(
            "  Nothing of it was compared with a baseline. Take the marker away to have an ordinary test, or name the "
            "versions that it is true of: versions="
        )
    return "\n".join(head)


def _summaries(measurement: Measurement, launches: Sequence[LaunchRounds]) -> dict[str, results.MetricSummary]:
    values = results.rounds_by_launch(launches, measurement)
    return {name: results.summarise(name, rows) for name, rows in values.items() if any(rows)}


def _figures(summaries: Mapping[str, results.MetricSummary]) -> list[str]:
    width = max((len(name) for name in _SHOWN), default=0)
    return [
        f"{name:<{width}}  {report.number(found.value)} {metrics.METRICS[name].unit}, "
        f"rounds {report.number(found.low)} to {report.number(found.high)}"
        for name in _SHOWN
        if (found := summaries.get(name)) is not None
    ]


def _log_of(pool: ServerPool, test: PlannedTest, launch: LaunchRecord) -> str:
    """The log of a server that came up; empty where it is not known here."""
    served = pool.running(test.spec)
    with contextlib.suppress(InfrastructureError, OSError):
        path = launch.log_path if served is None else getattr(served, "log_path", launch.log_path)
        return Path(str(path)).read_text(encoding="utf-8", errors="replace")
    return ""


def _named_by(log: str) -> tuple[str | None, ...]:
    """The diagnosis of a server that serves, None where its log shows no failure; then what the log warns of."""
    found = diagnose(log)
    return (None if found.category == "ok" else found.diagnosis, *found.warnings) if log else (None,)
