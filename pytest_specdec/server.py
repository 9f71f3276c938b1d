"""The life of one SGLang server: start, ready or the reason why not, alive or the reason why not, end."""

from __future__ import annotations

import contextlib
import os
import posixpath
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from pytest_specdec.client import Generated, ServerInfo
from pytest_specdec.clock import Clock
from pytest_specdec.diagnose import exit_meaning, explain
from pytest_specdec.errors import LaunchError, ServerRequestError
from pytest_specdec.hosts import Host, Process
from pytest_specdec.logwatch import LogWatch, last_lines, telling_lines
from pytest_specdec.spec import ServerSpec

POLL_S: Final = 0.1
#: SGLang sleeps five seconds for its own diagnostics when it is told to stop.
TERM_PATIENCE_S: Final = 15.0
KILL_PATIENCE_S: Final = 10.0
#: How long a launcher that has said its last words may take to end; those five seconds again.
DYING_PATIENCE_S: Final = 10.0
#: How long a server is given to be seen dead, after a request of ours was cut off.
_SETTLE_S: Final = 0.5
#: ``/health`` answers 503 until the server is up. It is asked because the log line can be swallowed, and believed
#: without that line only when it has said 200 for a while: before 0.5 it did so before the warm-up.
_HEALTH_EVERY_S: Final = 1.0
_HEALTH_TIMEOUT_S: Final = 5.0
_HEALTHY_FOR_S: Final = 2.0
_GENERATION_TIMEOUT_S: Final = 120.0
#: How often a launch that stays in one phase is mentioned.
_MENTION_EVERY_S: Final = 60.0


class Client(Protocol):
    """What readiness asks of a server over HTTP."""

    def health(self, *, timeout_s: float = ...) -> int | None:
        """Return the status of ``/health``, None when nothing listens."""

    def server_info(self) -> ServerInfo:
        """Return what ``/server_info`` says."""

    def generate_once(self, text: str, *, max_new_tokens: int, timeout_s: float = ...) -> Generated:
        """Generate for real, once."""


ClientFactory = Callable[[str], Client]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """How a server ended: ``already-dead``, ``term`` or ``kill``, and how long it took."""

    how: str
    seconds: float


