"""How often verdicts cry wolf, and what they catch: our rule beside those in use, on simulated noise.

Run ``python -m benchmarks.verdict_power`` from the root (about two minutes on one core), or with ``--quick`` for a
smoke test. Everything is on the log scale; a launch has five rounds. The exit code is 1 when a bar is missed
(``--quick`` has too few simulations for that and always ends with 0).
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from benchmarks.noise_models import MODELS, PUBLISHED, ROUNDS, Floats, NoiseModel
from benchmarks.simulated_rules import OTHERS, PASS, REGRESSION, UNDECIDED, Setting, at_launches, ours, single_run
from pytest_specdec.detectable import Rule, as_fraction, as_loss, launches_needed, sentence
from pytest_specdec.noise import FULL_DEGREES, PRIORS, Noise
from pytest_specdec.quantiles import t_upper

LOSSES: Final = (0.02, 0.03, 0.05, 0.10)


@dataclass
class Bars:
    """What must hold, and whether it did."""

    count: int
    missed: list[str] = field(default_factory=list)

    def error(self, share: float) -> float:
        """Return two standard errors of a simulated share."""
        return 2 * math.sqrt(share * (1 - share) / self.count)

    def check(self, text: str, *, holds: bool) -> None:
        """Print a bar, and remember it when it was missed."""
        print(f"  {'held  ' if holds else 'MISSED'}  {text}")
        if not holds:
            self.missed.append(text)


def by_baseline(model: NoiseModel, setting: Setting, rng: np.random.Generator, count: int) -> float:
    """Return the 95th percentile over baselines of the false-alarm rate that each gives."""
    baselines, judgements = max(20, count // 50), max(100, count // 20)
    rates = []
    for _ in range(baselines):
        logs = model.draw(rng, judgements, setting.recorded, setting.rule.max_launches, together=True)
        same = np.repeat(logs[:1, : setting.recorded], judgements, axis=0)
        after = logs[:, setting.recorded :]
        rates.append(ours(setting, same, after).share(REGRESSION))
    return float(np.quantile(rates, 0.95))


def judge_model(model: NoiseModel, rng: np.random.Generator, count: int, bars: Bars) -> None:
    """Print one noise model's table and check its bars."""
    setting = Setting()
    logs = model.draw(rng, count, setting.recorded, setting.rule.max_launches)
    recorded, judged = logs[:, : setting.recorded], logs[:, setting.recorded :]
    null, at_seen = ours(setting, recorded, judged), ours(setting, recorded, judged, None)
    powers = {loss: ours(setting, recorded, judged, as_loss(loss, "higher")) for loss in LOSSES}
    expected = float(null.launches.mean())
    percentile = by_baseline(model, setting, rng, count)
    print(f"\n{model.name}{'' if model.covered else ' (not covered)'}")
    print(f"  {'rule':28}{'alarms':>8}" + "".join(f"{loss:>8.0%}" for loss in LOSSES) + "  launches  rounds")
    row = f"  {'ours':28}{null.share(REGRESSION):>8.2%}"
    row += "".join(f"{powers[loss].share(REGRESSION):>8.1%}" for loss in LOSSES)
    print(f"{row}{expected:>10.2f}{expected * ROUNDS:>8.1f}")
    comparable: list[tuple[str, float, float]] = []
    crying: list[str] = []
    for other in OTHERS:
        alarms = at_launches(other, recorded, judged, 0.0, expected)
        caught = {loss: at_launches(other, recorded, judged, as_loss(loss, "higher"), expected) for loss in LOSSES}
        launches = 1.0 if other.fails is single_run else max(expected, other.least)
        rounds = launches * other.rounds if other.rounds == ROUNDS else other.rounds
        print(
            f"  {other.name:28}{alarms:>8.2%}"
            + "".join(f"{caught[loss]:>8.1%}" for loss in LOSSES)
            + f"{launches:>10.2f}{rounds:>8.1f}"
        )
        if alarms > 0.01 + bars.error(0.01):
            crying.append(other.name)
        else:
            comparable += [
                (f"{other.name} at {loss:.0%}", caught[loss], powers[loss].share(REGRESSION)) for loss in (0.05, 0.10)
            ]
    oracle(recorded, judged, expected, null.share(REGRESSION))
    wide = [as_fraction(float(np.quantile(at_seen.detectable, q)), "higher") for q in (0.05, 0.5, 0.95)]
    print(
        f"  no change: pass {null.share(PASS):.1%}, inconclusive {null.share(UNDECIDED):.1%}; "
        f"false alarms at the 95th percentile of baselines {percentile:.1%}\n"
        f"  detectable change as printed: {wide[1]:.1%} (median; 5th to 95th percentile {wide[0]:.1%} to {wide[2]:.1%})"
    )
    if crying:
        print(f"  above 1 % of false alarms, so not held against ours: {', '.join(crying)}")
    alarms, seen, passed = null.share(REGRESSION), at_seen.share(REGRESSION), at_seen.share(PASS)
    if not model.covered:
        print(f"  the printed change is caught {seen:.1%}, and passed {passed:.2%}")
        return
    bars.check(f"false alarms {alarms:.2%}, at most 1 %", holds=alarms <= 0.01 + bars.error(0.01))
    bars.check(f"the printed change is caught {seen:.1%}, at least 95 %", holds=seen >= 0.95 - bars.error(0.05))
    bars.check(f"the printed change is passed {passed:.2%}, at most 1 %", holds=passed <= 0.01 + bars.error(0.01))
    beaten = [f"{name}: {theirs:.1%} against {our:.1%}" for name, theirs, our in comparable if theirs > our + 0.01]
    text = "no rule that keeps to 1 % of false alarms catches over a point more of 5 % or 10 % at equal launches"
    bars.check(text if not beaten else f"{text}; but {'; '.join(beaten)}", holds=not beaten)


