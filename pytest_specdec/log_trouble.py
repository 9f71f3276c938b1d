"""Whether a server's log can be written: a launch whose log ends early, or is empty, says nothing of its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pytest_specdec.errors import HostError
from pytest_specdec.hosts import Host

_TIMEOUT_S: Final = 10.0
#: More than what is left of a block that is not full yet.
_TRY: Final = 'head -c 65536 /dev/zero > "$1"; status=$?; rm -f "$1"; exit $status'


def trouble_of(host: Host, log_path: Path) -> str | None:
    """Return why nothing can be written beside a log, such as ``No space left on device``; None when it can."""
    try:
        done = host.run(
            ["sh", "-c", _TRY, "sh", str(log_path.with_suffix(".room"))], env={"LC_ALL": "C"}, timeout_s=_TIMEOUT_S
        )
    except HostError:
        return None  # a host that is away is reported by whoever needs it
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1].rpartition(": ")[2]
