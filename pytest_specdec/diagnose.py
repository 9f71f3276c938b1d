"""Why a server did not start, died, or serves badly: one named diagnosis of a saved log.

The cause is the first exception by time, whichever rank had it. What comes of it (another rank's lost connection,
the launcher's own end) counts only when nothing else is there; what follows a signal that somebody sent does not
count at all, nor what a server that came up, or goes on serving, has got over. What is matched, and the words, are
data: ``catalogue.toml``.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pytest_specdec import diagnose_log
from pytest_specdec.catalogue import RANKS, Rule, filled, line_rules, rule, rules
from pytest_specdec.diagnose_log import Log, Piece, Raised

#: Somebody ended the server; what follows is no crash.
_STOPPED: Final = re.compile(
    r"SIGTERM received|SIGINT received|Draining requests|crashed with exit code -15\b|^KeyboardInterrupt\b"
    r"|[Rr]eceived signal (?:15|2)\b|Received SIG(?:TERM|INT)"
)
#: A part of the server has died.
_DYING: Final = re.compile(
    r"crashed with exit code (?!-15\b)|SIGQUIT received|Received sigquit from a child|scheduler is dead"
    r"|died during initialization|^Exit code: -?[1-9]|terminate called|^Killed$|Fatal Python error"
)
#: Raised by whoever stops a program, not by what is wrong with it.
_STOPS: Final = re.compile(r"^(?:KeyboardInterrupt|SystemExit|GeneratorExit|(?:\w+\.)*CancelledError)\b")
_SERVED: Final = re.compile(r'"POST /\S* HTTP/1\.[01]" 200|Decode batch')
#: A request that could not be answered is no failure of the server.
_REQUEST_FRAMES: Final = re.compile(
    r"starlette/|uvicorn/|fastapi/|_create_error_response|entrypoints/(?:http_server|openai)|tokenizer_manager\.py"
)
_LIFE: Final = re.compile(r"server_args=|Init torch distributed|Init parallel|Load weight|KV Cache is|Uvicorn running")
_LAUNCH: Final = re.compile(r"server_args=ServerArgs\(")
_ACCEPT_LENGTH: Final = re.compile(r"accept len: (\d+\.?\d*)")
#: The target's own token is counted, so that 1 means that no drafted token was accepted.
_NOTHING_ACCEPTED: Final = 1.05
_FEWEST_DECODE_LINES: Final = 3
_CHILD_EXIT: Final = re.compile(r"(?:crashed with exit code|exit code:|^Exit code:) ?(-?\d+)")
#: Ends that somebody asked for: nothing, or SIGINT or SIGTERM, as a signal or as a shell reports it.
_ASKED_FOR: Final = (None, 0, -15, 143, -2, 130)
_LONGEST_EXCEPTION: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a log says.

    ``diagnosis`` is its name (kebab-case), ``category`` a coarser word. ``evidence`` holds line numbers of the log,
    from 1. ``provisional``: no real log of it was seen, or the version is not one it is known in; ``versions`` are
    those of SGLang it can occur in. ``exception`` is the line of the first one. ``exit_code`` is the launcher's,
    or, where that was not given, what the log tells of a child. ``notes`` are warnings beside it.
    """

    diagnosis: str
    category: str
    phase: str
    cause: str
    remedy: str
    evidence: tuple[int, ...] = ()
    provisional: bool = False
    versions: str | None = None
    exception: str | None = None
    exit_code: int | None = None
    exit_meaning: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """The names of the notes."""
        return tuple(note.partition(",")[0] for note in self.notes)

    def as_json(self) -> dict[str, Any]:
        """Return everything, ready for ``json.dumps``."""
        return {**asdict(self), "evidence": list(self.evidence), "notes": list(self.notes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """Something in the log that may be the cause."""

    rank: str
    time: str
    number: int
    rule: Rule
    phase: str
    groups: Mapping[str, str]
    evidence: tuple[int, ...]
    exception: str | None = None

    @property
    def order(self) -> tuple[int, str, int]:
        return RANKS.index(self.rank), self.time, self.number


def exit_meaning(code: int) -> str:
    """Say what a launcher's exit code means, as far as it means anything."""
    if code == 0:
        return "exit code 0: it ended in order, or could not kill itself (process 1 of a container)"
    if code == 1:
        return "exit code 1: SGLang gave up before or while it loaded (arguments that clash, model, installation)"
    if code == 2:
        return "exit code 2: SGLang's parser refused the arguments"
    if code in (-9, 137):
        return (
            f"exit code {code}: killed; SGLang's launcher does that to itself after a child died, "
            "so it need not be the out-of-memory killer"
        )
    name = _signal_name(code)
    return f"exit code {code}" + (f": ended by {name}" if name else "")


def _child_exit_meaning(code: int) -> str:
    meanings = {
        -9: "killed (SIGKILL), as a rule by the out-of-memory killer",
        -11: "a segmentation fault (SIGSEGV)",
        -6: "an abort (SIGABRT), as of NCCL or a C++ exception",
        -15: "somebody's SIGTERM",
    }
    name = _signal_name(code)
    return f"a child's exit code {code}: " + meanings.get(code, f"ended by {name}" if name else "it gave up")


def _signal_name(code: int) -> str | None:
    number = -code if code < 0 else code - 128
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return None


def diagnose(
    text: str, *, exit_code: int | None = None, signalled_at_line: int | None = None, version: str | None = None
) -> Diagnosis:
    """Name what a log says.

    ``exit_code`` is the launcher's, None while it runs or when it is not known; ``signalled_at_line`` is the line
    (from 1) after which we had sent a signal: what follows is passed over. ``version`` of SGLang makes a diagnosis
    provisional when it is not known to occur there. Never raises for what a log holds.
    """
    pieces, stopped = _relevant(diagnose_log.pieces_of(text), signalled_at_line)
    log = diagnose_log.read(pieces)
    died = not stopped and exit_code not in _ASKED_FOR
    events = sorted(_events(log, died=died), key=lambda event: event.order)
    found = _of_event(events[0]) if events and events[0].rank != "warning" else None
    if found is None:
        found = _of_whole(log, events, died=died)
    notes = [event for event in events if event.rank == "warning" and event.rule.name != found.diagnosis]
    return _completed(found, pieces, exit_code=exit_code, version=version, notes=notes)


def explain(text: str, exit_code: int | None = None) -> list[str]:
    """Return a diagnosis as lines for a message: its name, cause and remedy; none when the log shows no failure."""
    found = diagnose(text, exit_code=exit_code)
    if found.category == "ok":
        return []
    sure = " (provisional: no real log of it was seen yet)" if found.provisional else ""
    return [
        f"diagnosis: {found.diagnosis} [{found.category}], in phase {found.phase}{sure}",
        f"cause:     {found.cause}",
        f"remedy:    {found.remedy}",
    ]


def knows_why(text: str, exit_code: int | None = None) -> bool:
    """Tell whether a log holds a reason, be it one that is not known here."""
    found = diagnose(text, exit_code=exit_code)
    return found.exception is not None or found.category not in ("unknown", "hang", "ok")


def _relevant(pieces: list[Piece], signalled_at_line: int | None) -> tuple[list[Piece], bool]:
    """The pieces of the last launch, up to a signal that somebody sent; and whether there was one."""
    up = False
    begin = 0
    for at, piece in enumerate(pieces):
        if diagnose_log.FIRED_UP.search(piece.text):
            up = True
        elif up and _LAUNCH.search(piece.text):  # one log for several launches
            begin, up = at, False
    pieces = pieces[begin:]
    for at, piece in enumerate(pieces):
        if signalled_at_line is not None and piece.number > signalled_at_line:
            return pieces[:at], True
        if _DYING.search(piece.text):
            # From here on signals are the launcher's own; the cause may still follow.
            break
        if _STOPPED.search(piece.text):
            return pieces[:at], True
    if signalled_at_line is not None:
        return [piece for piece in pieces if piece.number <= signalled_at_line], True
    return pieces, False


def _events(log: Log, *, died: bool) -> Iterator[_Event]:
    whole = "\n".join(f"[{piece.ranks}] {piece.text}" if piece.ranks else piece.text for piece in log.pieces)
    course = _Course(
        up=log.pieces[log.up_at].number if log.up_at is not None else 0,
        served=max((piece.number for piece in log.pieces if _SERVED.search(piece.text)), default=0),
        dying=max((piece.number for piece in log.pieces if _DYING.search(piece.text)), default=0),
        died=died,
    )
    for raised in log.raised:
        event = _exception_event(raised, whole)
        if not course.has_got_over_exception(raised, event):
            yield event
    seen: set[str] = set()
    for at, piece in enumerate(log.pieces):
        entry = next((entry for entry, pattern in line_rules() if pattern.search(piece.text)), None)
        if entry is None or entry.name in seen or diagnose_log.HARMLESS.search(piece.text):
            continue
        if course.has_got_over_line(piece.number, entry):
            continue
        seen.add(entry.name)
        yield _Event(
            rank=entry.rank,
            time=piece.time,
            number=piece.number,
            rule=entry,
            phase=_phase(log.phases[at], entry),
            groups=entry.groups(piece.text) or {},
            evidence=(piece.number,),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """How a launch went on, by line numbers, 0 for never: when it was up, last served, last said that a part died."""

    up: int
    served: int
    dying: int
    died: bool

    def _is_fatal_at(self, number: int) -> bool:
        return self.died or self.dying >= number

    def has_got_over_exception(self, raised: Raised, event: _Event) -> bool:
        """Tell whether the server came up, or went on, in spite of an exception."""
        if raised.harmless or raised.number < self.up or (raised.first is not None and _STOPS.search(raised.first)):
            return True
        if raised.phase != "serving" or raised.announced or self._is_fatal_at(raised.number):
            return False
        of_request = _REQUEST_FRAMES.search("\n".join(raised.frames)) is not None
        # What is no cause, such as a pipe that closed, is a client that went away.
        return of_request or self.served > raised.number or event.rank != "cause"

    def has_got_over_line(self, number: int, entry: Rule) -> bool:
        """Tell the same of a line."""
        if entry.rank == "warning":
            return False
        if number < self.up:
            return True
        if entry.rank == "hint":
            return self.up > 0 and not self._is_fatal_at(number)
        return entry.rank in ("symptom", "consequence") and self.served > number > self.dying


def _exception_event(raised: Raised, log: str) -> _Event:
    frames = "\n".join(raised.frames)
    fitting = (
        entry
        for entry in rules()
        if entry.fits_exception(raised.text, frames=frames, phase=raised.phase, draft=raised.draft, log=log)
    )
    entry = next(fitting, None) or rule("unknown-failure")
    rank = "logged" if raised.logged and entry.rank == "cause" else entry.rank
    return _Event(
        rank=rank,
        time=raised.time,
        number=raised.number,
        rule=entry,
        phase=_phase(raised.phase, entry),
        groups=entry.groups(raised.text) or {},
        evidence=tuple(raised.evidence),
        exception=raised.first,
    )


def _phase(told: str, entry: Rule) -> str:
    return entry.phase if entry.phase is not None and told == "imports" else told


def _of_event(event: _Event) -> Diagnosis:
    first = event.exception or "a traceback that breaks off"
    groups = {**event.groups, "phase": event.phase, "exception": first[:_LONGEST_EXCEPTION]}
    return Diagnosis(
        diagnosis=event.rule.name,
        category=event.rule.category,
        phase=event.phase,
        cause=filled(event.rule.cause, groups),
        remedy=filled(event.rule.remedy, groups),
        evidence=tuple(sorted(set(event.evidence))),
        provisional=event.rule.provisional,
        versions=event.rule.versions,
        exception=event.exception,
    )


def _of_whole(log: Log, events: Sequence[_Event], *, died: bool) -> Diagnosis:
    """What a log says in which nothing failed."""
    last = next((piece for piece in reversed(log.pieces) if piece.text.strip()), None)
    end = (last.number,) if last else ()
    if died:
        return _state("ended-without-a-word", log, end)
    if log.up_at is None:
        if events and not any(_LIFE.search(piece.text) for piece in log.pieces):
            return _of_event(events[0])
        return _state("no-progress", log, end, time=last.time if last and last.time else "an unknown time")
    retraction = rule("kv-retraction")
    retracted = [piece.number for piece in log.pieces if retraction.groups(piece.text) is not None]
    if retracted:
        return _state("kv-retraction", log, tuple(retracted))
    degraded = next((event for event in events if event.rule.category == "degraded"), None)
    if degraded is not None:
        return _of_event(degraded)
    lengths = [(float(m[1]), p.number) for p in log.pieces if (m := _ACCEPT_LENGTH.search(p.text))]
    if len(lengths) >= _FEWEST_DECODE_LINES and sum(n for n, _ in lengths) <= _NOTHING_ACCEPTED * len(lengths):
        return _state("nothing-accepted", log, tuple(number for _, number in lengths))
    return _state("healthy", log, (log.pieces[log.up_at].number,))


def _state(name: str, log: Log, evidence: tuple[int, ...], **groups: str) -> Diagnosis:
    entry = rule(name)
    return Diagnosis(
        diagnosis=name,
        category=entry.category,
        phase=log.phase,
        cause=filled(entry.cause, {"phase": log.phase, **groups}),
        remedy=entry.remedy,
        evidence=evidence,
    )


def _completed(
    found: Diagnosis, pieces: Sequence[Piece], *, exit_code: int | None, version: str | None, notes: Sequence[_Event]
) -> Diagnosis:
    child = next((int(match[1]) for piece in pieces if (match := _CHILD_EXIT.search(piece.text))), None)
    meanings = [exit_meaning(exit_code)] if exit_code is not None else []
    meanings += [_child_exit_meaning(child)] if child is not None else []
    return replace(
        found,
        provisional=found.provisional or not _known_in(found.versions, version),
        exit_code=exit_code if exit_code is not None else child,
        exit_meaning="; ".join(meanings) or None,
        notes=tuple(f"{note.rule.name}, line {note.number}: {note.rule.cause}" for note in notes),
    )


def _known_in(versions: str | None, version: str | None) -> bool:
    if versions is None or version is None:
        return True
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415  # pytest brings it; most diagnoses need it not
    from packaging.version import InvalidVersion, Version  # noqa: PLC0415

    with contextlib.suppress(InvalidVersion):  # a commit, or a name of somebody's own
        return SpecifierSet(versions).contains(Version(version), prereleases=True)
    return True
