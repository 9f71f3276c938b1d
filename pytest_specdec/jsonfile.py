"""JSON documents on disk: read strictly, written atomically and the same way every time, with a version."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

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
    return parse(text, str(path))


def parse(text: str, where: str) -> dict[str, Any]:
    """Read one JSON object from a text, as :func:`read` does; ``where`` it stands begins the message of an error."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise BaselineFileError(f"{where}: key {key!r} stands twice in one object; delete one of them")
            found[key] = value
        return found

    try:
        document = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise BaselineFileError(
            f"{where}: not JSON at line {error.lineno}, column {error.colno} ({error.msg}); it may be half "
            "written: restore it from version control"
        ) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise BaselineFileError(f"{where}: can't be read: {error}; restore it from version control") from None
    if not isinstance(document, dict):
        raise BaselineFileError(
            f"{where}: expected a JSON object, got {type(document).__name__}; restore it from version control"
        )
    for key, constant in _not_finite(document):
        raise BaselineFileError(f"{where}: {key}: {constant} is not a number that can be judged by; write a finite one")
    return document


def _not_finite(value: Any, key: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401  # any JSON value
    """Yield the place and the name of each number that no finite float can hold."""
    if isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _not_finite(entry, f"{key}.{name}" if key else str(name))
    elif isinstance(value, (list, tuple)):
        for index, entry in enumerate(value):
            yield from _not_finite(entry, f"{key}[{index}]")
    elif isinstance(value, float) and math.isnan(value):
        yield key, "NaN"
    elif isinstance(value, (int, float)) and abs(value) > sys.float_info.max:
        yield key, "Infinity" if value > 0 else "-Infinity"


def write(path: Path, document: Mapping[str, Any], *, digits: int = 6) -> None:
    """Write a document whole or not at all: sorted keys, two spaces, a newline at the end.

    Numbers are rounded to ``digits`` significant ones: six tell a measured value, a time since the epoch needs more.

    Raises ValueError for a number that is not finite, with its place: such a file could not be read back.
    """
    for key, constant in _not_finite(document):
        raise ValueError(f"{path}: {key}: {constant} can't be written: it could not be read back")
    text = json.dumps(rounded(document, digits), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Write a text whole or not at all, with the file's permissions kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        # Undecodable bytes of an environment variable are lone surrogates: written as \udcXX, which JSON reads back.
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
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


def rounded(value: Any, digits: int = 6) -> Any:  # noqa: ANN401  # any JSON value
    """Return a value as it is after it was written and read: what is compared with a file goes through this."""
    if isinstance(value, float):
        return fixed(value, digits) if math.isfinite(value) else value
    if isinstance(value, Mapping):
        return {key: rounded(entry, digits) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(entry, digits) for entry in value]
    return value


def migrated(
    path: Path | str, document: dict[str, Any], *, current: int, migrations: Mapping[int, Migration]
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
