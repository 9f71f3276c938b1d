"""Lines for the terminal: those that stay, and the one that rewrites itself."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import pytest

from pytest_specdec.logwatch import Bar
from pytest_specdec.progress import Progress, phases_line
from pytest_specdec.terminal import Terminal

WEIGHTS = Progress(
    name="base",
    phase="weights",
    bar=Bar(done=9, total=24),
    elapsed_s=204.04,
    expected_s=540.4,
    silent_s=0.2,
    moved=(),
    mention=False,
)


class FakeReporter:
    """Keeps what is written, as pytest's reporter writes it; ``captured`` while nothing may be."""

    def __init__(self, *, isatty: bool) -> None:
        self.isatty = isatty
        self.text = "test_a.py "
        self.captured = True

    def _write(self, text: str) -> None:
        assert not self.captured
        self.text += text

    def ensure_newline(self) -> None:
        if not self.text.endswith(("\n", "\r")):
            self._write("\n")

    def write_line(self, line: str) -> None:
        self._write(line + "\n")

    def rewrite(self, line: str, **markup: bool) -> None:
        self._write("\r" + line.ljust(79 if markup.get("erase") else 0))

    def flush(self) -> None:
        assert not self.captured

    @contextlib.contextmanager
    def uncaptured(self) -> Iterator[None]:
        self.captured = False
        yield
        self.captured = True

    @property
    def seen(self) -> list[str]:
        """What a person sees in the end, line by line."""
        lines = []
        for line in self.text.split("\n"):
            shown = ""
            for written in line.split("\r"):
                shown = written + shown[len(written) :]
            lines.append(shown.rstrip())
        return lines


def terminal_of(reporter: FakeReporter | None, *, width: int = 80) -> Terminal:
    return Terminal(
        lambda: reporter,
        uncaptured=contextlib.nullcontext if reporter is None else reporter.uncaptured,
        width=lambda: width,
    )


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "base: weights 9/24 after 204.0 s; expected 540 s, as its last launch here took"),
        ({"expected_s": None}, "base: weights 9/24 after 204.0 s"),
        ({"expected_s": None, "bar": None, "silent_s": 9.9}, "base: weights after 204.0 s"),
        ({"expected_s": None, "silent_s": 31.0}, "base: weights 9/24 after 204.0 s; log silent for 31 s"),
        (
            {"expected_s": None, "silent_s": 31.0, "moved": ("3.1 GiB read", "cicc compiling")},
            "base: weights 9/24 after 204.0 s; log silent for 31 s (3.1 GiB read, cicc compiling)",
        ),
    ],
)
def test_progress_is_one_line(changes: dict[str, object], line: str) -> None:
    assert dataclasses.replace(WEIGHTS, **changes).line == line  # type: ignore[arg-type]


def test_phases_are_told_in_their_order() -> None:
    assert phases_line({"weights": 410.26, "graphs": 60.0}) == "weights 410.3 s, graphs 60.0 s"


def test_on_a_terminal_the_line_rewrites_itself_and_makes_room_for_lines_that_stay() -> None:
    reporter = FakeReporter(isatty=True)
    terminal = terminal_of(reporter)

    for step in range(3):
        terminal.show(dataclasses.replace(WEIGHTS, bar=Bar(done=step, total=24), expected_s=None, mention=step == 0))
    assert reporter.seen == ["test_a.py", "specdec: base: weights 2/24 after 204.0 s"]

    terminal.say("base: ready")
    assert reporter.seen == ["test_a.py", "specdec: base: ready", ""]


def test_the_last_state_of_a_launch_that_failed_stays() -> None:
    reporter = FakeReporter(isatty=True)
    terminal = terminal_of(reporter)

    terminal.show(dataclasses.replace(WEIGHTS, expected_s=None))
    terminal.show(None)
    terminal.show(None)

    assert reporter.seen == ["test_a.py", "specdec: base: weights 9/24 after 204.0 s", ""]


def test_a_live_line_is_never_wider_than_the_terminal() -> None:
    reporter = FakeReporter(isatty=True)

    terminal_of(reporter, width=40).show(WEIGHTS)

    assert reporter.seen[-1] == "specdec: base: weights 9/24 after 204.0"


def test_without_a_terminal_only_the_moments_worth_a_line_get_one() -> None:
    reporter = FakeReporter(isatty=False)
    terminal = terminal_of(reporter)

    terminal.show(dataclasses.replace(WEIGHTS, expected_s=None, mention=True))
    terminal.show(WEIGHTS)
    terminal.show(None)

    assert reporter.seen == ["test_a.py", "specdec: base: weights 9/24 after 204.0 s", ""]


def test_nobody_is_told_where_nobody_listens() -> None:
    terminal = terminal_of(None)

    terminal.say("base: ready")
    terminal.show(WEIGHTS)
