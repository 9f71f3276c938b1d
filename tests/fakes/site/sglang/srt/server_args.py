"""SGLang 0.5.23's options as its real parser has them, for the fake engine; one that was renamed, as 0.5.12 had it."""

import argparse
import json
import os
from pathlib import Path

OPTIONS = Path(__file__).parents[4] / "data" / "args_0.5.23.json"
RENAMED = {"--cuda-graph-max-bs-decode": "--cuda-graph-max-bs"} if os.environ.get("FAKE_VERSION") == "0.5.12" else {}
READERS = {"int": int, "float": float}


class ServerArgs:
    """Enough of the real one to be asked for its parser."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Add every recorded option."""
        for row in json.loads(OPTIONS.read_text(encoding="utf-8")):
            flags = [RENAMED.get(flag, flag) for flag in row["opts"]]
            if "-h" in flags or not flags:
                continue
            if str(row["nargs"]) == "0":
                parser.add_argument(*flags, dest=row["dest"], action="store_true")
                continue
            nargs = row["nargs"] if row["nargs"] in ("+", "*", "?") else None
            parser.add_argument(*flags, dest=row["dest"], nargs=nargs, choices=row["choices"])
