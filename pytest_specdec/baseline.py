"""Baseline files: what was measured before, with its identity, its noise, and the limits that people set."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pytest_specdec import jsonfile, noise, stats
from pytest_specdec.baseline_reading import At
from pytest_specdec.decide import Gate
from pytest_specdec.detectable import Rule, as_fraction, detectable_change
from pytest_specdec.errors import BaselineFileError
from pytest_specdec.metrics import METHOD_VERSION, METRICS
from pytest_specdec.model import GOODPUT_LIMITS, Direction, RoundsByLaunch
from pytest_specdec.noise import PRIORS
from pytest_specdec.sequential import holm_level

SCHEMA_VERSION: Final = 2


def _from_1(document: dict[str, Any]) -> dict[str, Any]:
    """The value of a launch became the geometric mean of its rounds: a mean of medians is taken out, to be derived."""
    metrics = document.get("metrics")
    if isinstance(metrics, dict):
        document["metrics"] = {
            name: {key: value for key, value in metric.items() if key != "mean"} if isinstance(metric, dict) else metric
            for name, metric in metrics.items()
        }
    return document


#: Version n to n + 1. The history: 1, the first; 2, ``mean`` is of geometric means, ``categories`` and
#: ``detectable_change`` may be there.
MIGRATIONS: Final[Mapping[int, jsonfile.Migration]] = {1: _from_1}

Source = Literal["program", "document"]
#: What a file keeps of each class of task, to say where a change comes from.
BY_CATEGORY: Final = ("accept_length", "verify_rate")
_ACCEPTED: Final = frozenset({"accept_length", "accept_length_sglang"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What must be the same for two values to be comparable; None is not known (documents only)."""

    model: str | None
    model_revision: str | None
    draft: str | None
    draft_revision: str | None
    workload_hash: str | None
    sampling: Mapping[str, float | int | None] | None
    output_tokens: int | None
    concurrency: int | None
    method_version: int | None = METHOD_VERSION
    #: Requests per second; None is a closed loop, in documents too.
    request_rate: float | None = None
    chat_template: bool | None = False
    #: Limits for goodput; None: none were stated.
    goodput: Mapping[str, float] | None = None

    @property
    def streams(self) -> int:
        """How many streams decide what gates by default: the concurrency of a closed loop, 1 in an open one.

        There the system's throughput follows the request rate, so that only a stream's own can get worse.
        """
        return 1 if self.request_rate is not None else self.concurrency or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the numbers come from; ``recorded_at`` is ISO 8601, UTC."""

    source: Source
    recorded_at: str | None
    git_commit: str | None
    command: str | None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricBaseline:
    """One metric's limits and rounds. ``floor`` is a hard limit in the bad direction, set by a person."""

    direction: Direction
    unit: str
    gate: bool
    tolerance: float
    floor: float | None
    launches: RoundsByLaunch
    note: str | None = None

    @property
    def mean(self) -> float | None:
        """Geometric mean over launches of each launch's geometric mean; None without samples."""
        return estimate(self.launches)


def estimate(launches: RoundsByLaunch) -> float | None:
    """Return the value that is judged: the geometric mean over launches of each launch's geometric mean.

    None when there is no launch, one has no round, or a round's value is not a finite number above 0.
    """
    return None if stats.unusable(launches) is not None else stats.mean_of_launches(launches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """One baseline file. ``categories``: class of task -> metric -> a value a launch."""

    identity: Identity
    environment: Mapping[str, object]
    provenance: Provenance
    metrics: Mapping[str, MetricBaseline]
    categories: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)


