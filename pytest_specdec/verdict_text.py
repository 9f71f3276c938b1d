"""What a failed test shows: verdict, table, why, and what to do next. Pure text from a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pytest_specdec import blame
from pytest_specdec.compare import breaks_floor
from pytest_specdec.floors import apart
from pytest_specdec.metrics import METRICS
from pytest_specdec.model import Comparison, MetricVerdict, Verdict
from pytest_specdec.report import aligned, number, percent, share


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
    lines += [f"  {line}" for line in (*_reasons(comparison), *blame.lines(comparison))]
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
        if comparison.verdict is Verdict.INCONCLUSIVE:
            lines += [f"  {line}" for line in _TOO_CLOSE]
        loosening = "--specdec-allow-loosening"
        if worse and not comparison.violations and not any(loosening in note for note in comparison.notes):
            lines.append(
                f"  a loss that is meant is recorded with --update-baselines {loosening}, and reviewed as a diff"
            )
    return "\n".join(lines)


_TOO_CLOSE: Final = (
    "the answer is too close to call: more launches tell more, of the baseline too (--specdec-max-launches=N,",
    "--update-baselines --specdec-launches=N); specdec_inconclusive = warn makes this a warning",
)


def _reasons(comparison: Comparison) -> list[str]:
    """Say of each metric that decides the verdict what was found, and on how many launches."""
    said = []
    for row in comparison.metrics:
        if breaks_floor(row):
            said.append(f"{row.metric} {row.reason} ({row.unit}; set by a person in {row.source})")
        elif row.gated and row.verdict in (Verdict.REGRESSION, Verdict.INCONCLUSIVE) and row.launches:
            launches = "1 launch" if row.launches == 1 else f"{row.launches} launches"
            said.append(f"{row.metric}: {row.reason} ({launches})")
    return said


def _in_short(comparison: Comparison) -> str:
    """Return what a one-line summary has room for."""
    if comparison.violations:
        return f": {', '.join(dict.fromkeys(violation.rule for violation in comparison.violations))}"
    for row in comparison.metrics:
        if row.verdict is not Verdict.REGRESSION or not (row.gated or breaks_floor(row)):
            continue
        if row.value is not None and row.floor is not None and breaks_floor(row):
            return f": {row.metric} {apart(row.value, row.floor)}, floor {row.floor:g}"
        return f": {row.metric} {number(row.value)}, was {number(row.baseline)}"
    return ""


def _table(rows: Sequence[MetricVerdict]) -> list[str]:
    table = [["metric", "value", "baseline", "change", "between", "limit", "verdict"]]
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
                percent(row.change),
                between(row),
                limit(row),
                verdict if row.gated or not verdict or breaks_floor(row) else f"{verdict} (advisory)",
            ]
        )
    return aligned(table, right=range(1, len(table[0]) - 1))


def between(row: MetricVerdict) -> str:
    """Return the bounds of the change; a dash where nothing was compared."""
    if row.change_low is None or row.change_high is None:
        return "-"
    return f"{percent(row.change_low)} to {percent(row.change_high)}"


def limit(row: MetricVerdict) -> str:
    """Return the loss that must be ruled out for a pass, and the floor; a dash for neither."""
    parts = [] if row.catches is None else [share(row.catches)]
    parts += [] if row.floor is None else [f"floor {row.floor:g}"]
    return ", ".join(parts) or "-"
