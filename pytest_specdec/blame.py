"""Why a speed changed: its halves, the classes of task, and what differs in the environment. Pure.

decode tok/s = accept length x verify rate, exactly: a lower accept length is the drafter's, or comes of other text;
a lower verify rate is the engine's or the machine's, and which of the two is told by what differs around them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pytest_specdec.metrics import METRICS
from pytest_specdec.model import CategoryChange, Cause, Comparison, EnvironmentChange, MetricVerdict, Verdict
from pytest_specdec.report import percent

#: Facts of the hardware, its driver and its state.
_MACHINE: Final = ("gpu_", "driver_version", "cpu_", "shared_host_gpus", "os")
#: What decides which text is generated.
_TEXT: Final = ("chat_template", "args.chat_template", "args.tokenizer_path", "args.model_path", "args.revision")
_DRAFTER: Final = ("args.speculative_", "env.SGLANG_SIMULATE_ACC", "env.SIMULATE_ACC")
#: Distinct text that moved by more than this is other text.
_OTHER_TEXT: Final = 0.05


def split(rows: Iterable[MetricVerdict]) -> tuple[float, float] | None:
    """Return the changes of accept length and verify rate, as fractions; None where one of them isn't known."""
    changes = {row.metric: row.change for row in rows}
    accept, rate = changes.get("accept_length"), changes.get("verify_rate")
    return None if accept is None or rate is None else (accept, rate)


def category_changes(
    recorded: Mapping[str, Mapping[str, float]], measured: Mapping[str, Mapping[str, float]]
) -> tuple[CategoryChange, ...]:
    """Return how each class of task moved that both sides know, in the order of the measured ones.

    Both are category -> metric -> value.
    """

    def change(category: str, metric: str) -> float | None:
        before, now = recorded[category].get(metric), measured[category].get(metric)
        return None if not before or not now else now / before - 1

    return tuple(
        CategoryChange(
            category=name,
            accept_length=change(name, "accept_length"),
            verify_rate=change(name, "verify_rate"),
        )
        for name in measured
        if name in recorded
    )


def cause(rows: Sequence[MetricVerdict], environment: Sequence[EnvironmentChange]) -> Cause | None:
    """Return the likeliest kind of a loss; None when nothing got worse, or it can't be told.

    Of a loss in both halves it is the larger one's. A half is worse when its interval says so; where neither
    interval does, though a speed is a regression, the larger loss by its estimate is the likelier. Where drafting is
    or was in play and the change of a half isn't known, it can't be told.
    """
    by_name = {row.metric: row for row in rows}
    accept, rate = by_name.get("accept_length"), by_name.get("verify_rate")
    speeds = [row for name in ("decode_tok_s", "system_tok_s") if (row := by_name.get(name)) is not None]
    if accept is None or (accept.value is None and accept.baseline is None):
        # Without drafting a verify step is a decode step: there is no other half.
        return _of_speed(environment) if any(map(_surely_worse, speeds)) else None
    if accept.change is None or rate is None or rate.change is None:
        return None
    halves = [row for row in (accept, rate) if _surely_worse(row)]
    if not halves and any(row.verdict is Verdict.REGRESSION and row.gated for row in speeds):
        halves = [row for row in (accept, rate) if _worse(row)]
    if not halves:
        return None
    largest = min(halves, key=lambda row: row.change or 0.0)
    return _of_acceptance(by_name.get("distinct_share"), environment) if largest is accept else _of_speed(environment)


def _worse(row: MetricVerdict) -> bool:
    return row.change is not None and row.change < -METRICS[row.metric].default_tolerance


def _surely_worse(row: MetricVerdict) -> bool:
    return _worse(row) and (row.change_high is None or row.change_high < 0)


def _of_acceptance(distinct: MetricVerdict | None, environment: Sequence[EnvironmentChange]) -> Cause:
    if _differing(environment, _DRAFTER):
        return "drafter"
    other_text = distinct is not None and distinct.change is not None and abs(distinct.change) > _OTHER_TEXT
    return "workload" if other_text or _differing(environment, _TEXT) else "drafter"


def _of_speed(environment: Sequence[EnvironmentChange]) -> Cause:
    machine = _differing(environment, _MACHINE)
    others = [change for change in environment if not change.key.startswith((*_MACHINE, *_TEXT))]
    return "machine" if machine and not others else "engine"


def _differing(environment: Iterable[EnvironmentChange], prefixes: tuple[str, ...]) -> list[EnvironmentChange]:
    return [change for change in environment if change.key.startswith(prefixes)]


_SAYS: Final[Mapping[Cause, str]] = {
    "drafter": "the drafter got worse (fewer draft tokens are right), not the engine",
    "workload": "fewer draft tokens are right, and the text is another one: look at the workload before the drafter",
    "engine": "the engine got slower, not the drafter",
    "machine": "the machine got slower, not the drafter: only the hardware or its state differs",
}


def lines(comparison: Comparison) -> list[str]:
    """Explain a loss in a few lines: its halves with their intervals, the likeliest kind, the classes of task."""
    if comparison.cause is None:
        return []
    rows = {row.metric: row for row in comparison.metrics}
    said = []
    if comparison.split is not None:
        both = math.prod(1 + change for change in comparison.split) - 1
        accept, rate = rows["accept_length"], rows["verify_rate"]
        said.append(
            f"decode tok/s {percent(both)} = accept length {_with_bounds(accept)} x verify rate {_with_bounds(rate)}: "
            f"{_verdict(comparison.cause, accept, rate)}"
        )
    else:
        # There is no drafter to tell it from.
        said.append(f"the server does not draft, and {_SAYS[comparison.cause].replace(', not the drafter', '')}")
    if comparison.cause == "engine" and not comparison.environment_changes:
        said.append("nothing in the environment differs: see to the machine's state as well (clocks, neighbours, heat)")
    moved = _moved(comparison.categories)
    if moved:
        said.append(f"by class of task: {moved}")
    return said


def _verdict(likeliest: Cause, accept: MetricVerdict, rate: MetricVerdict) -> str:
    if _surely_worse(accept) and _surely_worse(rate):
        # Losses multiply, so their shares are those of the logarithms.
        share = math.log1p(accept.change or 0.0) / (math.log1p(accept.change or 0.0) + math.log1p(rate.change or 0.0))
        return f"both got worse; {share:.0%} of the loss is acceptance's, so it is likeliest the {likeliest}"
    return _SAYS[likeliest]


def _with_bounds(row: MetricVerdict) -> str:
    if row.change_low is None or row.change_high is None:
        return percent(row.change)
    return f"{percent(row.change)} ({percent(row.change_low)} to {percent(row.change_high)})"


def _moved(categories: Sequence[CategoryChange]) -> str:
    """List the classes of task that moved by more than the tolerances, the worst first; nothing for a single one."""
    if len(categories) < 2:
        return ""

    def parts(one: CategoryChange) -> list[str]:
        moves = (("accept_length", "accept length", one.accept_length), ("verify_rate", "verify rate", one.verify_rate))
        return [
            f"{words} {percent(change)}"
            for name, words, change in moves
            if change is not None and abs(change) > METRICS[name].default_tolerance
        ]

    worst_first = sorted(categories, key=lambda one: min(one.accept_length or 0.0, one.verify_rate or 0.0))
    return "; ".join(f"{one.category} {', '.join(moves)}" for one in worst_first if (moves := parts(one)))
