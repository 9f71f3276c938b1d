"""From measured values and baselines to a verdict, and the text that explains it. Pure: nothing is read or run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pytest_specdec import jsonfile, stats
from pytest_specdec.baseline import Identity, MetricBaseline, check_identity, estimate
from pytest_specdec.baseline_store import Lookup, default_gate
from pytest_specdec.metrics import METRICS
from pytest_specdec.model import Comparison, MetricVerdict, RoundsByLaunch, Verdict, Violation
from pytest_specdec.report import number, percent

#: Environment entries that say nothing about speed, or change with every launch.
_NOT_SHOWN: Final = frozenset({"port", "random_seed", "nccl_port", "log_file", "dist_init_addr"})
#: A value that was recorded and read back is rounded to six digits, by half of the last one; that is no change.
_ROUNDING: Final = 5e-6


def judge(
    measured: Mapping[str, RoundsByLaunch],
    lookup: Lookup,
    *,
    violations: Sequence[Violation],
    identity: Identity,
    environment: Mapping[str, object],
    node: str,
    drafting: bool,
    never_gated: frozenset[str] = frozenset(),
    notes: Sequence[str] = (),
) -> Comparison:
    """Judge one measurement. ``measured`` has, for each metric, every round grouped by launch.

    The verdict is the first of these that applies: ``invalid`` (a validity rule, another identity, a gated
    metric or one with a floor without a usable value), ``regression`` (a gated metric beyond its tolerance, or any
    floor broken: what is known to be worse stays so when another metric has no baseline), ``inconclusive``,
    ``no-baseline`` (a gated metric found in no file, or without samples and floor), ``improvement`` (of a gated
    metric), ``pass``. Metrics in ``never_gated`` are advisory whatever a file says.
    """
    broken = list(violations)
    said = list(notes)
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
    concurrency = identity.concurrency or 1
    gated = {name for name in METRICS if _gates(name, lookup, concurrency, node, drafting)} - never_gated
    rows = [
        _judge_metric(name, measured.get(name), lookup, gate=name in gated)
        for name in METRICS
        if name in measured or name in lookup.metrics or name in gated
    ]
    broken += [Violation(rule="metric-missing", reason=row.reason) for row in rows if row.verdict is Verdict.INVALID]
    if not any(row.gated or row.floor is not None for row in rows):
        on_cpu = node.startswith("cpu-") and not drafting
        why = "throughput on a CPU node is advisory, and the server does not draft" if on_cpu else "all are advisory"
        said.append(f"no metric gates here: {why}")
    return Comparison(
        verdict=_overall(rows, broken),
        metrics=tuple(rows),
        violations=tuple(broken),
        baseline_path=", ".join(str(path) for path in lookup.files) or None,
        split=_split(rows),
        environment_changes=environment_changes(
            [recorded.environment for _, recorded in lookup.baselines if recorded.provenance.source == "program"],
            environment,
        ),
        notes=tuple(said),
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:16]}...{text[-4:]}"


def _gates(name: str, lookup: Lookup, concurrency: int, node: str, drafting: bool) -> bool:
    found = lookup.metrics.get(name)
    if found is not None:
        # Also when the server does not draft any more: a drafter that got lost must not take its gate with it.
        return found.metric.gate
    if not drafting and name in ("accept_length", "accept_length_sglang", "accept_rate", "verify_rate"):
        return False
    return default_gate(name, concurrency=concurrency, node=node)


def _judge_metric(name: str, launches: RoundsByLaunch | None, lookup: Lookup, *, gate: bool) -> MetricVerdict:
    spec = METRICS[name]
    found = lookup.metrics.get(name)
    value = None if launches is None else estimate(launches)
    old = None if found is None else found.metric
    mean = None if old is None else old.mean
    low, high = (None, None) if old is None else old.allowed()
    if value is None:
        required = gate or (old is not None and old.floor is not None)
        lacking = stats.unusable(launches or ())
        verdict = Verdict.INVALID if required else None
        reason = f"{name} has no usable value: {lacking}" if required or launches else "not measured"
    else:
        verdict, reason = _decide(name, value, old, gate=gate)
    return MetricVerdict(
        metric=name,
        unit=spec.unit,
        direction=spec.direction,
        gated=gate,
        value=value,
        baseline=mean,
        change=None if value is None or mean is None else value / mean - 1,
        allowed_low=low,
        allowed_high=high,
        floor=None if old is None else old.floor,
        verdict=verdict,
        reason=reason,
        source=None if found is None else str(found.path),
    )


def _decide(name: str, value: float, old: MetricBaseline | None, *, gate: bool) -> tuple[Verdict | None, str]:
    """Apply the rule to one metric: floor first, then the tolerance. The one place to replace."""
    if old is None:
        return (Verdict.NO_BASELINE, "no baseline") if gate else (None, "no baseline, advisory")
    if old.floor is not None and _breaks(value, old.floor, old.direction):
        side = "below its floor" if old.direction == "higher" else "above its ceiling"
        return Verdict.REGRESSION, f"{name} {_apart(value, old.floor)} {old.unit} is {side} {old.floor:g}"
    mean = old.mean
    if mean is None:
        if old.floor is not None:
            return Verdict.PASS, "held to its floor only"
        return (Verdict.NO_BASELINE if gate else None), "its baseline has neither samples nor a floor"
    higher = old.direction == "higher"
    loss = math.log(mean / value) if higher else math.log(value / mean)
    allowed_loss = -math.log1p(-old.tolerance) if higher else math.log1p(old.tolerance)
    if loss > allowed_loss + _ROUNDING:
        return Verdict.REGRESSION, f"worse than the baseline by more than {old.tolerance:.1%}"
    if -loss > -math.log1p(-old.tolerance) + _ROUNDING:
        return Verdict.IMPROVEMENT, f"better than the baseline by more than {old.tolerance:.1%}"
    return Verdict.PASS, "within the tolerance"


def _apart(value: float, limit: float) -> str:
    """Write a value with as many digits as show on which side of the limit it is: 89.4996 is below 89.5."""
    for digits in range(4, 17):
        text = f"{value:.{digits}g}"
        if float(text) != limit and (float(text) < limit) == (value < limit):
            return text
    return repr(value)


def _breaks(value: float, floor: float, direction: str) -> bool:
    return value < floor if direction == "higher" else value > floor


def _overall(rows: Sequence[MetricVerdict], broken: Sequence[Violation]) -> Verdict:
    if broken:
        return Verdict.INVALID
    if any(row.verdict is Verdict.REGRESSION and (row.gated or breaks_floor(row)) for row in rows):
        return Verdict.REGRESSION
    gated = [row.verdict for row in rows if row.gated]
    for verdict in (Verdict.INCONCLUSIVE, Verdict.NO_BASELINE, Verdict.IMPROVEMENT):
        if verdict in gated:
            return verdict
    return Verdict.PASS


def breaks_floor(row: MetricVerdict) -> bool:
    """Whether a metric is beyond the hard limit that a person set."""
    if row.floor is None or row.value is None or row.direction is None:
        return False
    return _breaks(row.value, row.floor, row.direction)


def _split(rows: Iterable[MetricVerdict]) -> tuple[float, float] | None:
    changes = {row.metric: row.change for row in rows}
    accept, rate = changes.get("accept_length"), changes.get("verify_rate")
    return None if accept is None or rate is None else (accept, rate)


def environment_changes(recorded: Sequence[Mapping[str, object]], now: Mapping[str, object]) -> tuple[str, ...]:
    """Return a readable line for each difference from the first recorded environment, sorted.

    A number that differs beyond the digits that a file keeps is the same.
    """
    if not recorded:
        return ()
    before, after = jsonfile.rounded(recorded[0]), jsonfile.rounded(now)
    return tuple(
        f"{key}: {_from_to(_side(before, key), _side(after, key))}"
        for key in sorted({*before, *after})
        if key.rpartition(".")[2] not in _NOT_SHOWN and before.get(key) != after.get(key)
    )


def _side(environment: Mapping[str, object], key: str) -> str:
    if key not in environment:
        return "(not set)"
    value = environment[key]
    return value if isinstance(value, str) and value.strip() else repr(value)


def _from_to(before: str, after: str) -> str:
    """Write both sides; of long ones the part that differs, with a little of what stands around it."""
    longest, around = 80, 20
    if max(len(before), len(after)) <= longest:
        return f"{before} -> {after}"
    start = max(0, _shared(before, after) - around)
    end = max(0, _shared(before[start:][::-1], after[start:][::-1]) - around)
    return " -> ".join(_part(text, start, len(text) - end, longest) for text in (before, after))


def _shared(one: str, other: str) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _part(text: str, start: int, stop: int, longest: int) -> str:
    shown = text[start:stop]
    if len(shown) > longest:
        shown, stop = shown[:longest], start + longest
    return f"{'...' if start else ''}{shown}{'...' if stop < len(text) else ''}"


def explain_split(comparison: Comparison) -> str | None:
    """Say which half of decode throughput got worse, in one sentence; None when neither did, or it isn't known."""
    if comparison.split is None:
        return None
    accept, rate = comparison.split
    both = (1 + accept) * (1 + rate) - 1
    blame = _blame(accept, rate)
    if blame is None:
        return None
    return f"decode tok/s {percent(both)} = accept length {percent(accept)} x verify rate {percent(rate)}: {blame}"


