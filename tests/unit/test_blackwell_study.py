"""The study of the first node can be launched as it is written: SGLang 0.5.23 has its flags, and they go together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_specdec import ServerSpec
from pytest_specdec.preflight import check
from tests.fakes.host import FakeClock
from tests.fakes.sglang_host import SglangHost
from tests.perf import test_blackwell_study as study


def specs() -> Iterator[ServerSpec]:
    """Every spec that a test of the study is parametrized with."""
    for name, test in vars(study).items():
        for mark in getattr(test, "pytestmark", ()) if name.startswith("test_") else ():
            if mark.name == "parametrize":
                yield from mark.args[1]


@pytest.mark.parametrize("spec", [study.CONTROL, *specs()], ids=lambda spec: spec.name)
def test_the_preflight_finds_nothing_wrong(spec: ServerSpec, tmp_path: Path) -> None:
    checked = check(SglangHost(), spec, python="/py", env={}, cache_dir=tmp_path, device="cuda", clock=FakeClock())

    assert (checked.problems, checked.notices) == ((), ())
