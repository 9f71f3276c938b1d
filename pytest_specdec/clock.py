"""The one seam for time: everything that waits or measures is given a clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a clock can tell, and how to wait by it."""

    def monotonic(self) -> float:
        """Seconds on a clock that only runs forward; the origin means nothing."""

    def time(self) -> float:
        """Seconds since the epoch."""

    def cpu_s(self) -> float:
        """Seconds of processor time that this process has used, all its threads together."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        """Seconds on the performance counter."""
        return time.perf_counter()

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def cpu_s(self) -> float:
        """Seconds of processor time, user and system."""
        return time.process_time()

    def sleep(self, seconds: float) -> None:
        """Wait for that long."""
        time.sleep(seconds)
