"""One pytest session: from its items to a plan, from the plan to results, from results to verdicts and files."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

from pytest_specdec import (
    baseline_admin,
    baseline_updates,
    declare,
    judging,
    plan,
    preflight,
    results,
    sweeping,
)
from pytest_specdec.comm_session import AllReduceBenchmark
from pytest_specdec.dead_ends import DeadEnds, Found
from pytest_specdec.errors import DisagreementError, InfrastructureError, SpecdecError, UserInputError
from pytest_specdec.handles import GpuHost, SglangServer
from pytest_specdec.model import Verdict
from pytest_specdec.plan import PlannedTest
from pytest_specdec.pool import ServerPool
from pytest_specdec.results import BenchmarkResult, Recorder
from pytest_specdec.serving import Serving
from pytest_specdec.spec import ServerSpec
from pytest_specdec.terminal import Terminal

if TYPE_CHECKING:
    from pytest_specdec.settings import Settings

_FAILING: Final = frozenset({Verdict.REGRESSION, Verdict.INVALID, Verdict.NO_BASELINE})


# pytest's own class: with it a failure shows its message and no traceback, in every reporter.
_Failed: type[BaseException] = pytest.fail.Exception
_Skipped: type[BaseException] = pytest.skip.Exception


class VerdictFailure(_Failed):  # type: ignore[misc, valid-type]  # named by an attribute, which mypy can't follow
    """A verdict that fails its test; ``status`` is the verdict's word."""

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message, pytrace=False)
        self.status = status


def _fail(message: str, status: str) -> None:
    raise VerdictFailure(message, status)


class DeadEndReached(_Skipped):  # type: ignore[misc, valid-type]  # as above
    """A fixture asked for the server of a dead end, which has its outcome: the rest of the set-up is left out."""


class Benchmark:
    """What the ``specdec_benchmark`` fixture gives."""

    def __init__(self, session: SpecdecSession, test: PlannedTest, item: pytest.Item) -> None:
        self._session = session
        self._test = test
        self._item = item

    def __call__(self, *, check: bool = True) -> BenchmarkResult:
        """Return the stored result of the test's measurement, taking it with its launch when it is the first.

        With ``check`` (the default) a regression, an invalid run or a missing baseline fails the test; the
        failure text tells value, baseline, allowed range and change. ``check=False`` returns the result with
        its verdict for the test to judge.
        """
        __tracebackhide__ = True
        result = self._session.result(self._test)
        self._item.user_properties.extend(_properties(result))
        if check:
            self._session.check(self._test, result)
        return result


_T = TypeVar("_T")
_R = TypeVar("_R")


def _or_skip(ask: Callable[[_T], _R], what: _T) -> _R:
    """Ask the pool; a server at ``--specdec-url`` that is not what the test's spec says skips the test."""
    __tracebackhide__ = True
    try:
        return ask(what)
    except DisagreementError as error:
        pytest.skip(str(error))


def _properties(result: BenchmarkResult) -> list[tuple[str, object]]:
    figures = [(f"specdec_{name}", summary.value) for name, summary in sorted(result.metrics.items())]
    return [
        ("specdec_measurement", result.measurement.key),
        ("specdec_verdict", str(result.verdict)),
        *figures,
    ]


