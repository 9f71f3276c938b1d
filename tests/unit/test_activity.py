"""What moves on a host while a log is silent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pytest_specdec.activity import Activity, Look
from pytest_specdec.errors import HostError
from pytest_specdec.hosts import Completed, LocalHost
from tests.fakes.host import FakeHost, told

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Proc:
    """One process in the fake host's /proc."""

    name: str = "python"
    born: int = 1000
    rchar: int = 0
    read_bytes: int = 0
    rss_file: int = 0
    cpu_s: float = 0.0
    children_cpu_s: float = 0.0

    def lines(self, pid: int) -> str:
        stat = ["S", *["0"] * 10, round(self.cpu_s * 100), 0, round(self.children_cpu_s * 100), *["0"] * 5, self.born]
        return (
            f"/proc/{pid}/stat:{pid} ({self.name}) {' '.join(map(str, stat))} 0 0\n"
            f"/proc/{pid}/io:rchar: {self.rchar}\n/proc/{pid}/io:read_bytes: {self.read_bytes}\n"
            f"/proc/{pid}/status:RssAnon:\t     100 kB\n/proc/{pid}/status:RssFile:\t  {self.rss_file // 1024} kB\n"
        )


class Machine:
    """A host with processes and GPUs; ``look`` looks at all of them."""

    def __init__(self) -> None:
        self.host = FakeHost()
        self.processes = {7: Proc()}
        self.gpus: tuple[int, ...] | None = None
        self.host.answers["sh"] = self._proc
        self.host.answers["nvidia-smi"] = self._smi
        self.activity = Activity(self.host, gpus=True)

    def _proc(self, argv: Sequence[str]) -> Completed:
        return told("".join(proc.lines(pid) for pid, proc in self.processes.items()))

    def _smi(self, argv: Sequence[str]) -> Completed:
        if self.gpus is None:
            raise HostError("fakehost: nvidia-smi can't be run: No such file or directory")
        return told("".join(f"{used}\n" for used in self.gpus))

    def look(self) -> Look:
        return self.activity.look(tuple(self.processes))

    def change(self, pid: int = 7, **changes: Any) -> None:
        self.processes[pid] = replace(self.processes.get(pid, Proc()), **changes)


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    assert machine.look().moved == ()
    return machine


@pytest.mark.parametrize(
    ("changes", "moved"),
    [
        ({"rchar": 900 * MIB}, ("900.0 MiB read",)),
        ({"read_bytes": 3 * 1024 * MIB}, ("3.0 GiB read",)),
        ({"rss_file": 200 * MIB}, ("200.0 MiB more resident",)),
        ({"rchar": 8 * MIB, "rss_file": 16 * MIB}, ("8.0 MiB read", "16.0 MiB more resident")),
        ({"rchar": MIB - 1}, ()),
        ({"rss_file": 15 * MIB}, ()),
        ({"cpu_s": 10.0}, ()),
        ({"children_cpu_s": 0.5}, ("children of python compiling",)),
        ({"children_cpu_s": 0.1}, ()),
    ],
    ids=str,
)
def test_reading_counts_and_spinning_does_not(
    machine: Machine, changes: dict[str, Any], moved: tuple[str, ...]
) -> None:
    machine.change(**changes)

    assert machine.look().moved == moved


def test_what_does_not_go_on_does_not_count_again(machine: Machine) -> None:
    machine.change(rchar=900 * MIB)

    assert machine.look().moved
    assert machine.look().moved == ()


def test_ranks_are_added_up(machine: Machine) -> None:
    for pid in (8, 9):
        machine.change(pid)
    machine.look()
    for pid in (7, 8, 9):
        machine.change(pid, rchar=400_000)

    assert machine.look().moved == ("1.1 MiB read",)


def test_a_process_that_ended_takes_nothing_away_and_a_new_one_brings_nothing(machine: Machine) -> None:
    machine.change(8, rchar=900 * MIB)
    machine.look()
    machine.processes = {7: Proc(rchar=2 * MIB), 9: Proc(rchar=500 * MIB)}

    assert machine.look().moved == ("2.0 MiB read",)


def test_a_number_that_was_given_to_another_process_is_another_process(machine: Machine) -> None:
    machine.change(born=2000, rchar=900 * MIB)

    assert machine.look().moved == ()


@pytest.mark.parametrize(
    "name", ["cicc", "nvcc", "ptxas", "cudafe++", "ninja", "cc1plus", "x86_64-linux-g++", "clang-18"]
)
def test_a_new_compiler_counts(machine: Machine, name: str) -> None:
    machine.change(8, name=name)

    assert machine.look().moved == (f"{name} compiling",)


