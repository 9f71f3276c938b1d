"""GPUs seen while a round runs: on a fake host, and with a stand-in for ``nvidia-smi`` on this machine's PATH."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pytest_specdec.clock import SystemClock
from pytest_specdec.gpu_watch import GpuWatch
from pytest_specdec.hosts import Completed, LocalHost
from pytest_specdec.observed import GpuProcess, GpuSpan
from tests.fakes.host import FakeClock, FakeHost, told

SMI = Path(__file__).parent.parent / "fakes" / "nvidia_smi.py"
LOG = Path("/logs/a.log")
GPUS = Path("/logs/a.gpus.csv")
PROCESSES = Path("/logs/a.gpu-processes.csv")
CALM = "Not Active, Not Active, Not Active, Not Active, Not Active"


def row(index: int = 0, *, mhz: str = "2100", reasons: str = CALM) -> str:
    return f"{index}, GPU-{index}, {mhz}, 301.50, 64, {reasons}\n"


class Printing(FakeHost):
    """A host on which ``nvidia-smi`` prints its first row as it starts."""

    def spawn(self, *args: object, **known: object):  # type: ignore[no-untyped-def]  # noqa: ANN201  # the base's
        process = super().spawn(*args, **known)  # type: ignore[arg-type]
        if GPUS in self.files and not self.files[GPUS]:
            self.write(GPUS, row())
        return process


def watched(host: FakeHost, *, own: Callable[[], Sequence[int]] = lambda: (10, 11)) -> GpuWatch:
    host.answers.setdefault("nvidia-smi", told(row()))
    watch = GpuWatch(host, log_path=LOG, own=own, clock=FakeClock())
    watch.start()
    return watch


def test_a_span_holds_what_was_printed_in_it() -> None:
    host = Printing()
    watch = watched(host)
    host.write(GPUS, row(reasons="Active, Active, Not Active, Not Active, Not Active"))
    watch.begin()
    host.write(GPUS, row(mhz="2000") + row(1))
    host.write(GPUS, row(mhz="1000", reasons="Not Active, Not Active, Not Active, Active, Active") + row(1))
    host.write(PROCESSES, "GPU-0, 10, sglang::scheduler\nGPU-0, 20, python\nGPU-0, 20, python\n")

    span = watch.end()

    first, second = span.gpus
    assert (first.index, first.uuid, first.samples) == ("0", "GPU-0", 2)
    assert (first.sm_mhz, first.power_w, first.temperature_c) == (1500.0, 301.5, 64.0)
    assert first.slowdowns == ("sw_thermal_slowdown",)
    assert first.power_capped_share == 0.5
    assert second.slowdowns == ()
    assert span.processes == (
        GpuProcess(uuid="GPU-0", pid=10, name="sglang::scheduler", own=True),
        GpuProcess(uuid="GPU-0", pid=20, name="python", own=False),
    )
    assert span.own_uuids == {"GPU-0"}


def test_a_process_that_the_server_started_meanwhile_is_its_own() -> None:
    host = Printing()
    pids = iter([(10,), (10, 12)])
    watch = watched(host, own=lambda: next(pids))
    watch.begin()
    host.write(GPUS, row())
    host.write(PROCESSES, "GPU-0, 12, sglang::detokenizer\n")

    assert [process.own for process in watch.end().processes] == [True]


def test_a_line_that_is_being_printed_waits_for_its_end() -> None:
    host = Printing()
    watch = watched(host)
    watch.begin()
    host.write(GPUS, row() + "0, GPU-0, 21")

    assert [gpu.samples for gpu in watch.end().gpus] == [1]


def test_what_a_card_does_not_tell_is_none() -> None:
    host = Printing()
    watch = watched(host)
    watch.begin()
    host.write(GPUS, f"0, GPU-0, [N/A], [Not Supported], [N/A], {CALM}\n")

    (gpu,) = watch.end().gpus
    assert (gpu.sm_mhz, gpu.power_w, gpu.temperature_c) == (None, None, None)


def test_a_round_shorter_than_a_look_says_so() -> None:
    watch = watched(Printing())
    watch.begin()

    assert watch.end().unknown == "nvidia-smi printed nothing: the round was shorter than the time between two"


def test_one_that_ended_says_so() -> None:
    host = Printing()
    watch = watched(host)
    watch.begin()
    host.process.exit_code = 9

    assert watch.end().unknown == "nvidia-smi printed nothing: it ended (9)"


def test_an_older_driver_is_asked_by_its_own_names() -> None:
    def answer(argv: Sequence[str]) -> Completed:
        if "clocks_event_reasons" in argv[1]:
            return told('Field "clocks_event_reasons.hw_slowdown" is not a valid field to query.', returncode=2)
        return told(row())

    host = Printing()
    host.answers["nvidia-smi"] = answer
    watched(host)

    gpus, processes = (argv for argv, _, _ in host.spawned)
    assert "clocks_throttle_reasons.hw_thermal_slowdown" in gpus[1]
    assert gpus[2:] == ("--format=csv,noheader,nounits", "--loop-ms=500")
    assert processes[1] == "--query-compute-apps=gpu_uuid,pid,process_name"


@pytest.mark.parametrize(
    ("host", "said"),
    [
        (Printing(), "fakehost: nvidia-smi does not tell why clocks are low; it said: No devices were found"),
        (FakeHost(), "fakehost: waited 10 s for the first line of nvidia-smi in /logs/a.gpus.csv"),
    ],
    ids=["no device", "silent"],
)
def test_what_keeps_the_gpus_from_being_known_is_told_by_every_span(host: FakeHost, said: str) -> None:
    if isinstance(host, Printing):
        host.answers["nvidia-smi"] = told("No devices were found", returncode=6)
    watch = watched(host)
    watch.begin()

    assert watch.end() == GpuSpan(unknown=said)
    watch.stop()


def test_a_host_without_nvidia_smi_is_told() -> None:
    host = FakeHost()
    watch = GpuWatch(host, log_path=LOG, own=lambda: (), clock=FakeClock())
    watch.start()
    watch.begin()

    assert watch.end().unknown == "fakehost: nvidia-smi can't be run: No such file or directory"


def test_both_are_ended_with_the_watch() -> None:
    host = Printing()
    watch = watched(host)

    watch.stop()
    watch.stop()

    assert host.process.exit_code is not None
    assert host.process.forgotten


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with what the stand-in prints, and the stand-in on PATH."""
    script = tmp_path / "bin" / "nvidia-smi"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -S {SMI} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=":")
    monkeypatch.setenv("FAKE_SMI_DIR", str(tmp_path))
    (tmp_path / "gpus.csv").write_text(row() + row(1), encoding="utf-8")
    (tmp_path / "processes.csv").write_text("GPU-0, 10, sglang::scheduler\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("old", [False, True])
def test_a_real_process_is_read_while_it_prints_and_ended_afterwards(
    smi: Path, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    if old:
        monkeypatch.setenv("FAKE_SMI_OLD", "1")
    watch = GpuWatch(LocalHost(), log_path=smi / "a.log", own=lambda: (10,), clock=SystemClock())
    watch.start()
    try:
        span, deadline = GpuSpan(), time.monotonic() + 30
        watch.begin()
        while (not span.processes or len(span.gpus) < 2) and time.monotonic() < deadline:
            span = watch.end()
    finally:
        watch.stop()

    assert [gpu.uuid for gpu in span.gpus] == ["GPU-0", "GPU-1"]
    assert span.processes == (GpuProcess(uuid="GPU-0", pid=10, name="sglang::scheduler", own=True),)
    written = (smi / "a.gpus.csv").stat().st_size
    time.sleep(0.1)
    assert (smi / "a.gpus.csv").stat().st_size == written, "it has ended"