_IDENTITY: Final = (
    "model",
    "model_revision",
    "draft",
    "draft_revision",
    "workload_hash",
    "sampling",
    "output_tokens",
    "concurrency",
    "method_version",
)
#: None is a value of these: they do not apply.
_MAY_NOT_APPLY: Final = ("request_rate", "goodput")
#: In a file only where they say more than their absence does.
_OPTIONAL: Final = ("chat_template", *_MAY_NOT_APPLY)
#: What the program itself may not know; the rest is null in documents only.
_MAY_BE_UNKNOWN: Final = frozenset({"model_revision", "draft", "draft_revision"})


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file; raises :class:`BaselineFileError` with path, key and remedy."""
    document = jsonfile.migrated(path, jsonfile.read(path), current=SCHEMA_VERSION, migrations=MIGRATIONS)
    top = At(path, document).object(
        required=(jsonfile.VERSION_KEY, "identity", "environment", "provenance", "metrics"), optional=("categories",)
    )
    provenance = _provenance(top["provenance"])
    return Baseline(
        identity=_identity(top["identity"], provenance.source),
        environment={key: at.value for key, at in top["environment"].each().items()},
        provenance=provenance,
        metrics={name: _metric(name, at) for name, at in top["metrics"].each().items()},
        categories=_categories(top["categories"]) if "categories" in top else {},
    )


def _categories(at: At) -> dict[str, dict[str, tuple[float, ...]]]:
    return {
        name: {metric: _values(values) for metric, values in category.object(required=(), optional=BY_CATEGORY).items()}
        for name, category in at.each().items()
    }


def _values(at: At) -> tuple[float, ...]:
    if not isinstance(at.value, list) or not at.value:
        raise at.fail("a list of values, one a launch, that is not empty")
    return tuple(_positive(At(at.path, value, f"{at.key}[{i}]")) for i, value in enumerate(at.value))


def _identity(at: At, source: Source) -> Identity:
    fields = at.object(required=_IDENTITY, optional=_OPTIONAL)
    for name, at_field in fields.items():
        if at_field.value is None and name not in (*_MAY_BE_UNKNOWN, *_MAY_NOT_APPLY) and source != "document":
            raise at_field.fail("a value (null is for files with provenance.source document)")
    sampling = fields["sampling"].or_none(
        lambda field: {key: value.or_none(_finite) for key, value in field.each().items()}
    )
    return Identity(
        model=fields["model"].or_none(At.text),
        model_revision=fields["model_revision"].or_none(At.text),
        draft=fields["draft"].or_none(At.text),
        draft_revision=fields["draft_revision"].or_none(At.text),
        workload_hash=fields["workload_hash"].or_none(At.text),
        sampling=sampling,
        output_tokens=fields["output_tokens"].or_none(lambda field: field.whole(2)),
        concurrency=fields["concurrency"].or_none(lambda field: field.whole(1)),
        method_version=fields["method_version"].or_none(lambda field: field.whole(1)),
        request_rate=fields["request_rate"].or_none(_positive) if "request_rate" in fields else None,
        chat_template=_templated(fields.get("chat_template"), source),
        goodput=_limits(fields["goodput"]) if "goodput" in fields else None,
    )


def _templated(at: At | None, source: Source) -> bool | None:
    return _untold(source) if at is None else at.or_none(At.flag)


def _untold(source: Source) -> bool | None:
    """Whether prompts were put into a chat template, in a file that does not say: the program says when they were."""
    return False if source == "program" else None


def _limits(at: At) -> dict[str, float]:
    limits = at.object(required=(), optional=GOODPUT_LIMITS)
    return {name: _positive(limit) for name, limit in limits.items()}


def _provenance(at: At) -> Provenance:
    fields = at.object(required=("source", "recorded_at", "git_commit", "command"), optional=("note",))
    source: Source = "document" if fields["source"].one_of("program", "document") == "document" else "program"
    return Provenance(
        source=source,
        recorded_at=fields["recorded_at"].or_none(At.moment),
        git_commit=fields["git_commit"].or_none(At.text),
        command=fields["command"].or_none(At.text),
        note=fields["note"].or_none(At.text) if "note" in fields else None,
    )


def _metric(name: str, at: At) -> MetricBaseline:
    if name not in METRICS:
        near = difflib.get_close_matches(name, METRICS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise BaselineFileError(f"{at.path}: {at.key}: unknown metric{hint}; there are {', '.join(METRICS)}")
    fields = at.object(
        required=("direction", "unit", "gate", "tolerance", "launches"),
        optional=("floor", "note", "mean", "sd_within", "sd_between", "detectable_change"),
    )
    spec = METRICS[name]
    direction: Direction = "higher" if fields["direction"].one_of(spec.direction) == "higher" else "lower"
    metric = MetricBaseline(
        direction=direction,
        unit=fields["unit"].one_of(spec.unit),
        gate=fields["gate"].flag(),
        tolerance=fields["tolerance"].number("a number of at least 0 and below 1", lambda value: 0 <= value < 1),
        floor=fields["floor"].or_none(_positive) if "floor" in fields else None,
        launches=_launches(fields["launches"]),
        note=fields["note"].or_none(At.text) if "note" in fields else None,
    )
    for derived in ("sd_within", "sd_between", "detectable_change"):
        if derived in fields:
            fields[derived].number("a number of at least 0", lambda value: value >= 0)
    if "mean" in fields:
        _check_mean(fields["mean"], metric.mean)
    return metric


def _check_mean(at: At, derived: float | None) -> None:
    """Refuse a mean that was edited: the rounds are what is judged by, and it would look as if it were this."""
    if derived is None:
        raise at.fail("no mean beside empty launches (set a floor to hold a metric to a number)")
    if not math.isclose(_positive(at), derived, rel_tol=1e-5):
        raise at.fail(f"{derived:.6g}, which follows from the launches")


def _finite(at: At) -> float:
    number = at.number("a number or null", lambda _: True)
    return at.value if isinstance(at.value, int) else number  # a seed keeps all its digits


def _positive(at: At) -> float:
    return at.number("a number above 0", lambda value: value > 0)


def _launches(at: At) -> RoundsByLaunch:
    if not isinstance(at.value, list) or not all(isinstance(launch, list) and launch for launch in at.value):
        raise at.fail("a list of launches, each a list of rounds that is not empty")
    return tuple(
        tuple(_positive(At(at.path, value, f"{at.key}[{i}][{j}]")) for j, value in enumerate(launch))
        for i, launch in enumerate(at.value)
    )


def to_document(baseline: Baseline) -> dict[str, Any]:
    """Return the JSON object of a baseline."""
    identity = {name: getattr(baseline.identity, name) for name in _IDENTITY}
    absent = {"chat_template": _untold(baseline.provenance.source)}
    stated = {name: getattr(baseline.identity, name) for name in _OPTIONAL}
    identity |= {name: value for name, value in stated.items() if value != absent.get(name)}
    identity = {name: dict(value) if isinstance(value, Mapping) else value for name, value in identity.items()}
    provenance = baseline.provenance
    gates = sum(metric.gate and bool(metric.launches) for metric in baseline.metrics.values())
    return {
        jsonfile.VERSION_KEY: SCHEMA_VERSION,
        "identity": identity,
        "environment": dict(baseline.environment),
        "provenance": {
            "source": provenance.source,
            "recorded_at": provenance.recorded_at,
            "git_commit": provenance.git_commit,
            "command": provenance.command,
            **({} if provenance.note is None else {"note": provenance.note}),
        },
        "metrics": {name: _metric_document(name, metric, gates) for name, metric in sorted(baseline.metrics.items())},
        **({} if not baseline.categories else {"categories": _category_document(baseline.categories)}),
    }


def _category_document(categories: Mapping[str, Mapping[str, tuple[float, ...]]]) -> dict[str, Any]:
    return {name: {metric: list(values) for metric, values in metrics.items()} for name, metrics in categories.items()}


def gate_of(name: str, metric: MetricBaseline) -> Gate | None:
    """Return what a metric is held to by its baseline; None where that has neither samples nor a floor."""
    if not metric.launches and metric.floor is None:
        return None
    sigma, prior = METRICS[name].smallest_sigma, PRIORS[METRICS[name].unit]
    return Gate(
        direction=metric.direction,
        tolerance=metric.tolerance,
        noise=noise.estimate(metric.launches, prior=prior, smallest_sigma=sigma) if metric.launches else None,
        prior=prior,
        smallest_sigma=sigma,
        floor=metric.floor,
        counts_accepted=name in _ACCEPTED,
    )


def _detectable_change(name: str, metric: MetricBaseline, gates: int) -> float | None:
    """Return the fraction that a run of the default plan sees, were this file's the only gated metrics."""
    gate = gate_of(name, metric)
    if gate is None or gate.noise is None:
        return None
    rule = Rule(error=holm_level(Rule().error, max(1, gates)))
    seen = detectable_change(gate.noise, rule, rounds=gate.noise.rounds, tolerance=gate.allowed_loss())
    # What the last digits say depends on the machine that computed them.
    return round(as_fraction(seen, metric.direction), 4)


