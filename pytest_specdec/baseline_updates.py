"""Writing the baselines of a whole session, by one process: the only one, or the controller of xdist's workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_specdec import jsonfile
from pytest_specdec.baseline import to_document
from pytest_specdec.baseline_store import Change
from pytest_specdec.errors import InfrastructureError
from pytest_specdec.judging import Update
from pytest_specdec.report import aligned


def wanted(updates: Iterable[Update]) -> list[dict[str, Any]]:
    """Return updates as plain data, which travels between processes."""
    return [
        {
            "key": update.key,
            "files": {str(path): to_document(baseline) for path, baseline in update.files.items()},
            "changes": [change.cells() for change in update.changes],
        }
        for update in updates
    ]


def write(processes: Sequence[Mapping[str, Any]], *, root: Path, report_dir: Path) -> list[str]:
    """Write what the processes of a session want, each measurement once; returns a table: old, new and change.

    Nothing is written of a measurement of which a test failed, in whichever process. A copy lies in the report, for
    a run elsewhere. Raises :class:`InfrastructureError` where a file can't be written.
    """
    done = {key for process in processes for key in process["failed"]}
    rows: list[Sequence[str]] = []
    for update in (update for process in processes for update in process["wanted"]):
        if update["key"] in done:
            continue
        done.add(update["key"])
        for name, document in update["files"].items():
            for path in (Path(name), report_dir / "baselines" / Path(name).relative_to(root)):
                try:
                    jsonfile.write(path, document)
                except OSError as error:
                    raise InfrastructureError(
                        f"{path}: the new baseline can't be written: {error.strerror or error}; what was measured is "
                        f"in {report_dir}"
                    ) from None
        rows += update["changes"]
    return aligned([Change.HEAD, *rows]) if rows else []
