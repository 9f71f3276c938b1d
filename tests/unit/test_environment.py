"""What differs between the environments of a baseline and of a run."""

from __future__ import annotations

from pathlib import Path

from pytest_specdec.baseline import read_baseline, write_baseline
from pytest_specdec.environment import environment_changes
from pytest_specdec.model import EnvironmentChange
from tests.fakes.judged import lookup


def test_differences_are_sorted_and_readable() -> None:
    before: dict[str, object] = {
        "sglang_version": "0.5.20",
        "torch_version": "2.14.1",
        "args.tp_size": 8,
        "args.port": 30000,
        "env.NCCL_ALGO": "Tree",
        "gpu_power_limit_w": [600.0, 600.0],
    }
    after = {
        "sglang_version": "0.5.23",
        "torch_version": "2.14.1",
        "args.tp_size": 4,
        "args.port": 31000,
        "args.log_level": "",
        "gpu_power_limit_w": [600.0, 450.0],
    }

    assert [str(change) for change in environment_changes([before], after)] == [
        "args.log_level: (not set) -> ''",
        "args.tp_size: 8 -> 4",
        "env.NCCL_ALGO: Tree -> (not set)",
        "gpu_power_limit_w: [600.0, 600.0] -> [600.0, 450.0]",
        "sglang_version: 0.5.20 -> 0.5.23",
    ]


def test_a_difference_keeps_its_key_and_both_sides() -> None:
    assert environment_changes([{"args.tp_size": 8}], {"args.tp_size": 4}) == (
        EnvironmentChange(key="args.tp_size", before="8", after="4"),
    )


def test_what_was_not_recorded_differs_from_nothing() -> None:
    assert environment_changes([], {"args.tp_size": 4}) == ()


def test_of_several_files_the_first_is_the_one_to_differ_from() -> None:
    (change,) = environment_changes(
        [{"sglang_version": "0.5.20"}, {"sglang_version": "0.5.23"}], {"sglang_version": ""}
    )

    assert change.before == "0.5.20"


def test_an_environment_that_was_written_and_read_back_has_no_differences(tmp_path: Path) -> None:
    environment: dict[str, object] = {"args.mem_fraction_static": 0.8837209302, "gpu_names": ("a", "b"), "ready": None}
    write_baseline(tmp_path / "a.json", lookup(environment=environment).metrics["decode_tok_s"].baseline)

    assert environment_changes([read_baseline(tmp_path / "a.json").environment], environment) == ()


def test_of_long_values_the_part_that_differs_is_kept() -> None:
    before = "python -m sglang.launch_server --model-path /models/k2 --tp 8 --max-running-requests 16 --log-level info"
    after = "python -m sglang.launch_server --model-path /models/k2 --tp 8 --max-running-requests 32 --log-level info"

    (changed,) = environment_changes([{"command": before}], {"command": after})

    assert (
        str(changed)
        == "command: ...ax-running-requests 16 --log-level info -> ...ax-running-requests 32 --log-level info"
    )


def test_long_values_that_differ_in_length_only_are_cut_to_a_line() -> None:
    (changed,) = environment_changes([{"env.X": "a" * 100}], {"env.X": "a" * 300})

    assert str(changed) == "env.X: ..." + "a" * 20 + " -> ..." + "a" * 80 + "..."
