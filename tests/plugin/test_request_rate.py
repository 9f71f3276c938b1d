"""An open loop, from the parameter of a test to its baseline."""

from __future__ import annotations

import json

from tests.plugin.conftest import Suite

TEST = """
@pytest.mark.specdec(workload="smoke", output_tokens=31)
@pytest.mark.parametrize("request_rate", [200.0])
@pytest.mark.parametrize("sglang_server", [B], indirect=True)
def test_rate(specdec_benchmark):
    result = specdec_benchmark(check=False)
    assert result["ttft_scheduled_ms"].value >= result["ttft_ms"].value
"""


def test_a_request_rate_has_a_baseline_of_its_own(suite: Suite) -> None:
    suite.write(TEST)

    recorded = suite.run("--update-baselines", "--specdec-launches=1")

    recorded.assert_outcomes(passed=1)
    (entry,) = suite.results["measurements"]
    assert (entry["request_rate"], entry["violations"]) == (200.0, [])
    stored = json.loads(suite.baseline(entry["key"]).read_text())
    assert entry["key"].endswith("--o31--r200")
    assert stored["identity"]["request_rate"] == 200.0

    rounds = [json.loads(line)["round"] for line in (suite.root / ".specdec" / "rounds.jsonl").read_text().splitlines()]
    for done in rounds:
        dues = [request["scheduled_s"] for request in done["requests"]]
        assert dues == sorted(dues)
        assert all(request["sent_s"] >= request["scheduled_s"] for request in done["requests"])

    recorded.stdout.fnmatch_lines(["*b: 1 launch; smoke c* o31 r200/s (2+1 rounds)*"])
