"""SGLang's options as a table, and a server spec's flags read by it as argparse reads them."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

from pytest_specdec.flags import Option, masked_value
from pytest_specdec.renames import RETIRED

_READERS: Final = {"str": str, "int": int, "float": float}
_NEAREST: Final = 3
#: Of many choices a few are enough to see what kind of value is wanted.
_SHOWN_CHOICES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One option: its spellings, argparse's ``nargs``, and how a value is read (empty: only SGLang can)."""

    flags: tuple[str, ...]
    nargs: int | str | None
    type: str
    choices: tuple[str | int | float, ...] | None

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Row:
        """Read an entry of the probe's table; raises KeyError or TypeError for anything else."""
        choices = entry["choices"]
        return cls(
            flags=tuple(entry["flags"]),
            nargs=entry["nargs"],
            type=entry["type"],
            choices=None if choices is None else tuple(choices),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """What the table has against one flag: the rule's name, and the reason."""

    rule: Literal["unknown-flag", "ambiguous-flag", "bad-value"]
    message: str


class _RefusedError(Exception):
    """argparse refused the words."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _RefusedError(message)


class OptionTable:
    """A parser like SGLang's own: prefixes, choices, numbers and counts of values are argparse's business."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._parser = _Parser(prog="sglang", add_help=False)
        self._flags: dict[str, Row] = {}
        for row in rows:
            self._flags |= dict.fromkeys(row.flags, row)
            settings: dict[str, Any] = {"action": "store_true"}
            if row.nargs != 0:
                settings = {"nargs": row.nargs, "type": _READERS.get(row.type, str), "choices": row.choices}
            self._parser.add_argument(*row.flags, **settings)

    def unread(self, options: Iterable[Option]) -> list[Option]:
        """Return the options whose values only SGLang can read: the table can't tell a good one."""
        return [option for option in options if not all(row.type for row in self._rows(option.flag))]

    def objections(self, options: Iterable[Option]) -> list[Objection]:
        """Return what is wrong, at most one thing a flag, in the order of the flags."""
        return [found for option in options if (found := self._objection(option)) is not None]

    def _objection(self, option: Option) -> Objection | None:
        flag = sglang_spelling(option.flag)
        try:
            self._parser.parse_args(Option(flag=flag, values=option.values).words)
        except _RefusedError as refused:
            return self._named(flag, option, str(refused))
        return None

    def _named(self, flag: str, option: Option, message: str) -> Objection:
        hint = f"; {RETIRED[option.name]}" if option.name in RETIRED else ""
        rows = self._rows(flag)
        if message.startswith("ambiguous option"):
            could = ", ".join(sorted(name for name in self._flags if name.startswith(flag)))
            text = f"{option.flag} begins {could}: write one out{hint}"
            return Objection(rule="ambiguous-flag", message=text)
        if not rows:
            return Objection(rule="unknown-flag", message=f"there is no {option.flag}{hint or self._like(flag)}")
        name, row = (flag if flag in self._flags else rows[0].flags[0]), rows[0]
        given = masked_value(option.name, " ".join(option.values))
        if "invalid choice" in message and row.choices is not None:
            wrong = next((value for value in option.values if value not in map(str, row.choices)), given)
            return Objection(rule="bad-value", message=f"{name} is {wrong!r}; it takes {_listed(row.choices)}")
        what = re.sub(r"^argument [^:]+: ", "", message)
        if message.startswith("unrecognized arguments") or "ignored explicit argument" in message:
            what = f"it takes {'no value' if row.nargs == 0 else 'one value'}"
        has = f"is {given!r}" if option.values else "has no value"
        return Objection(rule="bad-value", message=f"{name} {has}: {what}")

    def _rows(self, flag: str) -> list[Row]:
        """The options that argparse may mean by this spelling: the very one, or those it begins."""
        flag = sglang_spelling(flag)
        if flag in self._flags:
            return [self._flags[flag]]
        return [row for name, row in self._flags.items() if name.startswith(flag)]

    def _like(self, flag: str) -> str:
        # First those that hold its words: of long names with one part changed, letters alone are a poor measure.
        parts = set(flag.strip("-").split("-"))
        ranked = sorted(
            difflib.get_close_matches(flag, self._flags, n=10, cutoff=0.6),
            key=lambda name: (-len(parts & set(name.strip("-").split("-"))), -_likeness(flag, name)),
        )
        return f"; nearest: {', '.join(ranked[:_NEAREST])}" if ranked else "; nothing is spelled like it"


def sglang_spelling(flag: str) -> str:
    """Give the spelling a launch passes on: SGLang's parser knows no underscores, people's habits do."""
    return flag.replace("_", "-")


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _listed(choices: Sequence[object]) -> str:
    shown = ", ".join(map(str, choices[:_SHOWN_CHOICES]))
    more = len(choices) - _SHOWN_CHOICES
    return f"{shown} and {more} more" if more > 0 else shown
