"""The ``all_reduce`` fixture: real sessions and real processes, with a torch whose clock all-reduces move."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.plugin.conftest import Suite

KEY = "all-reduce--gloo--w2--4x28672"
BODY = """
from pytest_specdec import step_traffic

STEP = step_traffic(layers=2, hidden_size=7168, batch_tokens=2)

def test_step(all_reduce, record_property):
    result = all_reduce(STEP, world_size=2, rounds=3, warmup=0, verify_rate=100.0)
    record_property("starts", len(result.launches))
    assert result.ceiling.verify_rate == pytest.approx(1e6 / (4 * {us}))
"""


def timed(suite: Suite, us: int, *args: str, node: str = "cpu-test", body: str = BODY) -> pytest.RunResult:
    suite.write(body.replace("{us}", str(us)))
    return suite.run(*args, env={"FAKE_ALL_REDUCE_US": str(us), "PYTEST_SPECDEC_NODE": node})


def recorded(suite: Suite, node: str = "cpu-test") -> Path:
    return suite.root / "baselines" / node / "communication" / f"{KEY}.json"


def test_without_a_baseline_a_cpu_tells_its_figures_and_passes(suite: Suite) -> None:
    result = timed(suite, 1000)

    assert result.ret == 0
    result.stdout.re_match_lines(
        [
            rf"specdec: {KEY}: 1000.0 us a call, 4.000 ms a step: at most 250.0 steps/s; 40.0 % of a step at 100.0 .*",
            r"specdec:   advisory, not judged: no baseline; --update-baselines=new writes .*",
        ]
    )


def test_a_node_of_gpus_without_a_baseline_is_told_how_to_get_one(suite: Suite) -> None:
    result = timed(suite, 1000, node="8x-card")

    assert result.ret == 0
    result.stdout.fnmatch_lines(["specdec:   not judged: no baseline; --update-baselines=new writes *"])


def test_a_baseline_has_five_starts_and_a_slower_link_breaks_it(suite: Suite) -> None:
    assert timed(suite, 1000, "--update-baselines", node="8x-card").ret == 0

    document = json.loads(recorded(suite, "8x-card").read_text())
    assert document["identity"] == {
        "algorithm": None,
        "backend": "gloo",
        "calls": 4,
        "dtype": "bfloat16",
        "graph": False,
        "message_bytes": 28672,
        "method_version": 1,
        "world_size": 2,
    }
    assert [len(rounds) for rounds in document["metrics"]["all_reduce_us"]["launches"]] == [3] * 5
    assert document["environment"]["torch_version"] == "2.14.1+fake"
    copy = suite.root / ".specdec" / "baselines" / "8x-card" / "communication" / f"{KEY}.json"
    assert copy.read_text() == recorded(suite, "8x-card").read_text()

    slower = timed(suite, 4000, node="8x-card")

    assert slower.ret == 1
    slower.stdout.fnmatch_lines([f"*{KEY}: 4000.0 us a call (+300.0 %)*", "*regression: worse by 300.0%*"])


def test_a_slower_cpu_is_told_and_fails_nothing(suite: Suite) -> None:
    assert timed(suite, 1000, "--update-baselines").ret == 0

    slower = timed(suite, 4000)

    assert slower.ret == 0
    slower.stdout.fnmatch_lines(["*advisory, not judged: worse by 300.0%*"])


def test_a_looser_baseline_is_written_only_when_allowed(suite: Suite) -> None:
    assert timed(suite, 1000, "--update-baselines", node="8x-card").ret == 0
    before = recorded(suite, "8x-card").read_text()

    assert timed(suite, 4000, "--update-baselines", node="8x-card").ret == 1
    assert recorded(suite, "8x-card").read_text() == before
    assert timed(suite, 4000, "--update-baselines", "--specdec-allow-loosening", node="8x-card").ret == 0
    assert recorded(suite, "8x-card").read_text() != before


def test_a_ceiling_that_a_person_set_is_literal_on_a_cpu_too(suite: Suite) -> None:
    assert timed(suite, 1000, "--update-baselines").ret == 0
    document = json.loads(recorded(suite).read_text())
    document["metrics"]["all_reduce_us"]["ceiling"] = 900.0
    recorded(suite).write_text(json.dumps(document))

    result = timed(suite, 1000)

    assert result.ret == 1
    result.stdout.fnmatch_lines(["*regression: * is above its ceiling 900*"])


def test_nccl_is_skipped_without_gpus_and_nothing_was_measured(suite: Suite) -> None:
    result = timed(suite, 1000, "-rs", body=BODY.replace("world_size=2", "world_size=2, backend='nccl'"))

    assert result.ret == 13
    result.stdout.fnmatch_lines(["SKIPPED *times NCCL, which needs GPUs: give --gpu-host*"])


def test_a_python_without_torch_is_an_infrastructure_failure(suite: Suite) -> None:
    suite.write(BODY.replace("{us}", "1"))

    result = suite.run(env={"FAKE_TORCH": "raise"})

    assert result.ret == 12
    result.stdout.fnmatch_lines(["*can't be timed with *: rank ?: ImportError: libcudart.so.13*"])


def test_the_server_of_the_session_is_ended_first(suite: Suite) -> None:
    both = BODY + (
        "\n"
        "@pytest.mark.specdec(workload='smoke', output_tokens=16)\n"
        "@pytest.mark.parametrize('sglang_server', [A], indirect=True)\n"
        "def test_share(sglang_server, all_reduce):\n"
        "    import urllib.request, urllib.error\n"
        "    url = sglang_server.url\n"
        "    urllib.request.urlopen(url + '/server_info').read()\n"
        "    all_reduce(STEP, world_size=2, rounds=3, warmup=0)\n"
        "    with pytest.raises(urllib.error.URLError):\n"
        "        urllib.request.urlopen(url + '/server_info')\n"
    )

    assert timed(suite, 1000, body=both).ret == 0


def test_pytest_benchmark_has_each_step_that_was_timed_as_a_round(suite: Suite) -> None:
    perf = Path(__file__).parents[1] / "perf" / "test_communication.py"
    table = suite.root / "table.json"
    suite.write(perf.read_text(encoding="utf-8").replace("from __future__ import annotations\n", ""))

    result = suite.run("-W", "error", f"--benchmark-json={table}", env={"FAKE_ALL_REDUCE_US": "50"})

    result.assert_outcomes(passed=2, skipped=9)
    entries = json.loads(table.read_text())["benchmarks"]
    assert [entry["extra_info"]["key"] for entry in entries] == [f"all-reduce--gloo--w{n}--122x43008" for n in (1, 2)]
    assert [entry["stats"]["data"] for entry in entries] == [pytest.approx([122 * 50e-6] * 10)] * 2


def test_without_pytest_benchmark_the_same_is_timed(suite: Suite) -> None:
    perf = Path(__file__).parents[1] / "perf" / "test_communication.py"
    suite.write(perf.read_text(encoding="utf-8").replace("from __future__ import annotations\n", ""))

    result = suite.run("-W", "error", "-p", "no:benchmark", env={"FAKE_ALL_REDUCE_US": "50"})

    result.assert_outcomes(passed=2, skipped=9)
