"""From a measurement's rounds and its baseline to a decision on each metric, launch by launch. Pure.

The statistics are those of :mod:`pytest_specdec.decide`; here they meet the baseline files and the session's budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pytest_specdec.baseline import MetricBaseline, gate_of
from pytest_specdec.decide import Decision, Gate, decide, decide_all, spends
from pytest_specdec.detectable import Rule, sentence
from pytest_specdec.floors import floor_risk, safe_floor
from pytest_specdec.model import RoundsByLaunch
from pytest_specdec.sequential import holm_level
from pytest_specdec.stats import unusable

_Case: TypeAlias = tuple[Gate, RoundsByLaunch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a session may err and spend.

    ``metrics``: gated metrics with recorded samples in the whole session, which share 1 % of false alarms; ``called``:
    how many of those of other measurements are regressions already. ``first_look``: launches that are judged before
    another is asked for; ``max_launches``: the most there will be.
    """

    metrics: int = 1
    called: int = 0
    first_look: int = 1
    max_launches: int = 3

    @property
    def rule(self) -> Rule:
        """The promises over all gated metrics of the session."""
        return Rule(max_launches=self.max_launches)

    def share(self) -> Rule:
        """The promises to one metric, before anything was called: what it can see is told by this."""
        return Rule(error=holm_level(self.rule.error, max(1, self.metrics)), max_launches=self.max_launches)


def decisions(
    measured: Mapping[str, RoundsByLaunch],
    baselines: Mapping[str, MetricBaseline],
    *,
    gated: Iterable[str],
    budget: Budget,
) -> dict[str, Decision]:
    """Return the decision on each metric that has usable values, and samples or a floor in its baseline.

    Gated metrics are looked at after each launch from ``budget.first_look`` on; once decided, a metric is not judged
    again when another asks for more launches. An advisory one is judged by what there is, on its own, and so is one
    that has a floor only: it can make no false alarm that the session's budget is for.
    """
    cases: dict[str, _Case] = {}
    for name, old in baselines.items():
        gate, launches = gate_of(name, old), measured.get(name, ())
        if gate is not None and unusable(launches) is None:
            cases[name] = (gate, launches)
    wanted = set(gated)
    spending = {name: case for name, case in cases.items() if name in wanted and case[0].noise is not None}
    found = _after_looks(spending, budget)
    for name, (gate, launches) in cases.items():
        if name not in spending:
            looks = budget.max_launches if gate.floor is not None else len(launches)
            found[name] = decide(gate, launches, Rule(max_launches=looks))
    return found


def _after_looks(cases: Mapping[str, _Case], budget: Budget) -> dict[str, Decision]:
    found: dict[str, Decision] = {}
    taken = max((len(launches) for _, launches in cases.values()), default=0)
    for look in range(min(budget.first_look, taken), taken + 1):
        left = [name for name in cases if name not in found or found[name].verdict is None]
        called = budget.called + sum(map(spends, found.values()))
        judged = decide_all(
            [(cases[name][0], cases[name][1][:look]) for name in left],
            budget.rule,
            metrics=max(budget.metrics, called + len(left)),
            called=called,
        )
        found.update(zip(left, judged, strict=True))
    return found


def what_it_sees(name: str, old: MetricBaseline, *, rounds: float, budget: Budget) -> str | None:
    """Say what loss a metric's baseline shows with the launches of this session; None without samples.

    ``rounds``: a judged launch's.
    """
    gate = gate_of(name, old)
    if gate is None or gate.noise is None:
        return None
    said = sentence(
        gate.noise, budget.share(), rounds=rounds, tolerance=gate.allowed_fraction(), direction=old.direction
    )
    return f"{name}: {said} ({gate.noise.basis()})"


def floor_odds(name: str, old: MetricBaseline, *, rounds: float, budget: Budget) -> str | None:
    """Say how often unchanged code breaks a metric's floor, and which floor it would break once in a hundred runs.

    None without a floor or without samples to tell it from.
    """
    gate = gate_of(name, old)
    if gate is None or gate.noise is None or gate.floor is None:
        return None
    launches = budget.max_launches
    risk = floor_risk(gate.noise, gate.floor, old.direction, rounds=rounds, max_launches=launches)
    safe = safe_floor(gate.noise, old.direction, rounds=rounds, max_launches=launches)
    limit = "floor" if old.direction == "higher" else "ceiling"
    return (
        f"{name}: unchanged code breaks the {limit} of {gate.floor:g} {old.unit} in {risk:.2g} of runs, or fewer; "
        f"at {safe:.4g} it would be one in a hundred"
    )
