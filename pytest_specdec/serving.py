"""Launching and measuring for a session: the host, the Python that runs SGLang, the launches, their rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import os
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from pytest_specdec import bench, engine_env, fingerprint, metrics, preflight, server
from pytest_specdec.client import ServerClient, ServerInfo
from pytest_specdec.clock import Clock, SystemClock
from pytest_specdec.errors import HostError, InfrastructureError, LaunchError
from pytest_specdec.hosts import Host, LocalHost, PythonFound, find_python
from pytest_specdec.model import LaunchRecord, LaunchRounds, Round
from pytest_specdec.plan import PlannedMeasurement
from pytest_specdec.pool import Served
from pytest_specdec.preflight import Preflight
from pytest_specdec.results import Recorder
from pytest_specdec.settings import HERE, Settings
from pytest_specdec.spec import ServerSpec
from pytest_specdec.ssh import SshHost

Notify = Callable[[str], None]

#: What changes acceptance without changing a model: never a baseline.
SIMULATED_ACCEPTANCE: Final = ("SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN")


class _Log:
    """A launch's log: written on the host, kept here."""

    def __init__(self, host: Host, kept: Path) -> None:
        self._host = host
        self.kept = kept
        self.written = host.log_dir() / kept.name if isinstance(host, SshHost) else kept

    def keep(self) -> None:
        """Bring what there is of it here; a host that is away has said why elsewhere."""
        if isinstance(self._host, SshHost):
            with contextlib.suppress(HostError):
                self._host.fetch(self.written, self.kept)


class ServedHere:
    """A running server with the record of its launch, as the pool and the tests' handles use it."""

    def __init__(
        self,
        running: server.RunningServer,
        record: LaunchRecord,
        client: ServerClient,
        lock: FileLock,
        log: _Log,
    ) -> None:
        self._running = running
        self._lock = lock
        self._log = log
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

    def check_alive(self) -> None:
        """Raise with the reason when it has died."""
        self._running.check_alive()

    def stop(self) -> None:
        """End it, then let the next measured server have the host."""
        try:
            self._running.stop()
        finally:
            self._log.keep()
            self._lock.release()


