"""What a dead end expects: the marker read and checked, and which failures fit it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pytest_specdec import catalogue, preflight
from pytest_specdec.errors import FailureCause, UserInputError
from pytest_specdec.model import DeadEnd

_FIELDS: Final = ("diagnosis", "reason", "versions", "link", "slower_than")
_EXAMPLE: Final = '@pytest.mark.dead_end("flashinfer-no-arch-list", reason="no SM120 kernels on this tool chain")'
#: What the preflight says before a launch of what SGLang's own log would say.
_TOLD_BEFORE: Final = {
    "flag-unrecognized": "unknown-flag",
    "flag-ambiguous": "ambiguous-flag",
    "flag-value-refused": "bad-value",
    "arguments-refused": "bad-value",
    "spec-algorithm-unknown": "draft-flags",
    "spec-flags-incomplete": "draft-flags",
    "spec-flags-clash": "draft-flags",
    "model-not-found": "model-path",
    "draft-not-found": "draft-path",
}
#: How the host is just now, rather than what was tried: that says nothing about an experiment.
_OF_THE_HOST: Final = frozenset({"python", "gpus"})
_CATEGORIES_OF_THE_HOST: Final = frozenset({"gpu_busy", "port_in_use"})


def from_marker(nodeid: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> DeadEnd:
    """Return what a dead_end marker says; raises :class:`UserInputError` naming test, field and what would do."""

    def refuse(what: str) -> UserInputError:
        return UserInputError(f"{nodeid}: marker dead_end: {what}; for example\n{_EXAMPLE}")

    if len(args) > 1:
        raise refuse(f"only the diagnosis comes without its name, got {list(args)!r}")
    fields = {**dict(zip(_FIELDS, args, strict=False)), **kwargs}
    unknown = [name for name in kwargs if name not in _FIELDS]
    if unknown or (args and "diagnosis" in kwargs):
        raise refuse(f"{_near(unknown[0], _FIELDS)}it takes {', '.join(_FIELDS)}" if unknown else "two diagnoses")
    diagnosis, slower_than = fields.get("diagnosis"), fields.get("slower_than")
    if diagnosis is None and slower_than is None:
        raise refuse("say how it fails: a diagnosis, or slower_than= in tok/s")
    if diagnosis is not None and diagnosis not in _failures():
        near = _near(diagnosis, _failures()) if isinstance(diagnosis, str) else f"{diagnosis!r} is no name: "
        raise refuse(f"{near}it takes a diagnosis of docs/diagnosis.md, or one of {', '.join(preflight.RULES)}")
    for name in ("reason", "versions", "link"):
        value = fields.get(name)
        if (value is not None or name == "reason") and (not isinstance(value, str) or not value.strip()):
            raise refuse(f"{name}= is a text that says something, got {value!r}")
    if slower_than is not None and (
        isinstance(slower_than, bool) or not isinstance(slower_than, (int, float)) or not 0 < slower_than < math.inf
    ):
        raise refuse(f"slower_than= is a number of tok/s above 0, got {slower_than!r}")
    versions, link = fields.get("versions"), fields.get("link")
    if link is not None and not link.startswith(("https://", "http://")):
        raise refuse(f"link= is an address that begins with https:// or http://, got {link!r}")
    if versions is not None and _specifiers(versions) is None:
        raise refuse(f'versions= is a PEP 440 specifier set such as ">=0.5.3,<0.5.15", got {versions!r}')
    return DeadEnd(
        diagnosis=diagnosis,
        reason=fields["reason"],
        versions=versions,
        link=link,
        slower_than=None if slower_than is None else float(slower_than),
    )


def _failures() -> tuple[str, ...]:
    """The names that a failure can have, what a server only warns of among them; that it is well is none."""
    named = (rule.name for rule in catalogue.rules() if rule.category != "ok")
    return tuple(dict.fromkeys((*named, *preflight.RULES)))


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=3)
    return f"there is no {name!r}: " + (f"did you mean {' or '.join(near)}? " if near else "")


def _specifiers(versions: str) -> Any | None:  # noqa: ANN401  # packaging's own class, loaded when it is needed
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # noqa: PLC0415  # pytest brings it

    try:
        return SpecifierSet(versions)
    except InvalidSpecifier:
        return None


def is_outside(versions: str | None, version: str | None) -> bool:
    """Tell whether a version of SGLang is surely none of those; one that isn't known or is no number is not."""
    from packaging.version import InvalidVersion, Version  # noqa: PLC0415  # pytest brings it

    specifiers = None if versions is None or version is None else _specifiers(versions)
    if specifiers is None or version is None:
        return False
    try:
        return not specifiers.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def fits(dead_end: DeadEnd, cause: FailureCause) -> bool:
    """Tell whether a failure is the expected one.

    A diagnosis that no real log was seen of may have another text in reality: it fits by the phase in which its
    entries of the catalogue can occur, and by an end of the process.
    """
    expected = dead_end.diagnosis
    if expected is None:
        return False
    if any(is_same(expected, name) for name in cause.names):
        return True
    entries = [rule for rule in catalogue.rules() if rule.name == expected]
    if not entries or not all(rule.provisional for rule in entries) or cause.exit_code is None:
        return False
    return any(_can_be_in(rule, cause.phase) for rule in entries)


def is_same(expected: str, seen: str) -> bool:
    """Tell whether two names are of one failure: what a log would say, the preflight says before a launch."""
    return seen == expected or _TOLD_BEFORE.get(expected) == seen or _TOLD_BEFORE.get(seen) == expected


def _can_be_in(rule: catalogue.Rule, phase: str) -> bool:
    phases = rule.phases or (() if rule.phase is None else (rule.phase,))
    return not phases or phase in phases


def tells(dead_end: DeadEnd, cause: FailureCause | None) -> bool:
    """Tell whether a failure says anything about the experiment: a busy GPU or a missing SGLang does not."""
    if cause is None:
        return False
    of_the_host = cause.category in _CATEGORIES_OF_THE_HOST or (bool(cause.names) and set(cause.names) <= _OF_THE_HOST)
    expected = dead_end.diagnosis
    return not of_the_host or (expected is not None and any(is_same(expected, name) for name in cause.names))
