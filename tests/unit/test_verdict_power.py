"""The benchmark's rule for arrays must be the one that judges."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import noise_models, simulated_rules, verdict_power
from pytest_specdec import noise
from pytest_specdec.decide import Gate, decide
from pytest_specdec.detectable import Rule
from pytest_specdec.model import Verdict

OUTCOMES = {
    Verdict.REGRESSION: simulated_rules.REGRESSION,
    Verdict.PASS: simulated_rules.PASS,
    Verdict.IMPROVEMENT: simulated_rules.PASS,
    Verdict.INCONCLUSIVE: simulated_rules.UNDECIDED,
}


@pytest.mark.parametrize("recorded", [1, 3, 5])
def test_the_simulated_rule_is_ours(recorded: int) -> None:
    count, setting = 60, simulated_rules.Setting(recorded=recorded, rule=Rule(error=0.005))
    prior = noise.PRIORS["tok/s"]
    logs = noise_models.PUBLISHED.draw(np.random.default_rng(3), count, recorded, 3)
    loss = np.linspace(0, 0.2, count)
    simulated = simulated_rules.ours(setting, logs[:, :recorded], logs[:, recorded:], loss)

    for i in range(count):
        baseline, judged = np.exp(logs[i, :recorded]), np.exp(logs[i, recorded:] - loss[i])
        known = noise.estimate(baseline.tolist(), prior=prior, smallest_sigma=setting.smallest_sigma)
        gate = Gate(direction="higher", tolerance=0.02, noise=known, prior=prior, smallest_sigma=setting.smallest_sigma)
        k = 0
        verdict = None
        while verdict is None:
            k += 1
            verdict = decide(gate, judged[:k].tolist(), setting.rule).verdict
        assert (OUTCOMES[verdict], k) == (simulated.outcome[i], simulated.launches[i])


def test_the_interval_rule_catches_what_its_authors_published() -> None:
    """Five runs a side, a CV of 4 %: a 15 % drop is caught 65 % of the time."""
    runs = np.random.default_rng(1).normal(size=(20_000, 10, 1)) * 0.04

    caught = np.mean(simulated_rules.interval_rule(runs[:, :5], runs[:, 5:] + math.log(0.85)))

    assert caught == pytest.approx(0.65, abs=0.02)


def test_a_quick_run_prints_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict_power.main(["--quick", "--simulations", "1"]) == 0

    printed = capsys.readouterr().out
    assert "mean within 5 %" in printed
    assert "false alarms at the 95th percentile of baselines" in printed
    assert "5 recorded, 3 judged: 5.89% (expected 5.9 %)" in printed
