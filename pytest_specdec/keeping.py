"""What a session does about kept servers: adopts one that is the same launch, ends the others, leaves its own up.

One host serves one measured server at a time, so whatever was kept there is taken or ended before a launch: its
memory is needed, and the preflight would find it in the way.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pytest_specdec import containers, kept
from pytest_specdec.client import ServerInfo
from pytest_specdec.clock import Clock
from pytest_specdec.containers import ContainerProcess
from pytest_specdec.errors import HostError, InfrastructureError, LaunchError, ServerRequestError
from pytest_specdec.gpus import Gpu, memory_held
from pytest_specdec.hosts import Host, LocalHost, Process
from pytest_specdec.kept import Identity, KeptServer, LeasingHost
from pytest_specdec.lease import LeasedProcess
from pytest_specdec.leased_host import LeasedLocalHost
from pytest_specdec.logwatch import LogWatch
from pytest_specdec.model import LaunchRecord
from pytest_specdec.readiness import Client, ClientFactory
from pytest_specdec.server import RunningServer
from pytest_specdec.settings import Settings
from pytest_specdec.spec import ServerSpec
from pytest_specdec.ssh import SshHost
from pytest_specdec.stopping import ended_on_error, stop_process

_POLL_S: Final = 0.2
#: A run that was killed ends what it held within ten seconds.
_SETTLE_S: Final = 15.0
_GENERATION_TIMEOUT_S: Final = 60.0

Facts = Callable[[], Mapping[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A kept server that is this session's now, the record of its launch, and its GPUs as they were before."""

    running: RunningServer
    record: LaunchRecord
    gpus: tuple[Gpu, ...]


