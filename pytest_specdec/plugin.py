"""The pytest entry point: hooks and fixtures, each a few lines; everything they do lives in lower layers.

Importing this module reads no file, starts no process and loads neither torch nor an HTTP library: the session
with all that hangs on it is imported when the first test of ours is collected.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_specdec import options
from pytest_specdec.errors import InfrastructureError, SpecdecError

if TYPE_CHECKING:
    from pytest_specdec.comm_session import AllReduceBenchmark
    from pytest_specdec.handles import GpuHost, SglangServer
    from pytest_specdec.owned import OwnedDirectory  # noqa: F401  # named in a stash key
    from pytest_specdec.plan import PlannedTest
    from pytest_specdec.session import Benchmark, SpecdecSession

_SESSION: Final = pytest.StashKey["SpecdecSession"]()
_PLANNED: Final = pytest.StashKey["PlannedTest"]()
_OURS: Final = pytest.StashKey[bool]()

_OUR_FIXTURES: Final = frozenset({"sglang_server", "specdec_benchmark", "gpu_host", "all_reduce"})
_WORKER_OUTPUT: Final = "specdec_document"
_GROUPS: Final = "specdec_groups"
_DISTRIBUTES: Final = pytest.StashKey[bool]()
_GROUPS_DIRECTORY: Final = pytest.StashKey["OwnedDirectory"]()
#: Status words of failed reports that are not ordinary failures, with their letters.
_LETTERS: Final = {
    "regression": "R",
    "invalid": "I",
    "no-baseline": "N",
    "inconclusive": "?",
    "infrastructure": "X",
    "dead-end-differs": "D",
    "revived": "V",
}


class Tally:
    """What the reports of this session add up to, for the exit code."""

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self.ran = False
        self.selected = False
        self.measured = False

    def add(self, report: pytest.TestReport) -> None:
        """Count one report."""
        said = dict(report.user_properties)
        if "specdec_ours" not in said:
            if report.failed:
                self.failed.add("failed")
            return
        self.selected = True
        if report.when == "call" or report.failed:
            self.ran = True
        self.measured = self.measured or bool({"specdec_measurement", "specdec_dead_end"} & set(said))
        if report.failed:
            self.failed.add(str(said.get("specdec_status", "failed")))

    def exit_code(self, *, asked_to_measure: bool) -> int | None:
        """The exit code that the outcomes call for; None leaves pytest's own."""
        if self.failed & {"failed", "regression", "dead-end-differs", "revived"}:
            return 1
        if "infrastructure" in self.failed:
            return 12
        if self.failed & {"invalid", "no-baseline"}:
            return 11
        if "inconclusive" in self.failed:
            return 10
        if self.selected and not self.measured and (self.ran or asked_to_measure):
            return 13
        return None


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare our hooks."""
    from pytest_specdec import hookspecs  # noqa: PLC0415  # not needed to import the plug-in

    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare our options."""
    options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Make bare options explicit before pytest takes the next word for their value."""
    options.normalise_argv(args, invocation_dir=early_config.invocation_params.dir)
    early_config.known_args_namespace = parser.parse_known_args(args)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "specdec(workload, concurrency=1, output_tokens=512, request_rate=None, sampling=None, "
        "chat_template=False, rounds=None, warmup=None, waive=(), control=None, sweep=False): "
        "what specdec_benchmark measures on the test's server.",
    )
    config.addinivalue_line(
        "markers",
        "dead_end(diagnosis, reason, versions=None, link=None, slower_than=None): the test's server is known to fail "
        "with that diagnosis, or to be no faster than that (tok/s).",
    )
    config.pluginmanager.register(_Outcomes(config), "specdec-outcomes")


def pytest_make_parametrize_id(config: pytest.Config, val: object) -> str | None:  # noqa: ARG001  # hook signature
    """Name a parameter after its server spec."""
    from pytest_specdec.spec import ServerSpec  # noqa: PLC0415  # loaded on first use

    return val.name if isinstance(val, ServerSpec) else None


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Note whether the user left the distribution to us: ``-n`` without a ``--dist``."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.stash[_DISTRIBUTES] = True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:  # noqa: ANN401  # xdist's types
    """Keep tests of one spec on one worker, unless the user chose a ``--dist``."""
    if _DISTRIBUTES not in config.stash:
        return None
    from pytest_specdec import distribution  # noqa: PLC0415  # needs xdist, which is there when this is called

    return distribution.OneQueueASpec(config, log, _groups_directory(config))


def _groups_directory(config: pytest.Config) -> Path:
    """The controller's directory for what its workers tell it, made when it is first needed."""
    if _GROUPS_DIRECTORY not in config.stash:
        from pytest_specdec import distribution  # noqa: PLC0415  # needs xdist, which is there when this is called

        config.stash[_GROUPS_DIRECTORY] = distribution.make_directory()
    return config.stash[_GROUPS_DIRECTORY].path


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401  # xdist's node controller
    """Tell a worker where to leave its groups."""
    if _DISTRIBUTES in node.config.stash:
        node.workerinput[_GROUPS] = str(_groups_directory(node.config))


