"""``pytest-specdec servers``: the servers that runs with ``--specdec-keep-servers`` have left up."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pytest_specdec import kept
from pytest_specdec.clock import SystemClock
from pytest_specdec.engine_env import cache_root
from pytest_specdec.errors import InfrastructureError, UserInputError
from pytest_specdec.kept import KeptServer, LeasingHost
from pytest_specdec.leased_host import LeasedLocalHost
from pytest_specdec.report import aligned
from pytest_specdec.settings import HERE, KEPT_S, hosts, positive_seconds
from pytest_specdec.ssh import SshHost
from pytest_specdec.stopping import stop_process

_FAILED: Final = 2
_HOST_FLAG: Final = "--gpu-host"


class _RefusedError(Exception):
    """What was asked can't be done; the message says why, and what could."""


def main(words: Sequence[str]) -> int:
    """Run one action; returns 0, or 2 for an id that no kept server has, and for what can't be done."""
    # As on pytest's command line, only a value in the = form is one.
    arguments = _parser().parse_args([f"{word}=" if word == _HOST_FLAG else word for word in words])
    try:
        with _host(arguments.gpu_host) as host:
            result: int = arguments.run(arguments, host)
            return result
    except (InfrastructureError, UserInputError, _RefusedError) as error:
        print(f"pytest-specdec servers: {error}", file=sys.stderr)
        return _FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pytest-specdec servers",
        description="List the servers that --specdec-keep-servers has left up, on this machine or on --gpu-host.",
    )
    parser.set_defaults(run=_list)
    _add_host(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    listing = actions.add_parser("list", help="list them (the default)")
    listing.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object")
    stop = actions.add_parser("stop", help="end some, or all")
    stop.add_argument("ids", nargs="*", metavar="ID", help="as listed; the beginning of one is enough")
    stop.add_argument("--all", action="store_true", help="end every one that no run has taken")
    stop.set_defaults(run=_stop)
    adopt = actions.add_parser("adopt", help="take one over: its lease begins anew, and its address is told")
    adopt.add_argument("id", metavar="ID", help="as listed; the beginning of one is enough")
    adopt.add_argument("--lease", default=str(KEPT_S), metavar="SECONDS", help="how long it stays up (default: 3600)")
    adopt.set_defaults(run=_adopt)
    for action in (listing, stop, adopt):
        _add_host(action, default=argparse.SUPPRESS)
    return parser


def _add_host(parser: argparse.ArgumentParser, default: str = HERE) -> None:
    parser.add_argument(_HOST_FLAG, default=default, metavar="HOST", help="[user@]host by SSH; default: this machine")


@contextmanager
def _host(name: str) -> Iterator[LeasingHost]:
    names = hosts([name], _HOST_FLAG)
    runtime_dir = cache_root(os.environ) / "run"
    host: LeasingHost = LeasedLocalHost() if names[0] == HERE else SshHost(names[0], runtime_dir=runtime_dir)
    try:
        yield host
    finally:
        host.close()


def _list(arguments: argparse.Namespace, host: LeasingHost) -> int:
    found = kept.kept_on(host)
    if arguments.json:
        print(json.dumps({"host": host.name, "servers": [_json(server) for server in found]}, indent=2))
    elif not found:
        print(f"no server is kept on {host.name}; --specdec-keep-servers leaves one up")
    else:
        print("\n".join(_table(found)))
    return 0


def _version(server: KeptServer) -> str:
    return str(server.content["launch"]["sglang_version"] or "unknown")


def _json(server: KeptServer) -> dict[str, object]:
    return {
        "id": server.id,
        "token": server.token,
        "spec": server.spec_name,
        "spec_hash": server.spec_hash,
        "command": server.content["launch"]["command"],
        "state": server.state,
        "port": server.port,
        "pid": server.pid,
        "up_s": round(server.up_s, 1),
        "lease_left_s": round(server.left_s, 1),
        "sglang_version": _version(server),
        "log_path": server.log_path,
    }


def _table(found: Sequence[KeptServer]) -> list[str]:
    rows = [("id", "spec", "state", "port", "up for", "lease left", "sglang", "log")]
    for server in found:
        left = span(server.left_s) if server.state == "kept" else "-"
        cells = (server.id, server.spec_name, server.state, str(server.port), span(server.up_s), left)
        rows.append((*cells, _version(server), server.log_path))
    return aligned(rows)


def span(seconds: float) -> str:
    """A time for people: ``42 s``, ``12 min``, ``3 h 5 min``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _named(host: LeasingHost, given: str, found: Sequence[KeptServer]) -> KeptServer:
    meant = [server for server in found if server.token.startswith(given)]
    if len(meant) == 1:
        return meant[0]
    there = ", ".join(f"{server.id} ({server.spec_name})" for server in found) or "none"
    what = "is the beginning of several" if meant and given else "is no kept server's id"
    raise _RefusedError(f"{given!r} {what} on {host.name}; there are: {there}")


def _stop(arguments: argparse.Namespace, host: LeasingHost) -> int:
    if bool(arguments.ids) == arguments.all:
        raise _RefusedError("stop takes the ids of servers, as `pytest-specdec servers` lists them, or --all")
    found = kept.kept_on(host)
    if arguments.all:
        chosen = [server for server in found if server.state in ("kept", "orphaned")]
    else:
        # All of them are known before the first is ended.
        chosen = list({(server := _named(host, given, found)).token: server for given in arguments.ids}.values())
    for server in chosen:
        if server.state == "orphaned":
            kept.end_orphan(host, server)
        elif server.state != "kept":
            raise _RefusedError(f"{server.id} ({server.spec_name}) is {_why(server)}")
        else:
            process = host.adopt(server.token, server.directory)
            stop_process(process, SystemClock(), what=server.spec_name)
            kept.await_gone(host, server, clock=SystemClock())
        print(f"stopped {server.id} ({server.spec_name}) on {host.name}")
    if not chosen:
        print(f"no server is kept on {host.name}")
    return 0


def _why(server: KeptServer) -> str:
    if server.state == "held":
        return "held by a run of pytest, which ends it or keeps it again: end that run"
    return "being ended"


def _adopt(arguments: argparse.Namespace, host: LeasingHost) -> int:
    lease_s = positive_seconds(arguments.lease, "--lease")
    server = _named(host, arguments.id, kept.kept_on(host))
    if server.state == "orphaned":
        raise _RefusedError(f"{server.id} ({server.spec_name}) has lost its supervisor; stop it and launch it again")
    if server.state != "kept":
        raise _RefusedError(f"{server.id} ({server.spec_name}) is {_why(server)}")
    host.renew_kept(server.token, server.directory, lease_s)
    address = f"http://127.0.0.1:{server.port}"
    print(f"adopted {server.id} ({server.spec_name}) on {host.name}: it stays up for {span(lease_s)} from now on")
    if isinstance(host, SshHost):
        print(f"forward:  ssh -N -L {server.port}:127.0.0.1:{server.port} {shlex.quote(host.destination)}")
    print(f"url:      {address}")
    print(f"log:      {server.log_path}" + (f" on {host.name}" if isinstance(host, SshHost) else ""))
    print(f"measure:  {shlex.join(_pytest_words(server, host))}")
    return 0


def _pytest_words(server: KeptServer, host: LeasingHost) -> list[str]:
    words = ["pytest"]
    if isinstance(host, SshHost):
        words.append(f"{_HOST_FLAG}={host.destination}")
    elif server.content["device"] == "cuda":
        words.append(_HOST_FLAG)
    return [*words, "--specdec-keep-servers", "-k", server.spec_name]