def _metric_document(name: str, metric: MetricBaseline, gates: int) -> dict[str, Any]:
    # What is derived follows from the rounds as the file holds them: reading and writing it changes no digit.
    metric = dataclasses.replace(
        metric, launches=tuple(tuple(map(jsonfile.fixed, launch)) for launch in metric.launches)
    )
    spread = stats.variance_components(metric.launches)
    optional = {
        "floor": metric.floor,
        "note": metric.note,
        "mean": metric.mean,
        "sd_within": spread.within,
        "sd_between": spread.between,
        "detectable_change": _detectable_change(name, metric, gates),
    }
    return {
        "direction": metric.direction,
        "unit": metric.unit,
        "gate": metric.gate,
        "tolerance": metric.tolerance,
        "launches": [list(launch) for launch in metric.launches],
        **{key: value for key, value in optional.items() if value is not None},
    }


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write a baseline file, atomically and the same way every time."""
    jsonfile.write(path, to_document(baseline))


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityCheck:
    """How two identities compare: fields that differ (name, recorded, measured), and fields not known."""

    differing: tuple[tuple[str, object, object], ...]
    unknown: tuple[str, ...]


def check_identity(recorded: Baseline, measured: Identity) -> IdentityCheck:
    """Compare field by field; what is not known is listed, not compared.

    In a file that the program wrote, no draft means that there was none; in a document it means not known.
    """
    by_program = recorded.provenance.source == "program"
    differing, unknown = [], []
    for name in (*_IDENTITY, "chat_template"):
        before, now = getattr(recorded.identity, name), jsonfile.rounded(getattr(measured, name))
        if before is None and not by_program:
            unknown.append(name)
        elif jsonfile.rounded(before) == now:
            continue
        elif (before is None or now is None) and name != "draft":
            unknown.append(name)
        else:
            differing.append((name, before, now))
    for name in _MAY_NOT_APPLY:
        before, now = (jsonfile.rounded(getattr(side, name)) for side in (recorded.identity, measured))
        if name == "goodput" and before is None and now is not None and not by_program:
            unknown.append(name)
        elif before != now:
            differing.append((name, before, now))
    return IdentityCheck(differing=tuple(differing), unknown=tuple(unknown))
