"""JSON documents on disk: read strictly, written atomically and the same way every time, with a version."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from pytest_specdec.errors import BaselineFileError

Migration = Callable[[dict[str, Any]], dict[str, Any]]

VERSION_KEY: Final = "schema_version"


def fixed(number: float, digits: int = 6) -> float:
    """Round to significant digits, so that the last bits of a float make no differences between files."""
    return float(f"{number:.{digits}g}")


def read(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        BaselineFileError: the file can't be read, is no JSON object, holds a key twice, or a number that is not
            finite; with path, place and remedy.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineFileError(f"{path}: can't be read: {error}; restore it from version control") from None

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise BaselineFileError(f"{path}: key {key!r} stands twice in one object; delete one of them")
            found[key] = value
        return found

    def refuse(constant: str) -> NoReturn:
        raise BaselineFileError(f"{path}: {constant} is not a number that can be judged by; write a finite one")

    try:
        document = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise BaselineFileError(
            f"{path}: not JSON at line {error.lineno}, column {error.colno} ({error.msg}); it may be half "
            "written: restore it from version control"
        ) from None
    if not isinstance(document, dict):
        raise BaselineFileError(f"{path}: expected a JSON object, got {type(document).__name__}")
    return document


def write(path: Path, document: Mapping[str, Any], *, digits: int = 6) -> None:
    """Write a document whole or not at all: sorted keys, two spaces, a newline at the end.

    Numbers are rounded to ``digits`` significant ones: six tell a measured value, a time since the epoch needs more.

    Raises ValueError for a number that is not finite: such a file could not be read back.
    """
    text = json.dumps(_rounded(document, digits), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _rounded(value: Any, digits: int) -> Any:  # noqa: ANN401  # any JSON value
    if isinstance(value, float):
        return fixed(value, digits) if math.isfinite(value) else value
    if isinstance(value, Mapping):
        return {key: _rounded(entry, digits) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(entry, digits) for entry in value]
    return value


def migrated(
    path: Path, document: dict[str, Any], *, current: int, migrations: Mapping[int, Migration]
) -> dict[str, Any]:
    """Bring a document to the current version, one step at a time.

    ``migrations[n]`` turns version n into n + 1. Raises :class:`BaselineFileError` for a document without a
    version, for one that is too old to migrate, and for one that a newer program wrote.
    """
    version = document.get(VERSION_KEY)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BaselineFileError(
            f"{path}: {VERSION_KEY}: expected a whole number of at least 1, got {version!r}; "
            "without it the file can't be understood: restore it or record it again"
        )
    if version > current:
        raise BaselineFileError(
            f"{path}: {VERSION_KEY} is {version}, and this pytest-specdec reads up to {current}: upgrade it"
        )
    while version < current:
        if version not in migrations:
            raise BaselineFileError(
                f"{path}: {VERSION_KEY} is {version}, too old to be read: record it again with --update-baselines"
            )
        document = migrations[version](document)
        version += 1
        document[VERSION_KEY] = version
    return document