def _blame(accept: float, rate: float) -> str | None:
    drafter, engine = (
        accept < -METRICS["accept_length"].default_tolerance,
        rate < -METRICS["verify_rate"].default_tolerance,
    )
    if drafter and engine:
        # Losses multiply, so their shares are those of the logarithms.
        share = math.log1p(accept) / (math.log1p(accept) + math.log1p(rate))
        return f"the drafter got worse, and the engine or the machine slower; {share:.0%} of the loss is the drafter's"
    if drafter:
        return "the drafter got worse (fewer draft tokens are right), not the engine"
    if engine:
        return "the engine or the machine got slower, not the drafter"
    return None


def failure_text(
    comparison: Comparison, *, key: str, wanted_path: str, nearest_nodes: Sequence[str], record_command: str
) -> str:
    """Return what a failed test shows: verdict, table, reasons, and what to do next."""
    lines = [f"{str(comparison.verdict).upper()}: {key}{_in_short(comparison)}", ""]
    lines += [f"  {violation.rule}: {violation.reason}" for violation in comparison.violations]
    if comparison.violations:
        lines.append("")
    lines += [f"  {line}" for line in _table(comparison.metrics)]
    lines.append("")
    for row in comparison.metrics:
        if breaks_floor(row):
            lines.append(f"  {row.reason} {row.unit} (set by a person in {row.source})")
    split = explain_split(comparison)
    if split is not None:
        lines.append(f"  {split}")
    if comparison.environment_changes:
        lines.append("  the environment differs from the baseline's:")
        lines += [f"    {change}" for change in comparison.environment_changes]
    lines += [f"  {note}" for note in comparison.notes]
    if comparison.verdict is Verdict.NO_BASELINE:
        missing = [row.metric for row in comparison.metrics if row.gated and row.verdict is Verdict.NO_BASELINE]
        lines.append(f"  there is no baseline for {', '.join(missing)}: {wanted_path}")
        others = ", ".join(nearest_nodes)
        lines.append(f"  other nodes have one: {others}" if others else "  no node has one")
        lines.append("  record it with:")
        lines.append(f"    {record_command}")
    elif comparison.baseline_path is not None:
        lines.append(f"  baseline: {comparison.baseline_path}")
        worse = any(
            row.gated and row.verdict is Verdict.REGRESSION and not breaks_floor(row) for row in comparison.metrics
        )
        loosening = "--specdec-allow-loosening"
        if worse and not comparison.violations and not any(loosening in note for note in comparison.notes):
            lines.append(
                f"  a loss that is meant is recorded with --update-baselines {loosening}, and reviewed as a diff"
            )
    return "\n".join(lines)


