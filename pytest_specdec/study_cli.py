"""``pytest-specdec study``: show the ledger of what was tried, and take the entries of a run into it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_specdec import jsonfile, ledger, study, study_table
from pytest_specdec.errors import BaselineFileError, InfrastructureError, UserInputError

if TYPE_CHECKING:
    #: What ``add_subparsers`` returns has no public name.
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001

_FAILED: Final = 2


def add_to(commands: _Commands) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "study",
        help="show what was tried and what came of it, and take a run in",
        description="The ledger of a study, <baselines>/<node>/study.jsonl: a line a try. Without an action it is "
        "shown as a Markdown table.",
    )
    parser.set_defaults(run=_show)
    _add_baselines(parser, Path("baselines"))
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    one = actions.add_parser("add", help="take the entries of a run into the ledger")
    one.add_argument("results", type=Path, nargs="?", default=Path(".specdec/results.json"), metavar="RESULTS.json")
    one.set_defaults(run=_add)
    _add_baselines(one, argparse.SUPPRESS)
    one = actions.add_parser("html", help="write the ledger as one HTML page")
    one.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="where to")
    one.set_defaults(run=_html)
    _add_baselines(one, argparse.SUPPRESS)


def _add_baselines(parser: argparse.ArgumentParser, default: object) -> None:
    parser.add_argument("--baselines", type=Path, default=default, metavar="DIR", help="default: baselines/")


def _refused(error: Exception) -> int:
    print(f"pytest-specdec study: {error}", file=sys.stderr)
    return _FAILED


def _show(arguments: argparse.Namespace) -> int:
    try:
        found = ledger.read_all(arguments.baselines)
    except UserInputError as error:
        return _refused(error)
    if found:
        print(study_table.markdown(found, root=arguments.baselines, beside=Path.cwd()), end="")
    else:
        print(f"no ledger below {arguments.baselines}; `pytest-specdec study add` takes the last run in")
    return 0


def _add(arguments: argparse.Namespace) -> int:
    try:
        lines = study.add(arguments.baselines, _entries(arguments.results))
    except (UserInputError, InfrastructureError) as error:
        return _refused(error)
    print("\n".join(lines) or f"{arguments.results}: nothing was tried in this run")
    return 0


def _entries(results: Path) -> list[ledger.Try]:
    document = jsonfile.read(results)
    try:
        return study.entries_of(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BaselineFileError(
            f"{results}: not the results of a run ({type(error).__name__}: {error}); give the results.json that "
            "pytest wrote, .specdec/results.json by default"
        ) from None


def _html(arguments: argparse.Namespace) -> int:
    output: Path = arguments.output
    try:
        found = ledger.read_all(arguments.baselines)
        if not found:
            return _refused(UserInputError(f"no ledger below {arguments.baselines}; `study add` takes the last run in"))
        beside = output.resolve().parent
        jsonfile.write_text(output, study_table.html(found, root=arguments.baselines, beside=beside))
    except UserInputError as error:
        return _refused(error)
    except OSError as error:
        return _refused(InfrastructureError(f"{output}: can't be written: {error.strerror or error}"))
    print(f"written: {output}")
    return 0
