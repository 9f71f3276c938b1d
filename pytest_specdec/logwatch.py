"""Reading a server's log: its phases while it grows, and what a person needs of it when the launch failed.

Log shapes differ by version, ranks interleave, progress bars end in a carriage return, and healthy logs hold
tracebacks; patterns here are searched for, never matched from the start of a line.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: The prefix of a line of SGLang's own: time, then ranks; others (docker compose, Ray) may stand before it.
_PREFIX: Final = re.compile(r"^.*?\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?(?: [A-Z_]+\d+)*\] ?")

#: In the order of a launch; the last one seen wins. "imports" is what goes on before anything was said; a draft
#: model takes a launch back to "weights" and on.
PHASES: Final = (
    ("weights", re.compile(r"Load weight begin", re.IGNORECASE)),
    ("kv_cache", re.compile(r"KV Cache is allocated|Memory pool end|Load weight end", re.IGNORECASE)),
    ("graphs", re.compile(r"Capture .*graph begin", re.IGNORECASE)),
    ("http", re.compile(r"Uvicorn running on", re.IGNORECASE)),
    ("ready", re.compile(r"The server is fired up and ready to roll!")),
)
BIND_ERROR: Final = re.compile(r"error while attempting to bind on address.*address already in use")
#: The launcher's last words. It needs some seconds more to end, and old versions never do.
DYING: Final = re.compile(
    r"crashed with exit code|SIGQUIT received|Received sigquit from a child|scheduler is dead"
    r"|died during initialization"
)
#: A step of a progress bar, as tqdm prints it: ``38% Completed | 9/24 [``, ``  3%|#  | 1/35 [``.
_BAR: Final = re.compile(r"\d+%(?: Completed)? ?\|[^|]*?(?:\| ?)?(?P<done>\d+)/(?P<total>\d+) \[")
#: Lines of the access log: answers to requests, ours included, are no progress of a launch.
_ACCESS: Final = re.compile(r'"(?:GET|POST|HEAD) /\S* HTTP/1\.[01]" \d{3}')
_REMEMBERED_LINES: Final = 256
_KEPT_CHARACTERS: Final = 400_000

#: Errors that come of another one.
_CONSEQUENCE: Final = re.compile(
    r"Received sigquit|SIGQUIT received|SIGTERM received|kill_process_tree called|Connection closed by peer"
    r"|could finish the model loading, but|Initialization failed\. Please see the error messages above"
    r"|Sleeping 5 seconds before crash diagnostics|No live scheduler processes found|remote process exited"
)
#: What healthy logs say as well.
_HARMLESS: Final = re.compile(
    r"Ignore import error when loading|Failed to get yes/no token IDs|post-warmup freeze_gc failed|Pyspy failed"
    r"|Fail to set RLIMIT_NOFILE"
)
_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\)")
#: Not those of the interpreter's dump of a crash (no comma before "in"), nor of machine code.
_FRAME: Final = re.compile(
    r'^\s+File "(?!<unknown>|[^"]*\.(?:c|cc|cpp|cxx|cu|h|hpp|inc|S)")[^"]+", line \d+(?:, in .+)?$'
)
#: An exception's line, by its name alone.
_EXCEPTION: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception|Exit|Interrupt|NotFound)(?::.*)?$")
#: The line below the frames of a traceback is the exception's, whatever its name.
_BELOW_FRAMES: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?::.*)?$")
_CHAINED: Final = re.compile(r"above exception, another exception occurred|direct cause of the following exception")
#: Lines that tell a cause, or the part that died, by themselves.
_ALONE: Final = re.compile(
    r"^[\w. -]+: error: |error while attempting to bind|crashed with exit code|died during initialization"
    r"|scheduler is dead|^Exit code: -?\d|Watchdog timeout|Watchdog caught collective|watchdog timeout \("
    r"|CUDA out of memory|Not enough memory|terminate called|NCCL error|Capture .*graph failed|Health check failed"
    r"|Fatal Python error|cannot open shared object file|No module named|command not found",
    re.IGNORECASE,
)
#: Ended by SIGTERM: as a rule by whoever stopped the server, after the cause.
_TERMINATED: Final = re.compile(r"crashed with exit code -15\b")
_CONTINUATION_LINES: Final = 5
#: Some lines list every request of a batch.
_LONGEST_LINE: Final = 500


class Readable(Protocol):
    """What a log is read through: a host."""

    def read_from(self, path: Path, offset: int) -> bytes:
        """Return the bytes of a file from an offset on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A progress bar: steps done, of how many."""

    done: int
    total: int


def clean(text: str) -> str:
    """Remove colours, and split progress bars into lines of their own."""
    return _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


def message(line: str) -> str:
    """Return a line without its time and ranks."""
    return _PREFIX.sub("", line).strip()


@dataclass(slots=True)
class LogWatch:
    """Follows a growing log; nothing is read twice.

    ``phase`` is the last one seen, ``ready`` whether SGLang said so, ``bar`` the last step of a progress bar in this
    phase. ``bind_error`` and ``dying`` are the first lines that say so, None before. ``size`` is how many bytes were
    read, or are passed over at the start. ``trouble`` asks why the log can't grow, and gets None where it can.
    """

    source: Readable
    path: Path
    phase: str = "imports"
    ready: bool = False
    bind_error: str | None = None
    dying: str | None = None
    bar: Bar | None = None
    size: int = 0
    trouble: Callable[[], str | None] = lambda: None
    _rest: str = ""
    _text: str = ""
    _recent: deque[str] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_LINES))
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )

    def poll(self) -> bool:
        """Read what is new; True when it shows progress: a line (a step of a progress bar) not said lately."""
        new = self.source.read_from(self.path, self.size)
        if not new:
            return False
        self.size += len(new)
        # A line that is still growing may hold half of a pattern: it is looked at again when it is longer.
        head, newline, self._rest = clean(self._rest + self._decoder.decode(new)).rpartition("\n")
        self._text = (self._text + head + newline)[-_KEPT_CHARACTERS:]
        progress = False
        for line in (*head.splitlines(), self._rest):
            progress |= self._look(line)
        return progress

    def _look(self, line: str) -> bool:
        told = message(line)
        for phase, pattern in PHASES:
            if pattern.search(told):
                self.phase, self.bar = phase, None
        if bar := _BAR.search(told):
            self.bar = Bar(done=int(bar["done"]), total=int(bar["total"]))
        self.ready |= self.phase == "ready"
        if self.bind_error is None and BIND_ERROR.search(told):
            self.bind_error = told
        if self.dying is None and DYING.search(told):
            self.dying = told
        if not told or told in self._recent or _ACCESS.search(told):
            return False
        self._recent.append(told)
        return True

    @property
    def text(self) -> str:
        """All that was read, cleaned (the end of it, when it is very long)."""
        return self._text + self._rest


def last_lines(text: str, count: int = 8) -> list[str]:
    """Return the last lines that hold something."""
    return _shortened([line for line in clean(text).splitlines() if line.strip()][-count:])


def _shortened(lines: list[str]) -> list[str]:
    return [line.rstrip() if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + " ..." for line in lines]


def telling_lines(text: str, limit: int = 20) -> list[str]:
    """Return the few lines that say why a launch failed, in their order; the last ones when no line does.

    The first exception is the cause, whichever rank had it: its innermost frame, its message, and those raised
    while it was handled. Beside it, lines that tell a cause by themselves (argparse, bind, a child that died).
    Consequences and what healthy logs say are passed over.
    """
    lines = clean(text).splitlines()
    told = _first_exception(lines)
    known = {message(line) for line in told.values()}
    for number, line in enumerate(lines):
        if _ALONE.search(message(line)) and not _CONSEQUENCE.search(line) and not _HARMLESS.search(line):
            if message(line) not in known:
                told[number] = message(line)
            known.add(message(line))
    causes = {number: line for number, line in told.items() if not _TERMINATED.search(line)}
    return _shortened([line for _, line in sorted((causes or told).items())])[:limit] or last_lines(text)


def _first_exception(lines: list[str]) -> dict[int, str]:
    """The first exception that is a cause, by line number; with what was raised while it was handled."""
    harmless = done = False
    frame: dict[int, str] = {}
    found: dict[int, str] = {}
    for number, line in enumerate(lines):
        told = message(line)
        if _TRACEBACK.search(line):
            done = bool(found) and not _is_chained(lines, number)
            # Its own line says what it is of; where it stands alone, the line before may.
            alone = number > 0 and message(line).startswith("Traceback")
            harmless = bool(_HARMLESS.search(line) or (alone and _HARMLESS.search(lines[number - 1])))
            frame = {}
        elif _FRAME.match(line):
            frame = {number: line.strip(), **_source_of(lines, number)}
        elif (_BELOW_FRAMES if frame and not line[:1].isspace() else _EXCEPTION).match(told):
            if not (done or harmless or _CONSEQUENCE.search(line) or _HARMLESS.search(line)):
                # Of a chain, the first frame and every message.
                found |= {**({} if found else frame), number: told, **_continuation(lines, number)}
            done = bool(found)
            frame, harmless = {}, False
    return found


def _is_chained(lines: list[str], number: int) -> bool:
    return any(_CHAINED.search(line) for line in lines[max(0, number - 3) : number])


def _source_of(lines: list[str], number: int) -> dict[int, str]:
    """The source line that a frame shows, if it does."""
    following = lines[number + 1] if number + 1 < len(lines) else ""
    if following.startswith("    ") and not _FRAME.match(following):
        return {number + 1: following.strip()}
    return {}


def _continuation(lines: list[str], number: int) -> dict[int, str]:
    """The further lines of an exception's message: up to a blank line or the next line of the log."""
    found: dict[int, str] = {}
    for at in range(number + 1, min(number + 1 + _CONTINUATION_LINES, len(lines))):
        line = lines[at]
        if not line.strip() or _PREFIX.match(line) or _TRACEBACK.search(line):
            break
        found[at] = line.strip()
    return found