class Keeping:
    """Kept servers, for one session."""

    def __init__(self, settings: Settings, *, clock: Clock, notify: Callable[[str], None]) -> None:
        self._settings = settings
        self._clock = clock
        self._notify = notify
        self._here: LeasedLocalHost | None = None
        #: Why this session takes no server that is up already; None when it may.
        self.fresh_because: str | None = None

    def _leasing(self, host: Host) -> LeasingHost | None:
        """The host as one that can take a kept server; without the option this machine's other servers need none."""
        if isinstance(host, (SshHost, LeasedLocalHost)):
            return host
        if isinstance(host, LocalHost):
            self._here = self._here or LeasedLocalHost(lease_s=self._settings.lease_s, clock=self._clock)
            return self._here
        return None

    def take(
        self, host: Host, spec: ServerSpec, identity: Identity, *, facts: Facts, client_factory: ClientFactory
    ) -> Adopted | None:
        """Adopt a kept server that is what a launch would give; whatever else was kept on the host is ended.

        ``facts`` tells the versions of what serves, by the names that they have in a launch's record; it is asked
        only when the rest agrees. Raises :class:`InfrastructureError` when a kept server can't be ended.
        """
        leasing = self._leasing(host)
        if leasing is None:
            return None
        adopted: Adopted | None = None
        for server in self._settled(leasing):
            if server.state == "orphaned":
                self._notify(f"ending {_called(server)}: its supervisor is gone")
                kept.end_orphan(leasing, server)
            elif server.state == "kept":
                reasons = ["one is enough"] if adopted else self._reasons(server, identity, facts)
                if reasons:
                    self._notify(f"ending {_called(server)}: {'; '.join(reasons)}")
                    self._end(leasing, server)
                else:
                    adopted = self._adopt(leasing, server, spec, identity, client_factory)
        return adopted

    def _settled(self, host: LeasingHost) -> tuple[KeptServer, ...]:
        """What is kept, when whatever is on its way out is gone."""
        deadline = self._clock.monotonic() + _SETTLE_S
        # We have the host to ourselves, unless it is shared: then another run may well hold a server.
        passing = {"ending"} if self._settings.share_host else {"ending", "held"}
        while True:
            found = kept.kept_on(host)
            if not any(server.state in passing for server in found) or self._clock.monotonic() >= deadline:
                return found
            self._clock.sleep(_POLL_S)

    def _reasons(self, server: KeptServer, wanted: Identity, facts: Facts) -> list[str]:
        """Why a kept server is not reused."""
        if self._settings.update is not None:
            return ["baselines are recorded on fresh launches (--update-baselines)"]
        if self.fresh_because is not None:
            return [self.fresh_because]
        own, there = version("pytest-specdec"), server.content["plugin_version"]
        if own != there:
            return [f"pytest-specdec {there} kept it, this is {own}"]
        found = server.differences(wanted)
        if not found:
            then = server.content["launch"]["facts"]
            now = facts()
            found = [
                f"{name} was {then.get(name)}, is {value} now" for name, value in now.items() if then.get(name) != value
            ]
        return found

    def _end(self, host: LeasingHost, server: KeptServer) -> None:
        try:
            process = host.adopt(server.token, server.directory)
        except HostError as error:
            # Its lease ran out meanwhile, or another run that shares the host took it.
            self._notify(str(error))
            return
        stop_process(process, self._clock, what=server.spec_name)
        kept.await_gone(host, server, clock=self._clock)
        held = memory_held(host, _gpus(server), clock=self._clock)
        if held is not None:
            self._notify(f"{server.spec_name}: {held}")

    def _adopt(
        self,
        host: LeasingHost,
        server: KeptServer,
        spec: ServerSpec,
        identity: Identity,
        client_factory: ClientFactory,
    ) -> Adopted | None:
        process: Process
        try:
            process = host.adopt(server.token, server.directory)
        except HostError as error:
            self._notify(str(error))
            return None
        container = server.content["container"]
        if container is not None:
            process = containers.taken_over(process, host, container, env=identity.environment)
        with ended_on_error(process, self._clock, spec.name):
            url = host.url(server.port)
            try:
                info = _confirmed(server, client_factory(url))
            except (ServerRequestError, LaunchError) as error:
                self._notify(f"ending {_called(server)}: {error}")
                stop_process(process, self._clock, what=spec.name)
                kept.await_gone(host, server, clock=self._clock)
                return None
            record = LaunchRecord(**{**server.content["launch"], "adopted": True})
            watch = LogWatch(host, Path(server.log_path))
            watch.poll()
            running = RunningServer(
                spec=spec,
                port=server.port,
                url=url,
                process=process,
                watch=watch,
                clock=self._clock,
                info=info,
                ready_s=record.ready_s or 0.0,
                phase_s=record.phase_s,
            )
        self._notify(f"adopted {_called(server)}, of a launch at {_moment(record.started_unix_s)}")
        return Adopted(running=running, record=record, gpus=_gpus(server))

    def leave(
        self,
        host: Host,
        running: RunningServer,
        identity: Identity,
        record: LaunchRecord,
        gpus: tuple[Gpu, ...],
    ) -> bool:
        """Leave a server up for the next run; returns False for one that can't be, with the reason told."""
        lease_s = self._settings.keep_servers_s
        container = running.process if isinstance(running.process, ContainerProcess) else None
        process = running.process if container is None else container.client
        assert lease_s is not None
        assert isinstance(process, LeasedProcess)
        path = kept.directory_on(host) / f"{process.token}.json"
        content: dict[str, Any] = {
            "port": running.port,
            "log_path": str(running.log_path),
            "started_unix_s": record.started_unix_s,
            "model_path": running.info.model_path,
            "device": self._settings.device,
            "host": host.name,
            "container": None if container is None else container.as_json(),
            "gpus": [dataclasses.asdict(gpu) for gpu in gpus],
            "plugin_version": version("pytest-specdec"),
            "launch": dataclasses.asdict(dataclasses.replace(record, adopted=False)),
        }
        try:
            running.check_alive()
            process.keep(lease_s=lease_s, path=str(path), record=kept.record_of(identity, **content))
        except InfrastructureError as error:
            self._notify(f"{record.spec_name} is not kept: {error}")
            return False
        self._notify(f"{record.spec_name} is kept up for {lease_s:g} s; see `pytest-specdec servers`")
        return True

    def close(self) -> None:
        """Let go of what was taken on this machine."""
        if self._here is not None:
            self._here.close()


def _confirmed(server: KeptServer, client: Client) -> ServerInfo:
    """Ask whether it is that server which answers, and whether it generates."""
    info = client.server_info()
    if info.port not in (None, server.port) or info.model_path != server.content["model_path"]:
        raise LaunchError(f"on its port {server.port} another server answers, with {info.model_path!r}")
    client.generate_once("Hello", max_new_tokens=2, timeout_s=_GENERATION_TIMEOUT_S)
    return info


def _gpus(server: KeptServer) -> tuple[Gpu, ...]:
    return tuple(Gpu(**gpu) for gpu in server.content["gpus"])


def _called(server: KeptServer) -> str:
    return f"the kept server {server.id} ({server.spec_name}, up for {server.up_s / 60:.0f} min)"


def _moment(unix_s: float) -> str:
    return dt.datetime.fromtimestamp(unix_s).astimezone().isoformat(sep=" ", timespec="seconds")
