"""A treatment beside its control: blocks of four launches, their ratio, and what drifts and moves make of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.plugin.conftest import Suite

#: The treatment accepts 3 tokens a step, the control does not draft: about three times as fast at 40 ms a step.
PAIR = """
ENV = {**ENV, 'FAKE_STEP_MS': '40'}
A = A.but('base', env=ENV)
B = B.but('drafts', env=ENV)

@pytest.mark.specdec(workload="smoke", output_tokens=10, rounds=1, warmup=0, control=A)
@pytest.mark.parametrize("sglang_server", [B], indirect=True)
def test_speedup(specdec_benchmark):
    speedup = specdec_benchmark().speedup
    assert 1.5 < speedup.low <= speedup.ratio <= speedup.high
"""
KEY = "drafts--smoke--c1--o10"
CONTROL = "base--smoke--c1--o10"


def shown(suite: Suite) -> dict[str, dict[str, Any]]:
    return {entry["key"]: entry for entry in suite.results["measurements"]}


def commands(suite: Suite) -> list[str]:
    """Which spec each launch was of, in order: the one that drafts says so."""
    return ["B" if "NGRAM" in line else "A" for line in suite.counter.read_text().splitlines()]


def test_a_block_is_four_launches_a_b_b_a_and_gives_a_ratio(suite: Suite) -> None:
    suite.write(PAIR)

    result = suite.run()

    assert (result.ret, commands(suite)) == (0, ["A", "B", "B", "A"])
    text = result.stdout.str()
    assert "2 server specs, 2 measurements, 4 launches" in text
    assert "drafts beside base: a block A B B A" in text
    assert f"{KEY}: beside base: decode_tok_s x" in text
    assert f"{KEY}: changed against base: --speculative-algorithm: (not set) -> NGRAM" in text
    assert f"{KEY}: no baseline of its own: held to base only" in text
    measured = shown(suite)[KEY]
    speedup = measured["speedup"]
    assert (measured["verdict"], speedup["metric"], speedup["control"]) == ("pass", "decode_tok_s", "base")
    assert (
        speedup["low"]
        < measured["metrics"]["decode_tok_s"]["value"] / (shown(suite)[CONTROL]["metrics"]["decode_tok_s"]["value"])
        < speedup["high"]
    )
    assert shown(suite)[CONTROL]["speedup"] is None


def test_what_the_servers_made_of_the_change_is_told(suite: Suite) -> None:
    suite.write(PAIR.replace("A.but('base', env=ENV)", "A.but('base', '--tp 2', env=ENV)"))

    result = suite.run()

    text = result.stdout.str()
    assert "that is 2 changes at once: the ratio is of all of them together" in text
    effective = shown(suite)[KEY]["difference"]["effective"]
    assert {"key": "args.tp_size", "before": "2", "after": "(not set)"} in effective or {
        "key": "args.tp_size",
        "before": "2",
        "after": "1",
    } in effective


def test_all_tests_of_a_pair_share_one_block_and_its_launches_serve_plain_tests_too(suite: Suite) -> None:
    more = """
@pytest.mark.specdec(workload="smoke", output_tokens=10, rounds=1, warmup=0)
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("sglang_server", [A, B], indirect=True)
def test_plain(specdec_benchmark):
    specdec_benchmark(check=False)

@pytest.mark.specdec(workload="smoke", output_tokens=10, rounds=1, warmup=0)
@pytest.mark.parametrize(("concurrency", "control"), [(1, A), (2, A)])
@pytest.mark.parametrize("sglang_server", [B], indirect=True)
def test_again(specdec_benchmark):
    assert specdec_benchmark().speedup.conclusive
"""
    suite.write(PAIR + more)

    result = suite.run("--benchmark-json=table.json")

    assert (result.ret, commands(suite)) == (0, ["A", "B", "B", "A"])
    table = json.loads((suite.root / "table.json").read_text())
    keys = [f"{server}--smoke--c{concurrency}--o10" for server in ("base", "drafts") for concurrency in (1, 2)]
    assert sorted(entry["name"] for entry in table["benchmarks"]) == keys, "each measurement is there once"
    assert f"{KEY}, {KEY}" not in result.stdout.str()


def test_a_host_that_drifts_within_the_block_makes_the_ratio_inconclusive(suite: Suite) -> None:
    """The second control leg is half as fast as the first: whatever the treatment did, it can't be told."""
    suite.write(PAIR)

    result = suite.run(env={"FAKE_STEP_MS_BY_LAUNCH": "40,40,40,80"})

    assert result.ret == 10
    measured = shown(suite)[KEY]
    assert (measured["verdict"], measured["speedup"]["conclusive"], measured["speedup"]["low"]) == (
        "inconclusive",
        False,
        None,
    )
    assert "two control launches of a block differ by" in result.stdout.str()


def test_an_inconclusive_ratio_is_no_win_even_where_it_is_only_a_warning(suite: Suite) -> None:
    suite.write(PAIR)

    result = suite.run("-o", "specdec_inconclusive=warn", env={"FAKE_STEP_MS_BY_LAUNCH": "40,40,40,80"})

    assert result.ret == 1
    assert "assert 1.5 < 0.0" in result.stdout.str()


