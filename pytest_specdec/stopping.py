"""The end of one process group: SIGTERM, patience, SIGKILL, and nothing left before anything else begins."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pytest_specdec.clock import Clock
from pytest_specdec.errors import InfrastructureError, LaunchError
from pytest_specdec.hosts import Process

_POLL_S: Final = 0.1
#: SGLang sleeps five seconds for its own diagnostics when it is told to stop.
TERM_PATIENCE_S: Final = 15.0
KILL_PATIENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """How a server ended: ``already-dead``, ``term`` or ``kill``, and how long it took."""

    how: str
    seconds: float


def stop_process(process: Process, clock: Clock, *, what: str) -> StopReport:
    """End a process group; raises :class:`LaunchError` naming the process ids that survive SIGKILL.

    Interrupted itself, it kills the group before it lets the interrupt pass.
    """
    began = clock.monotonic()
    if not process.members():
        process.forget()
        return StopReport(how="already-dead", seconds=0.0)
    try:
        how = _end(process, clock, what)
    except BaseException:
        process.signal(signal.SIGKILL)
        raise
    process.forget()
    return StopReport(how=how, seconds=clock.monotonic() - began)


def _end(process: Process, clock: Clock, what: str) -> str:
    process.signal(signal.SIGTERM)
    if _gone(process, clock, TERM_PATIENCE_S):
        return "term"
    process.signal(signal.SIGKILL)
    if _gone(process, clock, KILL_PATIENCE_S):
        return "kill"
    left = ", ".join(map(str, process.members()))
    raise LaunchError(
        f"{what}: waited {KILL_PATIENCE_S:g} s after SIGKILL for processes {left} to end; they are in an "
        "uninterruptible call, for example of a GPU driver. End them before the next launch"
    )


def _gone(process: Process, clock: Clock, patience_s: float) -> bool:
    deadline = clock.monotonic() + patience_s
    while process.poll() is None or process.members():
        if clock.monotonic() >= deadline:
            return False
        clock.sleep(_POLL_S)
    return True


@contextlib.contextmanager
def ended_on_error(process: Process, clock: Clock, what: str) -> Iterator[None]:
    """End the group when the block raises anything, an interrupt included.

    When the group can't be ended either, both are told: what went wrong first is the reason.
    """
    try:
        yield
    except LaunchError as error:
        try:
            stop_process(process, clock, what=what)
        except InfrastructureError as left:
            both = f"{error}\n  and it could not be ended: {left}"
            raise LaunchError(both, log_path=error.log_path, exit_code=error.exit_code, cause=error.cause) from error
        raise
    except BaseException:
        stop_process(process, clock, what=what)
        raise
