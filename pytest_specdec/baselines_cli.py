"""``pytest-specdec baselines``: list, show, diff, verify, migrate and prune what is committed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_specdec import baseline_admin as admin
from pytest_specdec.errors import BaselineFileError

if TYPE_CHECKING:
    #: What ``add_subparsers`` returns has no public name.
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001

#: What collects tests, to know which files they look at: the words behind it are pytest's.
COLLECTING: Final = ("list", "prune")
_FAILED: Final = 2
_FOUND: Final = 1


def collect(action: str, words: Sequence[str]) -> int:
    """Run ``list`` or ``prune`` in a pytest session that collects and runs nothing."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "pytest", f"--specdec-baseline-files={action}", *words])


def add_to(commands: _Commands) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "baselines",
        help="list, show, compare, check, migrate or prune committed baselines",
        description="Look after committed baselines. list and prune collect tests as pytest does, to know which files "
        "are used; their further words are pytest's.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, text in (
        ("list", "every file with its figures; those that no collected test looks at are marked"),
        ("prune", "delete the files that no collected test looks at"),
    ):
        one = actions.add_parser(name, help=text)
        one.add_argument("pytest", nargs="*", metavar="PYTEST-ARGUMENT")
    one = actions.add_parser("show", help="all of one file, readable")
    one.add_argument("file", type=Path, metavar="FILE")
    one.set_defaults(run=_show)
    one = actions.add_parser("diff", help="what differs between two files, or two directories of baselines")
    one.add_argument("old", type=Path, metavar="OLD")
    one.add_argument("new", type=Path, metavar="NEW")
    one.set_defaults(run=_diff)
    for name, text, run in (
        ("verify", "read every file, compare its name with what it holds, and name the format's JSON Schema", _verify),
        ("migrate", "rewrite files of older schema versions", _migrate),
    ):
        one = actions.add_parser(name, help=text)
        one.add_argument("directory", type=Path, nargs="?", default=Path("baselines"), metavar="DIR")
        one.set_defaults(run=run)


def _refused(error: BaselineFileError) -> int:
    print(f"pytest-specdec baselines: {error}", file=sys.stderr)
    return _FAILED


def _show(arguments: argparse.Namespace) -> int:
    try:
        print("\n".join(admin.shown(arguments.file)))
    except BaselineFileError as error:
        return _refused(error)
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    try:
        lines = admin.difference(arguments.old, arguments.new)
    except BaselineFileError as error:
        return _refused(error)
    print("\n".join(lines) if lines else "no difference")
    return _FOUND if lines else 0


def _verify(arguments: argparse.Namespace) -> int:
    try:
        there, lines = admin.files(arguments.directory), admin.problems(arguments.directory)
    except BaselineFileError as error:
        return _refused(error)
    print("\n".join(lines) if lines else f"{len(there)} files, all sound")
    print(f"the format, as a JSON Schema: {admin.SCHEMA_PATH}")
    return _FOUND if lines else 0


def _migrate(arguments: argparse.Namespace) -> int:
    try:
        rewritten = admin.migrate(arguments.directory)
    except BaselineFileError as error:
        return _refused(error)
    print("\n".join(f"rewritten: {path}" for path in rewritten) or "every file is of the current version")
    return 0
