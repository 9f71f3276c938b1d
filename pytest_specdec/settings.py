"""The settings of a run as one value, and the rules by which the sources of a setting win over one another.

Precedence: marker > command line > environment variable > ini file > default. Every parser is told where its
text came from, so that an error can name the option, the variable or the ini key that the user has to change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar
from urllib.parse import urlsplit

from pytest_specdec.errors import UserInputError

T = TypeVar("T")

Device = Literal["cpu", "cuda"]
UpdateMode = Literal["new", "all"]

#: How ``--gpu-host`` without a value reads: the GPU host is this machine.
HERE = ""
#: How long servers are kept up when no time is named, seconds.
KEPT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A raw value of a setting, and where the user wrote it (``pytest.ini: specdec_rounds``)."""

    text: object
    where: str


@dataclass(frozen=True, slots=True)
class Resolved(Generic[T]):
    """A parsed value and where it came from."""

    value: T
    where: str


def first_given(candidates: Sequence[Candidate | None], parse: Callable[[object, str], T], default: T) -> Resolved[T]:
    """Parse the first candidate that was given, in order of precedence; the others are not even looked at."""
    for candidate in candidates:
        if candidate is not None:
            return Resolved(parse(candidate.text, candidate.where), candidate.where)
    return Resolved(default, "default")


def _refuse(given: object, where: str, wanted: str) -> UserInputError:
    return UserInputError(f"{where}: expected {wanted}, got {given!r}")


def positive_int(given: object, where: str) -> int:
    """A whole number of at least one."""
    return _whole(given, where, least=1)


def count(given: object, where: str) -> int:
    """A whole number of at least zero."""
    return _whole(given, where, least=0)


def _whole(given: object, where: str, least: int) -> int:
    wanted = f"a whole number of at least {least}"
    if isinstance(given, bool):
        raise _refuse(given, where, wanted)
    if isinstance(given, int):
        number = given
    else:
        try:
            number = int(str(given).strip())
        except ValueError:
            raise _refuse(given, where, wanted) from None
    if number < least:
        raise _refuse(given, where, wanted)
    return number


def positive_seconds(given: object, where: str) -> float:
    """A finite number of seconds above zero."""
    wanted = "a number of seconds above 0"
    try:
        seconds = float(str(given).strip())
    except ValueError:
        raise _refuse(given, where, wanted) from None
    if not math.isfinite(seconds) or seconds <= 0:
        raise _refuse(given, where, wanted)
    return seconds


def kept_seconds(given: object, where: str) -> float | None:
    """How many seconds servers are kept up after a run; None for not at all, also spelled ``no``, ``off`` or 0."""
    word = str(given).strip().lower()
    if word in {"false", "no", "off", "0", ""}:
        return None
    return KEPT_S if word in {"true", "yes", "on"} else positive_seconds(given, where)


def one_of(*choices: str) -> Callable[[object, str], str]:
    """Make a parser for one of a few words."""

    def parse(given: object, where: str) -> str:
        word = str(given).strip()
        if word not in choices:
            raise _refuse(given, where, "one of " + ", ".join(choices))
        return word

    return parse


def flag(given: object, where: str) -> bool:
    """A yes or no, as ini files and environment variables spell it."""
    if isinstance(given, bool):
        return given
    word = str(given).strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"0", "false", "no", "off", ""}:
        return False
    raise _refuse(given, where, "true or false")


def text(given: object, where: str) -> str:
    """A text that is not empty."""
    value = str(given).strip()
    if not value:
        raise _refuse(given, where, "a value that is not empty")
    return value


def slug(given: object, where: str) -> str:
    """A directory name: lower-case letters, digits, ``.`` and ``-``."""
    value = text(given, where)
    if value.strip("abcdefghijklmnopqrstuvwxyz0123456789.-_") or value.startswith("."):
        raise _refuse(given, where, "a node name of lower-case letters, digits, '.', '_' and '-'")
    return value


def hosts(given: object, where: str) -> tuple[str, ...]:
    """One or more GPU hosts: each ``""`` (this machine, also spelled ``here``) or ``[user@]host`` for SSH."""
    values = [str(part).strip() for part in given] if isinstance(given, (list, tuple)) else str(given).split()
    values = [HERE if value == "here" else value for value in values]
    for value in values:
        if value.startswith("-") or any(c.isspace() for c in value):
            raise _refuse(value, where, "[user@]host, or nothing for this machine")
    return tuple(values) or (HERE,)


#: The key of a Python that every host has which has none of its own.
ANY_HOST = "*"


def pythons(given: object, where: str) -> Mapping[str, str]:
    """A path, or lines of ``host: path`` (``here`` is this machine); returns host to path, ``*`` for all others."""
    found: dict[str, str] = {}
    for line in text(given, where).splitlines():
        host, sign, path = line.strip().rpartition(": ")
        if not line.strip():
            continue
        if sign and (not host.strip() or any(c.isspace() for c in host.strip())):
            raise _refuse(line.strip(), where, "a path, or lines of `host: path`")
        key = ANY_HOST if not sign else HERE if host.strip() == "here" else host.strip()
        if found.setdefault(key, path.strip()) != path.strip():
            raise _refuse(line.strip(), where, "one path for each host")
    return found


def server_url(given: object, where: str) -> str:
    """The address of a server: ``http://host:port`` or https, with a path before SGLang's own where a proxy has one."""
    value = text(given, where).rstrip("/")
    wanted = "the address of a server, such as http://127.0.0.1:30000"
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise _refuse(given, where, wanted)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user asked of this run, validated.

    ``gpu_hosts`` is None without ``--gpu-host``; an entry ``""`` is this machine. ``launches`` is None when
    the user named no number: then one launch judges and five record. A close answer may take up to
    ``max_launches``. ``python`` is by host, see :func:`pythons`. ``where`` tells, for each setting by field name,
    where its value came from.
    """

    gpu_hosts: tuple[str, ...] | None
    device: Device
    update: UpdateMode | None
    url: str | None
    url_flush: bool
    share_host: bool
    python: Mapping[str, str]
    node: str | None
    baselines_dir: Path
    report_dir: Path
    launches: int | None
    max_launches: int
    study: bool
    rounds: int
    warmup: int
    chat_template: bool
    startup_timeout_s: float
    startup_limit_s: float
    lease_s: float
    keep_servers_s: float | None
    allow_loosening: bool
    check: bool
    baseline_files: str | None
    inconclusive: str
    where: Mapping[str, str]

    @property
    def asked_for_gpus(self) -> bool:
        """Whether the user named somewhere that GPU tests can run."""
        return self.gpu_hosts is not None or self.url is not None

    #: Launches that record a baseline, and that judge against one, when the user names no number.
    RECORD_LAUNCHES = 5
    JUDGE_LAUNCHES = 1

    def launches_for(self, *, recording: bool) -> int:
        """How many launches one measurement is spread over; a server that is already running is one."""
        if self.url is not None:
            return 1
        if self.launches is not None:
            return self.launches
        return self.RECORD_LAUNCHES if recording else self.JUDGE_LAUNCHES

    def most_launches(self, *, recording: bool) -> int:
        """How many launches a close answer may take in all; recording takes what it was planned for."""
        planned = self.launches_for(recording=recording)
        return planned if recording or self.url is not None else max(planned, self.max_launches)