class RunningServer:
    """A server that is ready. ``stop`` ends it and everything it started.

    ``ready_s`` is the time from the start to readiness, ``info`` what ``/server_info`` said then.
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
    ) -> None:
        self.spec = spec
        self.port = port
        self.url = url
        self.process = process
        self.log_path = watch.path
        self.info = info
        self.ready_s = ready_s
        self._watch = watch
        self._clock = clock
        self._stopped: StopReport | None = None

    def check_alive(self) -> None:
        """Raise :class:`LaunchError` with the telling lines of the log when the server has died.

        A server whose launcher lives but has said that a part of it died counts as dead: it serves nothing.
        """
        if self._stopped is not None:
            raise LaunchError(f"{self.spec.name}: the server was stopped", log_path=str(self.log_path))
        self._watch.poll()
        code = _exit_within(self.process, self._clock, DYING_PATIENCE_S if self._watch.dying else _SETTLE_S)
        if code is None and self._watch.dying is None:
            return
        raise _launch_error(self.spec, self._watch, "the server died while serving", code)

    def stop(self) -> StopReport:
        """End the whole group: SIGTERM, patience, SIGKILL; returns when nothing of it is left."""
        if self._stopped is None:
            # The group is gone only when this returns; one that was interrupted is tried again.
            self._stopped = stop_process(self.process, self._clock, what=self.spec.name)
        return self._stopped


def _exit_within(process: Process, clock: Clock, patience_s: float) -> int | None:
    """The exit code, waited for a little; None when it still runs."""
    deadline = clock.monotonic() + patience_s
    while (code := process.poll()) is None and clock.monotonic() < deadline:
        clock.sleep(POLL_S)
    return code


def stop_process(process: Process, clock: Clock, *, what: str) -> StopReport:
    """End a process group; raises :class:`LaunchError` naming the process ids that survive SIGKILL.

    Interrupted itself, it kills the group before it lets the interrupt pass.
    """
    began = clock.monotonic()
    if not process.members():
        process.forget()
        return StopReport(how="already-dead", seconds=0.0)
    try:
        how = _end(process, clock, what)
    except BaseException:
        process.signal(signal.SIGKILL)
        raise
    process.forget()
    return StopReport(how=how, seconds=clock.monotonic() - began)


def _end(process: Process, clock: Clock, what: str) -> str:
    process.signal(signal.SIGTERM)
    if _gone(process, clock, TERM_PATIENCE_S):
        return "term"
    process.signal(signal.SIGKILL)
    if _gone(process, clock, KILL_PATIENCE_S):
        return "kill"
    left = ", ".join(map(str, process.members()))
    raise LaunchError(
        f"{what}: waited {KILL_PATIENCE_S:g} s after SIGKILL for processes {left} to end; they are in an "
        "uninterruptible call, for example of a GPU driver. End them before the next launch"
    )


def _gone(process: Process, clock: Clock, patience_s: float) -> bool:
    deadline = clock.monotonic() + patience_s
    while process.poll() is None or process.members():
        if clock.monotonic() >= deadline:
            return False
        clock.sleep(POLL_S)
    return True


def _launch_error(spec: ServerSpec, watch: LogWatch, what: str, code: int | None) -> LaunchError:
    watch.poll()
    lines = [f"{spec.name}: {what}" + ("" if code is None else f" ({exit_meaning(code)})")]
    lines += [f"  phase:     {watch.phase}", f"  command:   {spec.masked_command}", f"  log:       {watch.path}"]
    lines += [f"  {line}" for line in explain(watch.text, code)]
    lines += [f"  | {line}" for line in telling_lines(watch.text)]
    return LaunchError("\n".join(lines), log_path=str(watch.path), exit_code=code)


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
    on_progress: Callable[[str], None],
) -> RunningServer:
    """Start a server and wait until it is ready.

    Ready means: our process lives, the log says so (or ``/health`` does, for a log that lost the line),
    ``/server_info`` tells our model and our port, and one real generation works. ``/health`` runs a token on
    the server; it is not asked afterwards.

    Raises:
        LaunchError: it died, its port was taken, another server answers there, nothing new came for
            ``startup_timeout_s``, or ``startup_limit_s`` passed in all. The group is ended before anything is
            raised, an interrupt included.
        HostError: it could not be started.

    """
    _refuse_own_network(spec)
    port = host.free_port()
    argv = spec.argv(python, ("--host", "127.0.0.1", "--port", str(port)), home=host.home())
    # A file that is there already tells of an earlier launch.
    watch = LogWatch(host, log_path, size=len(host.read_from(log_path, 0)))
    began = clock.monotonic()
    process = host.spawn(argv, env=environment(host, spec, extra_env), cwd=spec.cwd, log_path=log_path)
    with _ended_on_error(process, clock, spec.name):
        waiting = _Waiting(
            spec=spec,
            model=argv[argv.index("--model-path") + 1],
            process=process,
            watch=watch,
            clock=clock,
            client=client_factory(host.url(port)),
            port=port,
            began=began,
            startup_timeout_s=startup_timeout_s,
            startup_limit_s=startup_limit_s,
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
        )


def environment(host: Host, spec: ServerSpec, extra_env: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a launch: the host's, what the engine adds, and the spec's on top."""
    env = {**host.environ(), "PYTHONUNBUFFERED": "1", **extra_env, **spec.env}
    if "PYTHONPATH" in extra_env and "PYTHONPATH" in spec.env:
        env["PYTHONPATH"] = os.pathsep.join([extra_env["PYTHONPATH"], spec.env["PYTHONPATH"]])
    return env


def _refuse_own_network(spec: ServerSpec) -> None:
    """A container with a network of its own can't be reached at a port that is chosen after its spec was written."""
    container = next((w for w in spec.launcher if posixpath.basename(w) in ("docker", "podman", "nerdctl")), None)
    if container is None or "run" not in spec.launcher or _shares_network(spec.launcher):
        return
    raise LaunchError(
        f"{spec.name}: its container has a network of its own, where the port that is chosen for each launch can't "
        f"be reached; add --network=host to `{container} run`"
    )


def _shares_network(launcher: Sequence[str]) -> bool:
    joined = " ".join(launcher).replace("=", " ")
    return "--network host" in joined or "--net host" in joined


