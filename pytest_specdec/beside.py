"""A treatment beside its control: ratios over blocks A B B A, and what they make of a verdict. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_specdec.baseline import MetricBaseline, gate_of
from pytest_specdec.compare import breaks_floor
from pytest_specdec.difference import Difference
from pytest_specdec.metrics import METRICS
from pytest_specdec.model import Comparison, MetricVerdict, RoundsByLaunch, Verdict, Violation
from pytest_specdec.noise import PRIORS, Noise
from pytest_specdec.paired import Block, PairedRatio, paired_ratio
from pytest_specdec.report import percent
from pytest_specdec.stats import unusable

#: Shown beside the speed-up, where both sides have them.
_SHOWN: Final = ("decode_tok_s", "system_tok_s", "accept_length", "ttft_ms", "tpot_ms")
_MOVED: Final = frozenset({Verdict.REGRESSION, Verdict.IMPROVEMENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """How many times as fast a treatment is as its control, two-sided at ``confidence``; ``metric`` is the speed.

    Where launches of one spec disagree it is not ``conclusive``, and the interval is everything (0 to infinity): no
    bound of it can be met by luck.
    """

    metric: str
    ratio: float
    low: float
    high: float
    confidence: float
    conclusive: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a measurement came to beside its control.

    ``ratios``, by metric, are above 1 where the treatment is better. ``moved``: the control left its own baseline,
    which says that something else than the treatment changed; ratios stand all the same.
    """

    control: str
    speed: str
    ratios: Mapping[str, PairedRatio]
    difference: Difference
    moved: bool

    @property
    def speedup(self) -> Speedup | None:
        """The ratio of the speed that gates at this concurrency; None when it could not be measured."""
        found = self.ratios.get(self.speed)
        if found is None:
            return None
        return Speedup(
            metric=self.speed,
            ratio=found.ratio,
            low=found.low if found.conclusive else 0.0,
            high=found.high if found.conclusive else math.inf,
            confidence=found.confidence,
            conclusive=found.conclusive,
            reason=found.reason,
        )

    def lines(self) -> list[str]:
        """Say the ratios with their intervals, and what the two servers differ by."""
        shown = "; ".join(_ratio_text(name, self.ratios[name]) for name in _SHOWN if name in self.ratios)
        mark = " (control moved)" if self.moved else ""
        return [f"beside {self.control}{mark}: {shown or 'nothing was measured on both'}", *self.difference.lines()]


def _ratio_text(name: str, found: PairedRatio) -> str:
    if not found.conclusive:
        return f"{name} x{found.ratio:.3f}, not conclusive: {found.reason}"
    return f"{name} x{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"


def ratios(
    control: Mapping[str, RoundsByLaunch],
    treatment: Mapping[str, RoundsByLaunch],
    baselines: Mapping[str, MetricBaseline],
) -> dict[str, PairedRatio]:
    """Return treatment over control for each metric of one block that both have.

    Each side has two launches, in the order they ran: A1 and A2, B1 and B2. ``baselines`` are the control's: their
    noise is what the legs are held to.
    """
    found = {}
    for name in METRICS:
        legs = (control.get(name, ()), treatment.get(name, ()))
        if any(len(side) != 2 or unusable(side) is not None for side in legs):
            continue
        (a1, a2), (b1, b2) = legs
        spec = METRICS[name]
        found[name] = paired_ratio(
            [Block(control_first=a1, treatment_first=b1, treatment_second=b2, control_second=a2)],
            spec.direction,
            prior=PRIORS[spec.unit],
            smallest_sigma=spec.smallest_sigma,
            noise=_noise_of(name, baselines.get(name)),
        )
    return found


def _noise_of(name: str, baseline: MetricBaseline | None) -> Noise | None:
    gate = None if baseline is None else gate_of(name, baseline)
    return None if gate is None else gate.noise


def control_moved(control: Comparison) -> bool:
    """Whether a control left its own baseline, in either direction."""
    return control.verdict in _MOVED


def judged(treatment: Comparison, control: Comparison, beside: Beside) -> Comparison:
    """Return a treatment's comparison with what its control makes of it.

    A missing baseline is no fault: the control is what it is held to. What it is compared with absolutely can't be
    told from the control's own change, so a control that moved makes that ``inconclusive``; a broken floor stays
    broken. Legs that disagree make the ratio, and so the verdict, ``inconclusive``.
    """
    notes = list(treatment.notes)
    verdict, rows = treatment.verdict, treatment.metrics
    violations = treatment.violations
    if control.verdict is Verdict.INVALID:
        reasons = "; ".join(f"{broken.rule}: {broken.reason}" for broken in control.violations)
        violations = (*violations, Violation(rule="control", reason=f"{beside.control} is invalid: {reasons}"))
        verdict = Verdict.INVALID
    if verdict is Verdict.NO_BASELINE:
        rows, verdict = tuple(map(_unjudged, rows)), Verdict.PASS
        notes.append(f"no baseline of its own: held to {beside.control} only")
    elif beside.moved and verdict is not Verdict.INVALID and not any(map(breaks_floor, rows)):
        verdict = Verdict.INCONCLUSIVE
        notes.append(
            f"control moved: {_moves(control.metrics)}; so its own baseline can't tell whether the treatment changed "
            "or everything did. The ratio stands"
        )
    speedup = beside.speedup
    if verdict not in (Verdict.INVALID, Verdict.REGRESSION) and (speedup is None or not speedup.conclusive):
        verdict = Verdict.INCONCLUSIVE
        notes.append(f"the ratio to {beside.control} is inconclusive: {_why_not(beside, speedup)}")
    return dataclasses.replace(
        treatment,
        verdict=verdict,
        metrics=rows,
        violations=violations,
        notes=(*notes, *beside.lines()),
        more=treatment.more if verdict is treatment.verdict else 0,
    )


def _why_not(beside: Beside, speedup: Speedup | None) -> str:
    return f"{beside.speed} was not measured on both" if speedup is None else speedup.reason


def _unjudged(row: MetricVerdict) -> MetricVerdict:
    return dataclasses.replace(row, verdict=None) if row.verdict is Verdict.NO_BASELINE else row


def _moves(rows: Sequence[MetricVerdict]) -> str:
    moved = [row for row in rows if row.gated and row.verdict in _MOVED]
    return ", ".join(f"{row.metric} {percent(row.change)} from its baseline" for row in moved) or "beyond its floor"
