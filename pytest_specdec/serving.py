"""Launching and measuring for a session: the host, the Python that runs SGLang, the launches, their rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pytest_specdec import attach, bench, chat_template, engine_env, fingerprint, gpus, metrics, preflight, server
from pytest_specdec.client import ServerClient
from pytest_specdec.clock import Clock, SystemClock
from pytest_specdec.errors import (
    DisagreementError,
    FailureCause,
    HostError,
    InfrastructureError,
    LaunchError,
    ServerRequestError,
)
from pytest_specdec.host_pool import HostPool, Seat
from pytest_specdec.hosts import Host, LocalHost, PythonFound, find_python
from pytest_specdec.keeping import Keeping
from pytest_specdec.kept import Identity
from pytest_specdec.launch_history import LaunchHistory, PastLaunch
from pytest_specdec.model import ChatTemplate, LaunchRecord, LaunchRounds, Round
from pytest_specdec.observed import ServerMark
from pytest_specdec.plan import PlannedMeasurement
from pytest_specdec.pool import Served
from pytest_specdec.preflight import Preflight
from pytest_specdec.progress import Progress, phases_line
from pytest_specdec.results import Recorder
from pytest_specdec.served import ServedHere, ServedThere, ServerLog
from pytest_specdec.settings import ANY_HOST, Device, Settings
from pytest_specdec.spec import ServerSpec

Notify = Callable[[str], None]
#: Shows how far a launch is; None when none is waited for any more.
Show = Callable[[Progress | None], None]


class Serving:
    """Starts servers and measures on them, for one session."""

    def __init__(self, settings: Settings, recorder: Recorder, *, worker: int, notify: Notify, show: Show) -> None:
        self._settings = settings
        self._recorder = recorder
        self._notify = notify
        self._show = show
        self._clock: Clock = SystemClock()
        self._hosts = HostPool(settings, first=worker, clock=self._clock, notify=notify)
        self._keeping = Keeping(settings, clock=self._clock, notify=notify)
        self._pythons: dict[str | None, PythonFound] = {}
        self._told: set[str] = set()
        self._templates: dict[str, ChatTemplate] = {}
        self.failures: list[dict[str, Any]] = []
        self._started = dt.datetime.now(dt.timezone.utc)

    @property
    def host(self) -> Host:
        """Where servers run. Raises :class:`HostError` when no host can be used, or nothing is known of it."""
        if self._settings.url is not None:
            raise HostError(f"of the host behind {self._settings.url} (--specdec-url) no more is known than its server")
        return self._hosts.host

    def close(self) -> None:
        """Let go of the hosts."""
        self._keeping.close()
        self._hosts.close()

    @cached_property
    def node(self) -> fingerprint.NodeFacts:
        """The hardware, under the name that ``--specdec-node`` gives it or the one derived from it."""
        if self._settings.url is not None:
            slug = self._settings.node or attach.UNKNOWN_NODE
            return fingerprint.NodeFacts(slug=slug, kind=self._settings.device, facts={})
        facts = fingerprint.node_facts(self.host, device=self._settings.device)
        return facts if self._settings.node is None else dataclasses.replace(facts, slug=self._settings.node)

    def python(self, spec: ServerSpec) -> PythonFound | None:
        """Return the Python that runs SGLang for this spec; None when its launcher (a container) brings one."""
        return None if spec.launcher_brings_python else self.engine_python(spec.python)

    def engine_python(self, of_spec: str | None = None) -> PythonFound:
        """Return the Python that has SGLang and torch, where a spec may name one; raises :class:`HostError`."""
        if of_spec not in self._pythons:
            given = self._settings.python
            self._pythons[of_spec] = find_python(
                self.host,
                explicit=given.get(self._hosts.given_name, given.get(ANY_HOST)),
                explicit_where=self._settings.where["python"],
                spec_python=of_spec,
            )
        return self._pythons[of_spec]

    @contextlib.contextmanager
    def held(self, what: str) -> Iterator[Host]:
        """Have the host to ourselves for something that is no server; raises :class:`HostError`."""
        seat = self._hosts.take_whole(what)
        try:
            yield seat.host
        finally:
            seat.release()

    def say(self, line: str) -> None:
        """Write a line for whoever watches the session."""
        self._notify(line)

    @cached_property
    def _history(self) -> LaunchHistory:
        return LaunchHistory(engine_env.cache_root(os.environ) / "launches.json")

    def expected_s(self, spec: ServerSpec) -> float | None:
        """How long a launch of this spec took on this host the last time; None where that is not known."""
        host = self._hosts.likely_name
        last = None if host is None or self._settings.url else self._history.last(spec.content_hash, host)
        return None if last is None else last.ready_s

    def start(self, spec: ServerSpec, index: int) -> ServedHere | ServedThere:
        """Bring a server up; raises :class:`InfrastructureError`, after noting it for the report."""
        try:
            if self._settings.url is not None:
                return attach.attach(self._settings, spec, started_unix_s=self._clock.time())
            # With the host to ourselves: another session's server would look like a busy GPU.
            seat = self._hosts.take(spec)
            try:
                return self._start(spec, index, seat)
            except BaseException:
                seat.release()
                raise
        except DisagreementError:
            raise
        except InfrastructureError as error:
            self._failed_to_start(spec, index, error)
            raise

    def failed(self, server: str, reason: str, *, command: str = "", launch: int = 0) -> None:
        """Note for the report that something went wrong with a server."""
        self.failures.append({"server": server, "command": command, "launch": launch, "reason": reason})

    def _failed_to_start(self, spec: ServerSpec, index: int, error: InfrastructureError) -> None:
        """Note a launch that failed; of what was no fault of the spec's, such as a lost host, no diagnosis is known."""
        self.failed(spec.name, str(error), command=spec.masked_command, launch=index)
        found = self._pythons.get(spec.python)
        launch = error if isinstance(error, LaunchError) else None
        names = () if launch is None or launch.cause is None else launch.cause.names
        self.failures[-1] |= {
            "spec_hash": spec.content_hash,
            "diagnosis": next(iter(names), None),
            "log_path": None if launch is None else launch.log_path,
            "sglang_version": None if found is None else found.sglang_version,
        }

    def _start(self, spec: ServerSpec, index: int, seat: Seat) -> ServedHere:
        host, node, found = seat.host, self.node, self.python(spec)
        extra_env = {**self._engine_env(spec), **seat.env}
        client_for = partial(ServerClient, api_key=spec.first("--api-key"))
        launched = self._with_models(spec, found)
        identity = Identity(
            spec_name=spec.name,
            spec_hash=spec.content_hash,
            sglang_version=None if found is None else found.sglang_version,
            python=None if found is None else found.path,
            environment=server.environment(host, launched, extra_env),
        )
        # Before the preflight: a server that was kept would look like a busy GPU.
        adopted = self._keeping.take(
            host, launched, identity, facts=partial(self._engine_facts, found), client_factory=client_for
        )
        if adopted is not None:
            running = adopted.running
            log = ServerLog(host, self._log_path(spec, index), written=running.log_path)
            record = dataclasses.replace(adopted.record, index=index, log_path=str(log.kept))
            settle = partial(self._wait_for_memory, spec, adopted.gpus)
            leave = partial(self._keeping.leave, host, running, identity, record, adopted.gpus)
            return ServedHere(running, record, client_for(running.url), seat, log, settle, leave)
        log = ServerLog(host, self._log_path(spec, index))
        launched = self._checked(launched, found, extra_env)
        self._notify(f"launching {spec.name} (launch {index + 1}): {spec.masked_command}")
        before = self._gpus_taken(launched, extra_env)
        started_unix_s = self._clock.time()
        try:
            running = server.launch(
                host,
                launched,
                python=None if found is None else found.path,
                clock=self._clock,
                log_path=log.written,
                client_factory=client_for,
                startup_timeout_s=self._settings.startup_timeout_s,
                startup_limit_s=self._settings.startup_limit_s,
                extra_env=extra_env,
                on_progress=self._show,
                expected_s=self.expected_s(spec),
            )
        except BaseException as error:
            self._show(None)
            log.keep()
            if isinstance(error, LaunchError):
                log.name_in(error)
            # Whoever interrupts does not want to wait.
            if isinstance(error, InfrastructureError):
                self._wait_for_memory(spec, before)
            raise
        settle = partial(self._wait_for_memory, spec, before)
        try:
            self._ready(spec, running, started_unix_s)
            record = self._record(spec, index, running, started_unix_s, node, found, log.kept, seat)
            leave = partial(self._keeping.leave, host, running, identity, record, before)
            return ServedHere(running, record, client_for(running.url), seat, log, settle, leave)
        except BaseException:
            running.stop()
            raise

    def launch_afresh(self, why: str) -> None:
        """Take no server that an earlier run left up."""
        self._keeping.fresh_because = why

    def keep(self, served: Served) -> None:
        """Leave a server up for the next run."""
        if isinstance(served, ServedHere):
            served.keep()

    def _engine_facts(self, found: PythonFound | None) -> Mapping[str, object]:
        return {} if found is None else fingerprint.engine_facts(self.host, found.path)

    def _engine_env(self, spec: ServerSpec) -> dict[str, str]:
        return engine_env.cpu_engine_environment(dict(os.environ)) if spec.runs_on_cpu else {}

    def _with_models(self, spec: ServerSpec, found: PythonFound | None) -> ServerSpec:
        """The spec with the paths of its tiny models, which are made when they are missing."""
        if found is None or not spec.tiny_models:
            return spec
        cache_dir = engine_env.cache_root(os.environ)
        return spec.with_paths(
            engine_env.tiny_model_paths(self.host, found.path, spec.tiny_models, cache_dir=cache_dir)
        )

    def _ready(self, spec: ServerSpec, running: server.RunningServer, started_unix_s: float) -> None:
        """Say where the time went, and remember it for the next launch."""
        self._notify(f"{spec.name}: ready after {running.ready_s:.1f} s: {phases_line(running.phase_s)}")
        past = PastLaunch(ready_s=running.ready_s, phase_s=running.phase_s)
        self._history.add(spec.content_hash, self.host.name, past, at_unix_s=started_unix_s)

    def preflight(self, spec: ServerSpec) -> Preflight:
        """Check a spec without starting a server; raises :class:`HostError` when the host does not answer.

        Of a server at ``--specdec-url`` it is asked whether it is this spec's; raises :class:`DisagreementError`.
        """
        if self._settings.url is not None:
            client = ServerClient(self._settings.url, api_key=spec.first("--api-key"))
            version = attach.asked(client, spec).version
            return Preflight(spec=spec, notices=(), problems=(), sglang_version=version)
        found = self.python(spec)
        return self._preflight(self._with_models(spec, found), found, self._engine_env(spec))

    def refuse(self, spec: ServerSpec) -> None:
        """Raise :class:`LaunchError` for a spec that can't be launched, after noting it for the report.

        Whose the GPUs are is not looked at: that is as it is when the launch comes.
        """
        found = self.python(spec)
        checked = self._preflight(self._with_models(spec, found), found, self._engine_env(spec), device="cpu")
        error = _refused(checked)
        if error is not None:
            self.died(spec, 0, error)
            raise error

    def died(self, spec: ServerSpec, index: int, error: InfrastructureError) -> None:
        """Note for the report a server that did not start, or died after it had."""
        self._failed_to_start(spec, index, error)

    def sglang_version(self, spec: ServerSpec) -> str | None:
        """Return the version of SGLang that a spec will run on, told before a launch; None where that is not known.

        Raises as :meth:`preflight` and :meth:`python` do.
        """
        found = None if self._settings.url is not None else self.python(spec)
        return self.preflight(spec).sglang_version if found is None else found.sglang_version

    def _preflight(
        self,
        spec: ServerSpec,
        found: PythonFound | None,
        extra_env: Mapping[str, str],
        *,
        device: Device | None = None,
    ) -> Preflight:
        return preflight.check(
            self.host,
            spec,
            python=None if found is None else found.path,
            env=server.environment(self.host, spec, extra_env),
            cache_dir=engine_env.cache_root(os.environ),
            device=device or self._settings.device,
            clock=self._clock,
        )

    def _checked(self, spec: ServerSpec, found: PythonFound | None, extra_env: Mapping[str, str]) -> ServerSpec:
        """Refuse what would fail after its weights are loaded; returns the spec as this SGLang spells its flags."""
        checked = self._preflight(spec, found, extra_env)
        error = _refused(checked)
        if error is not None:
            raise error
        for notice in checked.notices:
            if notice not in self._told:
                self._told.add(notice)
                self._notify(f"{spec.name}: {notice}")
        return checked.spec

    def _gpus_taken(self, spec: ServerSpec, extra_env: Mapping[str, str]) -> tuple[gpus.Gpu, ...]:
        """The GPUs that a launch will take, as they are before it."""
        if self._settings.device != "cuda" or spec.runs_on_cpu:
            return ()
        return gpus.gpus_taken(self.host, spec, env=server.environment(self.host, spec, extra_env))

    def _wait_for_memory(self, spec: ServerSpec, before: tuple[gpus.Gpu, ...]) -> None:
        """See to it that a server's memory is free again; what was measured stands, whatever comes of it."""
        try:
            held = gpus.memory_held(self.host, before, clock=self._clock)
        except HostError as error:
            held = f"whether its GPU memory is free again can't be told: {error}"
        if held is not None:
            self._notify(f"{spec.name}: {held}")

    def _log_path(self, spec: ServerSpec, index: int) -> Path:
        stamp = dt.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
        return self._recorder.log_dir / f"{stamp}-{spec.name}-{index}-{os.getpid()}.log"

    def _record(
        self,
        spec: ServerSpec,
        index: int,
        running: server.RunningServer,
        started_unix_s: float,
        node: fingerprint.NodeFacts,
        found: PythonFound | None,
        log_path: Path,
        seat: Seat,
    ) -> LaunchRecord:
        info = running.info
        facts = {
            **node.facts,
            **({} if seat.claim.gpus is None else {"shared_host_gpus": ",".join(seat.claim.gpus)}),
            **self._engine_facts(found),
            **fingerprint.environment_variables({**self.host.environ(), **spec.env, **seat.env}),
            **fingerprint.simulated_acceptance(self.host, running.process.members()),
            **info.facts,
        }
        return LaunchRecord(
            index=index,
            spec_name=spec.name,
            spec_hash=spec.content_hash,
            command=spec.masked_command,
            host=self.host.name,
            node=node.slug,
            started_unix_s=started_unix_s,
            ready_s=running.ready_s,
            log_path=str(log_path),
            sglang_version=info.version or (None if found is None else found.sglang_version),
            drafting=info.drafting,
            server_args=info.args,
            facts=facts,
            phase_s=running.phase_s,
        )

    def measure(self, served: Served, planned: PlannedMeasurement) -> LaunchRounds:
        """Take one measurement on a running server; every round is on disk before the next begins."""
        assert isinstance(served, (ServedHere, ServedThere))
        measurement = planned.measurement
        concurrency = measurement.concurrency
        template = self._template(measurement.spec) if measurement.chat_template else None

        def on_round(done: Round) -> None:
            self._recorder.round_done(measurement, served.record, done)
            found = metrics.round_metrics(done, concurrency)
            speed = found.get("decode_tok_s")
            self._notify(
                f"{measurement.key}: {'warm-up' if done.warmup else 'round'} {done.index + 1}"
                + ("" if speed is None else f", decode {speed:.1f} tok/s")
                + (f", accept length {found['accept_length']:.3f}" if "accept_length" in found else "")
            )

        with served.in_use(), served.watch(self._clock) as watch:
            warmup, rounds = bench.measure(
                served.client,
                measurement,
                rounds=planned.rounds,
                warmup=planned.warmup,
                flush=served.record.cache_flushed,
                template=template,
                clock=self._clock,
                on_round=on_round,
                watch=watch,
            )
        marks = self._marks(served)
        return LaunchRounds(launch=served.record, warmup=warmup, rounds=rounds, template=template, marks=marks)

    @staticmethod
    def _marks(served: ServedHere | ServedThere) -> tuple[ServerMark, ServerMark] | None:
        """Which start of the server it was at readiness, and which it is now; None when it doesn't say."""
        try:
            return served.info.mark, served.client.server_info().mark
        except ServerRequestError:
            return None

    def _template(self, spec: ServerSpec) -> ChatTemplate:
        """The chat template of a spec's model, asked for once. Raises :class:`HostError` when it can't be used."""
        if spec.content_hash not in self._templates:
            found = self.python(spec)
            self._templates[spec.content_hash] = chat_template.chat_template(
                self.host,
                self._with_models(spec, found),
                python=None if found is None else found.path,
                env=server.environment(self.host, spec, self._engine_env(spec)),
            )
        return self._templates[spec.content_hash]

    def header(self) -> dict[str, Any]:
        """Return what the results document says about the whole run."""
        node = "unknown"
        # Where nothing could be launched, a host that may be away is not asked again.
        if self._hosts.is_chosen or self._settings.url is not None:
            with contextlib.suppress(InfrastructureError):
                node = self.node.slug
        return {
            "created": self._started.isoformat(timespec="seconds"),
            "plugin_version": version("pytest-specdec"),
            "method_version": metrics.METHOD_VERSION,
            "device": self._settings.device,
            "node": node,
            "git_commit": self.git_commit,
        }

    @cached_property
    def git_commit(self) -> str | None:
        """The commit of the suite that measures, None outside a repository."""
        return fingerprint.git_commit(LocalHost(), self._settings.baselines_dir.parent)


def _refused(checked: Preflight) -> LaunchError | None:
    """Return what a preflight's problems come to; None without any."""
    refusal = checked.refusal()
    if refusal is None:
        return None
    names = tuple(dict.fromkeys(problem.rule for problem in checked.problems))
    return LaunchError(refusal, cause=FailureCause(names=names, category="preflight", phase="preflight"))
