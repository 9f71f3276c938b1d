"""What a user installs: everything that a launch, a report or a check reads is in the wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import pytest_specdec

ROOT = Path(pytest_specdec.__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    target = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = target.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    package = ROOT / "pytest_specdec"
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert wanted <= set(wheel.namelist())


def test_the_wheel_registers_the_plug_in_and_is_typed(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    (entry_points,) = [
        name for name in names if name.endswith(".dist-info/entry_points.txt") and "cpu_engine" not in name
    ]

    assert "[pytest11]\nspecdec = pytest_specdec.plugin" in wheel.read(entry_points).decode()
    assert "pytest_specdec/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "examples"))]


def test_the_script_of_all_tests_leaves_none_out() -> None:
    """It names directories, because some run beside one another: one that is new must be named too."""
    script = (ROOT / "scripts" / "test").read_text(encoding="utf-8")
    holding = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/*/test_*.py")}

    assert holding == {"tests/unit", "tests/plugin", "tests/hosts", "tests/operators", "tests/engine", "tests/perf"}
    assert not [name for name in holding if name not in script]
