"""From measured values and baselines to a verdict. Pure: nothing is read or run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_specdec import blame, stats, verdicts
from pytest_specdec.baseline import Identity, check_identity
from pytest_specdec.baseline_store import Lookup, default_gate
from pytest_specdec.decide import Decision
from pytest_specdec.detectable import as_fraction
from pytest_specdec.environment import environment_changes
from pytest_specdec.metrics import METRICS
from pytest_specdec.model import Comparison, Direction, MetricVerdict, RoundsByLaunch, Verdict, Violation
from pytest_specdec.noise import harmonic_rounds
from pytest_specdec.verdicts import Budget


def judge(
    measured: Mapping[str, RoundsByLaunch],
    lookup: Lookup,
    *,
    violations: Sequence[Violation],
    identity: Identity,
    environment: Mapping[str, object],
    node: str,
    drafting: bool,
    budget: Budget | None = None,
    categories: Mapping[str, Mapping[str, float]] | None = None,
    never_gated: frozenset[str] = frozenset(),
    notes: Sequence[str] = (),
) -> Comparison:
    """Judge one measurement. ``measured`` has, for each metric, every round grouped by launch.

    The verdict is the first of these that applies: ``invalid`` (a validity rule, another identity, a gated
    metric or one with a floor without a usable value), ``regression`` (of a gated metric, or any floor broken: what is
    known to be worse stays so when another metric has no baseline), ``no-baseline`` (a gated metric found in no file,
    or without samples and floor), ``inconclusive``, ``improvement`` (of a gated metric), ``pass``. Metrics in
    ``never_gated`` are advisory whatever a file says. ``categories``: category -> metric -> value. ``more`` of the
    result is above 0 while another launch could change an answer that decides the verdict.
    """
    budget = Budget() if budget is None else budget
    broken, said = list(violations), list(notes)
    _compare_identity(lookup, identity, broken, said)
    gated = gated_metrics(lookup, identity, node, drafting=drafting, never_gated=never_gated)
    decided = verdicts.decisions(
        measured, {name: found.metric for name, found in lookup.metrics.items()}, gated=gated, budget=budget
    )
    rows = [
        _judge_metric(name, measured.get(name), lookup, decided.get(name), gate=name in gated)
        for name in METRICS
        if name in measured or name in lookup.metrics or name in gated
    ]
    broken += [Violation(rule="metric-missing", reason=row.reason) for row in rows if row.verdict is Verdict.INVALID]
    if not any(row.gated or row.floor is not None for row in rows):
        on_cpu = node.startswith("cpu-") and not drafting
        why = "throughput on a CPU node is advisory, and the server does not draft" if on_cpu else "all are advisory"
        said.append(f"no metric gates here: {why}")
    said += [f"{row.metric}: {row.reason}" for row in rows if row.stale and row.gated]
    said += _promises(measured, lookup, gated, budget)
    verdict = _overall(rows, broken)
    changes = environment_changes(
        [recorded.environment for _, recorded in lookup.baselines if recorded.provenance.source == "program"],
        environment,
    )
    return Comparison(
        verdict=verdict,
        metrics=tuple(rows),
        violations=tuple(broken),
        baseline_path=", ".join(str(path) for path in lookup.files) or None,
        split=blame.split(rows),
        environment_changes=changes,
        notes=tuple(said),
        categories=blame.category_changes(lookup.categories, categories or {}),
        cause=blame.cause(rows, changes),
        # What fails already needs no more launches to fail.
        more=0 if verdict in (Verdict.INVALID, Verdict.REGRESSION, Verdict.NO_BASELINE) else _more(decided, gated),
    )


def _compare_identity(lookup: Lookup, identity: Identity, broken: list[Violation], said: list[str]) -> None:
    for path, recorded in lookup.baselines:
        check = check_identity(recorded, identity)
        for name, before, now in check.differing:
            broken.append(
                Violation(
                    rule="identity",
                    reason=f"{name} is {_short(now)}, and {path} was recorded with {_short(before)}: values of "
                    "different measurements can't be compared; give this one another name, or delete that file "
                    "and record again",
                )
            )
        if check.unknown:
            said.append(f"not known, so not compared with {path.name}: {', '.join(check.unknown)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:16]}...{text[-4:]}"


def gated_metrics(
    lookup: Lookup, identity: Identity, node: str, *, drafting: bool, never_gated: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Return the metrics whose loss fails a measurement."""
    return frozenset(name for name in METRICS if _gates(name, lookup, identity.streams, node, drafting)) - never_gated


def _gates(name: str, lookup: Lookup, streams: int, node: str, drafting: bool) -> bool:
    found = lookup.metrics.get(name)
    if found is not None:
        # Also when the server does not draft any more: a drafter that got lost must not take its gate with it.
        return found.metric.gate
    if not drafting and name in ("accept_length", "accept_length_sglang", "accept_rate", "verify_rate"):
        return False
    return default_gate(name, streams=streams, node=node)


