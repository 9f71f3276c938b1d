"""The rules that look at the client's processor and the server's GPUs, each with what breaks it and what does not."""

from __future__ import annotations

import pytest

from pytest_specdec.observed import GpuProcess, GpuSpan, GpuState
from pytest_specdec.validity import RULES
from pytest_specdec.validity_run import Answer, Run
from tests.fakes.samples import measurement, one_round, sample


def client(*rounds: tuple[float | None, float]) -> Answer:
    """What is said of rounds with this share of a core and this length."""
    made = tuple(
        one_round(sample(), index=i, wall_s=wall_s, client_cpu_share=share) for i, (share, wall_s) in enumerate(rounds)
    )
    return RULES["client-cpu-saturated"].check(Run(measurement=measurement("one"), rounds=made, drafting=True))


def test_a_client_that_takes_a_whole_core_is_told() -> None:
    said = client((0.4, 2.0), (0.97, 2.0))

    assert said.reason.startswith("round 2: this process used 97% of a core, so that answers waited for the client")


@pytest.mark.parametrize("rounds", [((0.9, 2.0),), ((0.2, 2.0), (0.99, 0.4))], ids=["at the limit", "a short round"])
def test_a_client_with_time_to_spare_is_fine(rounds: tuple[tuple[float, float], ...]) -> None:
    assert client(*rounds).status == "fine"


@pytest.mark.parametrize("rounds", [(), ((0.99, 0.4),), ((None, 2.0),)])
def test_without_a_round_that_is_long_enough_the_client_is_not_checked(
    rounds: tuple[tuple[float | None, float], ...],
) -> None:
    assert client(*rounds).status == "not-checked"


def gpu(index: str = "0", *, slowdowns: tuple[str, ...] = (), power_capped_share: float = 0.0) -> GpuState:
    return GpuState(
        index=index,
        uuid=f"GPU-{index}",
        samples=4,
        sm_mhz=2100.0,
        power_w=300.0,
        temperature_c=91.0,
        slowdowns=slowdowns,
        power_capped_share=power_capped_share,
    )


OWN = GpuProcess(uuid="GPU-0", pid=10, name="sglang::scheduler", own=True)
FOREIGN = GpuProcess(uuid="GPU-0", pid=20, name="python", own=False)
ELSEWHERE = GpuProcess(uuid="GPU-1", pid=30, name="python", own=False)


def ask(rule: str, *spans: GpuSpan | None, on_cuda: bool = True, attached: bool = False) -> Answer:
    rounds = tuple(one_round(sample(), index=i, gpu=span) for i, span in enumerate(spans))
    run = Run(measurement=measurement("one"), rounds=rounds, drafting=True, on_cuda=on_cuda, attached=attached)
    return RULES[rule].check(run)


def test_a_process_of_somebody_elses_on_the_servers_gpu_is_told() -> None:
    quiet, busy = (GpuSpan(gpus=(gpu(),), processes=seen) for seen in ((OWN,), (OWN, FOREIGN)))

    assert ask("foreign-gpu-process", quiet, busy).reason == (
        "round 2: process 20 (python) computed on the server's GPUs too"
    )


def test_a_process_on_another_gpu_is_let_pass() -> None:
    assert ask("foreign-gpu-process", GpuSpan(gpus=(gpu(),), processes=(OWN, ELSEWHERE))).status == "fine"


def test_where_the_servers_own_processes_are_not_listed_ids_say_nothing() -> None:
    """In a container with process ids of its own, the server itself would look like a stranger."""
    said = ask("foreign-gpu-process", GpuSpan(gpus=(gpu(),), processes=(FOREIGN,)))

    assert said.status == "not-checked"
    assert said.reason.startswith("nvidia-smi lists no process of the server's")


@pytest.mark.parametrize("reason", ["hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown"])
def test_a_slowdown_of_the_servers_gpu_is_told(reason: str) -> None:
    said = ask("gpu-slowdown", GpuSpan(gpus=(gpu(slowdowns=(reason,)), gpu("1")), processes=(OWN,)))

    assert said.reason == f"round 1: GPU 0 was slowed down ({reason}) at 91 degrees C, SM clock 2100 MHz"


def test_a_power_cap_and_another_gpu_are_let_pass() -> None:
    hot_elsewhere = gpu("1", slowdowns=("hw_slowdown",))

    said = ask("gpu-slowdown", GpuSpan(gpus=(gpu(power_capped_share=1.0), hot_elsewhere), processes=(OWN,)))

    assert said.status == "fine"


def test_where_it_is_not_known_which_gpus_are_the_servers_all_of_them_count() -> None:
    assert ask("gpu-slowdown", GpuSpan(gpus=(gpu("1", slowdowns=("hw_slowdown",)),))).status == "broken"


@pytest.mark.parametrize("rule", ["foreign-gpu-process", "gpu-slowdown"])
def test_gpus_that_are_not_known_are_not_checked_with_the_reason(rule: str) -> None:
    known = GpuSpan(gpus=(gpu(),), processes=(OWN,))

    assert ask(rule, known, GpuSpan(unknown="nvidia-smi can't be run")).reason == (
        "the GPUs during round 2 are not known: nvidia-smi can't be run"
    )
    assert ask(rule, None).reason.endswith("they were not looked at")
    assert ask(rule).status == "not-checked"


@pytest.mark.parametrize("rule", ["foreign-gpu-process", "gpu-slowdown"])
def test_a_server_without_a_gpu_and_one_of_somebody_elses_are_left_out(rule: str) -> None:
    assert ask(rule, None, on_cuda=False).status == "not-applicable"
    assert ask(rule, None, attached=True).status == "not-checked"
