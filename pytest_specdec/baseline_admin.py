"""Looking after committed baselines: what there is, what differs, what is broken, what is no longer used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pytest_specdec import comm_baseline, jsonfile
from pytest_specdec.baseline import SCHEMA_VERSION, Baseline, MetricBaseline, read_baseline, write_baseline
from pytest_specdec.environment import environment_changes
from pytest_specdec.errors import BaselineFileError
from pytest_specdec.report import aligned, number, percent

#: The published JSON Schema of a baseline file.
SCHEMA_PATH: Final = Path(__file__).parent / "schemas" / "baseline.schema.json"

_SHOWN: Final = ("decode_tok_s", "system_tok_s", "accept_length")


def files(root: Path) -> list[Path]:
    """Return every baseline file below a directory, sorted; raises :class:`BaselineFileError` when it isn't there."""
    if not root.is_dir():
        raise BaselineFileError(f"{root}: no such directory; name the one with the baselines")
    return sorted(root.glob("*/*.json"))


def listing(root: Path, *, unused: Sequence[Path] = ()) -> list[str]:
    """Return a table: file, when and by whom it was recorded, launches, and the figures that gate."""
    rows = [["file", "recorded", "launches", "figures", ""]]
    for path in files(root):
        mark = "unused" if path in unused else ""
        try:
            baseline = read_baseline(path)
        except BaselineFileError:
            rows.append([str(path.relative_to(root)), "", "", "broken: see `pytest-specdec baselines verify`", mark])
            continue
        recorded = baseline.provenance.recorded_at or baseline.provenance.source
        launches = max((len(metric.launches) for metric in baseline.metrics.values()), default=0)
        rows.append([str(path.relative_to(root)), recorded[:10], str(launches), _figures(baseline), mark])
    return aligned(rows)


def _figures(baseline: Baseline) -> str:
    found = []
    for name in _SHOWN:
        metric = baseline.metrics.get(name)
        if metric is None or (metric.mean is None and metric.floor is None):
            continue
        if name == "system_tok_s" and not metric.gate:
            continue
        words = [name, "-" if metric.mean is None else f"{number(metric.mean)} {metric.unit}"]
        if metric.floor is not None:
            words.append(f"floor {metric.floor:g}")
        found.append(" ".join(words if metric.gate else [*words, "(advisory)"]))
    return ", ".join(found) or "-"


def shown(path: Path) -> list[str]:
    """Return all of one file in readable lines; raises :class:`BaselineFileError` for one that can't be read."""
    baseline = read_baseline(path)
    provenance = baseline.provenance
    lines = [
        str(path),
        f"  recorded: {provenance.recorded_at or 'not known'}, by a {provenance.source}"
        + (f", at commit {provenance.git_commit}" if provenance.git_commit else ""),
    ]
    lines += [f"  command:  {provenance.command}"] if provenance.command else []
    lines += [f"  note:     {provenance.note}"] if provenance.note else []
    lines += ["  identity:"]
    document = jsonfile.read(path)["identity"]
    lines += [f"    {name}: {'not known' if value is None else value}" for name, value in sorted(document.items())]
    lines += ["  metrics:"]
    for name, metric in sorted(baseline.metrics.items()):
        lines.append(f"    {name}: {_metric(metric)}")
        lines += [f"      launch {i}: {' '.join(map(number, launch))}" for i, launch in enumerate(metric.launches, 1)]
    lines += [f"  environment: {len(baseline.environment)} entries"]
    lines += [
        f"    {key}: {value}" for key, value in sorted(baseline.environment.items()) if not key.startswith("args.")
    ]
    return lines


def _metric(metric: MetricBaseline) -> str:
    words = ["no samples" if metric.mean is None else f"{number(metric.mean)} {metric.unit}"]
    words.append("gates" if metric.gate else "advisory")
    words.append(f"tolerance {metric.tolerance:.1%}")
    if metric.floor is not None:
        words.append(f"floor {metric.floor:g}")
    if metric.note:
        words.append(metric.note)
    return ", ".join(words)


