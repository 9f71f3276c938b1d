"""SGLang 0.5.23's options as its real parser has them, for the fake engine."""

import argparse
import json
from pathlib import Path

OPTIONS = Path(__file__).parents[4] / "data" / "args_0.5.23.json"
READERS = {"int": int, "float": float}


class ServerArgs:
    """Enough of the real one to be asked for its parser."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Add every recorded option."""
        for row in json.loads(OPTIONS.read_text(encoding="utf-8")):
            flags = row["opts"]
            if "-h" in flags or not flags:
                continue
            if str(row["nargs"]) == "0":
                parser.add_argument(*flags, dest=row["dest"], action="store_true")
                continue
            nargs = row["nargs"] if row["nargs"] in ("+", "*", "?") else None
            parser.add_argument(*flags, dest=row["dest"], nargs=nargs, choices=row["choices"])
