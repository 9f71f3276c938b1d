"""Directories of owners that live, that end, and that are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_specdec.owned import OwnedDirectory, sweep

ROOT = Path(__file__).parent.parent.parent
OWNER = """
import sys
from pathlib import Path
from pytest_specdec.owned import OwnedDirectory
owned = OwnedDirectory(Path(sys.argv[1]), prefix="own-")
(owned.path / "file").write_text("x")
print(owned.path, flush=True)
sys.stdin.read()
"""


def owner(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    words = [sys.executable, "-c", OWNER, str(parent)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def close(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_directory_is_private_and_removed_by_its_owner(tmp_path: Path) -> None:
    owned = OwnedDirectory(tmp_path, prefix="own-")
    (owned.path / "a").mkdir()

    assert owned.path.parent == tmp_path
    assert owned.path.name.startswith("own-")
    assert owned.path.stat().st_mode & 0o777 == 0o700
    owned.remove()
    owned.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_owner_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    process, path = owner(tmp_path)
    close(process)
    assert (path / "file").exists()

    owned = OwnedDirectory(tmp_path, prefix="own-")

    assert list(tmp_path.iterdir()) == [owned.path]
    owned.remove()


def test_what_a_living_owner_has_is_left_alone(tmp_path: Path) -> None:
    process, path = owner(tmp_path)
    own = OwnedDirectory(tmp_path, prefix="own-")

    sweep(tmp_path, prefix="own-")

    assert sorted(tmp_path.iterdir()) == sorted([path, own.path])
    assert (path / "file").exists()
    own.remove()
    close(process)


@pytest.mark.parametrize("kind", ["other prefix", "file", "link"])
def test_what_is_not_ours_is_left_alone(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    if kind == "other prefix":
        (tmp_path / "ssh-agent").mkdir()
    elif kind == "file":
        (tmp_path / "own-file").touch()
    else:
        (tmp_path / "own-link").symlink_to(target)
    before = sorted(tmp_path.iterdir())

    sweep(tmp_path, prefix="own-")

    assert sorted(tmp_path.iterdir()) == before
