"""The tables of docs/faults.md say what the tests and the catalogue say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults import CASES, PAGE, ROOT, TESTS, replaced, row_name, table, without_homes
from pytest_specdec.diagnose import diagnose


def rows(name: str) -> list[list[str]]:
    """The cells of a table, head left out."""
    text = PAGE.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")[2].partition("<!-- end of")[0]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines()[2:]]


def test_every_fault_on_a_real_server_has_a_row_and_every_row_a_test() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:randomly", str(TESTS)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    tests = [line for line in done.stdout.splitlines() if "::" in line]

    assert sorted(row[0] for row in rows("real")) == sorted(map(row_name, tests))


def test_the_page_holds_at_least_25_faults_with_what_is_seen_and_when() -> None:
    told = rows("real")

    assert len(told) >= 25
    assert all(len(row) == 5 and all(row) and float(row[-1]) >= 0 for row in told)


@pytest.mark.parametrize("row", rows("recorded"), ids=lambda row: row[1])
def test_a_recorded_log_says_what_the_page_says(row: list[str]) -> None:
    log, name, category, cause, _ = row

    found = diagnose((CASES / f"{log}.txt").read_text(encoding="utf-8"))

    assert (found.diagnosis, found.category, found.cause.replace("|", "\\|")) == (name, category, cause)


def test_a_row_is_named_by_its_parameter_or_its_test() -> None:
    assert row_name("tests/engine/test_faults.py::test_model_missing") == "model-missing"
    assert row_name("test_bad_flags_are_refused[unknown-flag]") == "unknown-flag"


def test_a_table_replaces_the_one_before() -> None:
    page = replaced("a\n<!-- real -->\nold\n<!-- end of real -->\nb\n", "real", table(("x",), [("1|2",)]))

    assert page == "a\n<!-- real -->\n| x |\n| --- |\n| 1\\|2 |\n<!-- end of real -->\nb\n"
    assert re.search("old", page) is None


def test_the_page_names_no_directory_of_the_machine_that_measured() -> None:
    assert (
        without_homes(f"log: {Path.home()}/.cache/x-1/target and '/nowhere/model'")
        == "log: …/target and '/nowhere/model'"
    )
    assert without_homes(PAGE.read_text(encoding="utf-8")) == PAGE.read_text(encoding="utf-8")