def _is_ours(item: pytest.Item) -> bool:
    fixtures = _OUR_FIXTURES.intersection(getattr(item, "fixturenames", ()))
    return bool(fixtures) or any(item.get_closest_marker(name) is not None for name in ("specdec", "dead_end"))


def _session_of(config: pytest.Config) -> SpecdecSession:
    """The session, made when it is first needed."""
    if _SESSION not in config.stash:
        from pytest_specdec.session import SpecdecSession  # noqa: PLC0415  # loaded on first use

        config.stash[_SESSION] = SpecdecSession(config, options.load_settings(config))
    return config.stash[_SESSION]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Resolve what our tests ask for, skip those that this run can't take, and put equal specs together."""
    ours = [item for item in items if _is_ours(item)]
    if not ours:
        return
    session = _session_of(config)
    # Until all of it is understood there is no plan: pytest reports the end of collection after an error, too.
    session.refused = True
    keys: list[str | None] = []
    for item in items:
        planned = session.resolve(item) if _is_ours(item) else None
        if planned is not None:
            item.stash[_PLANNED] = planned
        keys.append(None if planned is None else planned.spec.content_hash)
    for item in ours:
        item.stash[_OURS] = True
        item.user_properties.append(("specdec_ours", True))
    session.check_names([item.stash[_PLANNED] for item in ours if _PLANNED in item.stash])
    items[:] = session.ordered(items, keys)
    session.refused = False


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Make the plan from the tests that are left after every selection."""
    planned = [item.stash[_PLANNED] for item in session.items if _PLANNED in item.stash]
    if planned and not _session_of(session.config).refused:
        _session_of(session.config).make_plan(planned)
    directory = getattr(session.config, "workerinput", {}).get(_GROUPS)
    if directory is not None:
        from pytest_specdec import distribution  # noqa: PLC0415  # needs xdist, which is there in a worker

        distribution.write_groups(Path(directory), _session_of(session.config).groups(planned) if planned else {})


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Print the plan."""
    specdec = config.stash.get(_SESSION, None)
    return [] if specdec is None else specdec.plan_lines()


@pytest.fixture
def sglang_server(request: pytest.FixtureRequest) -> SglangServer:
    """Borrow the test's SGLang server: parametrize it with a ServerSpec, indirect=True.

    The handle is lazy: ``.url``, ``.info``, ``.log_path`` and ``.generate()`` start the server if it isn't up.
    """
    return _session_of(request.config).server(_planned(request))


def _planned(request: pytest.FixtureRequest) -> PlannedTest:
    planned: PlannedTest | None = request.node.stash.get(_PLANNED, None)
    if planned is None:
        pytest.fail(
            f"{request.node.nodeid}: {request.fixturename} was asked for while the test runs (getfixturevalue), after "
            'the plan was made; name it in the test\'s signature, and parametrize "sglang_server" with a ServerSpec',
            pytrace=False,
        )
    return planned


@pytest.fixture
def workload() -> None:
    """Parametrize it to declare the measurement's workload: a name, or a ``.jsonl`` file."""