def difference(old: Path, new: Path) -> list[str]:
    """Compare two files, or two directories of baselines file by file; returns no line when they say the same.

    Raises :class:`BaselineFileError` for a file that can't be read, or a file and a directory.
    """
    if old.is_dir() != new.is_dir():
        raise BaselineFileError(f"{old} and {new}: one is a directory, the other is not; give two of a kind")
    if not old.is_dir():
        return _file_difference(old, new)
    before, after = ({path.relative_to(root): path for path in files(root)} for root in (old, new))
    lines: list[str] = []
    for name in sorted({*before, *after}):
        if name not in after:
            lines.append(f"{name}: only in {old}")
        elif name not in before:
            lines.append(f"{name}: only in {new}")
        else:
            found = _file_difference(before[name], after[name])
            lines += [str(name), *(f"  {line}" for line in found)] if found else []
    return lines


def _file_difference(old: Path, new: Path) -> list[str]:
    before, after = read_baseline(old), read_baseline(new)
    lines = []
    one, other = jsonfile.read(old)["identity"], jsonfile.read(new)["identity"]
    lines += [
        f"identity {name}: {one.get(name)} -> {other.get(name)}"
        for name in sorted({*one, *other})
        if one.get(name) != other.get(name)
    ]
    for name in sorted({*before.metrics, *after.metrics}):
        lines += _metric_difference(name, before.metrics.get(name), after.metrics.get(name))
    lines += [f"environment {line}" for line in environment_changes([before.environment], after.environment)]
    return lines


def _metric_difference(name: str, old: MetricBaseline | None, new: MetricBaseline | None) -> list[str]:
    if old is None or new is None:
        return [f"{name}: {'new' if old is None else 'gone'}"]
    lines = []
    if old.mean != new.mean:
        change = percent(new.mean / old.mean - 1) if old.mean and new.mean else "-"
        lines.append(f"{name}: {number(old.mean)} -> {number(new.mean)} {new.unit} ({change})")
    lines += [
        f"{name} {what}: {one} -> {other}"
        for what, one, other in (
            ("gate", old.gate, new.gate),
            ("tolerance", old.tolerance, new.tolerance),
            ("floor", old.floor, new.floor),
        )
        if one != other
    ]
    return lines


def problems(root: Path) -> list[str]:
    """Read every file, and compare its name with what it holds; returns a line for each that can't be relied on."""
    found = []
    for path in files(root):
        try:
            baseline = read_baseline(path)
        except BaselineFileError as error:
            found.append(str(error))
            continue
        found += [f"{path}: {line}" for line in _misnamed(path, baseline)]
    for path in sorted(root.glob(f"*/{comm_baseline.DIRECTORY}/*.json")):
        try:
            comm_baseline.read(path)
        except BaselineFileError as error:
            found.append(str(error))
    return found


def _misnamed(path: Path, baseline: Baseline) -> list[str]:
    parts = path.stem.split("--")
    if len(parts) < 4:
        return ["its name is not <server>--<workload>--c<concurrency>--o<output tokens>.json, so no test looks at it"]
    wanted = {"concurrency": (parts[2], "c"), "output_tokens": (parts[3], "o")}
    return [
        f"identity.{field} is {value}, and the file's name says {part}: rename it, or record it again"
        for field, (part, letter) in wanted.items()
        if (value := getattr(baseline.identity, field)) is not None and part != f"{letter}{value}"
    ]


def migrate(root: Path) -> list[Path]:
    """Rewrite the files of older schema versions; returns those. Raises :class:`BaselineFileError` before any write."""
    old = [(path, read_baseline(path)) for path in files(root) if _version(path) != SCHEMA_VERSION]
    for path, baseline in old:
        write_baseline(path, baseline)
    return [path for path, _ in old]


def _version(path: Path) -> object:
    return jsonfile.read(path).get(jsonfile.VERSION_KEY)


def unused(root: Path, keys: Mapping[str, object] | frozenset[str]) -> list[Path]:
    """Return the files that no measurement of these keys looks at, on whatever node."""
    return [path for path in files(root) if path.stem not in keys]
