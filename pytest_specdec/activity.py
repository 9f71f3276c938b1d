"""What a launch does while its log is silent: reads weights, compiles, fills GPUs. Or nothing, which is a hang.

A host is asked about processes through ``/proc``, with one ``grep`` for all of them, and about its GPUs through
``nvidia-smi``. Busy processors are no sign of life: a collective that waits for a lost rank spins at full speed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_specdec.errors import HostError
from pytest_specdec.hosts import Host

_TIMEOUT_S: Final = 5.0
_MIB: Final = 1 << 20
#: Less than this between two looks (ten seconds, as a rule) is a trickle that hung processes have as well: heartbeats,
#: watchdogs that read ``/proc``, a metrics thread. The slowest disk or network that weights come from is a hundred
#: times faster.
_BYTES_THAT_COUNT: Final = _MIB
#: Memory comes in larger steps: an allocator's segment is 2 or 20 MiB, and idle heaps breathe by less than this.
_MEMORY_THAT_COUNTS: Final = 16 * _MIB
#: Of ten seconds, what a compiler that is not stuck uses at the least, even on an overloaded machine.
_COMPILER_CPU_S: Final = 0.3
#: Linux tells processor time in these, whatever its own clock is.
_TICKS_PER_S: Final = 100.0
_COMPILER: Final = re.compile(
    r"nvcc|cicc|ptxas|cudafe\+\+|fatbinary|nvlink|ninja|hipcc|cc1(plus)?|collect2|ld|ld\.\w+|lld"
    r"|(.+-)?(gcc|g\+\+|c\+\+|cc|clang|clang\+\+)(-[\d.]+)?"
)
#: `grep -s` is silent about a process that ended meanwhile; a second file makes it name the files.
_ASK: Final = """
set --
for pid in %s; do set -- "$@" "/proc/$pid/stat" "/proc/$pid/io" "/proc/$pid/status"; done
grep -s -E '^([0-9]+ \\(|rchar:|read_bytes:|Rss(Anon|File|Shmem):)' "$@" /dev/null
:
"""
_ANSWER: Final = re.compile(
    r"^/proc/(\d+)/(?:io|status):(\w+):\s*(\d+)|^/proc/(\d+)/stat:\d+ \((.*)\) (.*)$", re.MULTILINE
)
_GPU_WORDS: Final = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """One process at one moment: bytes read so far, resident bytes, processor seconds with ended children's."""

    name: str
    born: str
    read: int
    resident: int
    cpu_s: float
    children_cpu_s: float

    @property
    def compiles(self) -> bool:
        return _COMPILER.fullmatch(self.name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen between two looks. ``moved`` names what counts as progress, ``told`` everything, in words."""

    moved: tuple[str, ...]
    told: str


class Activity:
    """Looks at what moves on a host from one look to the next.

    A host that does not answer shows nothing that moves, and that is all: whether it is lost is found elsewhere.
    Without ``gpus`` its GPUs are none of the launch's business.
    """

    def __init__(self, host: Host, *, gpus: bool) -> None:
        self._host = host
        self._has_gpus = gpus
        self.start_over()

    def start_over(self) -> None:
        """Forget what was seen: the next look is a first one, so that no trickle adds up over minutes."""
        self._processes: dict[int, _Seen] | None = None
        self._gpus: tuple[int, ...] | None = None

    def look(self, members: Sequence[int]) -> Look:
        """Look at these processes, and at the GPUs of the host.

        The first look has none to compare with: only a compiler that runs then shows anything.
        """
        moved: list[str] = []
        told: list[str] = []
        for found in (self._look_at_processes(members), self._look_at_gpus()):
            moved += found.moved
            told.append(found.told)
        return Look(moved=tuple(moved), told=", ".join(filter(None, told)))

    def _look_at_processes(self, members: Sequence[int]) -> Look:
        if not members:
            return Look(moved=(), told="no process is left")
        try:
            script = _ASK % " ".join(map(str, members))
            answer = self._host.run(["sh", "-c", script], timeout_s=_TIMEOUT_S).stdout
        except HostError as error:
            return Look(moved=(), told=f"its processes can't be seen: {error}")
        now = _parse(answer)
        before, self._processes = self._processes, now
        compilers = _busy_compilers(before or {}, now)
        moved = [f"{', '.join(compilers)} compiling"] if compilers else []
        if before is None:
            return Look(moved=tuple(moved), told=", ".join(moved) or "no compiler")
        same = [(before[pid], seen) for pid, seen in now.items() if pid in before and before[pid].born == seen.born]
        read = sum(max(0, seen.read - past.read) for past, seen in same)
        grown = sum(max(0, seen.resident - past.resident) for past, seen in same)
        told = [*(moved or ["no compiler"]), f"{_size(read)} read", f"{_size(grown)} more resident"]
        if read >= _BYTES_THAT_COUNT:
            moved.append(f"{_size(read)} read")
        if grown >= _MEMORY_THAT_COUNTS:
            moved.append(f"{_size(grown)} more resident")
        return Look(moved=tuple(moved), told=", ".join(told))

    def _look_at_gpus(self) -> Look:
        now = self._gpu_memory()
        before, self._gpus = self._gpus, now
        if now is None:
            return Look(moved=(), told="")
        used = f"GPU memory {_size(sum(now))}"
        if before is None or len(before) != len(now):
            return Look(moved=(), told=used)
        # Taken one by one: what is freed on one GPU must not hide what is filled on the next.
        change = sum(abs(new - old) for new, old in zip(now, before, strict=True))
        if change < _MEMORY_THAT_COUNTS:
            return Look(moved=(), told=f"{used}, unchanged")
        words = f"{used}, {_size(change)} of it changed"
        return Look(moved=(words,), told=words)

    def _gpu_memory(self) -> tuple[int, ...] | None:
        """Bytes used, a GPU each; None from the first time on that they aren't told: a driver that hangs, hangs."""
        if not self._has_gpus:
            return None
        try:
            answer = self._host.run(_GPU_WORDS, timeout_s=_TIMEOUT_S)
            if answer.returncode == 0:
                return tuple(int(float(line) * _MIB) for line in answer.stdout.split())
        except (HostError, ValueError):
            pass
        self._has_gpus = False
        return None


def _parse(answer: str) -> dict[int, _Seen]:
    numbers: dict[int, dict[str, int]] = {}
    stats: dict[int, tuple[str, list[str]]] = {}
    for io_pid, key, number, stat_pid, name, rest in _ANSWER.findall(answer):
        if key:
            numbers.setdefault(int(io_pid), {})[key] = int(number)
        else:
            stats[int(stat_pid)] = (name, rest.split())
    return {pid: _seen(name, fields, numbers.get(pid, {})) for pid, (name, fields) in stats.items()}


def _seen(name: str, fields: Sequence[str], numbers: Mapping[str, int]) -> _Seen:
    # What stands behind the name begins with field 3 of proc(5).
    user, system, children_user, children_system = (int(field) for field in fields[11:15])
    return _Seen(
        name=name,
        born=fields[19],
        # Of a page cache the first counts, of a mapped file the second; one read can count in both.
        read=max(numbers.get("rchar", 0), numbers.get("read_bytes", 0)),
        # Pages of a mapped file that lay in memory already are read without a call and without a disk.
        resident=1024 * sum(numbers.get(key, 0) for key in ("RssAnon", "RssFile", "RssShmem")),
        cpu_s=(user + system) / _TICKS_PER_S,
        children_cpu_s=(children_user + children_system) / _TICKS_PER_S,
    )


def _busy_compilers(before: Mapping[int, _Seen], now: Mapping[int, _Seen]) -> list[str]:
    """Names of compilers that are new or at work, and of those whose compilers have come and gone meanwhile."""
    names = set()
    for pid, seen in now.items():
        past = before.get(pid)
        if past is None or past.born != seen.born:
            if seen.compiles:
                names.add(seen.name)
        elif seen.children_cpu_s - past.children_cpu_s >= _COMPILER_CPU_S:
            # Processes that ended between two looks are seen in what their parent waited for.
            names.add(f"children of {seen.name}")
        elif seen.compiles and seen.cpu_s - past.cpu_s >= _COMPILER_CPU_S:
            names.add(seen.name)
    return sorted(names)


def _size(number: float) -> str:
    return f"{number / _MIB:.1f} MiB" if number < 1024 * _MIB else f"{number / (1024 * _MIB):.1f} GiB"