def oracle(recorded: Floats, judged: Floats, launches: float, alarms: float) -> None:
    """Print what a fixed limit on the mean would catch if its author knew the noise: the price of not knowing it."""
    row = []
    for loss in LOSSES:
        caught = 0.0
        for k, weight in (
            ((1, 2 - launches), (2, launches - 1)) if launches < 2 else ((2, 3 - launches), (3, launches - 2))
        ):
            d = recorded.mean(axis=(1, 2)) - judged[:, :k].mean(axis=(1, 2))
            limit = np.quantile(d, 1 - max(alarms, 1e-4))
            caught += weight * float(np.mean(d + as_loss(loss, "higher") > limit))
        row.append(caught)
    print(f"  {'(limit by one who knows it)':28}{alarms:>8.2%}" + "".join(f"{share:>8.1%}" for share in row))


def session(rng: np.random.Generator, count: int, bars: Bars) -> None:
    """Check the promise for a session of ten gated metrics with noise of their own."""
    metrics = 10
    setting = Setting(rule=Rule(error=0.01 / metrics))
    alarmed = np.zeros(count, dtype=np.bool_)
    at_seen = []
    for _ in range(metrics):
        logs = PUBLISHED.draw(rng, count, 5, 3)
        alarmed |= ours(setting, logs[:, :5], logs[:, 5:]).outcome == REGRESSION
        at_seen.append(ours(setting, logs[:, :5], logs[:, 5:], None))
    rate, caught = float(alarmed.mean()), float(np.mean([one.share(REGRESSION) for one in at_seen]))
    seen = as_fraction(float(np.median(np.concatenate([one.detectable for one in at_seen]))), "higher")
    print(f"\nA session of {metrics} gated metrics (sigma 2.7 %); each sees {seen:.1%} (median)")
    bars.check(f"sessions with a false alarm {rate:.2%}, at most 1 %", holds=rate <= 0.01 + bars.error(0.01))
    bars.check(f"the printed change is caught {caught:.1%}, at least 95 %", holds=caught >= 0.95 - bars.error(0.05))


def recorded_launches(rng: np.random.Generator, count: int) -> None:
    """Print what recording more launches brings."""
    print("\nBy launches recorded (three judged; below five the prior fills up)")
    print(f"  {'noise':28}{'recorded':>9}{'alarms':>8}{'seen':>8}{'caught':>8}{'5 %':>7}{'10 %':>7}{'launches':>10}")
    for model in MODELS[:3]:
        for n in (1, 2, 3, 5, 10, 20):
            setting = Setting(recorded=n)
            logs = model.draw(rng, count, n, 3)
            recorded, judged = logs[:, :n], logs[:, n:]
            null, seen = ours(setting, recorded, judged), ours(setting, recorded, judged, None)
            five, ten = (ours(setting, recorded, judged, as_loss(loss, "higher")) for loss in (0.05, 0.10))
            print(
                f"  {model.name:28}{n:>9}{null.share(REGRESSION):>8.2%}"
                f"{as_fraction(float(np.median(seen.detectable)), 'higher'):>8.1%}{seen.share(REGRESSION):>8.1%}"
                f"{five.share(REGRESSION):>7.0%}{ten.share(REGRESSION):>7.0%}{null.launches.mean():>10.2f}"
            )