def gate_speed(suite: Suite, key: str, factor: float) -> None:
    """Gate what was recorded of the decode speed, as if it had been so many times as fast."""
    path = suite.baseline(key)
    stored = json.loads(path.read_text())
    metric = stored["metrics"]["decode_tok_s"]
    value = metric.pop("mean")
    launches = [[value * factor * (1 + spread)] for spread in (0.0, 0.001, -0.001, 0.002, -0.002)]
    stored["metrics"]["decode_tok_s"] = {**metric, "gate": True, "launches": launches}
    path.write_text(json.dumps(stored))


@pytest.mark.parametrize(("baseline_of_its_own", "verdict", "code"), [(False, "pass", 0), (True, "inconclusive", 10)])
def test_a_control_that_moved_is_marked_and_the_ratio_stands(
    suite: Suite, baseline_of_its_own: bool, verdict: str, code: int
) -> None:
    plain = (
        PAIR.replace(", control=A", "").replace("[B]", "[A, B]").split("    speedup =")[0] + "    specdec_benchmark()\n"
    )
    suite.write(plain)
    assert suite.run("--update-baselines", "--specdec-launches=1").ret == 0
    gate_speed(suite, CONTROL, 2.0)
    if not baseline_of_its_own:
        suite.baseline(KEY).unlink()
    suite.write(PAIR)

    result = suite.run()

    assert result.ret == code
    assert shown(suite)[CONTROL]["verdict"] == "regression"
    measured = shown(suite)[KEY]
    assert (measured["verdict"], measured["speedup"]["conclusive"], measured["speedup"]["control_moved"]) == (
        verdict,
        True,
        True,
    )
    assert "beside base (control moved): decode_tok_s x" in result.stdout.str()


def test_a_control_that_does_not_start_fails_the_test_that_is_beside_it_only(suite: Suite) -> None:
    plain = PAIR.replace(", control=A", "").replace("test_speedup", "test_plain")
    plain = plain.split("    speedup =")[0] + "    specdec_benchmark(check=False)\n"
    suite.write(PAIR.replace("A.but('base', env=ENV)", "A.but('base', env={**ENV, 'FAKE_DIE': 'start'})") + plain)

    result = suite.run("-v")

    assert result.ret == 12
    result.assert_outcomes(passed=1, failed=1)
    assert commands(suite) == ["A", "B"]


def test_a_control_is_stopped_after_its_treatment_s_last_test_though_that_has_no_control(suite: Suite) -> None:
    plain = """
@pytest.mark.specdec(workload="smoke", output_tokens=10, rounds=1, warmup=0)
@pytest.mark.parametrize("sglang_server", [SPEC], indirect=True)
def test_of_SPEC(specdec_benchmark):
    specdec_benchmark(check=False)
"""
    other = """
def test_of_another_suite():
    import psutil
    assert not [
        process
        for process in psutil.process_iter(["environ", "status"])
        if (process.info["environ"] or {}).get("FAKE_COUNTER") == ENV["FAKE_COUNTER"]
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]
"""
    beside = plain.replace("warmup=0", "warmup=0, control=A").replace("of_SPEC", "beside")
    # The control's own tests are done before the second block, which ends with it.
    suite.write(
        "C = B.but('c', '--tp 2')\n"
        + plain.replace("SPEC", "A")
        + beside.replace("SPEC", "B")
        + beside.replace("SPEC", "C").replace("test_beside", "test_second")
        + plain.replace("SPEC", "C")
        + other
    )

    result = suite.run()

    result.assert_outcomes(passed=5)


def test_a_treatment_that_the_preflight_refuses_costs_no_launch_of_its_control(suite: Suite) -> None:
    suite.write(PAIR.replace("B.but('drafts', env=ENV)", "B.but('drafts', '--no-such-flag', env=ENV)"))

    result = suite.run()

    assert (result.ret, suite.launches) == (12, 0)
    assert [failure["server"] for failure in suite.results["failures"]] == ["drafts"]
    assert "unknown-flag" in result.stdout.str()


def test_a_control_that_is_the_spec_itself_is_refused(suite: Suite) -> None:
    suite.write(PAIR.replace("control=A", "control=B"))

    result = suite.run()

    assert result.ret == 4
    assert "expected another spec than drafts itself" in result.stderr.str() + result.stdout.str()


def test_a_speed_up_needs_a_control(suite: Suite) -> None:
    suite.write(PAIR.replace(", control=A", "").replace("specdec_benchmark()", "specdec_benchmark(check=False)"))

    result = suite.run()

    assert result.ret == 1
    assert "there is no speed-up: it was measured without a control; name one: specdec(control=SPEC)" in (
        result.stdout.str()
    )


def test_the_plan_tells_what_blocks_cost_before_anything_is_launched(suite: Suite) -> None:
    suite.write(PAIR)

    result = suite.run("--collect-only")

    assert "2 server specs, 2 measurements, 4 launches" in result.stdout.str()
    assert suite.launches == 0
