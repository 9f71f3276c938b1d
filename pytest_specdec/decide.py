"""The verdict on one metric after each judged launch: decided, or look again. Pure functions.

With d the log loss, low and high its bounds at this look: ``regression`` when low is above 0 and d above the
tolerance; ``pass`` when high is below the larger of tolerance and detectable change; otherwise another launch, and
``inconclusive`` when the budget is spent. A literal floor stands beside this. The bounds are repeated confidence
bounds (Jennison and Turnbull 2000, chapter 9): they hold at all looks together.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_specdec.detectable import Rule, as_fraction, as_loss, detectable_change
from pytest_specdec.floors import FloorStanding, floor_standing
from pytest_specdec.model import Direction, Verdict
from pytest_specdec.noise import Noise, Prior, harmonic_rounds, log_mean
from pytest_specdec.sequential import holm_level
from pytest_specdec.stats import unusable

#: A value that was recorded and read back is rounded to six digits, by half of the last one; that is no change.
_ROUNDING: Final = 5e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What one metric is held to.

    ``tolerance``: the fraction that may be lost. ``floor``: the hard limit, in the metric's unit. ``noise``: the
    baseline's, None for one without samples (a floor only). ``counts_accepted``: an accept length, of which 1.0
    means that nothing was accepted.
    """

    direction: Direction
    tolerance: float
    noise: Noise | None
    prior: Prior
    smallest_sigma: float
    floor: float | None = None
    counts_accepted: bool = False

    def allowed_loss(self) -> float:
        """Return the log loss within the tolerance.

        Of an accept length near 1.0 a percentage means nothing: 1 % of 1.01 is all that was accepted. So no
        more than half of what was accepted beyond 1.0 is ever within the tolerance.
        """
        allowed = as_loss(self.tolerance, self.direction)
        if not self.counts_accepted or self.noise is None:
            return allowed
        accepted = math.expm1(self.noise.mean)
        return min(allowed, self.noise.mean - math.log1p(accepted / 2)) if accepted > 0 else 0.0

    def allowed_fraction(self) -> float:
        """Return the same as the fraction that may be lost, or added where lower is better."""
        return as_fraction(self.allowed_loss(), self.direction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is known after some launches. ``verdict`` is None: look again.

    ``loss``, ``low`` and ``high`` are log losses (above 0: worse), ``margin`` what ``high`` must stay below to pass;
    all None where nothing could be compared. ``more``: launches still worth spending. ``stale``: so much better than
    the baseline that a loss as large as the detectable change would go unseen.
    """

    verdict: Verdict | None
    reason: str
    launches: int
    loss: float | None = None
    low: float | None = None
    high: float | None = None
    margin: float | None = None
    more: int = 0
    stale: bool = False
    floor: FloorStanding | None = None


def decide(gate: Gate, judged: Sequence[Sequence[float]], rule: Rule, *, detectable: float | None = None) -> Decision:
    """Judge one metric by the rounds of the launches so far (values, grouped by launch).

    ``detectable`` is the log loss that was promised to be seen; computed when not given. Once decided, a metric is not
    judged again. More launches than ``rule.max_launches`` count as the last look of a plan that long. Raises
    ValueError for a gate with neither samples nor a floor.
    """
    lacking = unusable(judged)
    if lacking is not None:
        return Decision(verdict=Verdict.INVALID, reason=lacking, launches=len(judged))
    if gate.noise is None:
        if gate.floor is None:
            raise ValueError("a gate has a baseline with samples, or a floor, or both")
        return _floor_only(gate, judged, rule)
    standing = floor_standing(
        gate.floor, judged, gate.direction, noise=gate.noise, prior=gate.prior, smallest_sigma=gate.smallest_sigma
    )
    compared = _compare(gate, gate.noise, judged, rule, detectable)
    return compared if standing is None else _with_floor(compared, standing, rule.max_launches - len(judged))


def _compare(
    gate: Gate, noise: Noise, judged: Sequence[Sequence[float]], rule: Rule, detectable: float | None
) -> Decision:
    k, rounds = len(judged), harmonic_rounds(judged)
    looks = max(rule.max_launches, k)
    allowed = gate.allowed_loss()
    if detectable is None:
        detectable = detectable_change(noise, rule, rounds=rounds, tolerance=allowed)
    margin = max(allowed, detectable)
    sign = 1 if gate.direction == "higher" else -1
    loss = sign * (noise.mean - log_mean(judged))
    pooled = noise.with_judged(judged)
    alarm, passing = rule.alarm_levels(noise.launches, looks), rule.pass_levels(noise.launches, looks)

    def bounds(at: int) -> tuple[float, float]:
        return (
            loss - pooled.half_width(alarm[at - 1], at, rounds),
            loss + pooled.half_width(passing[at - 1], at, rounds),
        )

    low, high = bounds(k)
    verdict, reason = _outcome(loss, low, high, allowed=allowed, margin=margin, direction=gate.direction)
    if gate.counts_accepted and noise.mean > 0 and all(value <= 1 for launch in judged for value in launch):
        verdict, reason = Verdict.REGRESSION, "nothing is accepted any more: the accept length is 1.0"
    more, stale = 0, False
    if verdict is None and k >= looks:
        verdict = Verdict.INCONCLUSIVE
    elif verdict is None:
        more = _worth(bounds, loss, k, looks, allowed=allowed, margin=margin)
    elif verdict is Verdict.PASS:
        gain_low = -loss - pooled.half_width(alarm[k - 1], k, rounds)
        if gain_low > 0 and -loss > allowed + _ROUNDING:
            verdict, reason = Verdict.IMPROVEMENT, f"better by {_part(loss, gate.direction)}"
        if gain_low > margin:
            stale = True
            reason += ", so much that the baseline is stale: a loss as large as it is to catch would pass; record again"
    return Decision(
        verdict=verdict,
        reason=reason,
        launches=k,
        loss=loss,
        low=low,
        high=high,
        margin=margin,
        more=more,
        stale=stale,
    )


def _outcome(
    loss: float, low: float, high: float, *, allowed: float, margin: float, direction: Direction
) -> tuple[Verdict | None, str]:
    """Apply the rule to bounds; no verdict is to look again."""
    size = _part(loss, direction)
    if low > 0 and loss > allowed + _ROUNDING:
        return Verdict.REGRESSION, f"worse by {size}, at least {_part(low, direction)}"
    if high < margin:
        if loss > 0:
            return Verdict.PASS, f"worse by {size}, at most {_part(high, direction)}: less than this gate is to catch"
        return Verdict.PASS, "not worse" + (f"; a loss is at most {_part(high, direction)}" if high > 0 else "")
    most = f"a loss could be {_part(high, direction)}, and this gate is to catch {_part(margin, direction)}"
    if low > 0:
        return None, f"surely worse, by {size}, which is within the tolerance, but {most}"
    return None, f"{'worse' if loss > 0 else 'better'} by {size}, not surely; {most}"


def _part(loss: float, direction: Direction) -> str:
    return f"{abs(as_fraction(loss, direction)):.1%}"


def _worth(
    bounds: Callable[[int], tuple[float, float]], loss: float, k: int, looks: int, *, allowed: float, margin: float
) -> int:
    """Return after how many more launches the answer falls if the loss stays what it is; all when it never does."""
    for at in range(k + 1, looks):
        low, high = bounds(at)
        if (low > 0 and loss > allowed + _ROUNDING) or high < margin:
            return at - k
    return looks - k


def _with_floor(compared: Decision, standing: FloorStanding, left: int) -> Decision:
    """Let the floor have its say: broken is a regression, close spends what is left, kept changes nothing."""
    if standing.close and left > 0 and compared.verdict is not Verdict.REGRESSION:
        return dataclasses.replace(compared, verdict=None, reason=standing.text, more=left, stale=False, floor=standing)
    if standing.broken:
        return dataclasses.replace(
            compared, verdict=Verdict.REGRESSION, reason=standing.text, more=0, stale=False, floor=standing
        )
    return dataclasses.replace(compared, floor=standing)


def _floor_only(gate: Gate, judged: Sequence[Sequence[float]], rule: Rule) -> Decision:
    standing = floor_standing(
        gate.floor, judged, gate.direction, noise=None, prior=gate.prior, smallest_sigma=gate.smallest_sigma
    )
    kept = Decision(verdict=Verdict.PASS, reason="held to its floor only", launches=len(judged))
    return kept if standing is None else _with_floor(kept, standing, rule.max_launches - len(judged))


def decide_all(
    cases: Sequence[tuple[Gate, Sequence[Sequence[float]]]],
    rule: Rule,
    *,
    metrics: int | None = None,
    called: int = 0,
) -> list[Decision]:
    """Judge several metrics of a session under one false-alarm budget, ``rule.error``, by Holm's rule.

    ``metrics``: how many are gated in the whole session, at least the number of cases; ``called``: how many of the
    others are regressions already. Each call of a regression leaves more of the budget for the rest. The detectable
    change is that of the first step, before anything was called.
    """
    total = len(cases) if metrics is None else metrics
    if total < len(cases) + called:
        raise ValueError(f"{len(cases)} metrics to judge and {called} called are more than the {total} of the session")
    if not cases:
        return []
    first = dataclasses.replace(rule, error=holm_level(rule.error, total))
    promised = [_promised(gate, judged, first) for gate, judged in cases]
    decisions: list[Decision | None] = [None] * len(cases)
    rejected = called
    while True:
        step = dataclasses.replace(rule, error=holm_level(rule.error, total, rejected))
        for i, (gate, judged) in enumerate(cases):
            before = decisions[i]
            if before is None or not spends(before):
                decisions[i] = decide(gate, judged, step, detectable=promised[i])
        done = [decision for decision in decisions if decision is not None]
        now = called + sum(map(spends, done))
        if now in (rejected, total):
            return done
        rejected = now


def spends(decision: Decision) -> bool:
    """Whether a call rests on the budget. What breaks a floor alone gives no other metric more room."""
    return decision.verdict is Verdict.REGRESSION and decision.low is not None and decision.low > 0


def _promised(gate: Gate, judged: Sequence[Sequence[float]], rule: Rule) -> float | None:
    if gate.noise is None or unusable(judged) is not None:
        return None
    return detectable_change(gate.noise, rule, rounds=harmonic_rounds(judged), tolerance=gate.allowed_loss())
