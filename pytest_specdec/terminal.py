"""What a person is told while a session works: lines that stay, and one that rewrites itself during a launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from pytest_specdec.progress import Progress


class Reporter(Protocol):
    """What is used of pytest's terminal reporter."""

    @property
    def isatty(self) -> object:
        """Whether a person looks at it: true or false, as a bool or what stands for one."""

    def ensure_newline(self) -> None:
        """Go to the start of a line, unless there already."""

    def write_line(self, line: str) -> None:
        """Write a whole line."""

    def rewrite(self, line: str, **markup: bool) -> None:
        """Go back to the start of the line, and write over it."""

    def flush(self) -> None:
        """Let it be seen."""


class Terminal:
    """The session's lines at the terminal.

    Args:
        reporter: gives the reporter, None where nobody is told: a quiet run, a worker.
        uncaptured: pauses the capturing of output, which would swallow what is said while a test runs.
        width: gives the width of the terminal, in characters.

    """

    def __init__(
        self,
        reporter: Callable[[], Reporter | None],
        *,
        uncaptured: Callable[[], AbstractContextManager[None]],
        width: Callable[[], int],
    ) -> None:
        self._reporter = reporter
        self._uncaptured = uncaptured
        self._width = width
        # Whether the cursor stands behind a line that is going to be rewritten.
        self._live = False

    @contextmanager
    def _open(self) -> Iterator[Reporter | None]:
        reporter = self._reporter()
        if reporter is None:
            yield None
            return
        with self._uncaptured():
            if not self._live:
                reporter.ensure_newline()
            yield reporter

    def say(self, line: str) -> None:
        """Write a line that stays, in the place of a live one."""
        with self._open() as reporter:
            if reporter is None:
                return
            if self._live:
                reporter.rewrite("", erase=True)
                reporter.rewrite("")
                self._live = False
            reporter.write_line(f"specdec: {line}")

    def show(self, progress: Progress | None) -> None:
        """Show how far a launch is; None: it is over, and what was shown last stays.

        On a terminal the line rewrites itself; elsewhere the moments that are worth a line get one.
        """
        with self._open() as reporter:
            if reporter is None:
                return
            if progress is None:
                if self._live:
                    reporter.write_line("")
                    self._live = False
            elif bool(reporter.isatty):
                # A line that was wrapped could not be rewritten.
                reporter.rewrite(f"specdec: {progress.line}"[: self._width() - 1], erase=True)
                reporter.flush()
                self._live = True
            elif progress.mention:
                reporter.write_line(f"specdec: {progress.line}")
