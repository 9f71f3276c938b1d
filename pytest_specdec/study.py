"""The ledger of a study: what was tried with which server spec, and what came of it. One JSON line a try, by node.

``<baselines>/<node>/study.jsonl`` is committed beside the baselines, so it is made to diff well. A try that comes out
as the last one of its spec did (same spec content, measurement, SGLang version and outcome) updates that line: its
date, its count and its figures. Another outcome, another SGLang or another spec is a new line at the end. So the file
grows with news only, however often a suite runs; older figures are in the history of the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import fcntl
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pytest_specdec import ledger
from pytest_specdec.difference import intended
from pytest_specdec.errors import InfrastructureError, SpecError
from pytest_specdec.ledger import Change, Figure, Kind, Speedup, Try, moment
from pytest_specdec.model import EnvironmentChange
from pytest_specdec.settings import slug
from pytest_specdec.spec import ServerSpec

_FIGURES: Final = ("accept_length", "decode_tok_s", "system_tok_s", "tpot_ms", "ttft_ms", "verify_rate")


def entries_of(document: Mapping[str, Any]) -> list[Try]:
    """Return what a run tried, from its ``results.json``, in the order of that; each spec and measurement once.

    What failed without a diagnosis, as for a lost host, says nothing of the spec and is left out. A dead end outside
    of its versions is an ordinary test, and is there as one. What did not serve was not measured beside a control: its
    change is told against the command of the run's control, where that has one alone.
    """
    created = dt.datetime.fromisoformat(document["created"].replace("Z", "+00:00"))
    at = created.astimezone(dt.timezone.utc).isoformat(timespec="seconds")
    dead_ends = [one for one in document.get("dead_ends") or () if one["outcome"] != "outside-versions"]
    expected_to_fail = {one["spec_hash"] for one in dead_ends}
    failed = [one for one in document["failures"] if one.get("diagnosis") and one["spec_hash"] not in expected_to_fail]
    control = _only_control(document["measurements"])
    found = [
        *(_measured(one, at) for one in document["measurements"]),
        *(_failed(_with_change(one, control), document["node"], at) for one in failed),
        *(_dead_end(_with_change(one, control), document["node"], at) for one in dead_ends),
    ]
    return list({(one.node, one.spec_hash, one.key): one for one in found}.values())


def _only_control(measurements: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return a measurement of the one control of a run; None where there are several, or none."""
    names = {one["difference"]["control"] for one in measurements if one.get("difference")}
    of_control = [one for one in measurements if one["server"] in names]
    return of_control[0] if len(names) == 1 and of_control else None


