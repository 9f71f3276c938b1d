"""A stand-in for ``nvidia-smi`` on ``PATH``: rows in the driver's own form, printed once or every so often.

``FAKE_SMI_DIR`` is a directory with the rows of one look, read anew for each: ``gpus.csv`` (clocks and reasons),
``processes.csv`` (what computes), and where they are asked for ``node.csv`` (names and drivers) and ``memory.csv``. A
file that isn't there has no rows. Processes are shown only to who goes on looking: before a launch there are none.
``FAKE_SMI_OLD``: set, it knows the fields of a driver before 535 only.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def main() -> None:
    words = sys.argv[1:]
    if "clocks_event_reasons" in words[0] and "FAKE_SMI_OLD" in os.environ:
        print('Field "clocks_event_reasons.hw_slowdown" is not a valid field to query.')
        sys.exit(2)
    kinds = {"--query-compute-apps": "processes.csv", "_reasons.": "gpus.csv", "memory.free": "memory.csv"}
    path = Path(os.environ["FAKE_SMI_DIR"]) / next(
        (file for part, file in kinds.items() if part in words[0]), "node.csv"
    )
    every = next((int(word.partition("=")[2]) for word in words if word.startswith("--loop-ms=")), None)
    while True:
        hidden = path.name == "processes.csv" and every is None
        sys.stdout.write("" if hidden or not path.exists() else path.read_text(encoding="utf-8"))
        sys.stdout.flush()
        if every is None:
            return
        time.sleep(min(every, 20) / 1000)


if __name__ == "__main__":
    main()
