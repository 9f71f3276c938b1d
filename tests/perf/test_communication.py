"""The communication floor of the first contract: 122 all-reduces of 42 KiB a step, by NCCL on GPUs, by gloo here.

pytest-benchmark, where it is there, shows each step that was timed as one of its rounds. Its own clock would time the
start of the ranks, so it is given one that replays what the ranks measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_specdec import step_traffic

#: Kimi-K2.5: 61 layers, hidden size 7168; three tokens go through it in a step.
STEP = step_traffic(layers=61, hidden_size=7168, batch_tokens=3)


class Replay:
    """A clock that moves by what was measured, one step at a time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._steps: Iterator[float] = iter(())

    def __call__(self) -> float:
        return self.now_s

    def load(self, steps_s: list[float]) -> None:
        self._steps = iter(steps_s)

    def step(self) -> None:
        self.now_s += next(self._steps)


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Callable[[Any], None]:
    """Put a result into pytest-benchmark's table; does nothing without the plug-in."""
    if not request.config.pluginmanager.hasplugin("benchmark"):
        return lambda _: None

    def show(result: Any) -> None:
        clock = Replay()
        request.node.add_marker(pytest.mark.benchmark(group="all-reduces of a step", timer=clock))
        # Asked for when there is something to show: one that is not used is warned about.
        benchmark = request.getfixturevalue("benchmark")
        steps_s = [us * STEP.calls / 1e6 for rounds in result.launches for us in rounds]
        clock.load(steps_s)
        benchmark.pedantic(clock.step, rounds=len(steps_s))
        benchmark.extra_info.update(key=result.wanted.key, all_reduce_us=result.all_reduce_us)

    return show


@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("algorithm", [None, "Tree", "Ring"], ids=["auto", "tree", "ring"])
def test_nccl(all_reduce: Any, table: Callable[[Any], None], world_size: int, algorithm: str | None) -> None:
    table(all_reduce(STEP, world_size=world_size, backend="nccl", algorithm=algorithm))


@pytest.mark.parametrize("world_size", [1, 2])
def test_gloo(all_reduce: Any, table: Callable[[Any], None], world_size: int) -> None:
    table(all_reduce(STEP, world_size=world_size, backend="gloo"))
