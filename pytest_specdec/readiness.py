"""The wait for one launch: ready, or the reason why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from pytest_specdec.activity import Activity, Look
from pytest_specdec.agreement import disagreements, same_model
from pytest_specdec.client import Generated, ServerInfo
from pytest_specdec.clock import Clock
from pytest_specdec.diagnose import diagnose, exit_meaning, explain, knows_why
from pytest_specdec.errors import FailureCause, LaunchError, ServerRequestError
from pytest_specdec.hosts import Process
from pytest_specdec.logwatch import LogWatch, last_lines, telling_lines
from pytest_specdec.progress import Progress
from pytest_specdec.spec import ServerSpec

POLL_S: Final = 0.1
#: Over SSH every look at the log is a process and a round trip: the pause follows what a look costs, up to this.
_LONGEST_PAUSE_S: Final = 0.3
#: How long a launcher that has said its last words may take to end: SGLang sleeps five seconds for diagnostics.
DYING_PATIENCE_S: Final = 10.0
#: How long a server is given to be seen dead, after a request of ours was cut off.
SETTLE_S: Final = 0.5
#: ``/health`` answers 503 until the server is up. It is asked because the log line can be swallowed, and believed
#: without that line only when it has said 200 for a while: before 0.5 it did so before the warm-up. From then on an
#: answer takes a second and a generated token, so it is asked only while the log is silent, right after a look at it:
#: the ready line is not waited for behind such a request.
_HEALTH_EVERY_S: Final = 1.0
_HEALTH_TIMEOUT_S: Final = 5.0
_HEALTHY_FOR_S: Final = 2.0
_SILENT_FOR_HEALTH_S: Final = 3.0
#: How long a server may be out of reach that has said it is ready.
_UNREACHABLE_S: Final = 60.0
_GENERATION_TIMEOUT_S: Final = 120.0
#: When a log is silent for so long, the host is asked what moves, and again after as long.
_LOOK_EVERY_S: Final = 10.0
#: How often progress is shown, and how often a launch that stays in one phase is worth a line of its own.
_SHOW_EVERY_S: Final = 0.5
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
    trouble = watch.trouble()
    if trouble is not None:
        lines.append(
            f"  the log can't be written ({trouble}): it may end before the reason, and a server can die of that. "
            "Free space there, or put it elsewhere with --specdec-report=DIR"
        )
    cause = None
    if trouble is None or knows_why(watch.text, code):
        lines += [f"  {line}" for line in explain(watch.text, code)]
        cause = _cause(watch, code)
    lines += [f"  | {line}" for line in telling_lines(watch.text)]
    return LaunchError("\n".join(lines), log_path=str(watch.path), exit_code=code, cause=cause)


def _cause(watch: LogWatch, code: int | None = None) -> FailureCause:
    found = diagnose(watch.text, exit_code=code)
    names = () if found.category == "ok" else (found.diagnosis,)
    return FailureCause(names=names, category=found.category, phase=found.phase, exit_code=found.exit_code)


@dataclass(slots=True, kw_only=True)
class Waiting:
    """The wait for one launch. ``phase_s`` are the seconds spent in each phase so far, in their order."""

    spec: ServerSpec
    model: str
    process: Process
    watch: LogWatch
    activity: Activity
    clock: Clock
    client: Client
    port: int
    began: float
    startup_timeout_s: float
    startup_limit_s: float
    expected_s: float | None
    on_progress: Callable[[Progress], None]
    phase_s: dict[str, float] = field(default_factory=dict)
    #: Times of the log's last byte, of its last line that shows progress, and of the last look that saw something move.
    byte_at: float = field(init=False)
    line_at: float = field(init=False)
    moved_at: float = field(init=False)
    looked_at: float = field(init=False)
    looked: Look | None = None
    next_health: float = field(init=False)
    healthy_since: float | None = None
    dying_since: float | None = None
    http_said: str = "nothing"
    _counted_at: float = field(init=False)
    _shown_at: float = field(init=False)
    _mentioned_at: float = field(init=False)
    _mentioned: str = field(init=False)

    def until_ready(self) -> ServerInfo:
        """Poll process and log, and HTTP beside them."""
        self.byte_at = self.line_at = self.moved_at = self.looked_at = self.began
        self._counted_at = self._mentioned_at = self.began
        self._shown_at = self.began - _SHOW_EVERY_S
        self._mentioned = self.watch.phase
        # The first request is made while there is time: it loads the HTTP library.
        self.next_health = self.began
        while True:
            now = self.clock.monotonic()
            self._read_log(now)
            cost_s = self.clock.monotonic() - now
            self._fail_if_dead(now)
            self._show(now)
            if self._answers(now):
                info = self._confirmed()
                if info is not None:
                    # Known from now on, should one of them outlive the launcher.
                    self.process.members()
                    self._count(self.clock.monotonic())
                    return info
            self._look_closer(now)
            self._check_deadlines()
            self.clock.sleep(min(max(POLL_S, 2 * cost_s), _LONGEST_PAUSE_S))

    def _read_log(self, now: float) -> None:
        self._count(now)
        size = self.watch.size
        if self.watch.poll():
            self.line_at, self.looked = now, None
        if self.watch.size != size:
            self.byte_at = now

    def _count(self, now: float) -> None:
        """Give the time since the last count to the phase that the log was in."""
        self.phase_s[self.watch.phase] = self.phase_s.get(self.watch.phase, 0.0) + now - self._counted_at
        self._counted_at = now

    def _look_closer(self, now: float) -> None:
        """Ask the host what moves, while the log shows nothing new: a load may say nothing for minutes."""
        if now - max(self.line_at, self.looked_at) < _LOOK_EVERY_S:
            return
        if self.looked is None:
            self.activity.start_over()
        self.looked_at = now
        self.looked = self.activity.look(self.process.members())
        if self.looked.moved:
            self.moved_at = now

    def _show(self, now: float) -> None:
        # That it is ready is said by whoever waits, with where its time went.
        new_phase = self.watch.phase not in (self._mentioned, "ready")
        mention = new_phase or now - self._mentioned_at >= _MENTION_EVERY_S
        if not mention and now - self._shown_at < _SHOW_EVERY_S:
            return
        self._shown_at = now
        if mention:
            self._mentioned, self._mentioned_at = self.watch.phase, now
        self.on_progress(
            Progress(
                name=self.spec.name,
                phase=self.watch.phase,
                bar=self.watch.bar,
                elapsed_s=now - self.began,
                expected_s=self.expected_s,
                silent_s=now - self.byte_at,
                moved=() if self.looked is None else self.looked.moved,
                mention=mention,
            )
        )

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
        silent = self.next_health == self.began or now - self.line_at >= _SILENT_FOR_HEALTH_S
        if silent and now >= self.next_health:
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
            self._fail_if_unreachable()
            return None
        if not self._is_ours(info):
            raise self._failure(
                f"another server answers on port {self.port}: it serves {info.model_path!r} on port {info.port}, "
                f"not {self.model!r}. End it, or wait for another port",
                explained=False,
            )
        differences = disagreements(self.spec, info)
        if differences:
            raise self._failure(
                f"the server on port {self.port} is not what the spec asks for: {'; '.join(differences)}"
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

    def _fail_if_unreachable(self) -> None:
        """A server that says it is ready is up: what keeps its answers away stands between it and us."""
        silent_s = self.clock.monotonic() - self.line_at
        if self.watch.ready and silent_s >= _UNREACHABLE_S:
            raise self._failure(
                f"its log says that it is ready, and for {silent_s:.0f} s nothing could be asked of it: "
                f"{self.http_said}. Over SSH this is how a host looks whose sshd allows no TCP forwarding "
                "(AllowTcpForwarding)",
                explained=False,
            )

    def _is_ours(self, info: ServerInfo) -> bool:
        if info.port not in (None, self.port):
            return False
        return info.model_path is None or same_model(self.model, info.model_path)

    def _age(self) -> str:
        return f"{self.clock.monotonic() - self.began:.1f} s"

    def _check_deadlines(self) -> None:
        now = self.clock.monotonic()
        idle_s, total_s = now - max(self.line_at, self.moved_at), now - self.began
        if idle_s >= self.startup_timeout_s:
            why = f"nothing showed progress for {idle_s:.0f} s (--specdec-startup-timeout)"
        elif total_s >= self.startup_limit_s:
            why = f"{total_s:.0f} s have passed (--specdec-startup-limit)"
        else:
            return
        raise self._failure(
            f"waited for the server to be ready until {why}; last phase {self._last_phase()}, last byte of its log "
            f"{now - self.byte_at:.0f} s ago, last progress {idle_s:.0f} s ago, {self._last_look(now)}"
            f"over HTTP it said {self.http_said}"
        )

    def _last_phase(self) -> str:
        bar = self.watch.bar
        return self.watch.phase if bar is None else f"{self.watch.phase} at step {bar.done} of {bar.total}"

    def _last_look(self, now: float) -> str:
        return "" if self.looked is None else f"seen {now - self.looked_at:.0f} s ago: {self.looked.told}; "

    def _failure(self, what: str, *, explained: bool = True) -> LaunchError:
        """Of a server that is still running: the end of its log says what it is about, as does a diagnosis of it."""
        lines = [
            f"{self.spec.name}: {what}",
            f"  command:   {self.spec.masked_command}",
            f"  log:       {self.watch.path}",
            *(f"  {line}" for line in (explain(self.watch.text) if explained else [])),
        ]
        lines += [f"  | {line}" for line in last_lines(self.watch.text)]
        cause = _cause(self.watch) if explained else None
        return LaunchError("\n".join(lines), log_path=str(self.watch.path), cause=cause)
