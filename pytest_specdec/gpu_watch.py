"""The GPUs of a host while it is measured: two ``nvidia-smi`` that go on printing, read after each round.

One process for each question lives through all rounds, so that a round costs a look into two files: starting
``nvidia-smi`` takes the driver's locks and a good part of a second on a large node.
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from pytest_specdec import stats
from pytest_specdec.clock import Clock
from pytest_specdec.errors import HostError, InfrastructureError
from pytest_specdec.hosts import Host, Process
from pytest_specdec.observed import GpuProcess, GpuSpan, GpuState
from pytest_specdec.stopping import stop_process

#: Between two looks, in milliseconds. A slowdown that spoils a round lasts longer.
INTERVAL_MS: Final = 500
_ASK_TIMEOUT_S: Final = 30.0
#: How long the first look may take: a driver that nothing keeps loaded is loaded for it.
_FIRST_LOOK_S: Final = 10.0
_POLL_S: Final = 0.1
_NUMBERS: Final = ("index", "uuid", "clocks.sm", "power.draw", "temperature.gpu")
#: Reasons for low clocks that spoil a measurement, and one that belongs to the node's set-up.
_SLOWDOWNS: Final = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
_POWER_CAP: Final = "sw_power_cap"
#: The group of these fields was renamed in driver 535.
_REASONS_GROUPS: Final = ("clocks_event_reasons", "clocks_throttle_reasons")
_ACTIVE: Final = "Active"
_PROCESS_QUERY: Final = "--query-compute-apps=gpu_uuid,pid,process_name"
_FORMAT: Final = "--format=csv,noheader,nounits"


class GpuWatch:
    """Watches a host's GPUs from :meth:`start` to :meth:`stop`, and tells of each span between ``begin`` and ``end``.

    ``own`` returns the ids of the server's processes on the host. ``log_path`` is the host's; what ``nvidia-smi``
    prints is kept beside it. What keeps the GPUs from being known is told by the spans, never raised: the figures of
    a round are worth having without.
    """

    def __init__(self, host: Host, *, log_path: Path, own: Callable[[], Collection[int]], clock: Clock) -> None:
        self._host = host
        self._own = own
        self._clock = clock
        self._paths = (log_path.with_suffix(".gpus.csv"), log_path.with_suffix(".gpu-processes.csv"))
        self._processes: list[Process] = []
        self._offsets = [0, 0]
        self._unknown: str | None = None
        self._own_pids: set[int] = set()

    def start(self) -> None:
        """Find out which fields this driver knows, start both, and wait for the first look."""
        try:
            query = self._query()
            self._skip()
            for question, path in zip((query, _PROCESS_QUERY), self._paths, strict=True):
                argv = ["nvidia-smi", question, _FORMAT, f"--loop-ms={INTERVAL_MS}"]
                self._processes.append(self._host.spawn(argv, env=dict(self._host.environ()), cwd=None, log_path=path))
            self._wait_for_a_look()
        except HostError as error:
            self._unknown = str(error)
        except BaseException:
            self.stop()
            raise

    def _query(self) -> str:
        said = ""
        for group in _REASONS_GROUPS:
            fields = [*_NUMBERS, *(f"{group}.{reason}" for reason in (*_SLOWDOWNS, _POWER_CAP))]
            query = f"--query-gpu={','.join(fields)}"
            done = self._host.run(["nvidia-smi", query, _FORMAT], timeout_s=_ASK_TIMEOUT_S)
            if done.returncode == 0:
                return query
            said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise HostError(f"{self._host.name}: nvidia-smi does not tell why clocks are low; it said: {said}")

    def _wait_for_a_look(self) -> None:
        path, deadline = self._paths[0], self._clock.monotonic() + _FIRST_LOOK_S
        while not self._host.read_from(path, self._offsets[0]):
            code = self._processes[0].poll()
            if code is not None:
                raise HostError(f"{self._host.name}: nvidia-smi {_FORMAT} --loop-ms ended with exit code {code}")
            if self._clock.monotonic() >= deadline:
                raise HostError(
                    f"{self._host.name}: waited {_FIRST_LOOK_S:g} s for the first line of nvidia-smi in {path}"
                )
            self._clock.sleep(_POLL_S)

    def begin(self) -> None:
        """Let a span begin: what was printed before is passed over."""
        if self._unknown is not None:
            return
        try:
            self._own_pids = set(self._own())
            self._skip()
        except HostError as error:
            self._unknown = str(error)

    def _skip(self) -> None:
        for i, path in enumerate(self._paths):
            self._offsets[i] += len(self._host.read_from(path, self._offsets[i]))

    def end(self) -> GpuSpan:
        """Return what was printed since the span began."""
        if self._unknown is None:
            try:
                self._own_pids |= set(self._own())
                texts = [
                    self._host.read_from(path, offset).decode(errors="replace")
                    for path, offset in zip(self._paths, self._offsets, strict=True)
                ]
            except HostError as error:
                self._unknown = str(error)
        if self._unknown is not None:
            return GpuSpan(unknown=self._unknown)
        gpus = _gpus(_rows(texts[0]))
        if not gpus:
            # Short rounds fall between two looks; a process that ended says so for all that come.
            code = self._processes[0].poll()
            ended = "the round was shorter than the time between two" if code is None else f"it ended ({code})"
            return GpuSpan(unknown=f"nvidia-smi printed nothing: {ended}")
        return GpuSpan(gpus=gpus, processes=_computing(_rows(texts[1]), self._own_pids))

    def stop(self) -> None:
        """End both; safe to call twice."""
        while self._processes:
            # Of a host that is away: its own side of the lease ends them.
            with contextlib.suppress(InfrastructureError):
                stop_process(self._processes.pop(), self._clock, what="nvidia-smi")


def _rows(text: str) -> list[list[str]]:
    """The whole lines that were printed; the last one may be cut."""
    whole, _, _ = text.rpartition("\n")
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(whole)) if row]


def _gpus(rows: Sequence[Sequence[str]]) -> tuple[GpuState, ...]:
    reasons = (*_SLOWDOWNS, _POWER_CAP)
    looks: dict[str, list[Sequence[str]]] = {}
    for row in rows:
        if len(row) == len(_NUMBERS) + len(reasons):
            looks.setdefault(row[1], []).append(row)
    states = []
    for uuid, seen in looks.items():
        columns = dict(zip((*_NUMBERS, *reasons), zip(*seen, strict=True), strict=True))
        states.append(
            GpuState(
                index=seen[0][0],
                uuid=uuid,
                samples=len(seen),
                sm_mhz=_median(columns["clocks.sm"]),
                power_w=_median(columns["power.draw"]),
                temperature_c=_median(columns["temperature.gpu"]),
                slowdowns=tuple(reason for reason in _SLOWDOWNS if _ACTIVE in columns[reason]),
                power_capped_share=sum(cell == _ACTIVE for cell in columns[_POWER_CAP]) / len(seen),
            )
        )
    return tuple(states)


def _median(cells: Sequence[str]) -> float | None:
    values = []
    for cell in cells:
        with contextlib.suppress(ValueError):  # [N/A] and its like
            values.append(float(cell))
    return stats.median(values) if values else None


def _computing(rows: Sequence[Sequence[str]], own: Collection[int]) -> tuple[GpuProcess, ...]:
    found: dict[tuple[str, int], GpuProcess] = {}
    for row in rows:
        # A process's name comes last and may hold anything.
        if len(row) >= 3 and row[1].isdecimal():
            pid = int(row[1])
            found[row[0], pid] = GpuProcess(uuid=row[0], pid=pid, name=", ".join(row[2:]), own=pid in own)
    return tuple(found.values())