def prior_weight(rng: np.random.Generator, count: int) -> None:
    """Print why the prior fills up to four degrees of freedom: what more of it would do to five launches."""
    print(f"\nThe prior's weight: it fills up to so many degrees of freedom (five recorded; {FULL_DEGREES} is used)")
    print(f"  {'noise':28}{'degrees':>8}{'alarms':>8}{'seen':>8}{'caught':>8}{'passed':>8}")
    for model in (*MODELS[:4],):
        for degrees in (4, 6, 8, 12):
            setting = Setting(full_degrees=degrees)
            logs = model.draw(rng, count, 5, 3)
            null = ours(setting, logs[:, :5], logs[:, 5:])
            seen = ours(setting, logs[:, :5], logs[:, 5:], None)
            print(
                f"  {model.name:28}{degrees:>8}{null.share(REGRESSION):>8.2%}"
                f"{as_fraction(float(np.median(seen.detectable)), 'higher'):>8.1%}"
                f"{seen.share(REGRESSION):>8.1%}{seen.share(PASS):>8.2%}"
            )


def paper_check(bars: Bars) -> None:
    """Compute by hand what is detectable when the variances are known, one look: (z99 + z95) x sd of the difference."""
    launch_sd = math.sqrt(0.027**2 / 2 * (1 + 1 / ROUNDS))
    both = t_upper(0.01, math.inf) + t_upper(0.05, math.inf)

    def seen(square: float) -> float:
        return as_fraction(both * launch_sd * math.sqrt(square), "higher")

    print("\nOn paper, variances known (sigma 2.7 %, half between, five rounds), one look, no tolerance")
    many, three = seen(1 / 5), seen(1 / 5 + 1 / 3)
    bars.check(f"5 recorded, 3 judged: {three:.2%} (expected 5.9 %)", holds=abs(three - 0.059) < 0.001)
    bars.check(f"5 and any number: {many:.2%} (expected 3.6 %)", holds=abs(many - 0.036) < 0.001)
    print(f"          5 and 1: {seen(1 / 5 + 1):.2%}")


def example() -> None:
    """Print the sentence for a baseline that has estimated the published noise exactly."""
    print("\nWhat is printed for a baseline whose estimates are exactly the published noise")
    square = 0.027**2 / 2
    for n in (5, 10, 20):
        noise = Noise(
            mean=math.log(90),
            launches=n,
            rounds=ROUNDS,
            squares=square * (1 + 1 / ROUNDS) * (n - 1),
            degrees=n - 1,
            within_squares=square * 4 * n,
            within_degrees=4 * n,
            constant=False,
            smallest_sigma=0.005,
            prior=PRIORS["tok/s"],
        )
        print(f"  {n:>2} recorded: {sentence(noise, Rule(), rounds=ROUNDS, tolerance=0.02, direction='higher')}")
        alone = launches_needed(noise, Rule(), rounds=ROUNDS, tolerance=0.0, loss=as_loss(0.03, "higher"))
        print(f"     (without the tolerance of 2 %, a loss of 3 % would need {alone} and {alone})")


def main(arguments: list[str] | None = None) -> int:
    """Run the simulations and print their tables; return 1 when a bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="400 simulations: a smoke test")
    parser.add_argument("--simulations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=20261129)
    given = parser.parse_args(arguments)
    count = 400 if given.quick else given.simulations
    rng = np.random.default_rng(given.seed)
    bars = Bars(count)
    began = time.monotonic()
    print(f"{count} simulations, five launches recorded, at most three judged, five rounds a launch")
    print("alarms: no change, called a regression; then the share of losses that is called one")
    for model in MODELS:
        judge_model(model, rng, count, bars)
    session(rng, count, bars)
    recorded_launches(rng, count)
    prior_weight(rng, count)
    paper_check(bars)
    example()
    print(f"\n{len(bars.missed)} bars missed; {time.monotonic() - began:.0f} s")
    return 1 if bars.missed and not given.quick else 0


if __name__ == "__main__":
    raise SystemExit(main())
