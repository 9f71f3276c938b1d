"""Reading a baseline file value by value, with errors that name the file, the key and the remedy."""

from __future__ import annotations

import datetime as dt
import difflib
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from pytest_specdec.errors import BaselineFileError

T = TypeVar("T")

#: As the schema has it. What more `fromisoformat` takes differs between versions of Python.
_MOMENT: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{3}(\d{3})?)?(Z|[+-]\d{2}:\d{2})")


class At:
    """A place in a document. Every reading method raises :class:`BaselineFileError` with file, key and remedy."""

    def __init__(
        self,
        path: Path | str,
        value: Any,  # noqa: ANN401  # any JSON value
        key: str = "",
        *,
        remedy: str = "delete the file and record again with --update-baselines",
    ) -> None:
        self.path, self.value, self.key, self.remedy = path, value, key, remedy

    def fail(self, wanted: str) -> BaselineFileError:
        """Return the error that names this place: what was wanted, what there is, and what would do."""
        return BaselineFileError(
            f"{self.path}: {self.key or 'the file'}: expected {wanted}, got {self.value!r}; "
            f"correct it, or {self.remedy}"
        )

    def object(self, *, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, At]:
        """Read an object by key; a key that is missing or not known is refused."""
        if not isinstance(self.value, dict):
            raise self.fail("an object")
        known = [*required, *optional]
        for key in self.value:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise BaselineFileError(f"{self.path}: {self._join(key)}: unknown key{hint}; delete or correct it")
        for key in required:
            if key not in self.value:
                raise BaselineFileError(f"{self.path}: {self._join(key)} is missing; restore it from version control")
        return self.each()

    def _join(self, key: str) -> str:
        return f"{self.key}.{key}" if self.key else key

    def each(self) -> dict[str, At]:
        """Read an object of any keys."""
        if not isinstance(self.value, dict):
            raise self.fail("an object")
        return {key: At(self.path, entry, self._join(key), remedy=self.remedy) for key, entry in self.value.items()}

    def text(self) -> str:
        """Read a text."""
        if not isinstance(self.value, str):
            raise self.fail("a text")
        return self.value

    def one_of(self, *choices: str) -> str:
        """Read one of these words."""
        if self.value not in choices:
            raise self.fail(("one of " if len(choices) > 1 else "") + ", ".join(choices))
        return str(self.value)

    def flag(self) -> bool:
        """Read true or false."""
        if not isinstance(self.value, bool):
            raise self.fail("true or false")
        return self.value

    def whole(self, least: int) -> int:
        """Read a whole number of at least ``least``."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < least:
            raise self.fail(f"a whole number of at least {least}")
        return self.value

    def moment(self) -> str:
        """Read a time in UTC; it stays a text."""
        if _MOMENT.fullmatch(self.text()) is None:
            raise self.fail("a time as 2026-11-29T12:00:00+00:00")
        try:
            when = dt.datetime.fromisoformat(self.text().replace("Z", "+00:00"))
        except ValueError:
            raise self.fail("a time as 2026-11-29T12:00:00+00:00") from None
        if when.utcoffset() != dt.timedelta(0):
            raise self.fail("a time in UTC, as 2026-11-29T12:00:00+00:00")
        return self.text()

    def number(self, wanted: str, accept: Callable[[float], bool]) -> float:
        """Read a finite number that ``accept`` takes; ``wanted`` says which those are."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.fail(wanted)
        if not accept(value):
            raise self.fail(wanted)
        return float(value)

    def or_none(self, read: Callable[[At], T]) -> T | None:
        """Read what is not null with ``read``."""
        return None if self.value is None else read(self)