class Serving:
    """Starts servers and measures on them, for one session."""

    def __init__(self, settings: Settings, recorder: Recorder, *, notify: Notify) -> None:
        self._settings = settings
        self._recorder = recorder
        self._notify = notify
        self._clock: Clock = SystemClock()
        self._pythons: dict[str | None, PythonFound] = {}
        self.failures: list[dict[str, Any]] = []
        self._started = dt.datetime.now(dt.timezone.utc)

    @cached_property
    def host(self) -> Host:
        """Where servers run. Raises :class:`HostError` for a host that cannot be used."""
        hosts = self._settings.gpu_hosts or (HERE,)
        if len(hosts) > 1:
            named = ", ".join(name or "this machine" for name in hosts)
            raise HostError(f"--gpu-host: this version uses one host a session, and was given {named}")
        if hosts[0] == HERE:
            return LocalHost()
        if self._settings.device == "cpu":
            raise HostError(
                f"--gpu-host={hosts[0]}: the CPU engine runs on this machine only; leave out --specdec-device=cpu"
            )
        return SshHost(
            hosts[0],
            runtime_dir=engine_env.cache_root(os.environ) / "run",
            lease_s=self._settings.lease_s,
            clock=self._clock,
        )

    def close(self) -> None:
        """Let go of the host."""
        host = self.__dict__.get("host")
        if isinstance(host, SshHost):
            host.close()

    @cached_property
    def node(self) -> fingerprint.NodeFacts:
        """The hardware, under the name that ``--specdec-node`` gives it or the one derived from it."""
        facts = fingerprint.node_facts(self.host, device=self._settings.device)
        return facts if self._settings.node is None else dataclasses.replace(facts, slug=self._settings.node)

    def python(self, spec: ServerSpec) -> PythonFound | None:
        """Return the Python that runs SGLang for this spec; None when its launcher (a container) brings one."""
        if spec.launcher_brings_python:
            return None
        if spec.python not in self._pythons:
            self._pythons[spec.python] = find_python(
                self.host,
                explicit=self._settings.python,
                explicit_where=self._settings.where["python"],
                spec_python=spec.python,
            )
        return self._pythons[spec.python]

    def start(self, spec: ServerSpec, index: int) -> ServedHere:
        """Bring a server up; raises :class:`InfrastructureError`, after noting it for the report."""
        try:
            return self._start(spec, index)
        except InfrastructureError as error:
            self.failures.append(
                {"server": spec.name, "command": spec.masked_command, "launch": index, "reason": str(error)}
            )
            raise

    def _start(self, spec: ServerSpec, index: int) -> ServedHere:
        found = self.python(spec)
        node = self.node
        extra_env: dict[str, str] = {}
        launched = spec
        if spec.runs_on_cpu:
            extra_env = engine_env.cpu_engine_environment(dict(os.environ))
            launched = spec if found is None else spec.with_paths(self._tiny_models(spec, found.path))
        client_for = partial(ServerClient, api_key=(spec.get("--api-key") or (None,))[0])
        lock = self._lock()
        log = _Log(self.host, self._log_path(spec, index))
        try:
            # With the host to ourselves: another session's server would look like a busy GPU.
            launched = self._checked(launched, found, extra_env)
            self._notify(f"launching {spec.name} (launch {index + 1}): {spec.masked_command}")
            started_unix_s = self._clock.time()
            running = server.launch(
                self.host,
                launched,
                python=None if found is None else found.path,
                clock=self._clock,
                log_path=log.written,
                client_factory=client_for,
                startup_timeout_s=self._settings.startup_timeout_s,
                startup_limit_s=self._settings.startup_limit_s,
                extra_env=extra_env,
                on_progress=self._notify,
            )
        except BaseException:
            log.keep()
            lock.release()
            raise
        try:
            record = self._record(spec, index, running, started_unix_s, node, found, log.kept)
            return ServedHere(running, record, client_for(running.url), lock, log)
        except BaseException:
            running.stop()
            lock.release()
            raise

    def preflight(self, spec: ServerSpec) -> Preflight:
        """Check a spec without starting a server; raises :class:`HostError` when the host does not answer."""
        found = self.python(spec)
        extra_env = engine_env.cpu_engine_environment(dict(os.environ)) if spec.runs_on_cpu else {}
        launched = spec if found is None else spec.with_paths(self._tiny_models(spec, found.path))
        return self._preflight(launched, found, extra_env)

    def _preflight(self, spec: ServerSpec, found: PythonFound | None, extra_env: Mapping[str, str]) -> Preflight:
        return preflight.check(
            self.host,
            spec,
            python=None if found is None else found.path,
            env=server.environment(self.host, spec, extra_env),
            cache_dir=engine_env.cache_root(os.environ),
            device=self._settings.device,
            clock=self._clock,
        )

    def _checked(self, spec: ServerSpec, found: PythonFound | None, extra_env: Mapping[str, str]) -> ServerSpec:
        """Refuse what would fail after its weights are loaded; returns the spec as this SGLang spells its flags."""
        checked = self._preflight(spec, found, extra_env)
        refusal = checked.refusal()
        if refusal is not None:
            raise LaunchError(refusal)
        for notice in checked.notices:
            self._notify(f"{spec.name}: {notice}")
        return checked.spec

    def _log_path(self, spec: ServerSpec, index: int) -> Path:
        stamp = dt.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
        return self._recorder.log_dir / f"{stamp}-{spec.name}-{index}-{os.getpid()}.log"

    def _lock(self) -> FileLock:
        """Hold the host: one measured server at a time, across pytest processes and xdist workers."""
        directory = engine_env.cache_root(os.environ)
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(directory / f"host-{self.host.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            self._notify(f"waiting for {self.host.name}: another pytest process measures there")
            limit_s = self._settings.startup_limit_s
            try:
                lock.acquire(timeout=limit_s)
            except Timeout:
                raise HostError(
                    f"{self.host.name}: waited {limit_s:.0f} s for another pytest process to finish with the "
                    f"host (lock {lock.lock_file}); end it, or wait longer with --specdec-startup-limit"
                ) from None
        return lock

    def _tiny_models(self, spec: ServerSpec, python: str) -> Mapping[str, str]:
        if not spec.tiny_models:
            return {}
        return engine_env.tiny_model_paths(
            self.host, python, spec.tiny_models, cache_dir=engine_env.cache_root(os.environ)
        )

    def _record(
        self,
        spec: ServerSpec,
        index: int,
        running: server.RunningServer,
        started_unix_s: float,
        node: fingerprint.NodeFacts,
        found: PythonFound | None,
        log_path: Path,
    ) -> LaunchRecord:
        info = running.info
        facts = {
            **node.facts,
            **({} if found is None else fingerprint.engine_facts(self.host, found.path)),
            **fingerprint.environment_variables({**self.host.environ(), **spec.env}),
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
        )

    def measure(self, served: Served, planned: PlannedMeasurement) -> LaunchRounds:
        """Take one measurement on a running server; every round is on disk before the next begins."""
        assert isinstance(served, ServedHere)
        measurement = planned.measurement
        concurrency = measurement.concurrency

        def on_round(done: Round) -> None:
            self._recorder.round_done(measurement, served.record, done)
            found = metrics.round_metrics(done, concurrency)
            speed = found.get("decode_tok_s")
            self._notify(
                f"{measurement.key}: {'warm-up' if done.warmup else 'round'} {done.index + 1}"
                + ("" if speed is None else f", decode {speed:.1f} tok/s")
                + (f", accept length {found['accept_length']:.3f}" if "accept_length" in found else "")
            )

        warmup, rounds = bench.measure(
            served.client,
            measurement,
            rounds=planned.rounds,
            warmup=planned.warmup,
            clock=self._clock,
            on_round=on_round,
        )
        return LaunchRounds(launch=served.record, warmup=warmup, rounds=rounds)

    def header(self) -> dict[str, Any]:
        """Return what the results document says about the whole run."""
        try:
            node = self.node.slug
        except InfrastructureError:
            node = "unknown"
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
