"""Break real servers and read recorded logs; print what the user is told and how soon, as the tables of docs/faults.md.

    python benchmarks/faults.py            print them; needs PYTEST_SPECDEC_PYTHON, the Python that has SGLang
    python benchmarks/faults.py --write    put them into docs/faults.md

The first table comes from ``tests/engine/test_faults.py``, of which each test is a row; the second from the command
``pytest-specdec diagnose``, run on one recorded log of each diagnosis.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "faults.md"
CASES: Final = ROOT / "tests" / "data" / "cases"
TESTS: Final = ROOT / "tests" / "engine" / "test_faults.py"
REAL_HEAD: Final = ("fault", "failure", "what was injected", "what the user sees", "seconds")
RECORDED_HEAD: Final = ("log", "diagnosis", "category", "what the user sees", "seconds")


def row_name(test: str) -> str:
    """Name the row of a test: its parameter, or the rest of its name."""
    parameter = re.search(r"\[(.+)\]$", test)
    return parameter[1] if parameter else test.rpartition("::")[2].removeprefix("test_").replace("_", "-")


def without_homes(text: str) -> str:
    """Leave out where this machine keeps things: the page is read on others."""
    for directory in (str(Path.home()), tempfile.gettempdir()):
        text = re.sub(rf"{re.escape(directory)}(?:/[\w.-]+)*(/[\w.-]+)", r"…\1", text)
    return text


def real_rows() -> list[tuple[str, ...]]:
    """Run the tests; one row each. Raises SystemExit when one fails: a table of what does not hold is of no use."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "junit.xml"
        words = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-o", "junit_family=xunit1"]
        done = subprocess.run([*words, f"--junitxml={report}", str(TESTS)], cwd=ROOT, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{TESTS} ended with exit code {done.returncode}; no table is made")
        cases = ET.parse(report).getroot().iter("testcase")
        found: list[tuple[str, ...]] = []
        for case in cases:
            told = {entry.get("name"): entry.get("value") for entry in case.iter("property")}
            if "fault" in told:  # a test that was skipped has none
                fault = json.loads(str(told["fault"]))
                sees = without_homes(" … ".join(fault["sees"]))
                found.append(
                    (
                        row_name(str(case.get("name"))),
                        fault["failure"],
                        fault["injected"],
                        sees,
                        f"{fault['seconds']:.1f}",
                    )
                )
        return found


def recorded_rows() -> list[tuple[str, ...]]:
    """Diagnose recorded logs with the command; one row for the first log of each diagnosis, by name."""
    found: dict[str, tuple[str, ...]] = {}
    for path in [*sorted(CASES.glob("*.txt")), *sorted((CASES / "kinds").glob("*.txt"))]:
        began = time.perf_counter()
        command = [sys.executable, "-m", "pytest_specdec.cli", "diagnose", str(path), "--json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - began
        told = json.loads(done.stdout)
        name = str(told["diagnosis"])
        if told["category"] != "ok" and name not in found:
            log = path.relative_to(CASES).with_suffix("").as_posix()
            found[name] = (log, name, told["category"], told["cause"], f"{seconds:.1f}")
    return [found[name] for name in sorted(found)]


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    head = tuple(head)
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )


def replaced(page: str, name: str, text: str) -> str:
    """Put a text between the two comments of that name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = page.partition(begin)
    return f"{before}{begin}{text}\n{end}{rest.partition(end)[2]}"


def main() -> None:
    """Measure, and print or write."""
    parser = argparse.ArgumentParser(description="The tables of docs/faults.md.")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/faults.md")
    parser.add_argument("--recorded", action="store_true", help="only the recorded logs, which need no SGLang")
    options = parser.parse_args()
    tables = {} if options.recorded else {"real": table(REAL_HEAD, real_rows())}
    tables["recorded"] = table(RECORDED_HEAD, recorded_rows())
    page = PAGE.read_text(encoding="utf-8")
    for name, text in tables.items():
        page = replaced(page, name, text)
        if not options.write:
            print(f"\n{text}")
    if options.write:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