def _judge_metric(
    name: str, launches: RoundsByLaunch | None, lookup: Lookup, decided: Decision | None, *, gate: bool
) -> MetricVerdict:
    spec = METRICS[name]
    found = lookup.metrics.get(name)
    old = None if found is None else found.metric
    lacking = stats.unusable(launches or ())
    judged = None if lacking is not None or launches is None else launches
    if judged is not None and decided is not None:
        judged = judged[: decided.launches]
    value = None if judged is None else stats.mean_of_launches(judged)
    mean = None if old is None else old.mean
    if value is None:
        required = gate or (old is not None and old.floor is not None)
        verdict = Verdict.INVALID if required else None
        reason = f"{name} has no usable value: {lacking}" if required or launches else "not measured"
    elif old is None:
        verdict, reason = (Verdict.NO_BASELINE, "no baseline") if gate else (None, "no baseline, advisory")
    elif decided is None:
        verdict = Verdict.NO_BASELINE if gate else None
        reason = "its baseline has neither samples nor a floor"
    else:
        # Without a decision so far: whoever stops here ends with that.
        verdict, reason = decided.verdict or Verdict.INCONCLUSIVE, decided.reason
    low, high = _bounds(decided, spec.direction)
    return MetricVerdict(
        metric=name,
        unit=spec.unit,
        direction=spec.direction,
        gated=gate,
        value=value,
        baseline=mean,
        change=None if value is None or mean is None else value / mean - 1,
        change_low=low,
        change_high=high,
        catches=None if decided is None or decided.margin is None else as_fraction(decided.margin, spec.direction),
        floor=None if old is None else old.floor,
        verdict=verdict,
        reason=reason,
        launches=0 if decided is None else decided.launches,
        stale=decided is not None and decided.stale,
        source=None if found is None else str(found.path),
    )


def _bounds(decided: Decision | None, direction: Direction) -> tuple[float | None, float | None]:
    """Return the bounds of a loss as bounds of the change of the value."""
    if decided is None or decided.low is None or decided.high is None:
        return None, None
    if direction == "higher":
        return math.expm1(-decided.high), math.expm1(-decided.low)
    return math.expm1(decided.low), math.expm1(decided.high)


def _more(decided: Mapping[str, Decision], gated: frozenset[str]) -> int:
    """Return how many launches are worth spending yet, on gated metrics and on what is close to its floor."""
    return max(
        (
            decision.more
            for name, decision in decided.items()
            if decision.verdict is None and (name in gated or _close(decision))
        ),
        default=0,
    )


def _close(decision: Decision) -> bool:
    return decision.verdict is None and decision.floor is not None and decision.floor.close


def _promises(
    measured: Mapping[str, RoundsByLaunch], lookup: Lookup, gated: frozenset[str], budget: Budget
) -> list[str]:
    """Say what the gated metrics' baselines can see, and how often unchanged code breaks a floor."""
    said = []
    for name, found in lookup.metrics.items():
        launches = measured.get(name, ())
        if stats.unusable(launches) is not None:
            continue
        rounds = harmonic_rounds(launches)
        if name in gated:
            said.append(verdicts.what_it_sees(name, found.metric, rounds=rounds, budget=budget))
        said.append(verdicts.floor_odds(name, found.metric, rounds=rounds, budget=budget))
    return [line for line in said if line is not None]


def calls(comparison: Comparison) -> int:
    """Return how many regressions rest on the session's budget: not those that only break a floor."""
    return sum(row.gated and row.verdict is Verdict.REGRESSION and _surely_worse(row) for row in comparison.metrics)


def _surely_worse(row: MetricVerdict) -> bool:
    bound = row.change_high if row.direction == "higher" else row.change_low
    return bound is not None and (bound < 0 if row.direction == "higher" else bound > 0)


def _overall(rows: Sequence[MetricVerdict], broken: Sequence[Violation]) -> Verdict:
    if broken:
        return Verdict.INVALID
    if any(row.verdict is Verdict.REGRESSION and (row.gated or breaks_floor(row)) for row in rows):
        return Verdict.REGRESSION
    gated = [row.verdict for row in rows if row.gated]
    for verdict in (Verdict.NO_BASELINE, Verdict.INCONCLUSIVE, Verdict.IMPROVEMENT):
        if verdict in gated:
            return verdict
    return Verdict.PASS


def breaks_floor(row: MetricVerdict) -> bool:
    """Whether a metric is beyond the hard limit that a person set; a value that equals it is not."""
    if row.floor is None or row.value is None or row.direction is None:
        return False
    if math.isclose(row.value, row.floor, rel_tol=1e-12):
        return False
    return row.value < row.floor if row.direction == "higher" else row.value > row.floor
