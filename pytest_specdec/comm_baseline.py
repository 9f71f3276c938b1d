"""Baselines of all-reduce latency: one small file each, and the verdict against it.

They have a format of their own: the identity of an ordinary baseline is a model, a workload and a way of sampling,
and an all-reduce has none of them. They lie in ``<node>/communication/``, out of the way of the files of servers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_specdec import jsonfile
from pytest_specdec.baseline_reading import At
from pytest_specdec.decide import Decision, Gate, decide
from pytest_specdec.detectable import Rule
from pytest_specdec.errors import BaselineFileError
from pytest_specdec.model import RoundsByLaunch
from pytest_specdec.noise import PRIORS, Noise, Prior, estimate

DIRECTORY: Final = "communication"
METRIC: Final = "all_reduce_us"
SCHEMA_VERSION: Final = 1
#: Raised whenever a change of the probe makes older values incomparable.
METHOD_VERSION: Final = 1
TOLERANCE: Final = 0.05
_SMALLEST_SIGMA: Final = 0.005
#: Latency of a few microseconds is no steadier than that of a request: the prior of latencies.
_PRIOR: Final[Prior] = PRIORS["ms"]
_DIRECTION: Final = "lower"

Identity = Mapping[str, str | int | bool | None]
_IDENTITY: Final = (
    "backend",
    "algorithm",
    "world_size",
    "calls",
    "message_bytes",
    "dtype",
    "graph",
    "method_version",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommBaseline:
    """One file. ``launches``: microseconds a call, by start of the ranks; ``ceiling_us``: a person's hard limit."""

    identity: Identity
    environment: Mapping[str, object]
    recorded_at: str
    git_commit: str | None
    command: str
    gate: bool
    tolerance: float
    launches: RoundsByLaunch
    ceiling_us: float | None = None

    @property
    def noise(self) -> Noise:
        """What is known of its noise; the geometric mean over starts is in it."""
        return estimate(self.launches, prior=_PRIOR, smallest_sigma=_SMALLEST_SIGMA)

    @property
    def mean_us(self) -> float:
        """The geometric mean over starts of each start's geometric mean."""
        return math.exp(self.noise.mean)


def path_of(root: Path, node: str, key: str) -> Path:
    """Where the baseline of an all-reduce lies."""
    return root / node / DIRECTORY / f"{key}.json"


def judge(recorded: CommBaseline, judged: Sequence[Sequence[float]], *, most: int) -> Decision:
    """Decide after some starts of the ranks, of at most ``most``: a verdict, or look again (verdict None).

    The rule is that of docs/verdicts.md, with lower being better.
    """
    gate = Gate(
        direction=_DIRECTION,
        tolerance=recorded.tolerance,
        noise=recorded.noise,
        prior=_PRIOR,
        smallest_sigma=_SMALLEST_SIGMA,
        floor=recorded.ceiling_us,
    )
    return decide(gate, judged, Rule(max_launches=most))


def read(path: Path, identity: Identity | None = None) -> CommBaseline:
    """Read a file, and hold it to what is measured (None: to nothing).

    Raises:
        BaselineFileError: it is malformed, or of something else; with path, key and remedy.

    """
    document = jsonfile.migrated(path, jsonfile.read(path), current=SCHEMA_VERSION, migrations={})
    top = At(path, document).object(required=(jsonfile.VERSION_KEY, "identity", "environment", "provenance", "metrics"))
    recorded = {key: at.value for key, at in top["identity"].object(required=_IDENTITY).items()}
    for name, value in (identity or {}).items():
        if recorded[name] != value:
            raise BaselineFileError(
                f"{path}: identity.{name} is {recorded[name]!r}, and {value!r} is measured: rename the file, or "
                "record again with --update-baselines"
            )
    provenance = top["provenance"].object(required=("recorded_at", "git_commit", "command"))
    metric = (
        top["metrics"]
        .object(required=(METRIC,))[METRIC]
        .object(required=("direction", "unit", "gate", "tolerance", "launches"), optional=("ceiling", "mean"))
    )
    metric["direction"].one_of(_DIRECTION)
    metric["unit"].one_of("us")
    return CommBaseline(
        identity=recorded,
        environment={key: at.value for key, at in top["environment"].each().items()},
        recorded_at=provenance["recorded_at"].moment(),
        git_commit=provenance["git_commit"].or_none(At.text),
        command=provenance["command"].text(),
        gate=metric["gate"].flag(),
        tolerance=metric["tolerance"].number("a number of at least 0 and below 1", lambda value: 0 <= value < 1),
        launches=_launches(metric["launches"]),
        ceiling_us=_positive(metric["ceiling"]) if "ceiling" in metric else None,
    )


def _launches(at: At) -> RoundsByLaunch:
    if not isinstance(at.value, list) or not at.value or not all(isinstance(one, list) and one for one in at.value):
        raise at.fail("a list of starts, each a list of rounds that is not empty")
    return tuple(
        tuple(_positive(At(at.path, value, f"{at.key}[{i}][{j}]")) for j, value in enumerate(rounds))
        for i, rounds in enumerate(at.value)
    )


def _positive(at: At) -> float:
    return at.number("a number above 0", lambda value: value > 0)


def write(path: Path, baseline: CommBaseline) -> None:
    """Write a file, atomically and the same way every time."""
    metric: dict[str, Any] = {
        "direction": _DIRECTION,
        "unit": "us",
        "gate": baseline.gate,
        "tolerance": baseline.tolerance,
        "launches": [list(rounds) for rounds in baseline.launches],
        "mean": baseline.mean_us,
    }
    if baseline.ceiling_us is not None:
        metric["ceiling"] = baseline.ceiling_us
    jsonfile.write(
        path,
        {
            jsonfile.VERSION_KEY: SCHEMA_VERSION,
            "identity": dict(baseline.identity),
            "environment": dict(baseline.environment),
            "provenance": {
                "recorded_at": baseline.recorded_at,
                "git_commit": baseline.git_commit,
                "command": baseline.command,
            },
            "metrics": {METRIC: metric},
        },
    )
