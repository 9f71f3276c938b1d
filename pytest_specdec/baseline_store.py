"""Where baselines lie: a directory a node, ``any/`` for what holds on every node, and aliases for long names."""

from __future__ import annotations

import fnmatch
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, TypeAlias

from pytest_specdec.baseline import Baseline, Identity, MetricBaseline, Provenance, estimate, gate_of, read_baseline
from pytest_specdec.errors import BaselineFileError
from pytest_specdec.metrics import METRICS
from pytest_specdec.model import RoundsByLaunch
from pytest_specdec.stats import geometric_mean

ANY: Final = "any"
NODES_FILE: Final = "nodes.toml"
#: Class of task -> metric -> a value a launch.
_ByCategory: TypeAlias = Mapping[str, Mapping[str, tuple[float, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One metric's baseline and the file it stands in."""

    metric: MetricBaseline
    path: Path
    baseline: Baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """What baselines say of one measurement: metric by metric, the node's directory first, then ``any/``."""

    metrics: Mapping[str, Found]
    #: Where the measurement's own file is, or would be written.
    path: Path
    files: tuple[Path, ...]

    @property
    def baselines(self) -> tuple[tuple[Path, Baseline], ...]:
        """Every file that says something, each once."""
        return tuple({found.path: (found.path, found.baseline) for found in self.metrics.values()}.values())

    @property
    def categories(self) -> dict[str, dict[str, float]]:
        """What each class of task came to, category -> metric -> value; from the first file that knows."""
        known: dict[str, dict[str, float]] = {}
        for _, baseline in self.baselines:
            for name, metrics in baseline.categories.items():
                for metric, launches in metrics.items():
                    known.setdefault(name, {}).setdefault(metric, geometric_mean(launches))
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What an update does to one metric of one file; ``loosened`` when the new value is beyond the old limit."""

    path: Path
    metric: str
    unit: str
    old: float | None
    new: float
    loosened: bool

    #: The columns of :meth:`cells`.
    HEAD: ClassVar = ("baseline", "metric", "old", "new", "", "change")

    def cells(self) -> tuple[str, ...]:
        """Return one row of the table at the end of a session."""
        new = f"{self.new:.4g}"
        if self.old is None:
            return (self.path.name, self.metric, "-", new, self.unit, "new")
        change = f"{self.new / self.old - 1:+.1%}" + ("  LOOSENED" if self.loosened else "")
        return (self.path.name, self.metric, f"{self.old:.4g}", new, self.unit, change)

    def line(self) -> str:
        """Return the same as one sentence."""
        if self.old is None:
            return f"{self.path.name}: {self.metric} {self.new:.4g} {self.unit} (new)"
        change = self.new / self.old - 1
        mark = "  LOOSENED" if self.loosened else ""
        return f"{self.path.name}: {self.metric} {self.old:.4g} -> {self.new:.4g} {self.unit} ({change:+.1%}){mark}"


class BaselineStore:
    """The baselines directory as seen from one node."""

    def __init__(self, root: Path, node: str) -> None:
        self.root = root
        self.node = node

    def directories(self) -> tuple[Path, ...]:
        """Where to look, in order: the node's own directory, the one its alias names, ``any/``."""
        names = [self.node, *self._aliases(), ANY]
        return tuple(self.root / name for name in dict.fromkeys(names))

    def _aliases(self) -> list[str]:
        path = self.root / NODES_FILE
        if not path.exists():
            return []
        if sys.version_info >= (3, 11):
            import tomllib  # noqa: PLC0415  # not there before 3.11
        else:
            import tomli as tomllib  # noqa: PLC0415  # pytest brings it where the standard library does not
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise BaselineFileError(f"{path}: can't be read: {error}; correct it") from None
        unknown = sorted(set(document) - {"aliases"})
        if unknown:
            raise BaselineFileError(f"{path}: unknown key {unknown[0]!r}; it takes one table, [aliases]")
        aliases = document.get("aliases", {})
        if not isinstance(aliases, dict) or not all(isinstance(name, str) for name in aliases.values()):
            raise BaselineFileError(f"{path}: aliases: expected a table of node patterns and directory names")
        return [name for pattern, name in aliases.items() if fnmatch.fnmatchcase(self.node, pattern)]

    def lookup(self, key: str) -> Lookup:
        """Find what there is for a measurement; raises :class:`BaselineFileError` for a file that is broken."""
        metrics: dict[str, Found] = {}
        files = []
        for directory in self.directories():
            path = directory / f"{key}.json"
            if not path.exists():
                continue
            baseline = read_baseline(path)
            files.append(path)
            for name, metric in baseline.metrics.items():
                metrics.setdefault(name, Found(metric=metric, path=path, baseline=baseline))
        return Lookup(metrics=metrics, path=self.root / self.node / f"{key}.json", files=tuple(files))

    def nearest_nodes(self, key: str) -> tuple[str, ...]:
        """Other nodes that have a baseline of this measurement."""
        names = {path.parent.name for path in self.root.glob(f"*/{key}.json")}
        return tuple(sorted(names - {self.node, ANY}))

    def unused(self, used: Iterable[Path]) -> tuple[Path, ...]:
        """Files of this node's directories that no measurement looked at."""
        used = set(used)
        there = [path for directory in self.directories() for path in directory.glob("*.json")]
        return tuple(sorted(path for path in there if path not in used))


def default_gate(metric: str, *, streams: int, node: str) -> bool:
    """Whether a metric gates before anybody said so: on a CPU node throughput is advisory, acceptance is not.

    ``streams`` are :attr:`Identity.streams`.
    """
    if node.startswith("cpu-") and METRICS[metric].unit in ("tok/s", "ms", "step/s"):
        return False
    return METRICS[metric].gates(streams)


def updated(
    lookup: Lookup,
    measured: Mapping[str, RoundsByLaunch],
    *,
    identity: Identity,
    environment: Mapping[str, object],
    provenance: Provenance,
    node: str,
    categories: _ByCategory | None = None,
    never_gated: frozenset[str] = frozenset(),
) -> tuple[dict[Path, Baseline], tuple[Change, ...]]:
    """Return the files to write with these rounds in them, and what that changes.

    A metric is updated in the file where its baseline stands, else in the measurement's own file; one that an
    alias pointed to is recorded for the node itself from now on. Direction, gate, tolerance, floor and note of an
    old entry stay: people set them. A metric in ``never_gated`` is recorded as advisory. ``categories``, category ->
    metric -> a value a launch, go where their metric goes; those of a metric that was not measured stay.
    """
    by_path: dict[Path, dict[str, MetricBaseline]] = {}
    old_files = dict(lookup.baselines)
    changes = []
    for name, launches in sorted(measured.items()):
        new = estimate(launches)
        if name not in METRICS or new is None:
            continue
        found = lookup.metrics.get(name)
        aliased = found is not None and found.path.parent.name not in (lookup.path.parent.name, ANY)
        path = lookup.path if found is None or aliased else found.path
        old = None if found is None else found.metric
        gate = default_gate(name, streams=identity.streams, node=node) if old is None else old.gate
        by_path.setdefault(path, {})[name] = MetricBaseline(
            direction=METRICS[name].direction,
            unit=METRICS[name].unit,
            gate=gate and name not in never_gated,
            tolerance=METRICS[name].default_tolerance if old is None else old.tolerance,
            floor=None if old is None else old.floor,
            note=None if old is None else old.note,
            launches=launches,
        )
        changes.append(
            Change(
                path=path,
                metric=name,
                unit=METRICS[name].unit,
                old=None if old is None else old.mean,
                new=new,
                loosened=old is not None and old.gate and loosens(name, old, new),
            )
        )
    files = {}
    for path, metrics in by_path.items():
        old_file = old_files.get(path)
        files[path] = Baseline(
            identity=identity,
            environment=environment,
            provenance=provenance,
            metrics={**(old_file.metrics if old_file else {}), **metrics},
            categories=_merged(old_file.categories if old_file else {}, categories or {}, measured=frozenset(metrics)),
        )
    return files, tuple(changes)


def _merged(old: _ByCategory, new: _ByCategory, *, measured: frozenset[str]) -> dict[str, dict[str, tuple[float, ...]]]:
    """Return the new values of the metrics that were measured, and the old ones of all others."""
    merged = {
        name: {metric: values for metric, values in old.get(name, {}).items() if metric not in measured}
        | {metric: values for metric, values in new.get(name, {}).items() if metric in measured}
        for name in (*old, *new)
    }
    return {name: metrics for name, metrics in merged.items() if metrics}


def loosens(name: str, old: MetricBaseline, new: float) -> bool:
    """Whether a value is worse by more than the metric's gate allows; without samples there is nothing to loosen."""
    gate = gate_of(name, old)
    if gate is None or gate.noise is None:
        return False
    sign = 1 if old.direction == "higher" else -1
    # A value that was recorded and read back is rounded to six digits; that is no loss.
    return sign * (gate.noise.mean - math.log(new)) > gate.allowed_loss() + 5e-6
