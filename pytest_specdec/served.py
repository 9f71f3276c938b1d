"""Servers as the pool and the tests' handles use them: one that this session started, or one that was there before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from pytest_specdec import server
from pytest_specdec.client import ServerClient, ServerInfo
from pytest_specdec.clock import Clock
from pytest_specdec.errors import HostError, InfrastructureError, LaunchError, ServerRequestError
from pytest_specdec.gpu_watch import GpuWatch
from pytest_specdec.host_pool import Seat
from pytest_specdec.hosts import Host
from pytest_specdec.model import LaunchRecord
from pytest_specdec.round_watch import LogTail, RoundWatch
from pytest_specdec.ssh import SshHost


class ServerLog:
    """A launch's log: written on the host, kept here."""

    def __init__(self, host: Host, kept: Path, *, written: Path | None = None) -> None:
        self.host = host
        remote = isinstance(host, SshHost)
        # What an earlier session began to write here is where that session keeps it.
        self.kept = kept if remote or written is None else written
        self.written = written or (host.log_dir() / kept.name if isinstance(host, SshHost) else kept)

    def name_in(self, error: LaunchError) -> None:
        """Let an error that tells of this log name the copy that is kept here."""
        if error.log_path is not None:
            error.log_path = str(self.kept)

    def keep(self) -> None:
        """Bring what there is of it here; a host that is away has said why elsewhere."""
        if isinstance(self.host, SshHost):
            with contextlib.suppress(HostError):
                self.host.fetch(self.written, self.kept)


class ServedHere:
    """A server that this session started or adopted, with the record of its launch.

    ``settle`` waits, after its end, for what it held on the host. ``leave`` leaves it up for the next session, and
    returns whether it could.
    """

    def __init__(
        self,
        running: server.RunningServer,
        record: LaunchRecord,
        client: ServerClient,
        seat: Seat,
        log: ServerLog,
        settle: Callable[[], None],
        leave: Callable[[], bool],
    ) -> None:
        self._running = running
        self._seat = seat
        self._log = log
        self._settle = settle
        self._leave = leave
        self.record = record
        self.client = client

    @property
    def url(self) -> str:
        """Where it answers."""
        return self._running.url

    @property
    def info(self) -> ServerInfo:
        """Its ``/server_info`` at readiness."""
        return self._running.info

    @property
    def log_path(self) -> Path:
        """Where its log is kept, with all that was written so far."""
        self._log.keep()
        return self._log.kept

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        """Around requests: see :meth:`pytest_specdec.server.RunningServer.in_use`."""
        return self._running.in_use()

    def own_pids(self) -> tuple[int, ...]:
        """Return the ids, on its host, of its processes."""
        return self._running.process.members()

    def watch(self, clock: Clock) -> RoundWatch:
        """Return what looks at its log, and at its host's GPUs where it runs on them."""
        tail = LogTail(self._log.host, self._log.written)
        gpus = None
        if self.info.args.get("device", "cuda") == "cuda" and not self._running.spec.runs_on_cpu:
            gpus = GpuWatch(self._log.host, log_path=self._log.written, own=self.own_pids, clock=clock)
        return RoundWatch(log=tail, gpus=gpus)

    def check_alive(self) -> None:
        """Raise with the reason when it has died."""
        try:
            self._running.check_alive()
        except LaunchError as error:
            self._log.name_in(error)
            raise

    def stop(self) -> None:
        """End it, then let the next measured server have the host."""
        self._let_go(keep=False)

    def keep(self) -> None:
        """Leave it up for the next session (or end it, if that can't be), then let the next one have the host."""
        self._let_go(keep=True)

    def _let_go(self, *, keep: bool) -> None:
        try:
            if not (keep and self._leave()):
                self._running.stop()
                self._settle()
        finally:
            self._log.keep()
            self._seat.release()


class ServedThere:
    """A server that was running before this session, and goes on after it: nothing of it is ours but requests."""

    def __init__(self, record: LaunchRecord, client: ServerClient, info: ServerInfo) -> None:
        self.record = record
        self.client = client
        self.info = info

    @property
    def url(self) -> str:
        """Where it answers."""
        return self.client.base_url

    @staticmethod
    def watch(_clock: Clock) -> RoundWatch:
        """Return what looks at nothing: of its host nothing is known."""
        return RoundWatch()

    @property
    def log_path(self) -> Path:
        """Not known: raises :class:`InfrastructureError`."""
        raise InfrastructureError(f"the log of the server at {self.url} is not known here: it was started elsewhere")

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        """Around requests: nothing, since neither its processes nor its log are known here."""
        return contextlib.nullcontext()

    def check_alive(self) -> None:
        """Raise :class:`LaunchError` when it no longer answers, or another one does."""
        try:
            told = self.client.server_info()
        except ServerRequestError as error:
            raise LaunchError(f"the server at {self.url} (--specdec-url) no longer answers: {error}") from None
        if (told.model_path, told.mark) != (self.info.model_path, self.info.mark):
            raise LaunchError(f"the server at {self.url} (--specdec-url) was restarted, or replaced by another one")

    def stop(self) -> None:
        """Leave it as it is."""
