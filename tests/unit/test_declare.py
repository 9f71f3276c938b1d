"""From what a test says to what it asks for: precedence of marker and parameters, and the form a device serves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec.declare import Declaration, Skip, keys, resolve
from pytest_specdec.errors import UserInputError
from pytest_specdec.model import GoodputLimits, Sampling
from pytest_specdec.plan import PlannedTest
from pytest_specdec.settings import Settings
from pytest_specdec.spec import ServerSpec

GPU = ServerSpec.from_command("gpu", "python -m sglang.launch_server --model-path /m --tp 8")
TINY = ServerSpec.tiny("tiny")


def settings(**changes: Any) -> Settings:
    fields: dict[str, Any] = {
        "gpu_hosts": None,
        "device": "cpu",
        "update": None,
        "url": None,
        "url_flush": False,
        "share_host": False,
        "python": {},
        "node": None,
        "baselines_dir": Path("baselines"),
        "report_dir": Path(".specdec"),
        "launches": None,
        "max_launches": 3,
        "study": False,
        "rounds": 5,
        "warmup": 1,
        "chat_template": False,
        "startup_timeout_s": 600.0,
        "startup_limit_s": 3600.0,
        "lease_s": 120.0,
        "keep_servers_s": None,
        "allow_loosening": False,
        "check": False,
        "baseline_files": None,
        "inconclusive": "fail",
        "where": {},
    }
    return Settings(**{**fields, **changes})


def says(
    *markers: Mapping[str, Any],
    spec: object = TINY,
    params: Mapping[str, Any] | None = None,
    fixtures: tuple[str, ...] = ("sglang_server", "specdec_benchmark"),
    path: Path = Path("test_x.py"),
) -> Declaration:
    given = {} if spec is None else {"sglang_server": spec}
    return Declaration(
        nodeid="test_x.py::test",
        path=path,
        markers=markers,
        params={**given, **(params or {})},
        fixtures=frozenset(fixtures),
    )


def planned(declaration: Declaration, **changes: Any) -> PlannedTest:
    found = resolve(declaration, settings(**changes))
    assert isinstance(found, PlannedTest)
    return found


def test_defaults_are_one_stream_of_512_greedy_tokens() -> None:
    measurement = planned(says({"workload": "smoke"})).measurement

    assert measurement is not None
    assert (measurement.concurrency, measurement.output_tokens, measurement.sampling) == (1, 512, Sampling())
    assert measurement.key == "tiny--smoke--c1--o512"


def test_the_closest_marker_wins_and_a_parameter_over_every_marker() -> None:
    closest, module = {"concurrency": 4, "workload": "code"}, {"workload": "chat", "output_tokens": 64, "rounds": 9}

    found = planned(says(closest, module, params={"concurrency": 16}))

    assert found.measurement is not None
    assert found.measurement.key == "tiny--code--c16--o64"
    assert (found.rounds, found.warmup) == (9, 1)


def test_the_settings_stand_where_the_marker_is_silent() -> None:
    found = planned(says({"workload": "smoke", "warmup": 0}), rounds=7, warmup=3)

    assert (found.rounds, found.warmup) == (7, 0)


def test_a_file_beside_the_test_is_a_workload(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"text": "Hello"}\n')

    measurement = planned(says({"workload": "mine.jsonl"}, path=tmp_path / "test_x.py")).measurement

    assert measurement is not None
    assert measurement.workload.name == "mine"


def test_sampling_may_be_a_dict() -> None:
    measurement = planned(says({"workload": "smoke", "sampling": {"temperature": 0.5}})).measurement

    assert measurement is not None
    assert measurement.sampling == Sampling(temperature=0.5)


def test_a_test_that_only_borrows_the_server_declares_no_measurement() -> None:
    assert planned(says(fixtures=("sglang_server",))).measurement is None


def test_a_marked_test_without_our_fixtures_needs_no_server() -> None:
    assert resolve(says({"workload": "smoke"}, spec=None, fixtures=()), settings()) is None


@pytest.mark.parametrize(
    ("spec", "changes", "launched"),
    [
        (TINY, {}, "tiny"),
        (GPU, {"device": "cuda", "gpu_hosts": ("",)}, "gpu"),
        (GPU.but("gpu", cpu_standin=TINY), {}, "gpu@cpu-standin"),
        (GPU.but("gpu", cpu_standin=TINY), {"device": "cuda", "gpu_hosts": ("",)}, "gpu"),
    ],
)
def test_a_spec_is_placed_in_the_form_the_device_serves(
    spec: ServerSpec, changes: dict[str, Any], launched: str
) -> None:
    assert planned(says({"workload": "smoke"}, spec=spec), **changes).spec.name == launched


@pytest.mark.parametrize(
    ("spec", "changes", "reason"),
    [
        (GPU, {}, "needs a GPU host: give --gpu-host for this machine, or --gpu-host=[user@]host for another one"),
        (GPU, {"device": "cuda"}, "needs a GPU host"),
        (TINY, {"device": "cuda", "gpu_hosts": ("",)}, "tiny is made for the CPU engine: give --specdec-device=cpu"),
        (GPU, {"gpu_hosts": ("",)}, "gpu needs CUDA and names no cpu_standin=, and --specdec-device is cpu"),
    ],
)
def test_what_a_run_cannot_take_is_skipped_with_the_option_that_would(
    spec: ServerSpec, changes: dict[str, Any], reason: str
) -> None:
    found = resolve(says({"workload": "smoke"}, spec=spec), settings(**changes))

    assert isinstance(found, Skip)
    assert found.reason.startswith(reason)


def test_the_gpu_host_alone_is_skipped_without_one() -> None:
    found = resolve(says(spec=None, fixtures=("gpu_host",)), settings())

    assert isinstance(found, Skip)
    assert "--gpu-host" in found.reason


def test_a_chat_template_is_part_of_the_measurement_and_of_its_name() -> None:
    measurement = planned(says({"workload": "smoke", "chat_template": True})).measurement

    assert measurement is not None
    assert measurement.chat_template
    assert measurement.key == "tiny--smoke--c1--o512--templated"


@pytest.mark.parametrize(
    ("marker", "templated"),
    [
        ({"workload": "smoke"}, True),
        ({"workload": "smoke", "chat_template": False}, False),
        ({"workload": "synthetic-32"}, False),
    ],
)
def test_the_setting_is_for_text_about_which_the_marker_is_silent(marker: dict[str, Any], templated: bool) -> None:
    measurement = planned(says(marker), chat_template=True).measurement

    assert measurement is not None
    assert measurement.chat_template is templated


def test_a_template_over_http_is_refused_with_where_it_was_asked_for() -> None:
    with pytest.raises(UserInputError) as caught:
        resolve(
            says({"workload": "smoke"}),
            settings(
                url="http://h:1", chat_template=True, where={"chat_template": "pytest.ini: specdec_chat_template"}
            ),
        )

    assert str(caught.value) == (
        "test_x.py::test: pytest.ini: specdec_chat_template: expected False with --specdec-url: a template is rendered "
        "by the Python that runs SGLang, which can't be reached over HTTP, got True"
    )


@pytest.mark.parametrize(
    ("marker", "params", "message"),
    [
        ({"workload": "smoke", "chat_template": "yes"}, {}, "specdec(chat_template=...): expected True or False"),
        (
            {"workload": "synthetic-32", "chat_template": True},
            {},
            "expected False for workload 'synthetic-32', which has token ids for text, got True",
        ),
        ({}, {}, "no workload is declared"),
        ({"workload": "smok"}, {}, "marker specdec(workload=...): there is no workload 'smok'. Did you mean 'smoke'?"),
        ({"workload": 3}, {}, "expected the name of a workload or the path of a .jsonl or .json file, got 3"),
        ({"workload": "smoke", "rounds": 0}, {}, "marker specdec(rounds=...): expected a whole number of at least 1"),
        ({"workload": "smoke"}, {"concurrency": "4"}, "parameter 'concurrency': expected a whole number"),
        ({"workload": "smoke", "waive": ["x"]}, {}, "expected names of validity rules (request-error, "),
        ({"workload": "smoke", "sampling": {"heat": 1}}, {}, "expected Sampling(...) or a dict of min_p, seed"),
        ({"wrkload": "smoke"}, {}, "the specdec marker has no field 'wrkload': did you mean 'workload'? it takes "),
    ],
)
def test_what_cannot_be_meant_is_refused_with_test_place_and_remedy(
    marker: dict[str, Any], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserInputError) as caught:
        resolve(says(marker, params=params), settings())

    assert str(caught.value).startswith("test_x.py::test: ")
    assert message in str(caught.value)


def test_even_a_skipped_test_must_be_well_declared() -> None:
    with pytest.raises(UserInputError, match="rounds"):
        resolve(says({"workload": "smoke", "rounds": -1}, spec=GPU), settings())


@pytest.mark.parametrize("said", [{"markers": {"request_rate": 4}}, {"params": {"request_rate": 4.0}}])
def test_a_request_rate_makes_an_open_loop_without_a_cap_that_is_reached(said: dict[str, Any]) -> None:
    found = planned(says({"workload": "smoke", **said.get("markers", {})}, params=said.get("params")))

    measurement = found.measurement
    assert measurement is not None
    assert measurement.request_rate == 4.0
    assert measurement.concurrency == len(measurement.workload.prompts)
    assert measurement.key == f"tiny--smoke--c{measurement.concurrency}--o512--r4"


def test_the_concurrency_caps_an_open_loop() -> None:
    measurement = planned(says({"workload": "smoke", "request_rate": 0.5, "concurrency": 2})).measurement

    assert measurement is not None
    assert (measurement.concurrency, measurement.key) == (2, "tiny--smoke--c2--o512--r0.5")


@pytest.mark.parametrize("rate", [0, -1.5, True, "4", float("inf"), float("nan")])
def test_a_request_rate_that_is_none_is_refused(rate: object) -> None:
    with pytest.raises(
        UserInputError, match=r"marker specdec\(request_rate=...\): expected requests per second, a num"
    ):
        planned(says({"workload": "smoke", "request_rate": rate}))


@pytest.mark.parametrize("given", [{"ttft_ms": 500, "tpot_ms": 25.5}, GoodputLimits(ttft_ms=500, tpot_ms=25.5)])
def test_limits_for_goodput_are_part_of_the_measurement(given: object) -> None:
    test = resolve(says({"workload": "smoke", "goodput": given}), settings())

    assert isinstance(test, PlannedTest)
    assert test.measurement is not None
    assert test.measurement.goodput == GoodputLimits(ttft_ms=500.0, tpot_ms=25.5)


@pytest.mark.parametrize("given", [{}, {"ttft": 500}, {"ttft_ms": 0}, {"ttft_ms": True}, {"ttft_ms": "fast"}, 500])
def test_limits_for_goodput_that_can_not_be_are_refused(given: object) -> None:
    with pytest.raises(
        UserInputError, match=r'marker specdec\(goodput=...\): expected limits in milliseconds, .*"ttft_ms"'
    ):
        resolve(says({"workload": "smoke", "goodput": given}), settings())


def dead_end(declaration: Declaration, **fields: Any) -> Declaration:
    return dataclasses.replace(declaration, dead_end=((), {"reason": "r", **fields}))


def test_a_dead_end_goes_with_the_planned_test() -> None:
    planned = resolve(dead_end(says({"workload": "smoke"}), diagnosis="oom-weights"), settings())

    assert isinstance(planned, PlannedTest)
    assert planned.dead_end is not None
    assert planned.dead_end.diagnosis == "oom-weights"


def test_a_dead_end_needs_a_server_and_by_slowness_a_measurement() -> None:
    with pytest.raises(UserInputError, match="no server spec"):
        resolve(dead_end(says(spec=None, fixtures=()), diagnosis="oom-weights"), settings())
    with pytest.raises(UserInputError, match=r"dead_end\(slower_than=\.\.\.\) needs a measurement"):
        resolve(dead_end(says(fixtures=("sglang_server",)), slower_than=38.0), settings())


def test_a_standin_is_not_the_dead_end_that_it_stands_for() -> None:
    with_standin = ServerSpec.from_command("gpu", "python -m sglang.launch_server --model-path /m", cpu_standin=TINY)
    declaration = dead_end(says(spec=with_standin, fixtures=("sglang_server",)), diagnosis="oom-weights")

    skipped = resolve(declaration, settings())

    assert isinstance(skipped, Skip)
    assert skipped.reason.startswith("gpu@cpu-standin is no dead end, only what it stands for; needs a GPU host")
    assert isinstance(resolve(declaration, settings(device="cuda", gpu_hosts=("",))), PlannedTest)


BASE = ServerSpec.tiny("base", "--tp 2")
OF_GPU = GPU.but("gpu-base", "--tp 4", cpu_standin=BASE)
DRAFTS = GPU.but("gpu-drafts", "--speculative-algorithm NGRAM", cpu_standin=TINY)
ON_GPU: dict[str, Any] = {"device": "cuda", "gpu_hosts": ("",)}


@pytest.mark.parametrize(
    ("marker", "params", "control"),
    [
        ({"control": BASE}, {}, BASE),
        ({}, {"control": BASE}, BASE),
        ({"control": GPU}, {"control": BASE}, BASE),
        ({"control": BASE}, {"control": None}, None),
        ({}, {}, None),
    ],
)
def test_a_control_is_named_by_the_marker_or_by_a_parameter_which_goes_first(
    marker: dict[str, Any], params: dict[str, Any], control: ServerSpec | None
) -> None:
    found = planned(says({"workload": "smoke", **marker}, params=params))

    assert found.control == control
    assert found.measurement is not None
    assert [one.key for one in found.measurements] == [
        "tiny--smoke--c1--o512",
        *([] if control is None else ["base--smoke--c1--o512"]),
    ]


@pytest.mark.parametrize(
    ("control", "message"),
    [
        (
            TINY,
            "marker specdec(control=...): expected another spec than tiny itself, which it is measured beside, got ",
        ),
        (TINY.but("other-name"), "expected another spec than tiny itself"),
        ("base", "marker specdec(control=...): expected a ServerSpec (None: no control), got 'base'"),
    ],
)
def test_what_can_be_no_control_is_refused(control: object, message: str) -> None:
    with pytest.raises(UserInputError) as caught:
        resolve(says({"workload": "smoke", "control": control}), settings())

    assert str(caught.value).startswith("test_x.py::test: ")
    assert message in str(caught.value)


def test_a_control_that_is_a_parameter_is_refused_as_that() -> None:
    with pytest.raises(UserInputError, match="parameter 'control': expected a ServerSpec"):
        resolve(says({"workload": "smoke"}, params={"control": 3}), settings())


def test_a_test_that_measures_nothing_has_no_control() -> None:
    assert planned(says({"control": BASE}, fixtures=("sglang_server",))).control is None


@pytest.mark.parametrize(
    ("changes", "specs"),
    [({}, ("gpu-drafts@cpu-standin", "gpu-base@cpu-standin")), (ON_GPU, ("gpu-drafts", "gpu-base"))],
)
def test_a_control_takes_the_form_that_its_treatment_has(changes: dict[str, Any], specs: tuple[str, str]) -> None:
    found = planned(says({"workload": "smoke", "control": OF_GPU}, spec=DRAFTS), **changes)

    assert found.control is not None
    assert (found.spec.name, found.control.name) == specs


@pytest.mark.parametrize(
    ("spec", "control", "changes", "reason"),
    [
        (
            TINY,
            BASE,
            {"url": "http://h:1"},
            "control= launches two servers in turn, and --specdec-url is one that runs",
        ),
        (TINY, GPU, {}, "needs a GPU host: give --gpu-host"),
        (TINY, GPU, {"gpu_hosts": ("",)}, "gpu needs CUDA and names no cpu_standin="),
        (GPU, TINY, ON_GPU, "tiny is made for the CPU engine: give --specdec-device=cpu"),
        (
            DRAFTS,
            GPU.but("gpu-base", "--tp 4", cpu_standin=TINY),
            {},
            "gpu-base@cpu-standin and gpu-drafts@cpu-standin are one server: there is nothing to compare",
        ),
    ],
)
def test_a_test_whose_control_can_not_be_launched_beside_it_is_skipped(
    spec: ServerSpec, control: ServerSpec, changes: dict[str, Any], reason: str
) -> None:
    found = resolve(says({"workload": "smoke", "control": control}, spec=spec), settings(**changes))

    assert isinstance(found, Skip)
    assert found.reason.startswith(reason)


def test_a_test_looks_at_the_baselines_of_its_control_in_every_form() -> None:
    declared = says({"workload": "smoke", "control": OF_GPU}, spec=DRAFTS)

    assert keys(declared, settings()) == {
        f"{name}--smoke--c1--o512"
        for name in ("gpu-drafts", "gpu-drafts@cpu-standin", "gpu-base", "gpu-base@cpu-standin")
    }


@pytest.mark.parametrize(
    ("marker", "sweep"), [({}, None), ({"sweep": False}, None), ({"sweep": True}, "test_x.py::test_steps")]
)
def test_a_sweep_is_called_after_its_test_function(marker: dict[str, Any], sweep: str | None) -> None:
    declared = dataclasses.replace(says({"workload": "smoke", **marker}), nodeid="test_x.py::test_steps[tiny-4]")

    assert planned(declared).sweep == sweep


@pytest.mark.parametrize("given", [1, "yes", None, [TINY]])
def test_a_sweep_is_true_or_false(given: object) -> None:
    with pytest.raises(UserInputError, match=r"marker specdec\(sweep=...\): expected True or False, got "):
        resolve(says({"workload": "smoke", "sweep": given}), settings())