@pytest.fixture
def concurrency() -> None:
    """Parametrize it to declare how many requests of the measurement are in flight."""


@pytest.fixture
def output_tokens() -> None:
    """Parametrize it to declare how many tokens each answer of the measurement has."""


@pytest.fixture
def request_rate() -> None:
    """Parametrize it to declare an open loop: requests per second."""


@pytest.fixture
def control() -> None:
    """Parametrize it to declare the ServerSpec that the measurement is taken beside, in blocks A B B A."""


@pytest.fixture
def specdec_benchmark(
    request: pytest.FixtureRequest,
    sglang_server: SglangServer,  # noqa: ARG001  # names the server: a test need not ask for it as well
    workload: object,
    concurrency: object,
    output_tokens: object,
    request_rate: object,
    control: object,
) -> Benchmark:
    """Return a callable that gives the stored result of the test's measurement, and fails on a bad verdict."""
    planned = _planned(request)
    given = {"workload": workload, "concurrency": concurrency, "output_tokens": output_tokens}
    given |= {"request_rate": request_rate, "control": control}
    session = _session_of(request.config)
    session.check_declared(request.node, {name: value for name, value in given.items() if value is not None})
    return session.benchmark(planned, request.node)


@pytest.fixture
def gpu_host(request: pytest.FixtureRequest) -> GpuHost:
    """Return the GPU host: its name, its node, and ``run(argv)``."""
    return _session_of(request.config).gpu_host()


@pytest.fixture
def all_reduce(request: pytest.FixtureRequest) -> AllReduceBenchmark:
    """Return a callable that times the all-reduces of a step on the session's host: ``all_reduce(traffic, ...)``."""
    return _session_of(request.config).all_reduce(request.node)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Try a dead end in the place of the test's body."""
    planned = pyfuncitem.stash.get(_PLANNED, None)
    if planned is None or planned.dead_end is None:
        return None
    return _session_of(pyfuncitem.config).stands_for_body(planned, pyfuncitem) or None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give failures of ours their status word, and their message without a traceback of our internals."""
    message: str | None = None
    if item.stash.get(_OURS, False):
        status: str | None = None
        if call.excinfo is not None:
            status, message = _session_of(item.config).status_of(call.excinfo.value)
        # A rerun begins without one; after the call it stays, because JUnit reads the properties of the teardown.
        if call.when == "setup" or status is not None:
            begun = ("specdec_dead_end", "specdec_dead_end_at") if call.when == "setup" else ()
            stale = {"specdec_status", *begun}
            item.user_properties[:] = [entry for entry in item.user_properties if entry[0] not in stale]
        if status is not None:
            item.user_properties.append(("specdec_status", status))
    report = yield
    if call.when == "setup" and report.skipped and _PLANNED in item.stash:
        from pytest_specdec.session import DeadEndReached  # noqa: PLC0415  # loaded on first use

        if call.excinfo is not None and call.excinfo.errisinstance(DeadEndReached):
            # The outcome is told in the place of the body.
            report.outcome, report.longrepr = "passed", None
    if message is not None and report.failed:
        report.longrepr = message
    if report.failed and _PLANNED in item.stash:
        _session_of(item.config).test_failed(item.stash[_PLANNED])
    return report


def pytest_report_teststatus(report: pytest.TestReport | pytest.CollectReport) -> Any:  # noqa: ANN401  # pytest's own type is private
    """Show the status word in the place of FAILED, and of PASSED for a dead end that holds."""
    if not isinstance(report, pytest.TestReport):
        return None
    said = dict(report.user_properties)
    if report.passed and report.when == "call" and said.get("specdec_dead_end") == "holds":
        return "passed", "d", ("DEAD-END", {"green": True})
    if not report.failed or report.when == "teardown":
        return None
    status = said.get("specdec_status")
    if status not in _LETTERS:
        return None
    return "failed", _LETTERS[str(status)], (str(status).upper(), {"red": True})


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop a server that no later test wants."""
    if _PLANNED in item.stash:
        again = nextitem is not None and nextitem.nodeid == item.nodeid
        _session_of(item.config).test_done(item.stash[_PLANNED], again=again)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """With ``--specdec-check`` or ``--specdec-baseline-files``, do that in the place of running tests."""
    settings = options.load_settings(session.config)
    if session.testsfailed or not (settings.check or settings.baseline_files):
        return None
    specdec = _session_of(session.config)
    if settings.check:
        lines, good = specdec.check_plan()
        _write_section(session.config, "preflight", lines)
        if not good:
            pytest.exit("the preflight found problems", returncode=12)
    else:
        _write_section(session.config, "baselines", specdec.baseline_lines())
    return True