def _with_change(one: Mapping[str, Any], control: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if control is None or one.get("difference") or one["spec_hash"] == control["spec_hash"]:
        return one
    try:
        before, after = (ServerSpec.from_command("server", command) for command in (control["command"], one["command"]))
    except SpecError:  # as a command with a name that the shell would have filled in
        return one
    return {**one, "difference": {"control": control["server"], "intended": intended(before, after)}}


def _measured(one: Mapping[str, Any], at: str) -> Try:
    last: Mapping[str, Any] = one["launches"][-1] if one["launches"] else {}
    broken = "; ".join(f"{violation['rule']}: {violation['reason']}" for violation in one["violations"])
    return _try(
        {**one, "sglang_version": last.get("sglang_version"), "log_path": last.get("log_path")},
        node=one["node"],
        at=at,
        key=one["key"],
        kind="measured",
        outcome=one["verdict"],
        reason=broken or one.get("cause"),
    )


def _failed(one: Mapping[str, Any], node: str, at: str) -> Try:
    return _try(
        one,
        node=node,
        at=at,
        kind="failed",
        outcome=one["diagnosis"],
        diagnosis=one["diagnosis"],
        # The rest of it is the log's, which has a link of its own.
        reason=one["reason"].partition("\n")[0],
    )


def _dead_end(one: Mapping[str, Any], node: str, at: str) -> Try:
    return _try(
        one,
        node=one.get("node") or node,
        at=at,
        kind="dead-end",
        outcome=one["outcome"],
        diagnosis=one.get("seen"),
        expected=None if one.get("expected") is None else str(one["expected"]),
        reason=one.get("reason"),
    )


def _try(
    one: Mapping[str, Any],
    *,
    node: str,
    at: str,
    kind: Kind,
    outcome: str,
    reason: str | None,
    key: str | None = None,
    diagnosis: str | None = None,
    expected: str | None = None,
) -> Try:
    speedup, difference = one.get("speedup"), one.get("difference")
    metrics: Mapping[str, Any] = one.get("metrics") or {}
    return Try(
        node=node,
        server=one["server"],
        spec_hash=one["spec_hash"],
        command=one["command"],
        key=key,
        kind=kind,
        outcome=outcome,
        diagnosis=diagnosis,
        expected=expected,
        reason=reason,
        link=one.get("link"),
        sglang_version=one.get("sglang_version"),
        log_path=one.get("log_path"),
        at=at,
        first_at=at,
        runs=1,
        figures={name: _figure(metrics[name]) for name in _FIGURES if metrics.get(name) is not None},
        change=None if difference is None else _change(difference),
        speedup=None if speedup is None else _speedup(speedup),
    )


def _change(difference: Mapping[str, Any]) -> Change:
    effective = difference.get("effective") or ()
    return Change(
        control=difference["control"],
        intended=tuple(difference["intended"]),
        effective=tuple(
            EnvironmentChange(key=one["key"], before=str(one["before"]), after=str(one["after"])) for one in effective
        ),
    )


def _speedup(found: Mapping[str, Any]) -> Speedup:
    return Speedup(
        control=found["control"],
        metric=found["metric"],
        ratio=found.get("ratio"),
        low=found.get("low"),
        high=found.get("high"),
        conclusive=bool(found.get("conclusive")),
        control_moved=bool(found.get("control_moved")),
        reason=found.get("reason"),
    )


def _figure(metric: Any) -> Figure:  # noqa: ANN401  # a metric of a measurement, or a dead end's bare value
    if not isinstance(metric, Mapping):
        return Figure(value=metric)
    return Figure(value=metric["value"], low=metric["low"], high=metric["high"])


def add(root: Path, entries: Sequence[Try]) -> list[str]:
    """Take tries into the ledgers below a directory of baselines; returns a line for each ledger, and what it got.

    A try that is no newer than the last one of its spec and measurement is there already, and changes nothing: taking
    in the same run again is safe. A ledger is written whole or not at all.

    Raises:
        BaselineFileError: a ledger can't be read; with file, line and remedy.
        InfrastructureError: one can't be written.

    """
    told = []
    for node in dict.fromkeys(one.node for one in entries):
        path = root / slug(node, "results.json: node") / ledger.FILE_NAME
        try:
            with _alone(path.parent):
                known = ledger.read(path) if path.exists() else []
                done = Counter(_take(known, _portable(one, root)) for one in entries if one.node == node)
                if done["new"] or done["again"]:
                    ledger.write(path, known)
        except OSError as error:
            raise InfrastructureError(f"{path}: the ledger can't be written: {error.strerror or error}") from None
        told.append(f"{path}: {done['new']} new, {done['again']} as before, {done['there']} there already")
    return told


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep other processes from adding to the same ledger meanwhile: the later one would undo the earlier."""
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _portable(one: Try, root: Path) -> Try:
    """Tell where the log is from the directory that holds the baselines: it is another one in each clone."""
    above = root.resolve().parent
    if one.log_path is None or not Path(one.log_path).resolve().is_relative_to(above):
        return one
    return dataclasses.replace(one, log_path=Path(one.log_path).resolve().relative_to(above).as_posix())


def _take(known: list[Try], one: Try) -> Literal["new", "again", "there"]:
    """Put a try in its place among those that are known."""
    of_spec = [(index, old) for index, old in enumerate(known) if old.spec_hash == one.spec_hash]
    of_key = [(index, old) for index, old in of_spec if old.key == one.key]
    if not of_key:
        known.append(one)
        return "new"
    index, last = max(of_key, key=lambda pair: (moment(pair[1].at), pair[0]))
    if moment(one.at) <= moment(last.at):
        return "there"
    # A server that failed in between was another outcome for all that is measured on it, and the other way round.
    between = any(
        moment(last.at) < moment(old.at) < moment(one.at) and None in (old.key, one.key) for _, old in of_spec
    )
    if between or _came_to(last) != _came_to(one):
        known.append(one)
        return "new"
    change = last.change if one.change is None else one.change
    known[index] = dataclasses.replace(one, change=change, first_at=last.first_at, runs=last.runs + 1)
    return "again"


def _came_to(one: Try) -> tuple[str | None, ...]:
    return (one.sglang_version, one.kind, one.outcome, one.diagnosis)