@contextlib.contextmanager
def _ended_on_error(process: Process, clock: Clock, what: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        stop_process(process, clock, what=what)
        raise


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """The wait for one launch."""

    spec: ServerSpec
    model: str
    process: Process
    watch: LogWatch
    clock: Clock
    client: Client
    port: int
    began: float
    startup_timeout_s: float
    startup_limit_s: float
    on_progress: Callable[[str], None]
    progress_at: float = field(init=False)
    next_health: float = field(init=False)
    healthy_since: float | None = None
    dying_since: float | None = None
    http_said: str = "nothing"

    def until_ready(self) -> ServerInfo:
        """Poll process and log, and HTTP beside them."""
        self.progress_at = self.next_health = self.began
        shown, shown_at = self.watch.phase, self.began
        while True:
            now = self.clock.monotonic()
            if self.watch.poll():
                self.progress_at = now
            self._fail_if_dead(now)
            if self.watch.phase != shown or now - shown_at >= _MENTION_EVERY_S:
                shown, shown_at = self.watch.phase, now
                self.on_progress(f"{self.spec.name}: {shown} after {now - self.began:.1f} s")
            if self._answers(now):
                info = self._confirmed()
                if info is not None:
                    # Known from now on, should one of them outlive the launcher.
                    self.process.members()
                    return info
            self._check_deadlines()
            self.clock.sleep(POLL_S)

    def _fail_if_dead(self, now: float) -> None:
        code = self.process.poll()
        if code is None:
            if self.watch.bind_error is not None:
                # SGLang would hang for two minutes now.
                raise self._failure(f"port {self.port} was taken while it loaded: {self.watch.bind_error}")
            if self.watch.dying is None:
                return
            if self.dying_since is None:
                self.dying_since = now
            if now - self.dying_since < DYING_PATIENCE_S:
                return
        raise _launch_error(self.spec, self.watch, f"the server did not start: it died after {self._age()}", code)

    def _answers(self, now: float) -> bool:
        """Whether it is time to ask more: the log says ready, or ``/health`` has for a while."""
        if self.watch.ready:
            return True
        if now >= self.next_health:
            status = self.client.health(timeout_s=_HEALTH_TIMEOUT_S)
            self.http_said = "nothing" if status is None else f"HTTP {status} to /health"
            if status != 200:
                self.healthy_since = None
            elif self.healthy_since is None:
                self.healthy_since = now
            self.next_health = self.clock.monotonic() + _HEALTH_EVERY_S
        return self.healthy_since is not None and now - self.healthy_since >= _HEALTHY_FOR_S

    def _confirmed(self) -> ServerInfo | None:
        """Check that it is ours that answers, and that it can generate; None when it should be asked again."""
        try:
            info = self.client.server_info()
        except ServerRequestError as error:
            self.http_said = str(error)
            return None
        if not self._is_ours(info):
            raise self._failure(
                f"another server answers on port {self.port}: it serves {info.model_path!r} on port {info.port}, "
                f"not {self.model!r}"
            )
        try:
            self.client.generate_once("Hello", max_new_tokens=2, timeout_s=_GENERATION_TIMEOUT_S)
        except ServerRequestError as error:
            self.watch.poll()
            patience_s = DYING_PATIENCE_S if self.watch.dying else _SETTLE_S
            code = _exit_within(self.process, self.clock, patience_s)
            what = f"the server was ready, but its first generation failed: {error}"
            raise _launch_error(self.spec, self.watch, what, code) from None
        return info

    def _is_ours(self, info: ServerInfo) -> bool:
        if info.port not in (None, self.port):
            return False
        # A model that is fetched by its id may be told as the directory it was put in.
        told, ours = (info.model_path or self.model).rstrip("/"), self.model.rstrip("/")
        return told == ours or told.endswith("/" + ours)

    def _age(self) -> str:
        return f"{self.clock.monotonic() - self.began:.1f} s"

    def _check_deadlines(self) -> None:
        now = self.clock.monotonic()
        silent_s, total_s = now - self.progress_at, now - self.began
        if silent_s >= self.startup_timeout_s:
            why = f"its log showed no progress for {silent_s:.0f} s (--specdec-startup-timeout)"
        elif total_s >= self.startup_limit_s:
            why = f"{total_s:.0f} s have passed (--specdec-startup-limit)"
        else:
            return
        raise self._failure(
            f"waited for the server to be ready until {why}; last phase {self.watch.phase}, last progress "
            f"{silent_s:.0f} s ago, over HTTP it said {self.http_said}"
        )

    def _failure(self, what: str) -> LaunchError:
        """Of a server that is still running: the end of its log says what it is about."""
        lines = [
            f"{self.spec.name}: {what}",
            f"  command:   {self.spec.masked_command}",
            f"  log:       {self.watch.path}",
            *(f"  {line}" for line in explain(self.watch.text)),
        ]
        lines += [f"  | {line}" for line in last_lines(self.watch.text)]
        return LaunchError("\n".join(lines), log_path=str(self.watch.path))
