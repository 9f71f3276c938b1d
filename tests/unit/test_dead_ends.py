"""What a dead end expects, which failures fit it, and what becomes of it in a session."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_specdec import catalogue, preflight
from pytest_specdec.dead_ends import DeadEnds
from pytest_specdec.errors import FailureCause, HostError, InfrastructureError, LaunchError, UserInputError
from pytest_specdec.expected import fits, from_marker, is_outside, is_same, tells
from pytest_specdec.hosts import PythonFound
from pytest_specdec.model import DeadEnd, Measurement, Workload
from pytest_specdec.plan import PlannedMeasurement, PlannedTest, build_plan
from pytest_specdec.pool import Served, ServerPool
from pytest_specdec.preflight import Preflight, Problem
from pytest_specdec.spec import ServerSpec

SPEC = ServerSpec.tiny("x")
CHAT = Workload(name="chat", prompts=(), content_hash="c" * 64)
MEASUREMENT = Measurement(spec=SPEC, workload=CHAT)
OOM = DeadEnd(diagnosis="oom-weights", reason="too large")


def cause(
    *names: str, category: str = "oom_weight_load", phase: str = "weights", exit_code: int | None = 1
) -> FailureCause:
    return FailureCause(names=names, category=category, phase=phase, exit_code=exit_code)


def refused(*rules: str) -> FailureCause:
    return cause(*rules, category="preflight", phase="preflight", exit_code=None)


# ---- the marker -----------------------------------------------------------------------------------------------------


def test_a_marker_is_read_with_the_diagnosis_in_front_or_by_name() -> None:
    kwargs = {"reason": "r", "versions": ">=0.5.3,<0.5.15", "link": "https://example.org/1", "slower_than": 38}
    wanted = DeadEnd(
        diagnosis="oom-weights", reason="r", versions=">=0.5.3,<0.5.15", link="https://example.org/1", slower_than=38.0
    )

    assert from_marker("t", ["oom-weights"], kwargs) == wanted
    assert from_marker("t", [], {"diagnosis": "oom-weights", **kwargs}) == wanted
    assert wanted.expected == "oom-weights, or not above 38 tok/s"
    assert from_marker("t", [], {"reason": "r", "slower_than": 38.5}).expected == "not above 38.5 tok/s"


@pytest.mark.parametrize("name", ["symm-mem-keyerror-12", "nothing-accepted", *preflight.RULES])
def test_a_name_is_of_the_catalogue_or_of_the_preflight(name: str) -> None:
    assert from_marker("t", [name], {"reason": "r"}).diagnosis == name


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ([], {"reason": "r"}, "say how it fails: a diagnosis, or slower_than= in tok/s"),
        (["oom-weigths"], {"reason": "r"}, "there is no 'oom-weigths': did you mean oom-weights"),
        ([3], {"reason": "r"}, "3 is no name"),
        (["healthy"], {"reason": "r"}, "there is no 'healthy'"),
        (["oom-weights"], {}, "reason= is a text that says something, got None"),
        (["oom-weights"], {"reason": " "}, "reason= is a text that says something, got ' '"),
        (["oom-weights", "r"], {}, "only the diagnosis comes without its name"),
        (["oom-weights"], {"reason": "r", "diagnosis": "oom-kv-pool"}, "two diagnoses"),
        (["oom-weights"], {"reason": "r", "version": "<1"}, "there is no 'version': did you mean versions or "),
        (["oom-weights"], {"reason": "r", "versions": "0.5"}, "specifier set such as \">=0.5.3,<0.5.15\", got '0.5'"),
        (["oom-weights"], {"reason": "r", "link": "issue 7"}, "begins with https:// or http://, got 'issue 7'"),
        ([], {"reason": "r", "slower_than": "38 tok/s"}, "slower_than= is a number of tok/s above 0, got '38 tok/s'"),
        ([], {"reason": "r", "slower_than": True}, "got True"),
        ([], {"reason": "r", "slower_than": 0}, "got 0"),
        ([], {"reason": "r", "slower_than": float("nan")}, "got nan"),
    ],
)
def test_what_can_not_be_meant_is_refused_with_what_would_do(
    args: list[Any], kwargs: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserInputError) as refused:
        from_marker("test_x.py::test_y", args, kwargs)

    assert str(refused.value).startswith("test_x.py::test_y: marker dead_end: ")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("versions", "version", "outside"),
    [
        (None, "0.5.23", False),
        ("<0.5.15", None, False),
        ("<0.5.15", "main-a1b2", False),
        (">=0.5.3,<0.5.15", "0.5.2", True),
        (">=0.5.3,<0.5.15", "0.5.3", False),
        (">=0.5.3,<0.5.15", "0.5.14.post1", False),
        (">=0.5.3,<0.5.15", "0.5.15", True),
        (">=0.5.3", "0.6.0rc1", False),
    ],
)
def test_only_a_version_that_is_surely_another_is_outside(
    versions: str | None, version: str | None, outside: bool
) -> None:
    assert is_outside(versions, version) is outside


# ---- which failures fit ---------------------------------------------------------------------------------------------


def expects(name: str) -> DeadEnd:
    return DeadEnd(diagnosis=name, reason="r")


def test_a_failure_fits_by_its_name() -> None:
    assert fits(OOM, cause("oom-weights"))
    assert not fits(OOM, cause("oom-kv-pool"))
    assert not fits(OOM, cause()), "a log without a failure"
    assert not fits(DeadEnd(diagnosis=None, reason="r", slower_than=38.0), cause("oom-weights"))


def test_what_the_preflight_says_before_a_launch_is_what_the_log_would_say() -> None:
    assert fits(expects("flag-unrecognized"), refused("gpus", "unknown-flag"))
    assert fits(expects("unknown-flag"), cause("flag-unrecognized", phase="arguments"))
    assert not fits(expects("spec-flags-clash"), cause("spec-flags-incomplete")), "both are draft-flags beforehand"


def test_names_that_stand_for_each_other_are_there() -> None:
    pairs = [(one.name, rule) for one in catalogue.rules() for rule in preflight.RULES if is_same(one.name, rule)]

    assert len(dict.fromkeys(pairs)) == 9


@pytest.mark.parametrize(
    ("name", "seen", "fit"),
    [
        ("symm-mem-keyerror-12", cause("unknown-failure", phase="distributed"), True),
        ("symm-mem-keyerror-12", cause("unknown-failure", phase="weights"), False),
        ("symm-mem-keyerror-12", cause("unknown-failure", phase="distributed", exit_code=None), False),
        ("nccl-tree-cuda-graph", cause("nccl-error", phase="graphs", exit_code=-9), True),
        ("oom-expert-parallel", cause("oom-serving", phase="http"), True),
        ("flashinfer-no-arch-list", cause("unknown-failure", phase="graphs"), True),
        ("flashinfer-no-arch-list", refused("unknown-flag"), False),
        ("oom-kv-pool", cause("unknown-failure", phase="kv_cache"), False),
    ],
)
def test_a_provisional_diagnosis_fits_by_phase_and_exit(name: str, seen: FailureCause, fit: bool) -> None:
    assert fits(expects(name), seen) is fit


@pytest.mark.parametrize(
    ("name", "seen", "told"),
    [
        ("oom-weights", None, False),
        ("oom-weights", cause("oom-kv-pool"), True),
        ("oom-weights", refused("python"), False),
        ("oom-weights", refused("gpus"), False),
        ("gpus", refused("gpus"), True),
        ("oom-weights", refused("gpus", "unknown-flag"), True),
        ("port-in-use", cause("port-in-use", category="port_in_use"), True),
        ("oom-weights", cause("port-in-use", category="port_in_use"), False),
        # Fits by its phase, and is of the host all the same.
        ("symm-mem-keyerror-12", cause("gpu-busy", category="gpu_busy", phase="distributed"), False),
    ],
)
def test_a_host_that_is_busy_or_lacks_sglang_tells_nothing(name: str, seen: FailureCause | None, told: bool) -> None:
    assert tells(expects(name), seen) is told


# ---- in a session ---------------------------------------------------------------------------------------------------


class Site:
    """A host with one SGLang."""

    version: str | None = "0.5.23"

    def sglang_version(self, spec: ServerSpec) -> str | None:
        return self.version

    def python(self, spec: ServerSpec) -> PythonFound | None:
        return None

    def header(self) -> dict[str, Any]:
        return {"node": "cpu-x-2c"}


class Session:
    """The dead ends of tests whose launches all fail with one error."""

    def __init__(self, *tests: PlannedTest, error: InfrastructureError, version: str = "0.5.23") -> None:
        self.error = error
        self.launches = 0
        self.told: list[str] = []
        site = Site()
        site.version = version
        self.dead_ends = DeadEnds(site, on_cuda=False, notify=self.told.append)
        self.dead_ends.plan(tests)
        self.pool = ServerPool(build_plan(tests, lambda _: 3), start=self._start, measure=self._measure)

    def _start(self, spec: ServerSpec, index: int) -> Served:
        self.launches += 1
        raise self.error

    def _measure(self, served: Served, planned: PlannedMeasurement) -> Any:
        raise AssertionError("nothing comes up")


def planned(nodeid: str = "t", dead_end: DeadEnd | None = OOM, measurement: Measurement | None = None) -> PlannedTest:
    return PlannedTest(nodeid=nodeid, spec=SPEC, measurement=measurement, rounds=5, warmup=1, dead_end=dead_end)


DIED = LaunchError("x: it died\n  | out of memory", log_path="x.log", exit_code=1, cause=cause("oom-weights"))


@pytest.mark.parametrize("measurement", [None, MEASUREMENT])
def test_a_launch_is_paid_once_for_all_dead_ends_of_a_server(measurement: Measurement | None) -> None:
    one, other = planned("t1", measurement=measurement), planned("t2", expects("oom-kv-pool"), measurement)
    session = Session(one, other, error=DIED)

    holds, differs = session.dead_ends.found(one, session.pool), session.dead_ends.found(other, session.pool)

    assert holds is not None
    assert differs is not None
    assert session.dead_ends.found(one, session.pool) is holds
    assert session.launches == 1
    assert (holds.outcome, holds.status, holds.seen, holds.log_path) == ("holds", None, "oom-weights", "x.log")
    assert (differs.outcome, differs.status) == ("differs", "dead-end-differs")
    assert "expected:  oom-kv-pool" in differs.message
    assert "seen:      oom-weights, in phase weights" in differs.message
    assert "  | out of memory" in differs.message
    assert [entry["outcome"] for entry in session.dead_ends.entries()] == ["holds", "differs"]


def test_by_phase_and_exit_it_says_so() -> None:
    test = planned(dead_end=expects("symm-mem-keyerror-12"))
    seen = cause("unknown-failure", category="unknown", phase="distributed")
    session = Session(test, error=LaunchError("x", cause=seen))

    found = session.dead_ends.found(test, session.pool)

    assert found is not None
    assert (found.outcome, found.seen) == ("holds", "unknown-failure")
    assert found.detail == (
        "unknown-failure, in phase distributed; symm-mem-keyerror-12 is provisional, "
        "so that phase and exit were compared"
    )


@pytest.mark.parametrize("error", [HostError("away"), LaunchError("x", cause=refused("python")), LaunchError("x")])
def test_what_tells_nothing_is_raised_and_no_outcome(error: InfrastructureError) -> None:
    test = planned()
    session = Session(test, error=error)

    with pytest.raises(type(error)):
        session.dead_ends.found(test, session.pool)
    assert session.dead_ends.entries() == []


def test_outside_of_its_versions_nothing_is_launched_for_it() -> None:
    test = planned(dead_end=DeadEnd(diagnosis="oom-weights", reason="r", versions="<0.5.15"))
    session = Session(test, error=DIED)

    assert session.dead_ends.found(test, session.pool) is None
    assert session.launches == 0
    assert session.told == ["t: dead end oom-weights: SGLang 0.5.23 is outside of <0.5.15: an ordinary test"]
    assert [entry["outcome"] for entry in session.dead_ends.entries()] == ["outside-versions"]


@pytest.mark.parametrize(("others", "listed"), [((), 0), ((planned("t2", None),), 1), ((planned("t2"),), 1)])
def test_a_failure_is_expected_when_every_test_of_its_server_expects_it(
    others: tuple[PlannedTest, ...], listed: int
) -> None:
    """Of the last case, the second dead end was not tried."""
    test = planned()
    session = Session(test, *others, error=DIED)
    session.dead_ends.found(test, session.pool)

    assert len(session.dead_ends.unexpected([{"server": "x"}, {"server": "y"}])) == 1 + listed


@pytest.mark.parametrize(
    ("tests", "version", "good"),
    [
        ([planned(dead_end=expects("unknown-flag"))], "0.5.23", True),
        ([planned(dead_end=expects("unknown-flag")), planned("t2", None)], "0.5.23", False),
        ([planned()], "0.5.23", False),
        ([planned(dead_end=DeadEnd(diagnosis="unknown-flag", reason="r", versions="<0.5"))], "0.5.23", False),
    ],
)
def test_a_check_finds_good_what_every_test_expects(tests: list[PlannedTest], version: str, good: bool) -> None:
    checked = Preflight(
        spec=SPEC,
        notices=(),
        problems=(Problem(rule="unknown-flag", message="there is no --x"),),
        sglang_version=version,
    )

    assert Session(*tests, error=DIED).dead_ends.expects(SPEC, checked) is good


@pytest.mark.parametrize(
    ("tests", "launches", "judged"),
    [
        ([planned(measurement=MEASUREMENT)], 1, False),
        ([planned(measurement=MEASUREMENT), planned("t2", None, MEASUREMENT)], 3, True),
        (
            [planned(dead_end=DeadEnd(diagnosis="oom-weights", reason="r", versions="<1"), measurement=MEASUREMENT)],
            3,
            True,
        ),
    ],
    ids=["alone", "shared", "with versions"],
)
def test_what_only_dead_ends_measure_takes_one_launch_and_is_not_judged(
    tests: list[PlannedTest], launches: int, judged: bool
) -> None:
    plan = build_plan(tests, lambda _: 3, lambda _: 5)

    (one,) = plan.specs[0].measurements
    assert (one.launches, one.most_launches) == (launches, 5 if judged else 1)
    assert plan.measurements == ((MEASUREMENT,) if judged else ())
