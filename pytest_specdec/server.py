"""The life of one SGLang server: start, ready or the reason why not, alive or the reason why not, end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pytest_specdec import containers
from pytest_specdec.activity import Activity
from pytest_specdec.client import ServerInfo
from pytest_specdec.clock import Clock
from pytest_specdec.errors import LaunchError
from pytest_specdec.hosts import Host, Process
from pytest_specdec.in_use import Sentinel
from pytest_specdec.log_trouble import trouble_of
from pytest_specdec.logwatch import LogWatch
from pytest_specdec.progress import Progress
from pytest_specdec.readiness import DYING_PATIENCE_S, SETTLE_S, ClientFactory, Waiting, exit_within, launch_error
from pytest_specdec.spec import ServerSpec
from pytest_specdec.stopping import StopReport, ended_on_error, stop_process


class RunningServer:
    """A server that is ready. ``stop`` ends it and everything it started.

    ``ready_s`` is the time from the start to readiness, ``phase_s`` where it went, ``info`` what ``/server_info``
    said then.
    """

    def __init__(
        self,
        *,
        spec: ServerSpec,
        port: int,
        url: str,
        process: Process,
        watch: LogWatch,
        clock: Clock,
        info: ServerInfo,
        ready_s: float,
        phase_s: Mapping[str, float],
    ) -> None:
        self.spec = spec
        self.port = port
        self.url = url
        self.process = process
        self.log_path = watch.path
        self.info = info
        self.ready_s = ready_s
        self.phase_s = phase_s
        self._watch = watch
        self._clock = clock
        self._sentinel = Sentinel(process, watch, clock, patience_s=DYING_PATIENCE_S)
        self._stopped: StopReport | None = None

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        """Around requests: ends a server that has said that a part of it died, and shows the log with their errors.

        Nothing else of this object may be used meanwhile.
        """
        return self._sentinel.watching()

    def check_alive(self) -> None:
        """Raise :class:`LaunchError` with the telling lines of the log when the server has died.

        A server whose launcher lives but has said that a part of it died counts as dead: it serves nothing.
        """
        if self._stopped is not None:
            raise LaunchError(f"{self.spec.name}: the server was stopped", log_path=str(self.log_path))
        self._watch.poll()
        code = exit_within(self.process, self._clock, DYING_PATIENCE_S if self._watch.dying else SETTLE_S)
        if code is None and self._watch.dying is None:
            return
        what = (
            "a part of the server died while serving, and the rest had to be killed"
            if self._sentinel.ended
            else ("the server died while serving")
        )
        raise launch_error(self.spec, self._watch, what, None if self._sentinel.ended else code)

    def stop(self) -> StopReport:
        """End the whole group: SIGTERM, patience, SIGKILL; returns when nothing of it is left."""
        if self._stopped is None:
            # The group is gone only when this returns; one that was interrupted is tried again.
            self._stopped = stop_process(self.process, self._clock, what=self.spec.name)
        return self._stopped


def launch(
    host: Host,
    spec: ServerSpec,
    *,
    python: str | None,
    clock: Clock,
    log_path: Path,
    client_factory: ClientFactory,
    startup_timeout_s: float,
    startup_limit_s: float,
    extra_env: Mapping[str, str],
    on_progress: Callable[[Progress], None],
    expected_s: float | None = None,
) -> RunningServer:
    """Start a server and wait until it is ready.

    Ready means: our process lives, the log says so (or ``/health`` does, for a log that lost the line),
    ``/server_info`` tells our model, our port and the spec's arguments, and one real generation works. ``/health``
    runs a token on the server; it is not asked afterwards. ``on_progress`` is told twice a second how far it is, and
    that it is expected to take ``expected_s``.

    Raises:
        LaunchError: it died, its port was taken, another server answers there, nothing moved (log, reading,
            compilers, GPU memory) for ``startup_timeout_s``, or ``startup_limit_s`` passed in all. The group is
            ended before anything is raised, an interrupt included.
        HostError: it could not be started.

    """
    refusal = containers.refusal(spec.launcher)
    if refusal is not None:
        raise LaunchError(f"{spec.name}: {refusal}")
    port = host.free_port()
    argv = spec.argv(python, ("--host", "127.0.0.1", "--port", str(port)), home=host.home())
    # A file that is there already tells of an earlier launch.
    size = len(host.read_from(log_path, 0))
    watch = LogWatch(host, log_path, size=size, trouble=partial(trouble_of, host, log_path))
    began = clock.monotonic()
    process = containers.start(
        host,
        argv,
        launcher=len(spec.launcher),
        env=environment(host, spec, extra_env),
        cwd=spec.cwd,
        log_path=log_path,
    )
    with ended_on_error(process, clock, spec.name):
        waiting = Waiting(
            spec=spec,
            model=argv[argv.index("--model-path") + 1],
            process=process,
            watch=watch,
            activity=Activity(host, gpus=not spec.runs_on_cpu),
            clock=clock,
            client=client_factory(host.url(port)),
            port=port,
            began=began,
            startup_timeout_s=startup_timeout_s,
            startup_limit_s=startup_limit_s,
            expected_s=expected_s,
            on_progress=on_progress,
        )
        info = waiting.until_ready()
        return RunningServer(
            spec=spec,
            port=port,
            url=host.url(port),
            process=process,
            watch=watch,
            clock=clock,
            info=info,
            ready_s=clock.monotonic() - began,
            phase_s=waiting.phase_s,
        )


def environment(host: Host, spec: ServerSpec, extra_env: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a launch: the host's, what the engine adds, and the spec's on top."""
    env = {**host.environ(), "PYTHONUNBUFFERED": "1", **extra_env, **spec.env}
    if "PYTHONPATH" in extra_env and "PYTHONPATH" in spec.env:
        env["PYTHONPATH"] = os.pathsep.join([extra_env["PYTHONPATH"], spec.env["PYTHONPATH"]])
    return env
