"""Finds the servers that are kept on a host, by their records: a script for the host, of the standard library.

``find_kept.py DIRECTORY`` prints one JSON object: ``now`` (seconds since the epoch, by the host's clock) and
``servers``, the records as their supervisors wrote them. A record whose supervisor is gone is not believed: with its
server gone too it is removed, otherwise its ``state`` is ``orphaned``. ``find_kept.py DIRECTORY end TOKEN`` ends the
session of such a server, by its id, and removes its record.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from typing import Any

#: As of a supervisor that was left alone.
PATIENCE_S = 8.0
KILL_PATIENCE_S = 10.0
TICK_S = 0.1


def stat_of(pid: int) -> list[bytes]:
    """Return the fields of a process behind its name, the first of which is its state; none when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return []
    return [] if fields[0] in (b"Z", b"X") else fields


def runs(record: dict[str, Any], what: str, boot_id: str) -> bool:
    """Whether that very process runs: a number alone may be another one's by now."""
    fields = stat_of(record[what])
    return record["boot_id"] == boot_id and bool(fields) and int(fields[19]) == record[f"{what}_started"]


def records(directory: str) -> list[tuple[str, dict[str, Any]]]:
    """Return every record that can be read, with its path."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(directory)):  # noqa: PTH208
            path = os.path.join(directory, name)  # noqa: PTH118
            # A record that is removed meanwhile, or half a one that a full disk left.
            with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:  # noqa: PTH123
                record = json.load(file)
                if name.endswith(".json") and isinstance(record, dict):
                    found.append((path, record))
    return found


def look(directory: str, boot_id: str) -> list[dict[str, Any]]:
    """Return what is there, and remove the records of what is not."""
    found = []
    for path, record in records(directory):
        try:
            supervised, served = runs(record, "supervisor", boot_id), runs(record, "pid", boot_id)
        except (KeyError, TypeError):
            # No record of a supervisor's.
            continue
        if supervised:
            found.append(record)
        elif served:
            found.append({**record, "state": "orphaned"})
        else:
            remove(path, record)
    return found


def remove(path: str, record: dict[str, Any]) -> None:
    """Remove what a supervisor left that had no time to."""
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108
    directory = record.get("directory")
    if isinstance(directory, str) and os.path.basename(directory) == f"specdec-{record.get('token')}":  # noqa: PTH119
        shutil.rmtree(directory, ignore_errors=True)


def session_of(leader: int) -> list[int]:
    """Return the living processes of a session."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    return [pid for pid in pids if (fields := stat_of(pid)) and int(fields[3]) == leader]


def end(directory: str, token: str, boot_id: str) -> bool:
    """End a server that has lost its supervisor; returns whether nothing of it is left."""
    for path, record in records(directory):
        if record.get("token") != token or not runs(record, "pid", boot_id):
            continue
        for number, patience_s in ((signal.SIGTERM, PATIENCE_S), (signal.SIGKILL, KILL_PATIENCE_S)):
            for pid in session_of(record["pid"]):
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            deadline = time.monotonic() + patience_s
            while session_of(record["pid"]) and time.monotonic() < deadline:
                time.sleep(TICK_S)
        if session_of(record["pid"]):
            return False
        remove(path, record)
    return True


def main() -> int:
    """Do what the arguments say."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
        boot_id = file.read().strip()
    if sys.argv[2:3] == ["end"]:
        return 0 if end(sys.argv[1], sys.argv[3], boot_id) else 1
    print(json.dumps({"now": time.time(), "servers": look(sys.argv[1], boot_id)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
