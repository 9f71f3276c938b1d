"""Taking a saved log apart for a diagnosis: its lines, the phases of each rank, and the exceptions in it.

Lines of other programs stand in front of ours (docker compose, Ray, Kubernetes, torchrun), colours and progress bars
between them, and the tracebacks of ranks run into each other: everything is searched for, nothing is counted on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: What other programs put before every line, continuation lines included. None of them eats the indent of a frame.
_FOREIGN: Final = re.compile(
    r"^(?:"
    r"[\w.-]+\s*\| "  # docker compose
    r"|\(\S+(?: rank=\d+)? pid=\d+(?:, ip=[\w.:]+)?\) ?"  # Ray
    r"|\[pod/[^\]]+\] "  # kubectl --prefix
    r"|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?"  # container runtimes
    r"|[A-Z][a-z]{2} [ \d]\d [\d:]{8} \S+ [\w.@/-]+\[\d+\]: "  # journald, syslog
    r"|(?:\([\w ]+(?:pid=\d+)?\) )?(?:INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./]+:\d+\] ?"  # vLLM
    r"|\[rank\d+\]: "  # torchrun
    r"|\d{1,3}: (?=[ \[A-Z])"  # srun --label
    r")"
)
_DATED: Final = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?)((?: [A-Z_]+\d+)*)\] ?")
#: Comments that people put over a saved log.
_COMMENT: Final = re.compile(r"^#(?: |$)")
#: Some lines list every request of a batch; what tells a cause stands at their beginning.
_LONGEST_LINE: Final = 4000

#: In the order of a launch. A draft model takes a launch back to its weights.
_PHASE_MARKS: Final = (
    ("distributed", re.compile(r"Init torch distributed begin|Init parallel begin|sglang is using nccl")),
    ("weights", re.compile(r"Load weight begin|Loading (?:safetensors|pt) checkpoint shards", re.IGNORECASE)),
    ("kv_cache", re.compile(r"Load weight end|KV Cache is allocated|Memory pool end", re.IGNORECASE)),
    ("graphs", re.compile(r"Capture .*graph begin|^Capturing (?:batches|num tokens)", re.IGNORECASE)),
    ("http", re.compile(r"Started server process|Uvicorn running on", re.IGNORECASE)),
)
_LOAD_BEGIN: Final = re.compile(r"Load weight begin", re.IGNORECASE)
#: What frames tell, where the log itself says nothing of the phase; the first that is found holds.
_PHASE_FRAMES: Final = (
    ("serving", re.compile(r"event_loop|process_batch_result|launch_batch_sample")),
    ("http", re.compile(r"_wait_and_warmup|execute_server_warmup")),
    ("graphs", re.compile(r"cuda_graph_runner|cpu_graph_runner|init_device_graphs|init_cuda_graphs|in capture\b")),
    ("kv_cache", re.compile(r"init_memory_pool|kv_cache_config|memory_pool\.py|pool_config|profile_max_num")),
    ("weights", re.compile(r"load_model|model_loader/|models/\w+\.py in (?:load_weights|__init__)")),
    ("distributed", re.compile(r"init_torch_distributed|init_distributed_env|init_parallel|parallel_state\.py")),
    (
        "arguments",
        re.compile(
            r"server_args\.py|arg_groups/|argparse\.py|configs/model_config\.py|hf_transformers|prepare_server_args"
        ),
    ),
)
_WARMUP_FRAMES: Final = dict(_PHASE_FRAMES)["http"]
_DRAFT_FRAMES: Final = re.compile(
    r"srt/speculative/(?!spec_info)|draft_worker|eagle_worker|models/\w*(?:eagle|nextn|_mtp|dflash)|is_draft"
)

FIRED_UP: Final = re.compile(r"The server is fired up and ready to roll")
_UVICORN: Final = re.compile(r"Uvicorn running on")
_GENERATED: Final = re.compile(r'"POST /(?:generate|v1/(?:chat/)?completions|encode)\S* HTTP/1\.[01]" 200')
_ASKED: Final = re.compile(r'"POST /(?:generate|v1/(?:chat/)?completions)\S* HTTP/1\.[01]" [24]\d\d')
_BATCH: Final = re.compile(r"(?:Decode|Prefill) batch")

_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\)")
#: Stacks of machine code, which torch prints of a crash, are written in the same way.
_FRAME: Final = re.compile(
    r'^\s+File "((?!(?:<unknown>|[^"]*\.(?:c|cc|cpp|cxx|cu|h|hpp|inc|S))")[^"]+)", line \d+(?:, in (.+))?$'
)
_CHAINED: Final = re.compile(r"above exception, another exception occurred|direct cause of the following exception")
#: An exception's line, by its name alone.
_BY_NAME: Final = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|NotFound|Timeout|Expired)(?::.*)?$"
)
#: The line below frames is the exception's, whatever its name; but for what logs put there of their own.
_BELOW_FRAMES: Final = re.compile(
    r"^(?!(?:INFO|WARNING|ERROR|DEBUG|CRITICAL|NCCL|usage)\b)(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?::.*)?$"
)
_ANNOUNCED: Final = re.compile(r"hit an exception|warmup error|Process \S+:$|Exception in thread")
_ANNOUNCED_INLINE: Final = re.compile(r"hit an exception: (?!Traceback)((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:: .*)?$)")
#: What healthy logs say, with a traceback.
HARMLESS: Final = re.compile(
    r"Ignore import error|yes/no token IDs|freeze_gc failed|Pyspy failed|RLIMIT_NOFILE|--- Logging error ---"
    r"|[Ff]alling back|[Ff]allback|[Ii]gnor(?:ed|ing)|Exception ignored in|object has no attribute 'encode'"
)
#: Ends a message that runs over several lines.
_NOT_MESSAGE: Final = re.compile(r"^\[rank\d+\]|^terminate called|^usage: |^\*{3,}|^Fatal Python error")
_LONGEST_MESSAGE_LINES: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One message of a log, or a line of one: its text without prefixes, and the line of the file it stands in.

    ``time`` is that of its own prefix, or of the last one before it; ``ranks`` of its own (``TP3 EP3``).
    """

    number: int
    time: str
    ranks: str
    text: str
    dated: bool


