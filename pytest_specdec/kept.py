"""Servers that are kept on a host, as their records tell them; and whether one of them is what a launch would give."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from pytest_specdec import containers, find_kept
from pytest_specdec.clock import Clock
from pytest_specdec.engine_env import host_cache
from pytest_specdec.errors import HostError
from pytest_specdec.hosts import Host
from pytest_specdec.lease import LeasedProcess

SCHEMA: Final = 1
SHORT: Final = 8
_FIND_TIMEOUT_S: Final = 60.0
#: Its last command may take a minute.
_GONE_S: Final = 75.0
_POLL_S: Final = 0.1
#: Of the terminal, the login or the job that started a run: an engine is the same with any of them.
_IRRELEVANT: Final = re.compile(
    r"(_|PWD|OLDPWD|SHLVL|TERM\w*|COLORTERM|COLUMNS|LINES|LS_COLORS|NO_COLOR|\w*FORCE_COLOR|PY_COLORS|CLICOLOR"
    r"|SSH_\w+|XDG_\w+|DBUS_\w+|DISPLAY|WAYLAND_\w+|XAUTHORITY|WINDOWID|DESKTOP_\w+|SESSION_MANAGER|GPG_\w+"
    r"|TMUX\w*|STY|WINDOW|VSCODE_\w+|ITERM_\w+|KONSOLE_\w+|GNOME_\w+|VTE_\w+|WT_\w+|PS1|PROMPT\w*|HIST\w+|MAIL|LESS\w*"
    r"|PAGER|GIT_PAGER|EDITOR|VISUAL|BROWSER|INVOCATION_ID|JOURNAL_STREAM|MEMORY_PRESSURE_\w+|SYSTEMD_\w+"
    r"|(GITHUB|RUNNER|ACTIONS|CI|GITLAB|BUILDKITE|JENKINS)_\w+|CI)$"
)
#: Nothing is asked of Python while there is no record, as on nearly every host.
_FIND: Final = 'for f in "$1"/*.json; do [ -e "$f" ] || exit 0; exec "$2" -I -S -c "$3" "$1"; done'


class LeasingHost(Host, Protocol):
    """A host whose servers have supervisors: this machine with them, or one behind SSH."""

    def adopt(self, token: str, directory: str) -> LeasedProcess:
        """Take a server that is kept there; raises :class:`HostError`."""

    def renew_kept(self, token: str, directory: str, lease_s: float) -> None:
        """Let a kept server stay for so many seconds from now on; raises :class:`HostError`."""

    def python3(self, argv: Sequence[str] = ()) -> str:
        """Return the path of any Python 3 there."""

    def close(self) -> None:
        """Let go of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a launch is made of, besides the host: kept servers that differ in any of it are not reused.

    ``sglang_version`` and ``python`` are None when a container brings them. ``environment`` is the whole one.
    """

    spec_name: str
    spec_hash: str
    sglang_version: str | None
    python: str | None
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptServer:
    """One record. ``state`` is ``kept``, ``held`` (by a run that took it), ``ending``, or ``orphaned``.

    ``up_s`` and ``left_s`` are seconds, by the host's clock when it was asked.
    """

    token: str
    directory: str
    state: str
    spec_name: str
    spec_hash: str
    sglang_version: str | None
    port: int
    pid: int
    log_path: str
    up_s: float
    left_s: float
    content: Mapping[str, Any]

    @property
    def id(self) -> str:
        """What people call it by."""
        return self.token[:SHORT]

    @classmethod
    def from_record(cls, record: Mapping[str, Any], now: float) -> KeptServer:
        """Read a record; raises KeyError, TypeError or ValueError for one that no version of this wrote."""
        return cls(
            token=str(record["token"]),
            directory=str(record["directory"]),
            state=str(record["state"]),
            spec_name=str(record["spec_name"]),
            spec_hash=str(record["spec_hash"]),
            sglang_version=record["sglang_version"],
            port=int(record["port"]),
            pid=int(record["pid"]),
            log_path=str(record["log_path"]),
            up_s=now - float(record["started_unix_s"]),
            left_s=max(0.0, float(record["until_unix_s"]) - now),
            content=record,
        )

    def differences(self, wanted: Identity) -> list[str]:
        """Return what keeps it from being what a launch would give now; nothing when it is the same."""
        if self.spec_hash != wanted.spec_hash:
            return [
                f"it serves {self.spec_name}" if self.spec_name != wanted.spec_name else "its spec had another content"
            ]
        found = [
            f"it runs {what} {there}, a launch would have {here}"
            for what, there, here in (
                ("SGLang", self.sglang_version, wanted.sglang_version),
                ("the Python", self.content["python"], wanted.python),
            )
            if there != here
        ]
        there, here = self.content["environment"], digests(wanted.environment, self.content["salt"])
        changed = sorted(name for name in {*there, *here} if there.get(name) != here.get(name))
        words = {True: "is new", False: "has another value"}
        told = [f"{name} {words[name not in there] if name in here else 'is gone'}" for name in changed]
        return [*found, *([f"in the environment {', '.join(told)}"] if told else [])]


def digests(environment: Mapping[str, str], salt: str) -> dict[str, str]:
    """Return a digest of each variable that an engine may heed; values may be secrets, and are kept nowhere."""
    return {
        name: hmac.new(salt.encode(), value.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()[:16]
        for name, value in sorted(environment.items())
        if not _IRRELEVANT.match(name)
    }


def record_of(identity: Identity, **known: Any) -> dict[str, Any]:  # noqa: ANN401  # any JSON value
    """Return what this side knows for the record of a server; its supervisor adds the rest."""
    salt = secrets.token_hex(16)
    return {
        "schema_version": SCHEMA,
        "spec_name": identity.spec_name,
        "spec_hash": identity.spec_hash,
        "sglang_version": identity.sglang_version,
        "python": identity.python,
        "salt": salt,
        "environment": digests(identity.environment, salt),
        **known,
    }


def directory_on(host: Host) -> Path:
    """Return where a host has the records of its kept servers."""
    return host_cache(host) / "servers"


def kept_on(host: LeasingHost) -> tuple[KeptServer, ...]:
    """Return the servers that are kept on a host; records of those that are gone are removed. Raises HostError."""
    directory = str(directory_on(host))
    source = Path(find_kept.__file__).read_text(encoding="utf-8")
    words = ["sh", "-c", _FIND, "sh", directory, host.python3(), source]
    done = host.run(words, timeout_s=_FIND_TIMEOUT_S)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise HostError(f"{host.name}: the records in {directory} can't be read: {last}")
    if not done.stdout.strip():
        return ()
    told = json.loads(done.stdout)
    records = [record for record in told["servers"] if record.get("schema_version") == SCHEMA]
    return tuple(KeptServer.from_record(record, told["now"]) for record in records)


def await_gone(host: LeasingHost, server: KeptServer, *, clock: Clock) -> None:
    """Wait until the supervisor of a server that was ended has cleared up behind it: containers end last.

    Raises :class:`HostError` after 75 s.
    """
    deadline = clock.monotonic() + _GONE_S
    while any(one.token == server.token for one in kept_on(host)):
        if clock.monotonic() >= deadline:
            raise HostError(
                f"{host.name}: waited {_GONE_S:g} s for the supervisor of kept server {server.id} ({server.spec_name}) "
                f"to end; look at process {server.content['supervisor']} and at {server.log_path}"
            )
        clock.sleep(_POLL_S)


def end_orphan(host: LeasingHost, server: KeptServer) -> None:
    """End a server that has lost its supervisor; raises :class:`HostError` when some of it is left."""
    source = Path(find_kept.__file__).read_text(encoding="utf-8")
    words = [host.python3(), "-I", "-S", "-c", source, str(directory_on(host)), "end", server.token]
    if host.run(words, timeout_s=_FIND_TIMEOUT_S).returncode != 0:
        raise HostError(f"{host.name}: processes of session {server.pid} survive SIGKILL; end them before a launch")
    container = server.content["container"]
    if container is not None:
        # Its client is gone, by SIGKILL perhaps, which a container does not feel.
        host.run(containers.end_command(container["control"], Path(container["id_path"])), timeout_s=_FIND_TIMEOUT_S)