def _write_section(config: pytest.Config, title: str, lines: list[str]) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.section(title)
        for line in lines:
            reporter.write_line(line)


class _Outcomes:
    """What happens to the outcomes of a session: exit code, files, and the table at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tally = Tally()
        self._documents: list[dict[str, Any]] = []
        self._updates: list[dict[str, Any]] = []
        self._changes: list[str] = []
        self._report_path: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a report, a worker's too."""
        self._tally.add(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:  # noqa: ANN401  # xdist's node controller
        """Take over what an xdist worker measured."""
        output = getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT)
        if output is not None:
            self._documents.append(output[0])
            self._updates.append(output[1])

    # pytest-benchmark makes its table and its files in a wrapper. This one is registered later, so it runs before:
    # the rounds are there by then, and what we measured is written before a file of pytest-benchmark's can fail.
    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
        """Stop servers, write files, choose the exit code, and hand the rounds to pytest-benchmark."""
        self._finish(session, exitstatus)
        specdec = self._config.stash.get(_SESSION, None)
        if specdec is not None:
            from pytest_specdec import benchmark_table  # noqa: PLC0415  # loaded on first use

            benchmark_table.add(self._config, specdec.judged)
        return (yield)

    def _finish(self, session: pytest.Session, exitstatus: int) -> None:
        directory = self._config.stash.get(_GROUPS_DIRECTORY, None)
        if directory is not None:
            directory.remove()
        specdec = self._config.stash.get(_SESSION, None)
        if specdec is not None:
            if not specdec.finish():
                self._tally.failed.add("infrastructure")
            document, updates = specdec.document(), specdec.updates()
            if hasattr(self._config, "workeroutput"):
                self._config.workeroutput[_WORKER_OUTPUT] = (document, updates)
                return
            self._documents.append(document)
            self._updates.append(updates)
        if any(document[name] for document in self._documents for name in ("measurements", "failures", "dead_ends")):
            self._write()
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not self._collects_only:
            code = self._tally.exit_code(asked_to_measure=self._asked_to_measure)
            if code is not None:
                session.exitstatus = code

    def _write(self) -> None:
        """Write baselines first, then the results with what became of them."""
        from pytest_specdec import closing  # noqa: PLC0415  # loaded on first use

        settings = options.load_settings(self._config)
        try:
            self._changes = closing.write_baselines(settings, self._updates)
        except InfrastructureError as error:
            self._changes = [str(error)]
            self._tally.failed.add("infrastructure")
        document = closing.merged(self._documents, self._changes)
        try:
            self._changes += closing.add_to_study(settings, document)
        except SpecdecError as error:
            self._changes.append(str(error))
            self._tally.failed.add("infrastructure")
        try:
            self._report_path = str(closing.write_report(settings, document, os.environ))
        except InfrastructureError as error:
            self._report_path = f"not written: {error}"

    @property
    def _collects_only(self) -> bool:
        return bool(self._config.getoption("collectonly"))

    @property
    def _asked_to_measure(self) -> bool:
        if not self._tally.selected:
            return False
        settings = options.load_settings(self._config)
        return settings.asked_for_gpus or settings.where["device"] != "default"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table of measurements, what became of baselines, and where the report is."""
        if not self._documents:
            return
        from pytest_specdec import closing  # noqa: PLC0415  # loaded on first use

        lines = closing.summary_lines(closing.merged(self._documents, self._changes), self._report_path)
        if not lines:
            return
        terminalreporter.section("speculative decoding")
        for line in lines:
            terminalreporter.write_line(line)
