"""Under pytest-xdist: what workers measured comes together in one table, one document and one exit code."""

from __future__ import annotations

import os

import pytest

from tests.plugin.conftest import TEST_B, Suite

TWO = TEST_B.replace("[B]", "[A, B]")


@pytest.mark.parametrize("args", [("-p", "no:xdist"), ("-n", "0"), ("-n", "2")], ids=["none", "n0", "n2"])
def test_results_are_merged(suite: Suite, args: tuple[str, ...]) -> None:
    suite.write(TWO)

    result = suite.run(*args, "--update-baselines", "--specdec-launches=1")

    assert result.ret == 0
    result.assert_outcomes(passed=2)
    assert [entry["server"] for entry in suite.results["measurements"]] == ["a", "b"]
    assert suite.results["launch_count"] == 2
    assert suite.baseline("b--smoke--c1--o31").exists()
    result.stdout.fnmatch_lines(["a *smoke c1 o31*", "b *smoke c1 o31*3.000*"])


@pytest.mark.parametrize("args", [("-n", "0"), ("-n", "2")], ids=["n0", "n2"])
def test_the_exit_code_is_that_of_the_outcomes(suite: Suite, args: tuple[str, ...]) -> None:
    suite.write(TEST_B)

    assert suite.run(*args).ret == 11
    assert suite.run(*args, env={"FAKE_DIE": "start"}).ret == 12


def test_workers_never_measure_at_the_same_time(suite: Suite) -> None:
    suite.write(TWO)

    assert suite.run("-n", "2").ret == 11

    spans = sorted(
        (launch["started_unix_s"], launch["started_unix_s"] + launch["ready_s"])
        for entry in suite.results["measurements"]
        for launch in entry["launches"]
    )
    assert len(spans) == 2
    assert spans[0][1] <= spans[1][0]


def test_tests_of_one_spec_stay_on_one_worker(suite: Suite) -> None:
    """Six tests over two specs make two launches, however many workers there are."""
    one = TWO.replace("test_b", "test_one").replace("31", "16")
    suite.write(one + one.replace("test_one", "test_two") + TWO)

    result = suite.run("-n", "3")

    result.assert_outcomes(failed=3, passed=3)
    assert suite.launches == 2
    command = "pytest --update-baselines=new --specdec-device=cpu --specdec-node=cpu-test 'test_suite.py::test_b[b]'"
    assert command in result.stdout.str()


def test_the_user_chooses_another_distribution(suite: Suite) -> None:
    suite.write(TWO)

    result = suite.run("-n", "2", "--dist=loadfile", "-v")

    result.stdout.fnmatch_lines(["*NO-BASELINE test_suite.py::test_b?b? *"])
    assert suite.launches == 2


def test_servers_share_a_host_on_gpus_of_their_own(suite: Suite) -> None:
    """Both are up at the same time: the first waits in its test until the second is there."""
    (suite.root / "bin" / "nvidia-smi").write_text(
        '#!/bin/sh\ncase "$1" in\n*compute-apps*) ;;\n'
        '*uuid*) echo "0, GPU-0, 97887, 97000"; echo "1, GPU-1, 97887, 97000" ;;\n'
        '*) for i in 0 1; do echo "NVIDIA RTX PRO 6000, 580.65.06, 97887, 600.00, 2430, 14001"; done ;;\nesac\n'
    )
    (suite.root / "bin" / "nvidia-smi").chmod(0o755)
    suite.write(
        "import pathlib, time\n"
        "HERE = pathlib.Path(__file__).parent\n"
        "ONE = ServerSpec.from_command('one', f'python -m sglang.launch_server --model-path {MODEL}')\n"
        "TWO = ONE.but('two', '--speculative-algorithm NGRAM')\n"
        "@pytest.mark.parametrize('sglang_server', [ONE, TWO], indirect=True)\n"
        "def test_together(sglang_server):\n"
        "    sglang_server.info\n"
        "    (HERE / f'{sglang_server.spec.name}.up').touch()\n"
        "    end = time.monotonic() + 30\n"
        "    while len(list(HERE.glob('*.up'))) < 2:\n"
        "        assert time.monotonic() < end, 'the other one is not up'\n"
        "        time.sleep(0.05)\n"
        "@pytest.mark.specdec(workload='smoke', output_tokens=8, rounds=1, warmup=0)\n"
        "@pytest.mark.parametrize('sglang_server', [ONE, TWO], indirect=True)\n"
        "def test_measured(specdec_benchmark):\n"
        "    specdec_benchmark(check=False)\n"
    )
    path = {"PATH": f"{suite.root / 'bin'}:{os.environ['PATH']}", "PYTEST_SPECDEC_NODE": ""}

    result = suite.run("-n", "2", "--gpu-host", "--specdec-share-host", env=path)

    assert result.ret == 0, result.stdout.str()
    facts = [entry["launches"][0]["facts"] for entry in suite.results["measurements"]]
    assert sorted(fact["shared_host_gpus"] for fact in facts) == ["0", "1"]
    assert all(fact["env.CUDA_VISIBLE_DEVICES"] == fact["shared_host_gpus"] for fact in facts)
