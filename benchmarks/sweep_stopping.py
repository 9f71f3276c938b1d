"""What the stopping rule of sweeps costs and keeps: 2,000 simulated sweeps of six points, at most three launches each.

    python -m benchmarks.sweep_stopping

Rounds are normal on the log scale, five a launch, half of the variance between launches. "Lost" is the share of sweeps
in which a point that is truly the best is called worse.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_specdec.noise import PRIORS
from pytest_specdec.ranking import LOOKS, Point, further_launches, rank

SWEEPS = 2000
ROUNDS = 5
SMALLEST_SIGMA = 0.005
#: Losses of the six points against the best one.
CASES = {"all equal": [0.0] * 6, "0, 1, 3, 5, 10, 20 % behind": [0.0, 0.01, 0.03, 0.05, 0.10, 0.20]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One adaptive sweep: which points were left at its end, and how many launches it took."""

    left: frozenset[int]
    launches: int


def simulate(losses: Sequence[float], *, sigma: float, seed: int) -> Sweep:
    """Run one sweep of points that lose these fractions, with a round's standard deviation ``sigma`` (log scale)."""
    rng = random.Random(seed)
    half = sigma / math.sqrt(2)
    points = {str(i): Point(name=str(i)) for i in range(len(losses))}
    launches = 0
    prior = PRIORS["tok/s"]
    while names := further_launches([*points.values()], "higher", prior=prior, smallest_sigma=SMALLEST_SIGMA).names:
        for name in names:
            centre = math.log1p(-losses[int(name)]) + rng.gauss(0, half)
            values = tuple(math.exp(centre + rng.gauss(0, half)) for _ in range(ROUNDS))
            points[name] = dataclasses.replace(points[name], launches=(*points[name].launches, values))
            launches += 1
    found = rank([*points.values()], "higher", prior=prior, smallest_sigma=SMALLEST_SIGMA, looks=LOOKS)
    return Sweep(left=frozenset(int(row.name) for row in found.rows if row.contends), launches=launches)


def main() -> None:
    """Print the table of docs/sweeps.md."""
    print("| sigma | six points | lost | launches of 18 | how often each is left |")
    print("|---|---|---|---|---|")
    for sigma in (0.01, 0.027):
        for name, losses in CASES.items():
            sweeps = [simulate(losses, sigma=sigma, seed=seed) for seed in range(SWEEPS)]
            lost = sum(0 not in sweep.left for sweep in sweeps) / SWEEPS
            launches = sum(sweep.launches for sweep in sweeps) / SWEEPS
            kept = [sum(i in sweep.left for sweep in sweeps) / SWEEPS for i in range(len(losses))]
            shares = ", ".join(f"{share:.0%}" for share in kept)
            print(f"| {sigma:.1%} | {name} | {lost:.1%} | {launches:.1f} | {shares} |")


if __name__ == "__main__":
    main()
