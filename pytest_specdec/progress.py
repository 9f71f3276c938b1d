"""How far a launch is, in a line for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pytest_specdec.logwatch import Bar

#: A log that was quiet for less is not worth a word.
_SILENT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One moment of a launch.

    ``bar`` is the step of the phase that the log showed last. ``silent_s`` is the time since the log's last byte,
    ``moved`` what was seen to move since then. ``expected_s`` is what the last launch took, None where there was
    none. ``mention`` marks the moments that are worth a line of their own: a new phase, and one a minute.
    """

    name: str
    phase: str
    bar: Bar | None
    elapsed_s: float
    expected_s: float | None
    silent_s: float
    moved: tuple[str, ...]
    mention: bool

    @property
    def line(self) -> str:
        """All of it in one line."""
        step = "" if self.bar is None else f" {self.bar.done}/{self.bar.total}"
        words = [f"{self.name}: {self.phase}{step} after {self.elapsed_s:.1f} s"]
        if self.expected_s is not None:
            words.append(f"expected {self.expected_s:.0f} s, as its last launch here took")
        if self.silent_s >= _SILENT_S:
            moved = f" ({', '.join(self.moved)})" if self.moved else ""
            words.append(f"log silent for {self.silent_s:.0f} s{moved}")
        return "; ".join(words)


def phases_line(phase_s: Mapping[str, float]) -> str:
    """Say which phase took how long, in their order: ``imports 12.1 s, weights 410.3 s``."""
    return ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in phase_s.items())