@pytest.mark.parametrize("name", ["python3.11", "sglang::schedul", "ldconfig", "ncclprofiler", "bash"])
def test_another_program_does_not(machine: Machine, name: str) -> None:
    machine.change(8, name=name)

    assert machine.look().moved == ()


def test_an_old_compiler_counts_while_it_works(machine: Machine) -> None:
    machine.change(8, name="ptxas")
    machine.look()
    machine.change(8, cpu_s=9.5)

    assert machine.look().moved == ("ptxas compiling",)
    assert machine.look().moved == ()


def test_a_compiler_at_the_first_look_counts() -> None:
    machine = Machine()
    machine.change(8, name="cicc")

    assert machine.look() == Look(moved=("cicc compiling",), told="cicc compiling")


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ((1000, 1000), (1000, 1016), ("GPU memory 2.0 GiB, 16.0 MiB of it changed",)),
        ((1000, 3000), (3000, 1000), ("GPU memory 3.9 GiB, 3.9 GiB of it changed",)),
        ((1000, 1000), (1004, 1004), ()),
        ((1000, 1000), (1000,), ()),
    ],
)
def test_gpu_memory_that_moves_counts_either_way(
    before: tuple[int, ...], after: tuple[int, ...], moved: tuple[str, ...]
) -> None:
    machine = Machine()
    machine.gpus = before
    machine.look()
    machine.gpus = after

    assert machine.look().moved == moved


def test_what_is_told_names_everything_that_did_not_move() -> None:
    machine = Machine()
    machine.gpus = (1000,)
    machine.look()

    assert machine.look().told == ("no compiler, 0.0 MiB read, 0.0 MiB more resident, GPU memory 1000.0 MiB, unchanged")


def test_nvidia_smi_is_left_out_once_it_was_missing(machine: Machine) -> None:
    machine.gpus = (1000,)
    machine.look()

    assert [words[0] for words in machine.host.commands].count("nvidia-smi") == 1


def test_the_gpus_of_a_launch_on_the_cpu_are_not_looked_at() -> None:
    machine = Machine()
    machine.gpus = (1000,)
    Activity(machine.host, gpus=False).look((7,))

    assert [words[0] for words in machine.host.commands] == ["sh"]


def test_starting_over_forgets_a_trickle(machine: Machine) -> None:
    machine.change(rchar=900 * MIB)
    machine.activity.start_over()

    assert machine.look().moved == ()


def test_a_host_that_does_not_answer_shows_nothing_and_says_so(machine: Machine) -> None:
    def lost(_argv: Sequence[str]) -> Completed:
        raise HostError("gpu1: sh did not end within 5 s")

    machine.host.answers["sh"] = lost

    assert machine.look() == Look(moved=(), told="its processes can't be seen: gpu1: sh did not end within 5 s")


def test_without_processes_nothing_is_asked() -> None:
    host = FakeHost()

    assert Activity(host, gpus=False).look(()) == Look(moved=(), told="no process is left")
    assert host.commands == []


WORKER = """
import subprocess, sys
print("up", flush=True)
kept = []
for line in sys.stdin:
    what = line.strip()
    if what == "read":
        with open("/dev/zero", "rb", buffering=0) as file:
            file.read(4 << 20)
    elif what == "fill":
        kept.append(bytearray(b"x") * (64 << 20))
    elif what == "spin":
        for number in range(10_000_000): pass
    elif what == "compile":
        subprocess.run([sys.executable, "-S", "-c", "for n in range(30_000_000): pass"], check=True)
    print("done", flush=True)
"""


@pytest.fixture
def worker() -> Iterator[tuple[int, Callable[[str], None]]]:
    """A real process that does what it is told; its id, and a way to tell it."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout
        assert stdout.readline() == "up\n"

        def tell(what: str) -> None:
            stdin.write(what + "\n")
            stdin.flush()
            assert stdout.readline() == "done\n"

        yield process.pid, tell
        stdin.close()


@pytest.mark.parametrize(
    ("what", "word"), [("read", "read"), ("fill", "resident"), ("compile", "children of"), ("spin", ""), ("wait", "")]
)
def test_a_real_process_is_seen_through_proc(worker: tuple[int, Callable[[str], None]], what: str, word: str) -> None:
    pid, tell = worker
    activity = Activity(LocalHost(), gpus=False)
    activity.look((pid, 999_999_999))
    tell(what)

    moved = ", ".join(activity.look((pid, 999_999_999)).moved)

    assert word in moved
    assert bool(moved) == bool(word)
