"""GPU memory after the end of a server, on a fake host whose nvidia-smi has recorded answers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_specdec import ServerSpec
from pytest_specdec.errors import HostError
from pytest_specdec.gpus import RELEASE_PATIENCE_S, gpus_taken, memory_held
from pytest_specdec.hosts import Completed
from tests.fakes.host import FakeClock, FakeHost, told

TOTAL_MIB = 97887
FREE_MIB = 97000


class GpuHost(FakeHost):
    """Two GPUs whose free memory a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.free: list[float | str] = [FREE_MIB, FREE_MIB]
        self.apps: list[str] = []
        self.answers["nvidia-smi"] = self.nvidia_smi

    def nvidia_smi(self, argv: Sequence[str]) -> Completed:
        gpus = [
            f"{i}, GPU-{i}, {'[N/A]' if free == '[N/A]' else TOTAL_MIB}, {free}" for i, free in enumerate(self.free)
        ]
        return told("\n".join(gpus if "--query-gpu" in argv[1] else self.apps))


@pytest.fixture
def host() -> GpuHost:
    return GpuHost()


def taken_by(host: GpuHost, args: str = "", **env: str) -> list[str]:
    return [gpu.index for gpu in gpus_taken(host, ServerSpec("base", "/m", args=args), env=env)]


def test_the_gpus_that_a_launch_takes(host: GpuHost) -> None:
    assert taken_by(host) == ["0"]
    assert taken_by(host, "--tp 2") == ["0", "1"]
    assert taken_by(host, "--base-gpu-id 1") == ["1"]
    assert taken_by(host, CUDA_VISIBLE_DEVICES="GPU-1") == ["1"]


def test_memory_that_is_free_at_once_is_not_waited_for(host: GpuHost) -> None:
    before = gpus_taken(host, ServerSpec("base", "/m"), env={})
    clock = FakeClock()

    assert memory_held(host, before, clock=clock) is None
    assert clock.now == 0


def test_memory_that_comes_back_is_waited_for(host: GpuHost) -> None:
    before = gpus_taken(host, ServerSpec("base", "/m"), env={})
    clock = FakeClock()
    host.free[0] = 4000
    clock.at(7.0, lambda: host.free.__setitem__(0, FREE_MIB - 500))

    assert memory_held(host, before, clock=clock) is None
    assert clock.now == pytest.approx(7.0)


def test_memory_that_stays_away_is_named_with_its_holder(host: GpuHost) -> None:
    before = gpus_taken(host, ServerSpec("base", "/m", args="--tp 2"), env={})
    clock = FakeClock()
    host.free[1] = 4000
    host.apps = ["GPU-1, 4711, 93000, python", "GPU-7, 4712, 100, other"]

    assert memory_held(host, before, clock=clock) == (
        "waited 30 s after the server's end for its GPU memory: GPU 1 has 4000 MiB free, 93000 less than before the "
        "launch; held by process 4711 (python, 93000 MiB). The next launch on these GPUs is refused until it is free"
    )
    assert clock.now == pytest.approx(RELEASE_PATIENCE_S)


def test_a_holder_that_is_not_shown_is_said_to_be_unknown(host: GpuHost) -> None:
    before = gpus_taken(host, ServerSpec("base", "/m"), env={})
    host.free[0] = 4000

    held = memory_held(host, before, clock=FakeClock())

    assert held is not None
    assert "; nvidia-smi names no process that holds it. The next" in held


def test_a_gpu_that_fell_off_the_bus_is_named(host: GpuHost) -> None:
    before = gpus_taken(host, ServerSpec("base", "/m", args="--base-gpu-id 1"), env={})
    del host.free[1]

    held = memory_held(host, before, clock=FakeClock())

    assert held is not None
    assert "GPU 1 (GPU-1) is not there any more" in held


def test_other_gpus_are_nobody_s_business(host: GpuHost) -> None:
    before = gpus_taken(host, ServerSpec("base", "/m"), env={})
    host.free[1] = 0

    assert memory_held(host, before, clock=FakeClock()) is None


def test_memory_that_is_not_told_is_not_waited_for(host: GpuHost) -> None:
    host.free = ["[N/A]"]
    before = gpus_taken(host, ServerSpec("base", "/m"), env={})

    assert memory_held(host, before, clock=FakeClock()) is None


def test_without_gpus_nothing_is_asked(host: GpuHost) -> None:
    assert memory_held(host, (), clock=FakeClock()) is None
    assert host.commands == []


def test_a_driver_that_fails_afterwards_is_an_error(host: GpuHost) -> None:
    before = gpus_taken(host, ServerSpec("base", "/m"), env={})
    host.answers["nvidia-smi"] = told(stderr="Unable to determine the device handle", returncode=255)

    with pytest.raises(HostError, match="said: Unable to determine the device handle"):
        memory_held(host, before, clock=FakeClock())
