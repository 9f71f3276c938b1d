"""Which host a session measures on, and what becomes of those that can't be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_specdec.errors import HostError
from pytest_specdec.host_locks import HostLocks
from pytest_specdec.host_pool import HostPool
from pytest_specdec.spec import ServerSpec
from tests.fakes.host import FakeClock, FakeHost, told
from tests.unit.test_declare import settings

GPU = ServerSpec.from_command("gpu", "python -m sglang.launch_server --model-path /m")
PAIR = GPU.but("pair", "--tp 2")
FOUR_GPUS = "".join(f"{i}, GPU-{i}, 97887, 97000\n" for i in range(4))


class Away(FakeHost):
    """A host that does not answer."""

    def environ(self) -> dict[str, str]:
        raise HostError(f"{self.name}: can't connect")


class Pools:
    """Sessions over the same hosts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hosts: dict[str, FakeHost] = {}
        self.clock = FakeClock()
        self.said: list[str] = []

    def add(self, name: str, host: FakeHost) -> FakeHost:
        host.name = name
        host.env = {"PYTEST_SPECDEC_CACHE": str(self.root / name)}
        self.hosts[name] = host
        return host

    def of(self, *names: str, first: int = 0, **changes: Any) -> HostPool:
        return HostPool(
            settings(gpu_hosts=names, device="cuda", **changes),
            first=first,
            clock=self.clock,
            notify=self.said.append,
            make=self.hosts.__getitem__,
        )


@pytest.fixture
def pools(tmp_path: Path) -> Pools:
    found = Pools(tmp_path)
    for name in ("a", "b"):
        found.add(name, FakeHost()).answers["nvidia-smi"] = told(FOUR_GPUS)
    return found


def test_a_session_takes_the_first_host_that_is_free_and_stays_with_it(pools: Pools) -> None:
    one, other = pools.of("a", "b"), pools.of("a", "b")

    first = one.take(GPU)
    assert first.host.name == "a"
    assert other.take(GPU).host.name == "b"
    first.release()
    assert one.take(PAIR).host.name == "a"
    assert one.host.name == "a"


def test_workers_begin_at_different_hosts(pools: Pools) -> None:
    assert [pools.of("a", "b", first=worker).host.name for worker in (0, 1, 2, 3)] == ["a", "b", "a", "b"]


def test_a_host_that_does_not_answer_is_left_out_and_named(pools: Pools) -> None:
    pools.add("gone", Away())

    assert pools.of("gone", "b").take(GPU).host.name == "b"
    assert pools.said == ["left out: gone: can't connect"]


def test_when_none_answers_every_reason_is_told(pools: Pools) -> None:
    pools.add("gone", Away())
    pools.add("lost", Away())

    with pytest.raises(HostError, match=r"no host of the pool can be used:\ngone: can't connect\nlost: can't connect"):
        pools.of("gone", "lost").take(GPU)


def test_a_busy_host_is_waited_for_and_who_has_it_is_said_once(pools: Pools) -> None:
    holder = HostLocks(pools.root / "a" / "locks", "someone@desk (process 7, eagle)")
    holder.whole()
    pools.clock.at(30, holder.release)

    assert pools.of("a").take(GPU).host.name == "a"
    assert 30 <= pools.clock.now < 32
    assert pools.said == ["waiting for a: someone@desk (process 7, eagle) measures there"]


def test_the_wait_ends_with_who_has_the_host(pools: Pools) -> None:
    holder = HostLocks(pools.root / "a" / "locks", "someone")
    holder.whole()

    with pytest.raises(HostError, match=r"waited 20 s for a: someone measures there; .*--specdec-startup-limit"):
        pools.of("a", startup_limit_s=20.0).take(GPU)


def test_what_was_claimed_while_waiting_is_given_back(pools: Pools) -> None:
    held = [HostLocks(pools.root / name / "locks", "someone") for name in ("a", "b")]
    for locks in held:
        locks.whole()
    pools.clock.at(5, held[1].release)
    pools.clock.at(8, held[0].release)

    assert pools.of("a", "b").take(GPU).host.name == "b"
    pools.clock.sleep(10)
    assert pools.of("a").take(GPU).host.name == "a"


def test_sharing_places_launches_on_gpus_of_their_own(pools: Pools) -> None:
    one, other, third = (pools.of("a", share_host=True) for _ in range(3))

    first, second = one.take(PAIR), other.take(GPU)

    assert first.env == {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert second.env == {"CUDA_VISIBLE_DEVICES": "2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert second.claim.gpus == ("2",)
    pools.clock.at(5, first.release)
    assert third.take(PAIR).env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert pools.clock.now >= 5


def test_without_sharing_the_whole_host_is_waited_for(pools: Pools) -> None:
    shared = pools.of("a", share_host=True).take(GPU)
    pools.clock.at(5, shared.release)

    assert pools.of("a").take(GPU).env == {}
    assert pools.clock.now >= 5


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        (GPU.but("own", env={"CUDA_VISIBLE_DEVICES": "3"}), ("3",)),
        (GPU.but("own", "--base-gpu-id 2"), ("2",)),
        (GPU.but("own", "--tp 2 --gpu-id-step 2"), ("0", "2")),
        (
            ServerSpec.from_command(
                "own", "docker run --gpus device=1 --network=host image python -m sglang.launch_server --model-path /m"
            ),
            ("1",),
        ),
    ],
    ids=["environment", "base", "step", "container"],
)
def test_a_spec_that_chooses_its_gpus_keeps_them(pools: Pools, spec: ServerSpec, gpus: tuple[str, ...]) -> None:
    seat = pools.of("a", share_host=True).take(spec)

    assert seat.claim.gpus == gpus
    assert seat.env == {}


def test_a_container_that_takes_every_gpu_cannot_share(pools: Pools) -> None:
    spec = ServerSpec.from_command(
        "boxed", "docker run --gpus all --network=host image python -m sglang.launch_server --model-path /m"
    )

    with pytest.raises(HostError, match=r"boxed runs in a container .* add --gpus device="):
        pools.of("a", share_host=True).take(spec)


def test_a_host_with_too_few_gpus_is_passed_over(pools: Pools) -> None:
    pools.hosts["a"].answers["nvidia-smi"] = told("0, GPU-0, 97887, 97000\n")

    assert pools.of("a", "b", share_host=True).take(PAIR).host.name == "b"
    with pytest.raises(HostError, match="pair takes 2 GPUs, and a lets it see 1"):
        pools.of("a", share_host=True).take(PAIR)


def test_the_cpu_engine_does_not_run_on_another_machine(tmp_path: Path) -> None:
    pool = HostPool(settings(gpu_hosts=("box",), device="cpu"), first=0, clock=FakeClock(), notify=print)

    with pytest.raises(HostError, match="--gpu-host=box: the CPU engine runs on this machine only"):
        _ = pool.host


def test_what_is_no_server_takes_a_host_whole_even_where_it_is_shared(pools: Pools) -> None:
    server = pools.of("a", share_host=True).take(PAIR)
    other = pools.of("a", share_host=True)

    with pytest.raises(HostError, match=r"waited 3600 s for a: .*pair\) measures there"):
        other.take_whole("all-reduce")
    server.release()
    seat = other.take_whole("all-reduce")

    assert (seat.host.name, seat.env, seat.claim.gpus) == ("a", {}, None)
    with pytest.raises(HostError, match=r"all-reduce\) measures there"):
        pools.of("a", share_host=True).take(PAIR)
