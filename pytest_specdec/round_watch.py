"""What is looked at beside the requests of a round, so that a run can be called valid: the log, and the GPUs."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from pytest_specdec import decode_log
from pytest_specdec.errors import HostError
from pytest_specdec.gpu_watch import GpuWatch
from pytest_specdec.hosts import Host
from pytest_specdec.observed import GpuSpan, LogSpan, Seen

if TYPE_CHECKING:
    from typing_extensions import Self


class LogTail:
    """A server's log on its host, read from round to round; nothing is read while a round runs."""

    def __init__(self, host: Host, path: Path) -> None:
        self._host = host
        self._path = path
        self._offset = 0

    def skip(self) -> None:
        """Pass over what there is. Raises :class:`HostError` when the host can't be asked."""
        self._offset += len(self._host.read_from(self._path, self._offset))

    def take(self) -> LogSpan:
        """Read what is new. Raises :class:`HostError` when the host can't be asked."""
        new = self._host.read_from(self._path, self._offset)
        self._offset += len(new)
        return decode_log.parse(new.decode(errors="replace"))


class RoundWatch:
    """Watches rounds from ``with`` to its end. ``log`` and ``gpus`` are None where there is nothing to look at."""

    def __init__(self, *, log: LogTail | None = None, gpus: GpuWatch | None = None) -> None:
        self._log = log
        self._gpus = gpus
        self._log_began = False

    def __enter__(self) -> Self:
        if self._gpus is not None:
            self._gpus.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._gpus is not None:
            self._gpus.stop()

    def begin(self) -> None:
        """Let a round begin."""
        if self._gpus is not None:
            self._gpus.begin()
        self._log_began = False
        if self._log is not None:
            try:
                self._log.skip()
            except HostError:
                return  # the round's log is not known, which its rules say
            self._log_began = True

    def end(self) -> Seen:
        """Return what was seen since the round began."""
        gpu: GpuSpan | None = None if self._gpus is None else self._gpus.end()
        log: LogSpan | None = None
        if self._log is not None and self._log_began:
            try:
                log = self._log.take()
            except HostError:
                log = None
        return Seen(log=log, gpu=gpu)
