"""The command ``pytest-specdec``: what is done outside of a test session. Each subcommand is one function here."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_specdec import baselines_cli, study_cli
from pytest_specdec.diagnose import Diagnosis, diagnose

if TYPE_CHECKING:
    #: What ``add_subparsers`` returns has no public name.
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001

_FAILED: Final = 2
_SERVERS: Final = "list, stop or adopt the servers that were kept up for the next run"
_LONGEST_LINE: Final = 240
_MOST_LINES: Final = 8


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code: 0, or 2 for arguments or files that can't be used."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["check"] and not _asks_help(words[1:]):
        return _check(words[1:])  # the words behind it are pytest's, dashes included
    if words[:1] == ["servers"]:
        from pytest_specdec import servers_cli  # noqa: PLC0415  # hosts and their libraries, for this command alone

        return servers_cli.main(words[1:])
    if words == ["baselines"]:
        words = ["baselines", "list"]
    if words[:1] == ["baselines"] and words[1] in baselines_cli.COLLECTING and not _asks_help(words[2:]):
        return baselines_cli.collect(words[1], words[2:])
    parser = _parser()
    arguments = parser.parse_args(words)
    result: int = arguments.run(arguments)
    return result


def _asks_help(words: Sequence[str]) -> bool:
    return words[:1] in (["-h"], ["--help"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pytest-specdec", description="Performance regression tests for speculative decoding on SGLang."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_diagnose(commands)
    _add_check(commands)
    commands.add_parser("servers", help=_SERVERS)
    baselines_cli.add_to(commands)
    study_cli.add_to(commands)
    return parser


def _add_check(commands: _Commands) -> None:
    parser = commands.add_parser(
        "check",
        help="check every collected server spec without starting a server",
        description="Collect tests as pytest does and run the preflight of each server spec: SGLang's version and its "
        "own parser, drafting flags, model paths, GPUs. Further words are pytest's: paths, --gpu-host, -k.",
    )
    parser.add_argument("pytest", nargs="*", metavar="PYTEST-ARGUMENT")


def _check(words: Sequence[str]) -> int:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "--specdec-check", *words])


def _add_diagnose(commands: _Commands) -> None:
    parser = commands.add_parser(
        "diagnose",
        help="say why a server did not start, died, or serves badly",
        description="Read a saved log of an SGLang server and name what it says.",
    )
    parser.add_argument("log", metavar="LOG", help="the log's path, or - for standard input")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--exit-code", type=int, metavar="N", help="the launcher's exit code; negative: a signal")
    parser.add_argument("--sglang-version", metavar="VERSION", help="SGLang's version, when it is known")
    parser.add_argument(
        "--signalled-at-line",
        type=int,
        metavar="LINE",
        help="a signal was sent after this line: pass over what follows",
    )
    parser.set_defaults(run=_diagnose)


def _diagnose(arguments: argparse.Namespace) -> int:
    try:
        raw = sys.stdin.buffer.read() if arguments.log == "-" else Path(arguments.log).read_bytes()
    except OSError as error:
        print(
            f"pytest-specdec diagnose: {arguments.log}: can't be read: {error.strerror}; give a log's path, or - for "
            "standard input",
            file=sys.stderr,
        )
        return _FAILED
    text = raw.decode("utf-8", errors="replace")
    found = diagnose(
        text,
        exit_code=arguments.exit_code,
        signalled_at_line=arguments.signalled_at_line,
        version=arguments.sglang_version,
    )
    print(json.dumps(found.as_json(), indent=2) if arguments.json else _as_text(found, text))
    return 0


def _as_text(found: Diagnosis, log: str) -> str:
    lines = [
        f"diagnosis: {found.diagnosis}",
        f"category:  {found.category}",
        f"phase:     {found.phase}",
        f"cause:     {found.cause}",
        f"remedy:    {found.remedy}",
    ]
    if found.exception:
        lines.append(f"exception: {found.exception[:_LONGEST_LINE]}")
    if found.exit_meaning:
        lines.append(f"exit:      {found.exit_meaning}")
    if found.provisional:
        known = f"; it is known in SGLang {found.versions}" if found.versions else ""
        lines.append(f"sure:      provisional, no real log of it was seen in this version{known}")
    lines += [f"note:      {note}" for note in found.notes]
    shown = log.split("\n")
    lines += [f"  {number:>6} | {shown[number - 1].strip()[:_LONGEST_LINE]}" for number in found.evidence[:_MOST_LINES]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
