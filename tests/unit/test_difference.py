"""What two specs differ by: as they are written, how many intentions that is, and what their servers made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_specdec.difference import Difference, difference, intended
from pytest_specdec.model import EnvironmentChange
from pytest_specdec.spec import ServerSpec

LINE = "python -m sglang.launch_server --model-path /models/a --tp 8"
CONTROL = ServerSpec.from_command("base", LINE)


def between(line: str, **control: Any) -> tuple[str, ...]:
    return intended(CONTROL.but("c", **control) if control else CONTROL, ServerSpec.from_command("t", line))


def found(
    treatment: ServerSpec, before: Mapping[str, object] | None = None, after: Mapping[str, object] | None = None
) -> Difference:
    return difference(CONTROL, treatment, control_environment=before or {}, treatment_environment=after or {})


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        (LINE, ()),
        (f"{LINE} --mem-fraction-static 0.92", ("--mem-fraction-static: (not set) -> 0.92",)),
        (LINE.replace("8", "4"), ("--tp-size: 8 -> 4",)),
        (LINE.replace("--tp 8", ""), ("--tp-size: 8 -> (not set)",)),
        (f"{LINE} --enable-torch-symm-mem", ("--enable-torch-symm-mem: (not set) -> on",)),
        (f"{LINE} --cuda-graph-bs 1 2 4", ("--cuda-graph-bs-decode: (not set) -> 1 2 4",)),
        (LINE.replace("/models/a", "/models/b"), ("--model-path: /models/a -> /models/b",)),
        (f"NCCL_ALGO=Tree {LINE}", ("NCCL_ALGO: (not set) -> Tree",)),
        (f"/opt/venv/bin/{LINE}", ("python: (not set) -> /opt/venv/bin/python",)),
        (f"cd /srv && {LINE}", ("cwd: (not set) -> /srv",)),
        (f"numactl -N 0 {LINE}", ("launcher: (not set) -> numactl -N 0",)),
        (
            f"NCCL_ALGO=Ring {LINE} --ep 8 --enable-torch-symm-mem",
            (
                "--ep-size: (not set) -> 8",
                "--enable-torch-symm-mem: (not set) -> on",
                "NCCL_ALGO: (not set) -> Ring",
            ),
        ),
    ],
)
def test_each_part_that_differs_is_a_line_from_control_to_treatment(line: str, lines: tuple[str, ...]) -> None:
    assert between(line) == lines


def test_another_way_of_starting_sglang_is_a_difference() -> None:
    served = ServerSpec.from_command("t", "sglang serve /models/a --tp 8")

    assert intended(CONTROL, served) == ("entry: python -m sglang.launch_server -> sglang serve",)


@pytest.mark.parametrize("spelled", ["--tensor-parallel-size 8", "--tp-size=8", "--tensor_parallel_size 8"])
def test_another_spelling_of_a_flag_is_no_difference(spelled: str) -> None:
    assert between(LINE.replace("--tp 8", spelled)) == ()


def test_the_older_name_of_a_flag_sets_the_same() -> None:
    older = f"{LINE} --cuda-graph-max-bs 128"

    assert between(older, flags="--cuda-graph-max-bs-decode 128") == ()
    assert between(older, flags="--cuda-graph-max-bs-decode 512") == ("--cuda-graph-max-bs-decode: 512 -> 128",)


def test_a_flag_and_its_negation_are_one_thing() -> None:
    assert between(f"{LINE} --no-grammar-cache", flags="--grammar-cache") == ("--grammar-cache: on -> off",)


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        (f"{LINE} --api-key sesame", ("--api-key: (not set) -> ***",)),
        (f"HF_TOKEN=sesame {LINE}", ("HF_TOKEN: (not set) -> ***",)),
        (
            f"docker run --network host -e HF_TOKEN=sesame lmsys/sglang {LINE}",
            ("launcher: (not set) -> docker run --network host -e HF_TOKEN=*** lmsys/sglang",),
        ),
    ],
)
def test_secrets_are_masked(line: str, lines: tuple[str, ...]) -> None:
    assert between(line) == lines


@pytest.mark.parametrize(
    ("flags", "intentions"),
    [
        ("", 0),
        ("--ep 8", 1),
        ("--ep 8 --mem-fraction-static 0.92", 2),
        ("NCCL_ALGO=Tree --ep 8", 2),
        ("--speculative-algorithm NGRAM", 1),
        ("--speculative-algorithm EAGLE3 --speculative-draft-model-path /d --speculative-num-steps 3", 1),
        ("--speculative-algorithm EAGLE3 --speculative-draft-model-path /d --ep 8", 2),
    ],
)
def test_the_flags_of_drafting_are_one_intention(flags: str, intentions: int) -> None:
    assert found(CONTROL.but("t", flags)).intentions == intentions


def test_more_than_one_intention_is_said() -> None:
    assert found(CONTROL.but("t", "--ep 8")).lines() == ["changed against base: --ep-size: (not set) -> 8"]
    assert found(CONTROL.but("t", "--ep 8 --max-running-requests 4")).lines() == [
        "changed against base: --ep-size: (not set) -> 8; --max-running-requests: (not set) -> 4",
        "that is 2 changes at once: the ratio is of all of them together",
    ]
    assert found(CONTROL.but("t")).lines() == ["changed against base: nothing"]


def test_the_servers_differ_by_what_they_resolved_and_not_by_what_each_launch_has_anew() -> None:
    before = {"sglang_version": "0.5.23", "args.ep_size": 1, "args.mem_fraction_static": 0.78, "args.tp_size": 8}
    after = {**before, "args.ep_size": 8, "args.mem_fraction_static": 0.92, "max_total_num_tokens": 90_000}
    anew_before = {"command": "x", "spec_hash": "1", "gpu_measured_sm_mhz": 2400, "gpu_power_capped": False}
    anew_after = {"command": "y", "spec_hash": "2", "gpu_measured_sm_mhz": 2350, "gpu_power_capped": True}

    one = found(CONTROL.but("t", "--ep 8"), {**before, **anew_before}, {**after, **anew_after})

    assert one.effective == (
        EnvironmentChange(key="args.ep_size", before="1", after="8"),
        EnvironmentChange(key="args.mem_fraction_static", before="0.78", after="0.92"),
        EnvironmentChange(key="max_total_num_tokens", before="(not set)", after="90000"),
    )
    assert one.lines()[1:] == ["the servers differ by: " + "; ".join(map(str, one.effective))]
