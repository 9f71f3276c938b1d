"""Files of all-reduce baselines, and verdicts against them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec import baseline_admin, comm_baseline
from pytest_specdec.comm_baseline import CommBaseline
from pytest_specdec.errors import BaselineFileError
from pytest_specdec.model import Verdict

IDENTITY: dict[str, str | int | bool | None] = {
    "backend": "nccl",
    "algorithm": None,
    "world_size": 8,
    "calls": 122,
    "message_bytes": 43008,
    "dtype": "bfloat16",
    "graph": True,
    "method_version": 1,
}
QUIET = tuple((us, us * 1.01, us * 0.99) for us in (60.0, 60.6, 59.4, 60.3, 59.7))


def baseline(**more: Any) -> CommBaseline:
    fields: dict[str, Any] = {
        "identity": IDENTITY,
        "environment": {"nccl_version": "2.27.5"},
        "recorded_at": "2026-11-29T12:00:00+00:00",
        "git_commit": None,
        "command": "pytest --update-baselines",
        "gate": True,
        "tolerance": 0.05,
        "launches": QUIET,
        **more,
    }
    return CommBaseline(**fields)


@pytest.mark.parametrize("ceiling", [None, 75.0])
def test_a_file_is_read_as_it_was_written(tmp_path: Path, ceiling: float | None) -> None:
    path = comm_baseline.path_of(tmp_path, "8x-card", "all-reduce--nccl--w8--122x43008")
    written = baseline(ceiling_us=ceiling)

    comm_baseline.write(path, written)

    assert path.parent == tmp_path / "8x-card" / "communication"
    found = comm_baseline.read(path, IDENTITY)
    assert (found.identity, found.environment, found.gate) == (IDENTITY, written.environment, True)
    assert found.ceiling_us == ceiling
    assert found.mean_us == pytest.approx(60.0, rel=1e-3)


def edited(tmp_path: Path, *keys: str, value: object) -> Path:
    path = tmp_path / "file.json"
    comm_baseline.write(path, baseline())
    document = place = json.loads(path.read_text())
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("identity", "world_size"), 4, "identity.world_size is 4, and 8 is measured: rename the file, or record"),
        (("identity", "ranks"), 8, "identity.ranks: unknown key"),
        (("metrics", "all_reduce_us", "unit"), "ms", "metrics.all_reduce_us.unit: expected us, got 'ms'"),
        (("metrics", "all_reduce_us", "direction"), "higher", "direction: expected lower, got 'higher'"),
        (("metrics", "all_reduce_us", "launches"), [], "a list of starts, each a list of rounds"),
        (("metrics", "all_reduce_us", "launches"), [[60.0, 0]], r"\[0\]\[1\]: expected a number above 0, got 0"),
        (("metrics", "all_reduce_us", "ceiling"), -1, "ceiling: expected a number above 0, got -1"),
        (("provenance", "recorded_at"), "yesterday", "provenance.recorded_at: expected a time"),
        (("schema_version",), 2, "reads up to 1: upgrade it"),
    ],
)
def test_a_file_that_can_not_be_relied_on_is_refused(
    tmp_path: Path, keys: tuple[str, ...], value: object, message: str
) -> None:
    with pytest.raises(BaselineFileError, match=message):
        comm_baseline.read(edited(tmp_path, *keys, value=value), IDENTITY)


def scaled(factor: float) -> list[list[float]]:
    return [[us * factor for us in rounds] for rounds in QUIET[:3]]


def test_more_microseconds_are_a_regression_and_fewer_an_improvement() -> None:
    verdicts = [comm_baseline.judge(baseline(), scaled(factor), most=3).verdict for factor in (1.2, 1.0, 0.8)]

    assert verdicts == [Verdict.REGRESSION, Verdict.PASS, Verdict.IMPROVEMENT]


def test_what_is_within_the_tolerance_is_none() -> None:
    assert comm_baseline.judge(baseline(tolerance=0.25), scaled(1.2), most=3).verdict is not Verdict.REGRESSION


def test_a_ceiling_is_literal() -> None:
    decision = comm_baseline.judge(baseline(ceiling_us=58.0), scaled(1.0), most=3)

    assert decision.verdict is Verdict.REGRESSION
    assert "above its ceiling 58" in decision.reason


def test_the_loss_is_the_log_of_the_ratio() -> None:
    assert comm_baseline.judge(baseline(), scaled(1.2), most=3).loss == pytest.approx(math.log(1.2), abs=0.01)


def test_verify_reads_these_files_too(tmp_path: Path) -> None:
    path = comm_baseline.path_of(tmp_path, "8x-card", "all-reduce--nccl--w8--122x43008")
    comm_baseline.write(path, baseline())
    assert baseline_admin.problems(tmp_path) == []

    path.write_text(path.read_text().replace('"us"', '"ms"'))

    (problem,) = baseline_admin.problems(tmp_path)
    assert "metrics.all_reduce_us.unit: expected us, got 'ms'" in problem
