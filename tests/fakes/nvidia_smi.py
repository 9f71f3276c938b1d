"""A stand-in for ``nvidia-smi`` on ``PATH``: rows in the driver's own form, printed once or every so often.

``FAKE_SMI_DIR`` is a directory with ``gpus.csv`` and ``processes.csv``, each the rows of one look, read anew for each.
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
    rows = "processes.csv" if words[0].startswith("--query-compute-apps") else "gpus.csv"
    every = next((int(word.partition("=")[2]) for word in words if word.startswith("--loop-ms=")), None)
    while True:
        sys.stdout.write((Path(os.environ["FAKE_SMI_DIR"]) / rows).read_text(encoding="utf-8"))
        sys.stdout.flush()
        if every is None:
            return
        time.sleep(min(every, 20) / 1000)


if __name__ == "__main__":
    main()
