"""Distribution under pytest-xdist: one queue for each server spec, so that no two workers launch the same one.

Workers know the specs, the controller knows only ids; a file in a directory of the controller's carries the groups.
xdist's own ``loadgroup`` writes groups into ids, which pytest 9 no longer lets it do.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

from pytest_specdec.owned import OwnedDirectory

_PREFIX: Final = "pytest-specdec-groups-"
_GROUPS: Final = "groups.json"


def make_directory() -> OwnedDirectory:
    """Make the directory, for this run of the controller's, in which workers leave their groups."""
    return OwnedDirectory(Path(tempfile.gettempdir()), prefix=_PREFIX)


def write_groups(directory: Path, groups: Mapping[str, str]) -> None:
    """Write test id to group; every worker writes the same, whole."""
    # A controller that was killed may have been cleared up behind already.
    with contextlib.suppress(FileNotFoundError):
        with tempfile.NamedTemporaryFile("w", dir=directory, delete=False, encoding="utf-8") as file:
            json.dump(dict(groups), file)
        Path(file.name).replace(directory / _GROUPS)


class OneQueueASpec(LoadScopeScheduling):  # type: ignore[misc]  # xdist is not typed
    """Sends tests of one spec to one worker; every other test is a unit of its own."""

    def __init__(self, config: Any, log: Any, directory: Path) -> None:  # noqa: ANN401  # pytest.Config, and xdist's log
        super().__init__(config, log)
        self._directory = directory
        self._groups: dict[str, str] | None = None

    def _split_scope(self, nodeid: str) -> str:
        if self._groups is None:
            # Read late: workers write it before they report their collection.
            self._groups = {}
            with contextlib.suppress(FileNotFoundError):
                self._groups = json.loads((self._directory / _GROUPS).read_text(encoding="utf-8"))
        return self._groups.get(nodeid, nodeid)
