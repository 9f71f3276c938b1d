"""The command line: optional values in the ``=`` form only, precedence of sources, and errors that name them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_specdec.options import normalise_argv
from tests.plugin.conftest import TEST_B, Suite


@pytest.mark.parametrize(
    ("given", "explicit"),
    [
        (["--gpu-host", "tests/"], ["--gpu-host=", "tests/"]),
        (["--gpu-host=root@blackwell"], ["--gpu-host=root@blackwell"]),
        (["--update-baselines", "tests/"], ["--update-baselines=all", "tests/"]),
        (["--update-baselines=new", "--gpu-host"], ["--update-baselines=new", "--gpu-host="]),
        (["--", "--gpu-host"], ["--", "--gpu-host"]),
        (["-q", "tests/"], ["-q", "tests/"]),
    ],
)
def test_a_bare_option_is_made_explicit(given: list[str], explicit: list[str], tmp_path: Path) -> None:
    normalise_argv(given, invocation_dir=tmp_path)

    assert given == explicit


def test_a_host_after_a_space_gets_a_hint(tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError) as caught:
        normalise_argv(["--gpu-host", "root@blackwell"], invocation_dir=tmp_path)

    assert "--gpu-host=root@blackwell" in str(caught.value)


def test_a_file_with_an_at_sign_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "test_a@b.py").touch()
    args = ["--gpu-host", "test_a@b.py"]

    normalise_argv(args, invocation_dir=tmp_path)

    assert args == ["--gpu-host=", "test_a@b.py"]


SHOW = """
def test_show(request):
    from pytest_specdec import options
    settings = options.load_settings(request.config)
    print("SHOWN", settings.rounds, settings.where["rounds"], settings.gpu_hosts, settings.device, settings.update)
