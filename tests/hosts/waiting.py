"""Waits with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil

WAIT_S = 20.0


def wait_until(holds: Callable[[], bool], what: str, *, within_s: float = WAIT_S) -> float:
    """Wait for a condition; returns how many seconds it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < within_s, f"waited {within_s:g} s for {what}"
        time.sleep(0.02)
    return time.monotonic() - began


def wait_for(path: Path, text: str) -> None:
    wait_until(lambda: path.exists() and text in path.read_text(), f"{text!r} in {path}")


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def processes_with(*words: str) -> list[int]:
    """The ids of the processes whose command lines hold all these words."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if all(word in line for word in words) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found