@dataclass(slots=True, kw_only=True)
class Raised:
    """An exception, with those raised while it was handled.

    ``first`` is the line of the first one; ``text`` the messages of all; ``frames`` one line a frame, outermost
    first, each with its function and source. ``announced``: a process of SGLang said that it ended of it;
    ``logged``: somebody caught it and went on.
    """

    number: int
    time: str
    ranks: str
    phase: str
    announced: bool
    logged: bool
    harmless: bool
    draft: bool = False
    first: str | None = None
    text: str = ""
    frames: list[str] = field(default_factory=list)
    evidence: list[int] = field(default_factory=list)
    dated_frames: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A log that was taken apart. ``phase`` is the last one; ``up_at`` the line from which on it served, or None."""

    pieces: tuple[Piece, ...]
    raised: tuple[Raised, ...]
    phases: tuple[str, ...]
    phase: str
    up_at: int | None


def pieces_of(text: str) -> list[Piece]:
    """Split a log into pieces; line numbers are those of the file, from 1."""
    lines = [
        [part for part in _ANSI.sub("", line).rstrip("\r").split("\r") if part.strip()] or [""]
        for line in text.split("\n")
    ]
    learned = _learned_prefixes(part for parts in lines for part in parts)
    found: list[Piece] = []
    time = ""
    for number, parts in enumerate(lines, start=1):
        for part in parts:
            if _COMMENT.match(part):
                continue
            for piece in _split(_without_foreign(part[:_LONGEST_LINE], learned), number, time):
                time = piece.time
                found.append(piece)
    return found


def _learned_prefixes(lines: Iterable[str]) -> tuple[str, ...]:
    """What stands before the date of several lines belongs to all lines: something unknown put it there."""
    before = Counter(line[: match.start()] for line in lines if (match := _DATED.search(line[:200])) and match.start())
    return tuple(prefix for prefix, count in before.items() if count >= 3 and len(prefix) <= 60 and prefix.strip())


def _without_foreign(line: str, learned: tuple[str, ...]) -> str:
    line = next((line[len(prefix) :] for prefix in learned if line.startswith(prefix)), line)
    for _ in range(3):  # a pod of a compose of a Ray worker
        shorter = _FOREIGN.sub("", line)
        if shorter == line:
            break
        line = shorter
    return line


def _split(line: str, number: int, time: str) -> Iterable[Piece]:
    """One line is several pieces when another process wrote into it."""
    matches = list(_DATED.finditer(line))
    if not matches:
        yield Piece(number=number, time=time, ranks="", text=line.rstrip(), dated=False)
        return
    if line[: matches[0].start()].strip():
        yield Piece(number=number, time=time, ranks="", text=line[: matches[0].start()].rstrip(), dated=False)
    ends = [match.start() for match in matches[1:]] + [len(line)]
    for match, end in zip(matches, ends, strict=True):
        told = line[match.end() : end].rstrip()
        yield Piece(number=number, time=match[1], ranks=match[2].strip(), text=told, dated=True)


def read(pieces: Sequence[Piece]) -> Log:
    """Find phases, the moment of readiness and exceptions."""
    up_at = _up_at(pieces)
    phases = _phases(pieces, up_at)
    raised = _Tracebacks(pieces, phases).all()
    last = phases[-1] if phases else "imports"
    return Log(pieces=tuple(pieces), raised=tuple(raised), phases=tuple(phases), phase=last, up_at=up_at)


def _up_at(pieces: Sequence[Piece]) -> int | None:
    """From where on the server served: its own word; without it, what only a server that serves says."""
    fired = next((at for at, piece in enumerate(pieces) if FIRED_UP.search(piece.text)), None)
    if fired is not None:
        return fired
    if any(_UVICORN.search(piece.text) for piece in pieces):
        # Its own warm-up request makes batches as well.
        return next((at for at, piece in enumerate(pieces) if _GENERATED.search(piece.text)), None)
    return next((at for at, piece in enumerate(pieces) if _BATCH.search(piece.text) or _ASKED.search(piece.text)), None)


def _phases(pieces: Sequence[Piece], up_at: int | None) -> list[str]:
    """The phase at each piece: of its rank where it tells one, else the last of any."""
    by_rank: dict[str, str] = {}
    loads: Counter[str] = Counter()
    last = "imports"
    found: list[str] = []
    for at, piece in enumerate(pieces):
        if up_at is not None and at >= up_at:
            found.append("serving")
            continue
        for phase, pattern in _PHASE_MARKS:
            if pattern.search(piece.text):
                if _LOAD_BEGIN.search(piece.text):
                    loads[piece.ranks] += 1
                if phase == "weights" and not piece.dated:
                    continue  # a progress bar has no rank; the line before it has said so
                last = "draft_weights" if phase == "weights" and loads[piece.ranks] > 1 else phase
                by_rank[piece.ranks] = last
        found.append(by_rank.get(piece.ranks, last) if piece.ranks else last)
    return found


class _Tracebacks:
    """Finds exceptions: those of tracebacks, of tracebacks without their head, and those without frames."""

    def __init__(self, pieces: Sequence[Piece], phases: Sequence[str]) -> None:
        self._pieces = pieces
        self._phases = phases
        self._open: list[Raised] = []
        self._found: list[Raised] = []
        self._chain: Raised | None = None
        self._message: set[int] = set()

    def all(self) -> list[Raised]:
        for at, piece in enumerate(self._pieces):
            if at in self._message:
                continue
            if _TRACEBACK.search(piece.text):
                self._begin(at)
            elif frame := _FRAME.match(piece.text):
                self._frame(at, frame)
            elif text := self._exception(piece):
                self._end(at, text)
        # A log that breaks off within a traceback says where, if not what.
        self._found += [raised for raised in self._open if len(raised.frames) > 1]
        for raised in self._found:
            self._place(raised)
        return self._found

    def _begin(self, at: int) -> None:
        piece = self._pieces[at]
        inline = piece.text[: piece.text.index("Traceback (most")].strip()
        before = self._pieces[at - 1] if at else None
        said = inline or (before.text if before is not None else "")
        chained = any(_CHAINED.search(p.text) for p in self._pieces[max(0, at - 3) : at])
        self._chain = self._found[-1] if chained and self._found else None
        announced = bool(_ANNOUNCED.search(said))
        self._open.append(
            Raised(
                number=piece.number,
                time=piece.time,
                ranks=piece.ranks,
                phase=self._phases[at],
                announced=announced,
                logged=bool(inline) and piece.dated and not announced,
                harmless=bool(HARMLESS.search(said)),
            )
        )

    def _frame(self, at: int, frame: re.Match[str]) -> None:
        piece = self._pieces[at]
        if not self._open:  # the log begins within a traceback
            phase = self._phases[at]
            self._open.append(
                Raised(
                    number=piece.number,
                    time=piece.time,
                    ranks=piece.ranks,
                    phase=phase,
                    announced=False,
                    logged=False,
                    harmless=False,
                )
            )
        following = self._pieces[at + 1] if at + 1 < len(self._pieces) else None
        source = ""
        if following is not None and following.text.startswith("    ") and not _FRAME.match(following.text):
            source = following.text.strip()
        self._open[-1].frames.append(f"{frame[1]} in {frame[2] or '?'}: {source}")
        self._open[-1].dated_frames = piece.dated
        self._open[-1].evidence = [piece.number]  # of the innermost frame

    def _exception(self, piece: Piece) -> str:
        if inline := _ANNOUNCED_INLINE.search(piece.text):
            return inline[1]
        if self._open and self._open[-1].frames:
            same = piece.dated == self._open[-1].dated_frames
            return piece.text if same and _BELOW_FRAMES.match(piece.text) else ""
        return piece.text if not piece.dated and _BY_NAME.match(piece.text) else ""

    def _end(self, at: int, text: str) -> None:
        piece = self._pieces[at]
        raised = self._open.pop() if self._open else None
        if raised is None:
            announced = bool(_ANNOUNCED_INLINE.search(piece.text))
            raised = Raised(
                number=piece.number,
                time=piece.time,
                ranks=piece.ranks,
                phase=self._phases[at],
                announced=announced,
                logged=False,
                harmless=bool(at and HARMLESS.search(self._pieces[at - 1].text)),
            )
        message = [text, *self._continuation(at)]
        raised.evidence = [*raised.evidence, piece.number]
        if self._chain is not None:
            chain, self._chain = self._chain, None
            chain.text += "\n" + "\n".join(message)
            chain.frames += raised.frames
            chain.evidence.append(piece.number)
            return
        raised.first = text
        raised.text = "\n".join(message)
        self._found.append(raised)

    def _continuation(self, at: int) -> list[str]:
        found: list[str] = []
        for beyond in range(at + 1, min(at + 1 + _LONGEST_MESSAGE_LINES, len(self._pieces))):
            piece = self._pieces[beyond]
            ends = (_TRACEBACK, _FRAME, _CHAINED, _NOT_MESSAGE, _BY_NAME)
            if piece.dated or any(pattern.search(piece.text) for pattern in ends):
                break
            self._message.add(beyond)
            found.append(piece.text)
        return found

    def _place(self, raised: Raised) -> None:
        """Settle its phase: that of the log, unless the frames know better."""
        frames = "\n".join(raised.frames)
        raised.draft = bool(_DRAFT_FRAMES.search(frames)) or raised.phase == "draft_weights"
        if raised.phase == "serving" and not _WARMUP_FRAMES.search(frames):
            return
        told = next((phase for phase, pattern in _PHASE_FRAMES if pattern.search(frames)), None)
        if told == "weights" and (raised.draft or raised.phase in ("kv_cache", "graphs")):
            told = "draft_weights"  # who loads after the target has been loaded
            raised.draft = True
        # Frames of the arguments are met in every later phase.
        if told is not None and (told != "arguments" or raised.phase == "imports"):
            raised.phase = told
        elif raised.draft and raised.phase == "imports":  # in the middle of a log; a draft's worker loads first
            raised.phase = "draft_weights"