"""


@pytest.fixture
def shown(suite: Suite) -> Suite:
    (suite.root / "sub").mkdir()
    (suite.root / "sub" / "test_show.py").write_text(SHOW)
    return suite


@pytest.mark.parametrize(
    ("args", "env", "ini", "expected"),
    [
        ((), {}, "", "5 default None cpu None"),
        ((), {}, "specdec_rounds = 9", "9 pytest.ini: specdec_rounds None cpu None"),
        (
            (),
            {"PYTEST_SPECDEC_ROUNDS": "8"},
            "specdec_rounds = 9",
            "8 environment variable PYTEST_SPECDEC_ROUNDS None cpu None",
        ),
        (
            ("--specdec-rounds=7",),
            {"PYTEST_SPECDEC_ROUNDS": "8"},
            "specdec_rounds = 9",
            "7 --specdec-rounds None cpu None",
        ),
        (("--gpu-host",), {}, "", "5 default ('',) cuda None"),
        ((), {}, "specdec_gpu_host = here", "5 default ('',) cuda None"),
        (("--gpu-host", "--specdec-device=cpu"), {}, "", "5 default ('',) cpu None"),
        (("--gpu-host=a", "--gpu-host=b"), {}, "", "5 default ('a', 'b') cuda None"),
        ((), {}, "addopts = --gpu-host --update-baselines=new", "5 default ('',) cuda new"),
        ((), {"PYTEST_ADDOPTS": "--update-baselines"}, "", "5 default None cpu all"),
    ],
)
def test_sources_of_a_setting_win_in_order(
    shown: Suite, args: tuple[str, ...], env: dict[str, str], ini: str, expected: str
) -> None:
    (shown.root / "pytest.ini").write_text(f"[pytest]\n{ini}\n")

    result = shown.run("-s", *args, "sub", env=env)

    assert result.ret == 0
    result.stdout.fnmatch_lines([f"*SHOWN {expected}"])


def test_the_next_word_is_always_a_test_path(shown: Suite) -> None:
    result = shown.run("-s", "--gpu-host", "sub")

    result.assert_outcomes(passed=1)
    assert "('',) cuda" in result.stdout.str()


@pytest.mark.parametrize(
    ("args", "env", "ini", "message"),
    [
        (("--specdec-rounds=0",), {}, "", "--specdec-rounds: expected a whole number of at least 1, got '0'"),
        (("--update-baselines=old",), {}, "", "--update-baselines: expected one of new, all, got 'old'"),
        (("--specdec-device=gpu",), {}, "", "--specdec-device: expected one of auto, cpu, cuda, got 'gpu'"),
        ((), {"PYTEST_SPECDEC_WARMUP": "x"}, "", "environment variable PYTEST_SPECDEC_WARMUP: expected a whole"),
        ((), {}, "specdec_inconclusive = maybe", "pytest.ini: specdec_inconclusive: expected one of fail, warn"),
        (("--specdec-url=host:30000",), {}, "", "--specdec-url: expected the address of a server, such as http://"),
        (("--specdec-url=http://a", "--gpu-host"), {}, "", "--specdec-url and --gpu-host: a server that is already"),
        (
            ("--specdec-url=http://a",),
            {"PYTEST_SPECDEC_LAUNCHES": "3"},
            "",
            "--specdec-url and environment variable PYTEST_SPECDEC_LAUNCHES: a server that is already running is one",
        ),
        (
            ("--specdec-url=http://a", "--update-baselines"),
            {"PYTEST_SPECDEC_NODE": ""},
            "",
            "--update-baselines and --specdec-url: a server does not tell its hardware over HTTP",
        ),
        (("--specdec-url-flush",), {}, "", "--specdec-url-flush is about the server of --specdec-url"),
        (("--specdec-share-host",), {}, "", "--specdec-share-host: servers that share a host are kept apart by GPUs"),
        (
            (),
            {"PYTEST_SPECDEC_PYTHON": ""},
            "specdec_python =\n  box: /a\n  box: /b",
            "pytest.ini: specdec_python: expected one path for each host, got 'box: /b'",
        ),
    ],
)
def test_a_bad_value_is_a_usage_error_that_names_its_source(
    suite: Suite, args: tuple[str, ...], env: dict[str, str], ini: str, message: str
) -> None:
    suite.write(TEST_B)
    (suite.root / "pytest.ini").write_text(f"[pytest]\n{ini}\n")

    result = suite.run(*args, env=env)

    assert result.ret == 4
    assert message in result.stderr.str() + result.stdout.str()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--gpu-host=root@127.0.0.1:1",), "root@127.0.0.1:1"),
        (("--gpu-host=a@127.0.0.1:1", "--gpu-host=b@127.0.0.1:1"), "no host of the pool can be used:"),
    ],
    ids=["away", "two"],
)
def test_a_host_that_cannot_be_used_is_infrastructure(suite: Suite, args: tuple[str, ...], said: str) -> None:
    suite.write(
        "GPU = ServerSpec.from_command('gpu', 'python -m sglang.launch_server --model-path /m')\n"
        + TEST_B.replace("[B]", "[GPU]")
    )

    result = suite.run(*args)

    assert result.ret == 12
    assert said in result.stdout.str()
    assert suite.launches == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ('workload="smoke"', 'wrkload="smoke"'),
            "the specdec marker has no field 'wrkload': did you mean 'workload'?",
        ),
        (('workload="smoke", ', ""), "no workload is declared"),
        (('"smoke"', '"smok"'), "marker specdec(workload=...)"),
        (("output_tokens=31", "output_tokens=1"), "expected a whole number of at least 2, got 1"),
        (("output_tokens=31", "concurrency=True"), "expected a whole number of at least 1, got True"),
        (("output_tokens=31", "waive='x'"), "expected names of validity rules"),
        (("output_tokens=31", "sampling={'heat': 1}"), "expected Sampling(...) or a dict of"),
        (("[B]", "['b']"), "sglang_server takes a ServerSpec, got str 'b'"),
    ],
)
def test_a_bad_declaration_is_a_usage_error_that_names_the_test(
    suite: Suite, change: tuple[str, str], message: str
) -> None:
    suite.write(TEST_B.replace(*change))

    result = suite.run()

    assert result.ret == 4
    text = result.stderr.str() + result.stdout.str()
    assert message in text
    assert "test_suite.py::test_b" in text


def test_a_fixture_without_a_spec_shows_how_to_give_one(suite: Suite) -> None:
    suite.write("def test_b(sglang_server): pass\n")

    result = suite.run()

    assert result.ret == 4
    assert 'parametrize("sglang_server", [SPEC], indirect=True)' in result.stderr.str() + result.stdout.str()


def test_two_specs_of_one_name_are_a_collection_error(suite: Suite) -> None:
    suite.write(TEST_B + TEST_B.replace("test_b", "test_c").replace("[B]", "[A.but('b', '--tp 2')]"))

    result = suite.run()

    assert result.ret == 4
    assert "two server specs are named 'b' but differ" in result.stderr.str() + result.stdout.str()


@pytest.mark.parametrize("fixture", ["sglang_server", "specdec_benchmark"])
def test_a_server_that_is_asked_for_too_late_is_a_failure_that_says_so(suite: Suite, fixture: str) -> None:
    suite.write(f"def test_late(request):\n    request.getfixturevalue({fixture!r})\n")

    result = suite.run()

    assert result.ret == 1
    text = result.stdout.str()
    assert "test_late: sglang_server was asked for while the test runs (getfixturevalue)" in text
    assert "KeyError" not in text


@pytest.mark.parametrize("update", [(), ("--update-baselines",), ("--update-baselines=new",)])
def test_collecting_starts_nothing_and_asks_no_host(suite: Suite, update: tuple[str, ...]) -> None:
    suite.write(
        "GPU = ServerSpec.from_command('gpu', 'python -m sglang.launch_server --model-path /m')\n"
        + TEST_B.replace("[B]", "[GPU]")
    )
    asked = suite.root / "asked"
    for name in ("ssh", "nvidia-smi"):
        (suite.root / "bin" / name).write_text(f"#!/bin/sh\ntouch {asked}\nexit 1\n")
        (suite.root / "bin" / name).chmod(0o755)
    path = f"{suite.root / 'bin'}:{os.environ['PATH']}"

    for host in ("--gpu-host", "--gpu-host=gpu-box"):
        result = suite.run(host, "--collect-only", *update, env={"PATH": path, "PYTEST_SPECDEC_NODE": ""})

        assert result.ret == 0
        assert "specdec plan: 1 server spec, 1 measurement" in result.stdout.str()
    assert not asked.exists()
    assert suite.launches == 0
