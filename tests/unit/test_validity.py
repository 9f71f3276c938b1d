"""The table of rules, and what a measurement of several launches gets from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pytest_specdec
from pytest_specdec import validity
from pytest_specdec.metrics import METRICS
from pytest_specdec.model import Finding, LaunchRounds
from pytest_specdec.validity_run import Run
from tests.fakes.samples import launch_record, measurement, one_round, sample

DOCS = Path(pytest_specdec.__file__).parent.parent / "docs"


def run_of(*, error: str | None = None, drafting: bool = True) -> Run:
    return Run(measurement=measurement("one"), rounds=(one_round(sample(error=error)),), drafting=drafting)


def test_the_rules_have_the_names_that_a_marker_waives() -> None:
    assert list(validity.RULES) == [
        "request-error",
        "output-length",
        "missing-spec-verify-ct",
        "not-drafting",
        "flush-failed",
        "cached-tokens",
        "degenerate-output",
        "simulated-acceptance",
        "cuda-graphs-off",
        "running-batch-below-concurrency",
        "retraction",
        "server-restarted",
        "client-cpu-saturated",
        "foreign-gpu-process",
        "gpu-slowdown",
        "server-times-disagree",
    ]


def test_every_rule_says_something_of_every_run() -> None:
    found = validity.findings([run_of()])

    assert [finding.rule for finding in found] == list(validity.RULES)
    assert validity.violations(found) == ()
    assert all(finding.reason for finding in found if finding.status != "fine")


def test_one_launch_that_breaks_a_rule_spoils_the_measurement() -> None:
    found = {finding.rule: finding for finding in validity.findings([run_of(), run_of(error="HTTP 500"), run_of()])}

    assert found["request-error"].status == "broken"
    assert found["request-error"].reason.endswith("HTTP 500")


def test_one_launch_that_could_not_be_checked_leaves_the_measurement_unchecked() -> None:
    checked = {finding.rule: finding for finding in validity.findings([run_of(), run_of(error="late")])}

    assert checked["not-drafting"].status == "not-checked"


def test_a_waived_rule_refuses_nothing_and_is_told() -> None:
    found = validity.findings([run_of(error="HTTP 500")], waived=frozenset({"request-error", "output-length"}))

    assert validity.violations(found) == ()
    assert validity.notes(found) == ["waived request-error: 1 of 1 requests failed; the first, p1: HTTP 500"]
    assert [finding.rule for finding in found if finding.waived] == ["request-error"]


def test_a_rule_that_does_not_refuse_is_a_note() -> None:
    slow = Run(measurement=measurement("one"), rounds=(one_round(sample(server_e2e_s=1.0)),), drafting=True)
    found = validity.findings([slow])

    assert validity.violations(found) == ()
    assert validity.notes(found)[0].startswith(
        "server-times-disagree: the client's and the server's own figures differ"
    )


def test_a_measurement_without_launches_has_no_findings() -> None:
    assert validity.findings([]) == ()


@pytest.mark.parametrize(
    ("told", "asked", "on_cuda"), [("cpu", True, False), ("cuda", False, True), (None, True, True)]
)
def test_what_the_server_says_it_runs_on_counts(told: str | None, asked: bool, on_cuda: bool) -> None:
    record = launch_record(server_args={} if told is None else {"device": told})

    run = Run.of(measurement("one"), LaunchRounds(launch=record, warmup=(), rounds=()), on_cuda=asked)

    assert run.on_cuda is on_cuda


def test_the_documentation_has_the_table_of_rules_word_for_word() -> None:
    text = (DOCS / "measuring.md").read_text(encoding="utf-8")

    rows = [f"| `{name}` | {rule.applies} | {rule.broken_when} |" for name, rule in validity.RULES.items()]

    assert [row for row in rows if row not in text] == []


def test_what_the_documentation_names_as_an_answer_exists() -> None:
    """Each report of a measurement gone wrong names the rule, metric or document that answers it, or why none does."""
    text = (DOCS / "measuring.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", text, re.MULTILINE)

    assert [int(number) for number, _, _ in rows] == sorted(set(range(1, 35)) - {12, 18, 22, 27, 29, 31, 33})
    for _, _, answer in rows:
        named = re.findall(r"\brules? ((?:`[\w-]+`(?:,| and)? ?)+)", answer)
        rules = [name for group in named for name in re.findall(r"`([\w-]+)`", group)]
        measured = re.findall(r"\bmetric `(\w+)`", answer)
        documents = re.findall(r"\]\((\w[\w-]*\.md)\)", answer)
        assert set(rules) <= {*validity.RULES, "identity", "metric-missing"}, answer
        assert set(measured) <= set(METRICS), answer
        assert all((DOCS / name).is_file() for name in documents), answer
        assert rules or measured or documents or answer.startswith("none")


def test_the_documentation_has_a_row_for_every_metric() -> None:
    text = (DOCS / "measuring.md").read_text(encoding="utf-8")

    assert [
        name for name in METRICS if not re.search(rf"^\|.*`{name}`.* \| {METRICS[name].unit} \|", text, re.MULTILINE)
    ] == []


def test_findings_are_plain_values() -> None:
    assert validity.findings([run_of()])[0] == Finding(rule="request-error", status="fine", reason="")
