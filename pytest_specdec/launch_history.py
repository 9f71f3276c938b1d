"""How long launches took, by spec and host, so that the next one of the same spec there has an expected time.

One small file in the cache: it can be lost, and a broken one is none. Only the last launch is kept, not an average:
the first one after a boot reads its weights from the disk and compiles, those after it find caches, and the next one
is most like the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_specdec import jsonfile
from pytest_specdec.errors import BaselineFileError

_SCHEMA_VERSION: Final = 1
#: Specs come and go with each experiment; those used last are kept.
_MOST_ENTRIES: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PastLaunch:
    """A launch that became ready: seconds in all, and seconds in each phase."""

    ready_s: float
    phase_s: Mapping[str, float]


class LaunchHistory:
    """The launches that a file knows of. Processes that write at the same time may lose each other's entry."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def last(self, spec_hash: str, host: str) -> PastLaunch | None:
        """Return the last launch of the spec of this content on that host; None when there was none."""
        entry = self._entries().get(_key(spec_hash, host))
        return None if entry is None else PastLaunch(ready_s=entry["ready_s"], phase_s=entry["phase_s"])

    def add(self, spec_hash: str, host: str, launch: PastLaunch, *, at_unix_s: float) -> None:
        """Remember a launch; a file that can't be written is done without."""
        entries = self._entries()
        entry = {"ready_s": launch.ready_s, "phase_s": dict(launch.phase_s), "at_unix_s": at_unix_s}
        entries[_key(spec_hash, host)] = entry
        newest = sorted(entries.items(), key=lambda item: -item[1]["at_unix_s"])[:_MOST_ENTRIES]
        document = {jsonfile.VERSION_KEY: _SCHEMA_VERSION, "launches": dict(newest)}
        try:
            jsonfile.write(self._path, document, digits=12)
        except OSError:
            return

    def _entries(self) -> dict[str, dict[str, Any]]:
        try:
            document = jsonfile.read(self._path)
        except BaselineFileError:
            return {}
        launches = document.get("launches")
        if document.get(jsonfile.VERSION_KEY) != _SCHEMA_VERSION or not isinstance(launches, dict):
            return {}
        return {key: entry for key, entry in launches.items() if _is_sound(entry)}


def _key(spec_hash: str, host: str) -> str:
    return f"{host} {spec_hash}"


def _is_sound(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("phase_s"), dict):
        return False
    numbers = (entry.get("ready_s"), entry.get("at_unix_s"), *entry["phase_s"].values())
    return all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in numbers)
