"""What differs between the environment that a baseline was recorded in and this one's, readably. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from pytest_specdec import jsonfile
from pytest_specdec.model import EnvironmentChange

#: Entries that say nothing about speed, or change with every launch.
_NOT_SHOWN: Final = frozenset({"port", "random_seed", "nccl_port", "log_file", "dist_init_addr"})


def environment_changes(
    recorded: Sequence[Mapping[str, object]], now: Mapping[str, object]
) -> tuple[EnvironmentChange, ...]:
    """Return each difference from the first recorded environment, sorted by key.

    A number that differs beyond the digits that a file keeps is the same.
    """
    if not recorded:
        return ()
    before, after = jsonfile.rounded(recorded[0]), jsonfile.rounded(now)
    return tuple(
        _change(key, _side(before, key), _side(after, key))
        for key in sorted({*before, *after})
        if key.rpartition(".")[2] not in _NOT_SHOWN and before.get(key) != after.get(key)
    )


def _side(environment: Mapping[str, object], key: str) -> str:
    if key not in environment:
        return "(not set)"
    value = environment[key]
    return value if isinstance(value, str) and value.strip() else repr(value)


def _change(key: str, before: str, after: str) -> EnvironmentChange:
    """Keep both sides; of long ones the part that differs, with a little of what stands around it."""
    longest, around = 80, 20
    if max(len(before), len(after)) > longest:
        start = max(0, _shared(before, after) - around)
        end = max(0, _shared(before[start:][::-1], after[start:][::-1]) - around)
        before, after = (_part(text, start, len(text) - end, longest) for text in (before, after))
    return EnvironmentChange(key=key, before=before, after=after)


def _shared(one: str, other: str) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _part(text: str, start: int, stop: int, longest: int) -> str:
    shown = text[start:stop]
    if len(shown) > longest:
        shown, stop = shown[:longest], start + longest
    return f"{'...' if start else ''}{shown}{'...' if stop < len(text) else ''}"
