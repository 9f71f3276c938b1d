"""The end of a session: what its processes measured becomes one document, baselines, a ledger, a report and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_specdec import baseline_updates, page, report, results, study, sweep_report
from pytest_specdec.results import Recorder
from pytest_specdec.settings import Settings


def merged(documents: Sequence[Mapping[str, Any]], baseline_changes: Sequence[str] = ()) -> dict[str, Any]:
    """One results document from those of several processes (xdist workers)."""
    first = {**documents[0], "baseline_changes": list(baseline_changes)}
    for name in ("failures", "dead_ends", "measurements", "sweeps"):
        first[name] = [entry for document in documents for entry in document[name]]
    first["measurements"].sort(key=lambda entry: str(entry["key"]))
    first["dead_ends"].sort(key=lambda entry: str(entry["nodeid"]))
    first["launch_count"] = sum(document["launch_count"] for document in documents)
    return first


def write_baselines(settings: Settings, updates: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write what the session's processes want to record; returns a line for each metric that changed.

    Raises :class:`InfrastructureError` where that can't be done.
    """
    return baseline_updates.write(updates, root=settings.baselines_dir, report_dir=settings.report_dir)


def add_to_study(settings: Settings, document: Mapping[str, Any]) -> list[str]:
    """Take a run into the ledger beside the baselines, when that is asked for; returns what became of it.

    Raises :class:`SpecdecError` for a ledger that can't be read or written.
    """
    return study.add(settings.baselines_dir, study.entries_of(document)) if settings.study else []


def write_report(settings: Settings, document: Mapping[str, Any], environ: Mapping[str, str]) -> Path:
    """Write ``results.json`` and ``report.html``, and the step summary on GitHub; returns the report's path.

    Raises :class:`InfrastructureError` where that can't be done.
    """
    recorder = Recorder(settings.report_dir)
    recorder.write(document)
    path = settings.report_dir / "report.html"
    with results.kept_in(settings.report_dir):
        path.write_text(page.html(document), encoding="utf-8")
    step_summary = environ.get("GITHUB_STEP_SUMMARY")
    if step_summary:
        with Path(step_summary).open("a", encoding="utf-8") as file:
            file.write(report.markdown(document))
    return path


def summary_lines(document: Mapping[str, Any], report_path: str | None) -> list[str]:
    """Return what the terminal shows at the end of a session."""
    lines = report.table_lines(document)
    for sweep in document["sweeps"]:
        lines += ["", *sweep_report.lines(sweep)]
    lines += _notes(document["measurements"])
    lines += report.dead_end_lines(document)
    lines += [f"{change}" for change in document["baseline_changes"]]
    if report_path is not None:
        lines.append(f"report: {report_path}")
    return lines


def _notes(measurements: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each note once, with the measurements that it is about where it isn't about all."""
    about: dict[str, dict[str, None]] = {}
    for entry in measurements:
        for note in entry["notes"]:
            about.setdefault(note, {})[str(entry["key"])] = None
    every = len({entry["key"] for entry in measurements})
    return [note if len(keys) == every else f"{', '.join(keys)}: {note}" for note, keys in about.items()]