class SpecdecSession:
    """Everything of ours that lives as long as the pytest session."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self.settings = settings
        worker = getattr(config, "workerinput", {}).get("workerid", "")
        self.recorder = Recorder(settings.report_dir, worker=worker)
        number = int(worker.removeprefix("gw")) if worker.removeprefix("gw").isdigit() else 0
        terminal = Terminal(
            self._reporter, uncaptured=self._uncaptured, width=lambda: config.get_terminal_writer().fullwidth
        )
        self._say = terminal.say
        self.serving = Serving(settings, self.recorder, worker=number, notify=terminal.say, show=terminal.show)
        self.dead_ends = DeadEnds(self.serving, on_cuda=settings.device == "cuda", notify=terminal.say)
        self.judging = judging.Judging(settings, self.serving, command=_command(config))
        self.refused = False
        self._plan = plan.Plan(specs=())
        self._pool: ServerPool | None = None
        self._left: dict[str, set[str]] = {}
        self._results: dict[str, BenchmarkResult] = {}
        self._shown: dict[str, dict[str, Any]] = {}
        self._failed_keys: set[str] = set()
        self._declared_keys: frozenset[str] = frozenset()

    def resolve(self, item: pytest.Item) -> PlannedTest | None:
        """Return what an item asks for; None after marking it skipped, or when it needs no server."""
        markers = list(item.iter_markers("specdec"))
        for marker in markers:
            if marker.args:
                raise pytest.UsageError(
                    f"{item.nodeid}: the specdec marker takes keyword arguments only, got {marker.args!r}; "
                    'for example specdec(workload="chat")'
                )
        callspec = getattr(item, "callspec", None)
        dead_end = item.get_closest_marker("dead_end")
        declaration = declare.Declaration(
            nodeid=item.nodeid,
            path=item.path,
            markers=tuple(self._adapted(marker.kwargs) for marker in markers),
            params={} if callspec is None else self._adapted(callspec.params),
            fixtures=frozenset(getattr(item, "fixturenames", ())),
            dead_end=None if dead_end is None else (dead_end.args, dead_end.kwargs),
        )
        try:
            if self.settings.baseline_files is not None:
                self._declared_keys |= declare.keys(declaration, self.settings)
            planned = declare.resolve(declaration, self.settings)
        except UserInputError as error:
            raise pytest.UsageError(str(error)) from None
        if isinstance(planned, declare.Skip):
            item.add_marker(pytest.mark.skip(reason=planned.reason))
            return None
        return planned

    def _adapted(self, params: Mapping[str, Any]) -> dict[str, Any]:
        adapted = dict(params)
        for name in ("sglang_server", "control"):
            spec = adapted.get(name)
            if isinstance(spec, ServerSpec):
                replaced = self._config.hook.pytest_specdec_adapt_spec(spec=spec, config=self._config)
                adapted[name] = spec if replaced is None else replaced
        return adapted

    @staticmethod
    def check_names(tests: Sequence[PlannedTest]) -> None:
        """Refuse clashing names at collection."""
        try:
            plan.check_names(tests)
        except UserInputError as error:
            raise pytest.UsageError(str(error)) from None

    @staticmethod
    def ordered(items: Sequence[pytest.Item], keys: Sequence[str | None]) -> list[pytest.Item]:
        """Put tests of equal specs together; other tests keep their places."""
        return [items[source] for source in plan.order_by_spec(list(keys))]

    def make_plan(self, tests: Sequence[PlannedTest]) -> None:
        """Fix what will be measured."""
        try:
            self._plan = plan.build_plan(
                tests,
                self.judging.launches_for,
                self.judging.most_launches_for,
                sweep_launches=self._sweep_launches,
            )
        except UserInputError as error:
            raise pytest.UsageError(str(error)) from None
        self.judging.judge_for(self._plan)
        if self._plan.pairs:
            self.serving.launch_afresh("control= compares launches of one block")
        keep = None if self.settings.keep_servers_s is None else self.serving.keep
        self._pool = ServerPool(
            self._plan,
            start=self.serving.start,
            measure=self.serving.measure,
            wants_more=self.judging.wants_more,
            check=self.serving.refuse,
            died=self.serving.died,
            contending=partial(sweeping.contending, most_launches=self._sweep_launches),
            keep=keep,
            keeps_late=not hasattr(self._config, "workerinput"),
        )
        self.dead_ends.plan(tests)
        for test in tests:
            self._left.setdefault(test.spec.content_hash, set()).add(test.nodeid)

    @property
    def _sweep_launches(self) -> int:
        return self.settings.most_launches(recording=False)

    def groups(self, tests: Sequence[PlannedTest]) -> dict[str, str]:
        """Return, by test id, what stands for all specs that one process has to measure, the test's among them."""
        together = self._plan.together()
        return {test.nodeid: together.get(test.spec.content_hash, test.spec.content_hash) for test in tests}

    def check_plan(self) -> tuple[list[str], bool]:
        """Run the preflight of every planned spec, starting nothing; returns lines, and whether all is well."""
        lines, good = [], True
        for planned in self._plan.specs:
            try:
                checked = self.serving.preflight(planned.spec)
            except InfrastructureError as error:
                lines += [f"{planned.spec.name}: can't be checked", f"  {error}"]
                good = False
            else:
                lines += preflight.check_lines([checked])
                expected = self.dead_ends.expects(planned.spec, checked)
                lines += ["  as its dead end expects"] if expected else []
                good = good and (expected or not checked.problems)
        return lines or ["no test asks for a server that this run can take"], good and bool(lines)

    def baseline_lines(self) -> list[str]:
        """List the committed baselines, or delete those that no collected test looks at.

        Raises :class:`pytest.UsageError` for a selection: what it leaves out would look unused.
        """
        for dest, flag in (("keyword", "-k"), ("markexpr", "-m"), ("deselect", "--deselect"), ("lf", "--last-failed")):
            if self._config.getoption(dest, None):
                raise pytest.UsageError(f"{flag} leaves tests out, and their baselines would look unused; leave it out")
        root = self.settings.baselines_dir
        if not self._declared_keys:
            return ["no test that measures was collected, so it can't be told which baselines are used"]
        unused = baseline_admin.unused(root, self._declared_keys)
        if self.settings.baseline_files == "list":
            return baseline_admin.listing(root, unused=unused)
        for path in unused:
            path.unlink()
        return [f"deleted: {path}" for path in unused] or ["every baseline is used"]

    def plan_lines(self) -> list[str]:
        """Describe the plan for the terminal; none where nothing is going to be measured."""
        return [] if self.settings.baseline_files else self._plan.lines(self.serving.expected_s)

    @property
    def pool(self) -> ServerPool:
        """The session's servers."""
        assert self._pool is not None, "the plan is made at the end of collection"
        return self._pool

    def server(self, test: PlannedTest) -> SglangServer:
        """Return a lazy handle on the test's server."""

        def serving() -> Any:  # noqa: ANN401  # a server of the pool's
            self._leave_at_dead_end(test)
            return _or_skip(self.pool.server, test.spec)

        return SglangServer(test.spec, serving)

    def benchmark(self, test: PlannedTest, item: pytest.Item) -> Benchmark:
        """Return the callable behind ``specdec_benchmark``."""
        return Benchmark(self, test, item)

    def _leave_at_dead_end(self, test: PlannedTest) -> None:
        found = self._dead_end(test)
        if found is not None:
            raise DeadEndReached(found.detail)

    def _dead_end(self, test: PlannedTest) -> Found | None:
        return _or_skip(partial(self.dead_ends.found, pool=self.pool), test)

    def stands_for_body(self, test: PlannedTest, item: pytest.Item) -> bool:
        """Try the test's dead end in the place of its body; False where it has none, or is an ordinary test here.

        Raises :class:`VerdictFailure` for one that fails differently or works.
        """
        __tracebackhide__ = True
        found = self._dead_end(test)
        if found is None:
            return False
        if found.outcome != "invalid":
            at = found.at.isoformat(timespec="seconds")
            item.user_properties.extend([("specdec_dead_end", found.outcome), ("specdec_dead_end_at", at)])
        # Nothing of a dead end becomes a baseline.
        self.test_failed(test)
        self.write()
        if found.status is not None:
            raise VerdictFailure(found.message, found.status)
        return True

    @staticmethod
    def check_declared(item: pytest.Item, given: Mapping[str, object]) -> None:
        """Refuse values that come from a fixture: they are known too late for the plan."""
        callspec = getattr(item, "callspec", None)
        params = {} if callspec is None else callspec.params
        for name, value in given.items():
            if name not in params:
                raise pytest.UsageError(
                    f"{item.nodeid}: {name}={value!r} comes from a fixture, which runs after the plan is made; "
                    f"declare it in the marker, specdec({name}=...), or with parametrize"
                )

    def all_reduce(self, item: pytest.Item) -> AllReduceBenchmark:
        """Return the callable behind ``all_reduce``."""
        return AllReduceBenchmark(
            self.serving,
            self.settings,
            command=_command(self._config),
            free=self.close,
            skip=pytest.skip,
            fail=_fail,
            note=item.user_properties.append,
        )

    def gpu_host(self) -> GpuHost:
        """Return the GPU host."""
        host = self.serving.host
        return GpuHost(host.name, self.serving.node.slug, host.run)

    def result(self, test: PlannedTest) -> BenchmarkResult:
        """Return the judged result of the test's measurement, measuring first when it is the first to ask."""
        self._leave_at_dead_end(test)
        measurement, control = test.measurement, test.control_measurement
        assert measurement is not None
        launches = _or_skip(self.pool.measured, measurement)
        name = measurement.key if control is None else f"{measurement.key} beside {control.spec.name}"
        first = name not in self._results
        if control is None:
            result = self.judging.judge(measurement, launches, waived=test.waived)
        else:
            legs = self.pool.beside(measurement, control)
            result, own = self.judging.judge_beside(measurement, launches, control, legs, waived=test.waived)
            self._shown.setdefault(control.key, results.to_json(own))
        self._results[name] = result
        self._shown[name] = results.to_json(result)
        self.write()
        if first:
            self._config.hook.pytest_specdec_result(result=result, config=self._config)
        return result

    def check(self, test: PlannedTest, result: BenchmarkResult) -> None:
        """Fail the test on a bad verdict; raises :class:`VerdictFailure`."""
        verdict = result.verdict
        failing = verdict in _FAILING
        if verdict is Verdict.INCONCLUSIVE:
            if self.settings.inconclusive == "warn":
                self._config.issue_config_time_warning(
                    pytest.PytestWarning(f"{result.measurement.key}: inconclusive"), stacklevel=2
                )
            else:
                failing = True
        if failing:
            self._failed_keys.add(result.measurement.key)
            raise VerdictFailure(self.judging.failure_text(result, nodeid=test.nodeid), str(verdict))

    @staticmethod
    def status_of(error: BaseException) -> tuple[str | None, str | None]:
        """Return the status word and the message of a failure; (None, None) for one that isn't ours."""
        if isinstance(error, VerdictFailure):
            return error.status, str(error)
        if isinstance(error, InfrastructureError):
            return "infrastructure", str(error)
        if isinstance(error, SpecdecError):
            return None, str(error)
        return None, None

    def test_failed(self, test: PlannedTest) -> None:
        """Remember that a test on this measurement failed, or is a dead end: nothing of it becomes a baseline."""
        if test.measurement is not None:
            self._failed_keys.add(test.measurement.key)

    def test_done(self, test: PlannedTest, *, again: bool) -> None:
        """Stop the server that only this test still wanted; ``again`` when the very same test runs next."""
        left = self._left.get(test.spec.content_hash, set())
        if not again:
            left.discard(test.nodeid)
        if left or self._pool is None:
            return
        # A block ends with its control, whatever test of the treatment comes last.
        controls = [pair.control for pair in self._plan.pairs if pair.treatment.content_hash == test.spec.content_hash]
        for spec in (test.spec, *controls):
            if not self._left.get(spec.content_hash):
                self._pool.finished(spec)

    def close(self) -> None:
        """Stop every server."""
        if self._pool is not None:
            self._pool.close()

    def finish(self) -> bool:
        """Stop servers and write what this process measured.

        Returns False when a server could not be ended, after saying so.
        """
        ended = True
        try:
            self.close()
        except InfrastructureError as error:
            ended = False
            self.serving.failed("the last server", str(error))
            self._say(str(error))
        finally:
            if self._shown or self.dead_ends.entries():
                # The report says so as well.
                with suppress(InfrastructureError):
                    self.write()
            self.serving.close()
        return ended

    @property
    def judged(self) -> list[BenchmarkResult]:
        """What this process measured and judged, by key: each measurement once, by itself where it was so too."""
        found = {self._results[name].measurement.key: name for name in sorted(self._results, reverse=True)}
        return [self._results[found[key]] for key in sorted(found)]

    def document(self) -> dict[str, Any]:
        """Return the results document of this process."""
        return {
            **self.serving.header(),
            "command": _command(self._config),
            "launch_count": 0 if self._pool is None else self._pool.launch_count,
            "failures": self.dead_ends.unexpected(self.serving.failures),
            "dead_ends": self.dead_ends.entries(),
            "sweeps": self._sweeps(),
            "measurements": [self._shown[key] for key in sorted(self._shown)],
        }

    def _sweeps(self) -> list[dict[str, Any]]:
        """Return how the points of each sweep stand, of those that were measured."""
        if self._pool is None:
            return []
        taken = [(sweep, self._pool.points(sweep)) for sweep in self._plan.sweeps]
        return [
            sweeping.document(sweep, found, most_launches=self._sweep_launches)
            for sweep, found in taken
            if any(found.values())
        ]

    def updates(self) -> dict[str, Any]:
        """Return the baselines that this process would write, and the measurements of which a test failed."""
        return {"wanted": baseline_updates.wanted(self.judging.updates()), "failed": sorted(self._failed_keys)}

    def write(self) -> Path:
        """Rewrite this process's ``results.json``."""
        return self.recorder.write({**self.document(), "baseline_changes": []})

    def _reporter(self) -> pytest.TerminalReporter | None:
        """Where lines are written; quiet runs and workers stay quiet."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        return None if self._config.get_verbosity() < 0 else reporter

    def _uncaptured(self) -> AbstractContextManager[None]:
        capture = self._config.pluginmanager.get_plugin("capturemanager")
        return nullcontext() if capture is None else capture.global_and_fixture_disabled()


def _command(config: pytest.Config) -> str:
    """Return the command line as the user typed it."""
    return shlex.join(["pytest", *map(str, config.invocation_params.args)])