def _in_short(comparison: Comparison) -> str:
    """Return what a one-line summary has room for."""
    if comparison.violations:
        return f": {', '.join(dict.fromkeys(violation.rule for violation in comparison.violations))}"
    for row in comparison.metrics:
        if row.verdict is not Verdict.REGRESSION or not (row.gated or breaks_floor(row)):
            continue
        if row.value is not None and row.floor is not None and breaks_floor(row):
            return f": {row.metric} {_apart(row.value, row.floor)}, floor {row.floor:g}"
        return f": {row.metric} {number(row.value)}, was {number(row.baseline)}"
    return ""


def _table(rows: Sequence[MetricVerdict]) -> list[str]:
    table = [["metric", "value", "baseline", "allowed", "change", "verdict"]]
    for row in rows:
        # In every result; here they would hide what the verdict is about.
        if METRICS[row.metric].detail and not row.gated and not breaks_floor(row):
            continue
        verdict = "" if row.verdict is None else str(row.verdict)
        table.append(
            [
                f"{row.metric} {row.unit}",
                number(row.value),
                number(row.baseline),
                _allowed(row),
                percent(row.change),
                verdict if row.gated or not verdict or breaks_floor(row) else f"{verdict} (advisory)",
            ]
        )
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i in (0, len(widths) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    ]


def _allowed(row: MetricVerdict) -> str:
    parts = []
    if row.allowed_low is not None:
        parts.append(f">= {number(row.allowed_low)}")
    if row.allowed_high is not None:
        parts.append(f"<= {number(row.allowed_high)}")
    if row.floor is not None:
        parts.append(f"floor {row.floor:g}")
    return ", ".join(parts) or "-"
