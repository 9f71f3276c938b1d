"""The wait for one launch: ready, or the reason why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from pytest_specdec.client import Generated, ServerInfo
from pytest_specdec.clock import Clock
from pytest_specdec.diagnose import exit_meaning, explain
from pytest_specdec.errors import LaunchError, ServerRequestError
from pytest_specdec.hosts import Process
from pytest_specdec.logwatch import LogWatch, last_lines, telling_lines
from pytest_specdec.spec import ServerSpec

POLL_S: Final = 0.1
#: How long a launcher that has said its last words may take to end: SGLang sleeps five seconds for diagnostics.
DYING_PATIENCE_S: Final = 10.0
#: How long a server is given to be seen dead, after a request of ours was cut off.
SETTLE_S: Final = 0.5
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


def exit_within(process: Process, clock: Clock, patience_s: float) -> int | None:
    """The exit code, waited for a little; None when it still runs."""
    deadline = clock.monotonic() + patience_s
    while (code := process.poll()) is None and clock.monotonic() < deadline:
        clock.sleep(POLL_S)
    return code


def launch_error(spec: ServerSpec, watch: LogWatch, what: str, code: int | None) -> LaunchError:
    """Say what happened to a server that has died, with its diagnosis and the telling lines of its log."""
    watch.poll()
    lines = [f"{spec.name}: {what}" + ("" if code is None else f" ({exit_meaning(code)})")]
    lines += [f"  phase:     {watch.phase}", f"  command:   {spec.masked_command}", f"  log:       {watch.path}"]
    lines += [f"  {line}" for line in explain(watch.text, code)]
    lines += [f"  | {line}" for line in telling_lines(watch.text)]
    return LaunchError("\n".join(lines), log_path=str(watch.path), exit_code=code)


@dataclass(slots=True, kw_only=True)
class Waiting:
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
        raise launch_error(self.spec, self.watch, f"the server did not start: it died after {self._age()}", code)

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
            patience_s = DYING_PATIENCE_S if self.watch.dying else SETTLE_S
            code = exit_within(self.process, self.clock, patience_s)
            what = f"the server was ready, but its first generation failed: {error}"
            raise launch_error(self.spec, self.watch, what, code) from None
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
