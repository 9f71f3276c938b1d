"""Distribution under pytest-xdist: one queue for each server spec, so that no two workers launch the same one.

Workers know the specs, the controller knows only ids; a file named after the run carries the groups across.
xdist's own ``loadgroup`` writes groups into ids, which pytest 9 no longer lets it do.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadScopeScheduling


def groups_file(run_id: str) -> Path:
    """Where the groups of a run are written; the id is xdist's, the same in the controller and its workers."""
    return Path(tempfile.gettempdir()) / f"pytest-specdec-groups-{run_id}.json"


def write_groups(run_id: str, groups: Mapping[str, str]) -> None:
    """Write test id to group; every worker writes the same, whole."""
    path = groups_file(run_id)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False, encoding="utf-8") as file:
        json.dump(dict(groups), file)
    Path(file.name).replace(path)


class OneQueueASpec(LoadScopeScheduling):  # type: ignore[misc]  # xdist is not typed
    """Sends tests of one spec to one worker; every other test is a unit of its own."""

    def __init__(self, config: Any, log: Any, run_id: str) -> None:  # noqa: ANN401  # pytest.Config, and xdist's log
        super().__init__(config, log)
        self._run_id = run_id
        self._groups: dict[str, str] | None = None

    def _split_scope(self, nodeid: str) -> str:
        if self._groups is None:
            # Read late: workers write it before they report their collection.
            self._groups = {}
            with contextlib.suppress(FileNotFoundError):
                self._groups = json.loads(groups_file(self._run_id).read_text(encoding="utf-8"))
        return self._groups.get(nodeid, nodeid)
