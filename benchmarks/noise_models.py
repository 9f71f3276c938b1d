"""Ways for launches and rounds to vary, to draw logs of measured values from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np

Floats: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

ROUNDS: Final = 5


class Draw(Protocol):
    """Draw logs: simulations x launches (recorded, then judged) x rounds.

    ``together``: the simulations go on from one and the same history (only a level that wanders has one).
    """

    def __call__(
        self, rng: np.random.Generator, count: int, recorded: int, judged: int, *, together: bool = False
    ) -> Floats: ...


@dataclass(frozen=True)
class NoiseModel:
    """A way for launches and rounds to vary."""

    name: str
    draw: Draw
    covered: bool = True


def normal(sigma: float, share: float = 0.5) -> Draw:
    """Return normal launch and round effects; ``share`` of the variance lies between launches."""

    def draw(
        rng: np.random.Generator,
        count: int,
        recorded: int,
        judged: int,
        *,
        together: bool = False,  # noqa: ARG001
    ) -> Floats:
        launches = recorded + judged
        between = rng.normal(size=(count, launches, 1)) * sigma * math.sqrt(share)
        return between + rng.normal(size=(count, launches, ROUNDS)) * sigma * math.sqrt(1 - share)

    return draw


def heavy_tails(sigma: float, df: float = 3.0) -> Draw:
    """Return Student's t effects, scaled to the same variance."""
    scale = sigma * math.sqrt(0.5 * (df - 2) / df)

    def draw(
        rng: np.random.Generator,
        count: int,
        recorded: int,
        judged: int,
        *,
        together: bool = False,  # noqa: ARG001
    ) -> Floats:
        launches = recorded + judged
        between = rng.standard_t(df, size=(count, launches, 1)) * scale
        return between + rng.standard_t(df, size=(count, launches, ROUNDS)) * scale

    return draw


def bimodal(sigma: float, slow: float = 0.25) -> Draw:
    """Return launches that are fast or, a quarter of the time, slow; the same variance in all."""
    gap = sigma * math.sqrt(0.5 / (slow * (1 - slow)))

    def draw(
        rng: np.random.Generator,
        count: int,
        recorded: int,
        judged: int,
        *,
        together: bool = False,  # noqa: ARG001
    ) -> Floats:
        launches = recorded + judged
        between = -gap * (rng.random(size=(count, launches, 1)) < slow)
        return between + rng.normal(size=(count, launches, ROUNDS)) * sigma * math.sqrt(0.5)

    return draw


def drift(sigma: float, step: float) -> Draw:
    """Return a level that wanders: a random walk over launches, with ten steps between recording and judging."""
    steady = normal(sigma)

    def draw(rng: np.random.Generator, count: int, recorded: int, judged: int, *, together: bool = False) -> Floats:
        steps = rng.normal(size=(count, recorded + judged, 1)) * step
        steps[:, recorded] *= math.sqrt(10)
        if together:
            steps[:, :recorded] = steps[:1, :recorded]
        return steady(rng, count, recorded, judged) + np.cumsum(steps, axis=1)

    return draw


PUBLISHED: Final = NoiseModel("sigma 2.7 %, half between", normal(0.027))
MODELS: Final = (
    PUBLISHED,
    NoiseModel("sigma 1 %, half between", normal(0.01)),
    NoiseModel("sigma 5 %, half between", normal(0.05)),
    NoiseModel("sigma 2.7 %, 9/10 between", normal(0.027, 0.9)),
    NoiseModel("sigma 2.7 %, 1/10 between", normal(0.027, 0.1)),
    NoiseModel("heavy tails (t, 3 df)", heavy_tails(0.027), covered=False),
    NoiseModel("bimodal, 1 launch in 4 slow", bimodal(0.027), covered=False),
    NoiseModel("drift, 0.5 % a launch", drift(0.027, 0.005), covered=False),
)
