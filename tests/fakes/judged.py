"""A measurement and its baseline, made by hand, and the judgement on it; with bounds that a reader can work out.

Recorded launches that never vary leave the smallest sigma as all the noise there is, taken as known: then a bound is
the normal quantile of its level times sigma sqrt(1/recorded + 1/judged). With a single look the level is nine tenths
of the error (a tenth is kept back), shared by the gated metrics of the session.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

from pytest_specdec import compare
from pytest_specdec.baseline import Baseline, Identity, MetricBaseline, Provenance
from pytest_specdec.baseline_store import Found, Lookup
from pytest_specdec.metrics import METRICS
from pytest_specdec.model import Comparison, MetricVerdict, RoundsByLaunch, Sampling
from pytest_specdec.verdicts import Budget

KEY = "eagle3-s3--chat--c1--o512"
NODE = "8x-rtx-pro-6000-blackwell"
PATH = Path("baselines") / NODE / f"{KEY}.json"
IDENTITY = Identity(
    model="/data/models/kimi-k2.5-int4",
    model_revision=None,
    draft="/data/eagle3/synth_100k",
    draft_revision=None,
    workload_hash="5f" * 32,
    sampling=Sampling().identity(),
    output_tokens=512,
    concurrency=1,
)
PROVENANCE = Provenance(
    source="program", recorded_at="2026-11-29T12:00:00+00:00", git_commit=None, command="pytest --update-baselines"
)
DOCUMENT = Provenance(source="document", recorded_at=None, git_commit=None, command=None)
#: What gates at concurrency 1 on a GPU node, as measured when the baseline was recorded: 100 = 2.5 x 40.
GOOD: dict[str, RoundsByLaunch] = {
    "decode_tok_s": ((100.0,),),
    "accept_length": ((2.5,),),
    "verify_rate": ((40.0,),),
}
#: One look, for the two gated metrics of GOOD.
ONE_LOOK = Budget(metrics=2, max_launches=1)
NOTHING = Lookup(metrics={}, path=PATH, files=())


def metric(name: str, *launches: tuple[float, ...], **known: Any) -> MetricBaseline:
    gate = METRICS[name].gates(1)
    plain: dict[str, Any] = {"gate": gate, "tolerance": METRICS[name].default_tolerance, "floor": None}
    return MetricBaseline(
        direction=METRICS[name].direction, unit=METRICS[name].unit, launches=launches, **{**plain, **known}
    )


def five(name: str, value: float, **known: Any) -> MetricBaseline:
    """A baseline of five launches of one round that gave the same value."""
    return metric(name, *5 * ((value,),), **known)


def lookup(
    *,
    metrics: dict[str, MetricBaseline] | None = None,
    without: tuple[str, ...] = (),
    identity: Identity = IDENTITY,
    provenance: Provenance = PROVENANCE,
    environment: dict[str, object] | None = None,
    categories: Mapping[str, Mapping[str, tuple[float, ...]]] | None = None,
    **more: MetricBaseline,
) -> Lookup:
    """What one file with these metrics gives, over five launches of those of ``GOOD``."""
    entries = {**{name: metric(name, *5 * launches) for name, launches in GOOD.items()}, **(metrics or {}), **more}
    entries = {name: entry for name, entry in entries.items() if name not in without}
    stored = Baseline(
        identity=identity,
        environment=environment or {},
        provenance=provenance,
        metrics=entries,
        categories=categories or {},
    )
    found = {name: Found(metric=entry, path=PATH, baseline=stored) for name, entry in entries.items()}
    return Lookup(metrics=found, path=PATH, files=(PATH,))


def judge(
    measured: dict[str, RoundsByLaunch],
    against: Lookup | None = None,
    *,
    without: tuple[str, ...] = (),
    **known: Any,
) -> Comparison:
    """Judge values that replace those of ``GOOD``, or are ``without`` some, by a single look."""
    plain: dict[str, Any] = {
        "violations": (),
        "identity": IDENTITY,
        "environment": {},
        "node": NODE,
        "drafting": True,
        "budget": ONE_LOOK,
    }
    values = {name: launches for name, launches in {**GOOD, **measured}.items() if name not in without}
    return compare.judge(values, lookup() if against is None else against, **{**plain, **known})


def row(comparison: Comparison, name: str) -> MetricVerdict:
    (found,) = [entry for entry in comparison.metrics if entry.metric == name]
    return found


def half_width(level: float, sigma: float = 0.005, *, recorded: int = 5, judged: int = 1) -> float:
    """How far a difference of means lies off with this probability, its noise known: log scale."""
    return NormalDist().inv_cdf(1 - level) * sigma * math.sqrt(1 / recorded + 1 / judged)


def alarm(metrics: int = 2) -> float:
    """The level of a single look for calling a regression, of one of so many gated metrics."""
    return 0.9 * 0.01 / metrics


#: The same for passing, which is no session's budget.
PASSING = 0.9 * 0.01
#: How often a loss as large as the detectable change is missed.
MISSED = 0.05
