"""The ledger of a study as a file: one JSON line a try, read strictly and written the same way every time."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pytest_specdec import jsonfile
from pytest_specdec.baseline_reading import At
from pytest_specdec.errors import BaselineFileError
from pytest_specdec.model import EnvironmentChange
from pytest_specdec.settings import slug

FILE_NAME: Final = "study.jsonl"
SCHEMA_VERSION: Final = 1
#: A server was measured; it did not serve; or a dead end was tried, whatever came of that.
Kind = Literal["measured", "failed", "dead-end"]

_REMEDY: Final = "restore the line from version control"
_OPTIONAL_TEXTS: Final = ("diagnosis", "expected", "key", "link", "log_path", "reason", "sglang_version")
_TEXTS: Final = ("command", "outcome", "server", "spec_hash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A metric's value in its own unit, with the lowest and the highest round where they are known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """A metric's ratio to the control; ``low`` and ``high`` bound it, None where it is not ``conclusive``."""

    control: str
    metric: str
    ratio: float | None
    low: float | None
    high: float | None
    conclusive: bool
    control_moved: bool
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What the spec changes against its control: as it says itself, and as the servers resolved it."""

    control: str
    intended: tuple[str, ...]
    effective: tuple[EnvironmentChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One spec on one node, and what came of it.

    ``key`` names the measurement, None where the server did not get so far. ``outcome`` is the verdict of what was
    measured, the diagnosis of what failed, or ``holds``, ``differs`` or ``revived`` of a dead end, which was
    ``expected`` to show that ``diagnosis``. ``at`` and ``first_at`` are when the last and the first of ``runs``
    sessions began that it came out so in, ISO 8601 in UTC; figures, log and change are the last one's.
    """

    node: str
    server: str
    spec_hash: str
    command: str
    key: str | None
    kind: Kind
    outcome: str
    diagnosis: str | None
    expected: str | None
    reason: str | None
    link: str | None
    sglang_version: str | None
    log_path: str | None
    at: str
    first_at: str
    runs: int
    figures: Mapping[str, Figure]
    change: Change | None
    speedup: Speedup | None


def read_all(root: Path) -> dict[str, list[Try]]:
    """Return the ledgers below a directory of baselines by their nodes; raises as :func:`read` does."""
    return {path.parent.name: read(path) for path in sorted(root.glob(f"*/{FILE_NAME}"))}


def read(path: Path) -> list[Try]:
    """Read a ledger; raises :class:`BaselineFileError` for a line that can't be read, with its number and remedy."""
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineFileError(f"{path}: can't be read: {error}; restore it from version control") from None
    # Not splitlines: it splits at characters that may stand in a JSON text.
    lines = enumerate(text.split("\n"), 1)
    return [_parsed(line, f"{path}, line {number}") for number, line in lines if line.strip()]


def moment(text: str) -> dt.datetime:
    """Read a time of a ledger."""
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00"))


def write(path: Path, tries: Sequence[Try]) -> None:
    """Write a ledger, whole or not at all; raises :class:`BaselineFileError` for what could not be read back."""
    lines = [json.dumps(_document(one), sort_keys=True, ensure_ascii=False, allow_nan=False) for one in tries]
    for number, line in enumerate(lines, 1):
        # What could not be read back would block the ledger for good.
        _parsed(line, f"{path}, line {number}")
    jsonfile.write_text(path, "".join(f"{line}\n" for line in lines))


def _document(one: Try) -> dict[str, Any]:
    document: dict[str, Any] = jsonfile.rounded({**dataclasses.asdict(one), jsonfile.VERSION_KEY: SCHEMA_VERSION})
    return document


def _parsed(line: str, where: str) -> Try:
    document = jsonfile.migrated(where, jsonfile.parse(line, where), current=SCHEMA_VERSION, migrations={})
    names = [field.name for field in dataclasses.fields(Try)]
    at = At(where, document, remedy=_REMEDY).object(required=[jsonfile.VERSION_KEY, *names])
    texts: dict[str, Any] = {name: at[name].text() for name in _TEXTS}
    texts |= {name: at[name].or_none(At.text) for name in _OPTIONAL_TEXTS}
    return Try(
        **texts,
        node=slug(at["node"].text(), f"{where}: node"),
        kind=at["kind"].one_of(*get_args(Kind)),  # type: ignore[arg-type]  # one of them
        at=at["at"].moment(),
        first_at=at["first_at"].moment(),
        runs=at["runs"].whole(1),
        figures={name: _read_figure(figure) for name, figure in at["figures"].each().items()},
        change=at["change"].or_none(_read_change),
        speedup=at["speedup"].or_none(_read_speedup),
    )


def _number(at: At) -> float:
    return at.number("a number", lambda _: True)


def _read_figure(at: At) -> Figure:
    parts = at.object(required=["value", "low", "high"])
    return Figure(value=_number(parts["value"]), low=parts["low"].or_none(_number), high=parts["high"].or_none(_number))


def _items(at: At) -> list[At]:
    if not isinstance(at.value, list):
        raise at.fail("a list")
    return [At(at.path, value, f"{at.key}[{index}]", remedy=at.remedy) for index, value in enumerate(at.value)]


def _read_change(at: At) -> Change:
    parts = at.object(required=["control", "intended", "effective"])
    effective = [change.object(required=["key", "before", "after"]) for change in _items(parts["effective"])]
    return Change(
        control=parts["control"].text(),
        intended=tuple(line.text() for line in _items(parts["intended"])),
        effective=tuple(EnvironmentChange(**{name: part.text() for name, part in one.items()}) for one in effective),
    )


def _read_speedup(at: At) -> Speedup:
    parts = at.object(required=[field.name for field in dataclasses.fields(Speedup)])
    return Speedup(
        control=parts["control"].text(),
        metric=parts["metric"].text(),
        ratio=parts["ratio"].or_none(_number),
        low=parts["low"].or_none(_number),
        high=parts["high"].or_none(_number),
        conclusive=parts["conclusive"].flag(),
        control_moved=parts["control_moved"].flag(),
        reason=parts["reason"].or_none(At.text),
    )
