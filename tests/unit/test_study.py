"""The ledger of a study: what a run adds to it, when a line grows and when there is a new one, and how it is shown."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec import ledger, study
from pytest_specdec.cli import main
from pytest_specdec.errors import BaselineFileError, InfrastructureError, UserInputError
from pytest_specdec.ledger import Change, Figure, Try
from pytest_specdec.model import EnvironmentChange
from pytest_specdec.study_table import html, in_order, markdown

NODE = "cpu-x-2c"
#: What is known of a launch is more than this: what is not looked at is left out.
LAUNCH = {"sglang_version": "0.5.23", "log_path": "/elsewhere/a.log"}


def measured(server: str = "eagle3", **fields: Any) -> dict[str, Any]:
    return {
        "key": f"{server}--chat--c1--o512",
        "server": server,
        "spec_hash": f"hash of {server}",
        "command": f"python -m sglang.launch_server --model-path /m --for {server}",
        "node": NODE,
        "verdict": "pass",
        "violations": [],
        "cause": None,
        "metrics": {"decode_tok_s": {"value": 89.5, "low": 88.0, "high": 91.0, "unit": "tok/s"}},
        "launches": [LAUNCH],
        **fields,
    }


def failure(server: str = "eagle3", **fields: Any) -> dict[str, Any]:
    return {
        "server": server,
        "spec_hash": f"hash of {server}",
        "command": "python -m sglang.launch_server",
        "launch": 0,
        "reason": f"{server}: the server did not start: it died after 3.0 s (exit code 2)\n  phase: weights",
        "diagnosis": "flag-unrecognized",
        "log_path": None,
        "sglang_version": "0.5.23",
        **fields,
    }


def dead_end(server: str = "fusion", **fields: Any) -> dict[str, Any]:
    return {
        "nodeid": "test_x.py::test_fusion",
        "server": server,
        "spec_hash": f"hash of {server}",
        "command": "python -m sglang.launch_server --enable-flashinfer-allreduce-fusion",
        "expected": "flashinfer-no-arch-list",
        "outcome": "holds",
        "seen": "flashinfer-no-arch-list",
        "reason": "no SM120 kernels",
        "link": "https://example.org/1",
        "versions": None,
        "sglang_version": "0.5.23",
        "node": NODE,
        "at": "2026-11-29T12:34:56.789+00:00",
        "log_path": None,
        "metrics": {},
        "detail": "",
        **fields,
    }


SPEEDUP = {
    "control": "base",
    "metric": "decode_tok_s",
    "ratio": 1.32,
    "low": 1.28,
    "high": 1.36,
    "conclusive": True,
    "control_moved": False,
    "reason": None,
}
DIFFERENCE = {
    "control": "base",
    "intended": ["--mem-fraction-static: (not set) -> 0.92"],
    "effective": [
        {"key": "args.mem_fraction_static", "before": "0.78", "after": "0.92"},
        {"key": "max_total_num_tokens", "before": "1000", "after": "9000"},
    ],
}


def run(
    *measurements: dict[str, Any],
    day: int = 1,
    failures: tuple[dict[str, Any], ...] = (),
    dead_ends: tuple[dict[str, Any], ...] | None = None,
) -> dict[str, Any]:
    """The results document of a session on one day."""
    document = {
        "created": f"2026-11-{day:02}T12:00:00+00:00",
        "node": NODE,
        "measurements": list(measurements),
        "failures": list(failures),
    }
    return document if dead_ends is None else {**document, "dead_ends": list(dead_ends)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "baselines"


@pytest.fixture
def take(root: Path) -> Callable[[dict[str, Any]], list[Try]]:
    """Take a run in; returns what the ledger holds then."""

    def taken(document: dict[str, Any]) -> list[Try]:
        study.add(root, study.entries_of(document))
        return ledger.read(root / NODE / "study.jsonl")

    return taken


Take = Callable[[dict[str, Any]], list[Try]]


def test_a_measurement_is_kept_with_figures_change_and_speedup(take: Take) -> None:
    (one,) = take(run(measured(speedup=SPEEDUP, difference=DIFFERENCE)))

    assert (one.node, one.server, one.key) == (NODE, "eagle3", "eagle3--chat--c1--o512")
    assert (one.kind, one.outcome, one.sglang_version) == ("measured", "pass", "0.5.23")
    assert (one.at, one.first_at, one.runs) == ("2026-11-01T12:00:00+00:00", "2026-11-01T12:00:00+00:00", 1)
    assert one.figures == {"decode_tok_s": Figure(value=89.5, low=88.0, high=91.0)}
    assert one.change == Change(
        control="base",
        intended=("--mem-fraction-static: (not set) -> 0.92",),
        effective=(
            EnvironmentChange(key="args.mem_fraction_static", before="0.78", after="0.92"),
            EnvironmentChange(key="max_total_num_tokens", before="1000", after="9000"),
        ),
    )
    assert one.speedup is not None
    assert (one.speedup.ratio, one.speedup.low, one.speedup.conclusive) == (1.32, 1.28, True)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"verdict": "regression", "cause": "engine"}, "engine"),
        ({"verdict": "invalid", "violations": [{"rule": "not-drafting", "reason": "1.0"}]}, "not-drafting: 1.0"),
    ],
)
def test_a_bad_verdict_is_kept_with_its_reason(fields: dict[str, Any], reason: str) -> None:
    (one,) = study.entries_of(run(measured(**fields)))

    assert one.reason == reason


def test_what_failed_is_kept_with_its_diagnosis_and_the_first_line_of_why() -> None:
    (one,) = study.entries_of(run(failures=(failure(),)))

    assert (one.node, one.key, one.kind, one.outcome) == (NODE, None, "failed", "flag-unrecognized")
    assert one.reason == "eagle3: the server did not start: it died after 3.0 s (exit code 2)"


def test_what_says_nothing_of_a_spec_is_left_out() -> None:
    lost = failure(diagnosis=None, reason="the host does not answer")
    older_shape = {"server": "x", "command": "", "launch": 0, "reason": "the last server"}

    assert study.entries_of(run(failures=(lost, older_shape))) == []


def test_a_dead_end_is_one_try_however_it_is_told() -> None:
    outside = dead_end("old", outcome="outside-versions")

    found = study.entries_of(run(failures=(failure("fusion"), failure("old")), dead_ends=(dead_end(), outside)))

    assert [(one.server, one.kind, one.outcome, one.expected) for one in found] == [
        ("old", "failed", "flag-unrecognized", None),
        ("fusion", "dead-end", "holds", "flashinfer-no-arch-list"),
    ]


TRIED = "python -m sglang.launch_server --model-path /m --tp 8 --enable-flashinfer-allreduce-fusion"


@pytest.mark.parametrize(
    ("command", "intended"),
    [
        (TRIED, ("--tp-size: 4 -> 8", "--enable-flashinfer-allreduce-fusion: (not set) -> on")),
        ("python serve.py", None),
    ],
)
def test_what_did_not_serve_is_told_against_the_only_control_of_the_run(
    command: str, intended: tuple[str, ...] | None
) -> None:
    base = measured("base", command="python -m sglang.launch_server --model-path /m --tp 4")
    tried = run(
        base,
        measured(difference=DIFFERENCE),
        failures=(failure("x", command=command), failure("base", spec_hash="hash of base")),
        dead_ends=(dead_end("y", command=command),),
    )

    changes = {one.server: one.change for one in study.entries_of(tried) if one.kind != "measured"}

    expected = None if intended is None else Change(control="base", intended=intended, effective=())
    assert changes == {"x": expected, "y": expected, "base": None}


def test_of_several_controls_none_is_guessed() -> None:
    other = measured("ngram", difference={**DIFFERENCE, "control": "other"})

    found = study.entries_of(
        run(measured("base"), measured("other"), measured(difference=DIFFERENCE), other, failures=(failure("x"),))
    )

    assert found[-1].change is None


def test_a_revived_dead_end_has_its_figures(take: Take) -> None:
    (one,) = take(run(dead_ends=(dead_end(outcome="revived", seen=None, metrics={"decode_tok_s": 41.25}),)))

    assert one.figures == {"decode_tok_s": Figure(value=41.25)}


def test_the_same_try_updates_its_line(take: Take, root: Path) -> None:
    take(run(measured("base"), measured(), day=1))
    before = (root / NODE / "study.jsonl").read_text().splitlines()
    slower = measured("base", metrics={"decode_tok_s": {"value": 80.0, "low": 79.0, "high": 81.0}})

    base, _ = take(run(slower, day=3))

    after = (root / NODE / "study.jsonl").read_text().splitlines()
    assert after[1] == before[1], "the other one is left as it was"
    assert (base.at[:10], base.first_at[:10], base.runs) == ("2026-11-03", "2026-11-01", 2)
    assert base.figures["decode_tok_s"].value == 80.0


@pytest.mark.parametrize(
    "news",
    [
        run(measured(verdict="regression"), day=2),
        run(measured(launches=[{**LAUNCH, "sglang_version": "0.5.24"}]), day=2),
        run(measured(spec_hash="another"), day=2),
        run(measured(key="eagle3--code--c1--o512"), day=2),
        run(failures=(failure(),), day=2),
    ],
    ids=["verdict", "version", "spec", "workload", "failure"],
)
def test_news_are_a_new_line_at_the_end(take: Take, news: dict[str, Any]) -> None:
    first = take(run(measured(), day=1))

    both = take(news)

    assert both[:1] == first
    assert len(both) == 2


def test_a_dead_end_that_dies_of_something_else_is_news(take: Take) -> None:
    take(run(dead_ends=(dead_end(outcome="differs", seen="port-in-use"),), day=1))

    assert len(take(run(dead_ends=(dead_end(outcome="differs", seen="draft-missing"),), day=2))) == 2


def test_what_works_again_after_a_failure_is_news_though_it_worked_before(take: Take) -> None:
    for day, document in enumerate([{}, {"failed": True}, {}, {}], 1):
        found = take(run(failures=(failure(),), day=day) if document else run(measured(), day=day))

    assert [(one.kind, one.runs) for one in found] == [("measured", 1), ("failed", 1), ("measured", 2)]


def test_a_server_that_dies_in_every_session_after_a_measurement_grows_no_lines(take: Take) -> None:
    take(run(measured(), failures=(failure(),), day=1))

    found = take(run(measured(), failures=(failure(),), day=2))

    assert [(one.kind, one.runs) for one in found] == [("measured", 2), ("failed", 2)]


def test_a_run_can_be_taken_in_again(take: Take, root: Path) -> None:
    document = run(measured(), failures=(failure("x"),))
    take(document)
    path = root / NODE / "study.jsonl"
    before = path.stat().st_mtime_ns, path.read_bytes()

    assert study.add(root, study.entries_of(document)) == [f"{path}: 0 new, 0 as before, 2 there already"]
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before


def test_a_run_older_than_the_last_one_changes_nothing(take: Take) -> None:
    last = take(run(measured(), day=9))

    assert take(run(measured(verdict="regression"), day=8)) == last


def test_a_change_that_this_run_does_not_know_is_kept(take: Take) -> None:
    take(run(measured(difference=DIFFERENCE), day=1))

    (one,) = take(run(measured(), day=2))

    assert one.change is not None
    assert one.change.control == "base"


def test_each_node_has_its_own_ledger(root: Path) -> None:
    told = study.add(root, study.entries_of(run(measured(), measured("other", node="gpu-y"))))

    assert told == [f"{root / node / 'study.jsonl'}: 1 new, 0 as before, 0 there already" for node in (NODE, "gpu-y")]
    assert list(ledger.read_all(root)) == [NODE, "gpu-y"]


def test_a_log_beside_the_baselines_is_told_from_there(take: Take, tmp_path: Path) -> None:
    here, there = {**LAUNCH, "log_path": str(tmp_path / ".specdec" / "logs" / "a.log")}, LAUNCH

    found = take(run(measured("a", launches=[here]), measured("b", launches=[there])))

    assert [one.log_path for one in found] == [".specdec/logs/a.log", "/elsewhere/a.log"]


def test_lines_are_sorted_and_come_out_the_same_again(take: Take, root: Path, tmp_path: Path) -> None:
    tries = take(run(measured(speedup=SPEEDUP, difference=DIFFERENCE), failures=(failure("x\u2028y"),)))
    path = root / NODE / "study.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n")]

    ledger.write(tmp_path / "again.jsonl", tries)

    assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()
    assert all(list(line) == sorted(line) and line["schema_version"] == 1 for line in lines)


def broken(line: str, **changes: Any) -> str:
    return json.dumps({**json.loads(line), **changes})


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda line: line[:40], ", line 2: not JSON at line 1, column"),
        (lambda _: "<<<<<<< HEAD", ", line 2: not JSON"),
        (lambda line: broken(line, schema_version=2), ", line 2: schema_version is 2, and this pytest-specdec reads"),
        (lambda line: broken(line, runs=0), "line 2: runs: expected a whole number of at least 1, got 0; correct it, "),
        (lambda line: broken(line, note="mine"), ", line 2: note: unknown key"),
        (lambda line: broken(line, at="yesterday"), ", line 2: at: expected a time"),
        (lambda line: broken(line, kind="guess"), ", line 2: kind: expected one of measured, failed, dead-end"),
        (lambda line: broken(line, node="../.."), ", line 2: node: expected a node name"),
        (lambda line: broken(line, change=[]), ", line 2: change: expected an object"),
    ],
)
def test_a_broken_line_is_refused_with_its_number_and_loses_nothing(
    take: Take, root: Path, spoil: Callable[[str], str], said: str
) -> None:
    take(run(measured("a"), measured("b")))
    path = root / NODE / "study.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{spoil(second)}\n")
    before = path.read_bytes()

    with pytest.raises(UserInputError) as caught:
        take(run(measured("c"), day=2))

    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert path.read_bytes() == before


def test_the_remedy_for_a_wrong_value_is_the_history_not_a_new_recording(take: Take, root: Path) -> None:
    take(run(measured()))
    path = root / NODE / "study.jsonl"
    path.write_text(broken(path.read_text(), runs="x") + "\n")

    with pytest.raises(BaselineFileError, match=r"got 'x'; correct it, or restore the line from version control$"):
        ledger.read(path)


def test_what_could_not_be_read_back_is_not_written(take: Take, root: Path) -> None:
    take(run(measured()))
    before = (root / NODE / "study.jsonl").read_bytes()

    with pytest.raises(BaselineFileError, match=r"line 2: outcome: expected a text, got 5"):
        take(run(measured("b", verdict=5)))

    assert (root / NODE / "study.jsonl").read_bytes() == before


def test_a_ledger_that_cannot_be_written_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "baselines").write_text("a file where a directory should be")

    with pytest.raises(InfrastructureError, match=r"study\.jsonl: the ledger can't be written: "):
        study.add(tmp_path / "baselines", study.entries_of(run(measured())))


def test_two_processes_that_add_at_a_time_lose_nothing(root: Path) -> None:
    def add(name: str) -> None:
        study.add(root, study.entries_of(run(measured(name))))

    threads = [threading.Thread(target=add, args=(f"s{number}",)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {one.server for one in ledger.read(root / NODE / "study.jsonl")} == {f"s{number}" for number in range(12)}


def cells(text: str, server: str) -> list[list[str]]:
    rows = [line for line in text.splitlines() if line.startswith(f"| {server} ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def shown(take: Take, root: Path, *documents: dict[str, Any]) -> str:
    for document in documents:
        take(document)
    return markdown(ledger.read_all(root), root=root, beside=root.parent)


def test_the_table_tells_change_outcome_figures_ratio_and_date(take: Take, root: Path) -> None:
    drafting = measured(
        speedup=SPEEDUP, difference=DIFFERENCE, launches=[{**LAUNCH, "log_path": str(root.parent / "a b.log")}]
    )
    text = shown(take, root, run(measured("base"), drafting, day=1), run(measured("base"), day=4))

    assert text.startswith(f"### Study on `{NODE}`\n\n| server ")
    assert cells(text, "eagle3") == [
        [
            "eagle3",
            "chat c1 o512",
            "base with --mem-fraction-static: (not set) -> 0.92; resolved: max_total_num_tokens: 1000 -> 9000",
            "pass",
            "89.50 (88.00 to 91.00)",
            "-",
            "1.320 (1.280 to 1.360)",
            "2026-11-01",
            "0.5.23",
            "[log](a%20b.log)",
        ]
    ]
    assert cells(text, "base")[0][7] == "2026-11-04 (2 runs since 2026-11-01)"


@pytest.mark.parametrize(
    ("document", "outcome"),
    [
        (run(measured("x", verdict="regression", cause="engine")), "regression (engine)"),
        (run(failures=(failure("x"),)), "failed: flag-unrecognized"),
        (run(dead_ends=(dead_end("x"),)), "dead end holds: flashinfer-no-arch-list (no SM120 kernels)"),
        (run(dead_ends=(dead_end("x", expected=None, seen=None),)), "dead end holds: slow (no SM120 kernels)"),
        (
            run(dead_ends=(dead_end("x", outcome="differs", seen="port-in-use"),)),
            "dead end differs: flashinfer-no-arch-list, saw port-in-use (no SM120 kernels)",
        ),
    ],
)
def test_every_kind_of_outcome_has_its_words(take: Take, root: Path, document: dict[str, Any], outcome: str) -> None:
    assert cells(shown(take, root, document), "x")[0][3] == outcome


@pytest.mark.parametrize(
    ("speedup", "ratio"),
    [
        ({"conclusive": False, "low": None, "high": None, "reason": None}, "1.320, not conclusive"),
        (
            {"conclusive": False, "low": None, "high": None, "reason": "the A legs disagree"},
            "1.320, not conclusive: the A legs disagree",
        ),
        ({"control_moved": True}, "1.320 (1.280 to 1.360), control moved"),
    ],
)
def test_a_ratio_that_is_not_plain_says_so(take: Take, root: Path, speedup: dict[str, Any], ratio: str) -> None:
    text = shown(take, root, run(measured(speedup={**SPEEDUP, **speedup})))

    assert cells(text, "eagle3")[0][6] == ratio


def test_what_markdown_reads_as_markup_is_escaped(take: Take, root: Path) -> None:
    text = shown(take, root, run(dead_ends=(dead_end("x", reason="a|b\n*c* <d> `e` my_f _g_"),)))

    assert r"a\|b \*c\* \<d> \`e\` my_f \_g\_" in text
    assert len(cells(text, "x")) == 1


def test_servers_keep_their_order_and_show_their_newest_try_first(take: Take) -> None:
    take(run(measured("b"), measured("a"), day=1))
    found = take(run(measured("b", verdict="regression"), day=2))

    assert [(one.server, one.outcome) for one in in_order(found)] == [("b", "regression"), ("b", "pass"), ("a", "pass")]


def test_many_resolved_differences_are_counted_in_the_table_and_listed_on_the_page(take: Take, root: Path) -> None:
    effective = [{"key": f"args.n{i}", "before": "0", "after": "1"} for i in range(9)]

    text = shown(take, root, run(measured(difference={**DIFFERENCE, "effective": effective})))

    assert "args.n3: 0 -> 1 and 5 more |" in text
    assert "<li>args.n8: 0 -&gt; 1</li>" in html(ledger.read_all(root), root=root, beside=root)


def test_the_page_escapes_what_it_is_given_and_leads_nowhere_by_itself(take: Take, root: Path) -> None:
    take(
        run(
            measured("a", command="x <script>"),
            dead_ends=(dead_end("b", link="javascript:alert(1)"), dead_end("c")),
        )
    )

    page = html(ledger.read_all(root), root=root, beside=root)

    assert "x &lt;script&gt;" in page
    assert "<script" not in page
    assert "javascript" not in page
    assert re.findall(r'(?:href|src)="(?!#)([^"]*)"', page) == ["/elsewhere/a.log", "https://example.org/1"]


def test_the_command_takes_a_run_in_and_shows_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".specdec").mkdir()
    Path(".specdec/results.json").write_text(json.dumps(run(measured())))

    assert main(["study"]) == 0
    assert capsys.readouterr().out == "no ledger below baselines; `pytest-specdec study add` takes the last run in\n"
    assert main(["study", "add"]) == 0
    assert capsys.readouterr().out == f"baselines/{NODE}/study.jsonl: 1 new, 0 as before, 0 there already\n"
    assert main(["study"]) == 0
    assert cells(capsys.readouterr().out, "eagle3")[0][3] == "pass"
    assert main(["study", "html", "-o", "out/study.html"]) == 0
    assert f"<h1>Study on {NODE}</h1>" in Path("out/study.html").read_text()


def test_the_command_takes_another_directory_and_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, root = tmp_path / "r.json", tmp_path / "elsewhere"
    results.write_text(json.dumps(run(measured())))

    assert main(["study", "add", str(results), "--baselines", str(root)]) == 0
    assert main(["study", "--baselines", str(root)]) == 0
    assert "| eagle3 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "can't be read"),
        ("{", "not JSON"),
        ('{"measurements": []}', "not the results of a run (KeyError: 'created'); give the results.json that pytest"),
        (json.dumps(run(measured(node="../x"))), "results.json: node: expected a node name"),
    ],
)
def test_a_file_that_is_no_results_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, said: str
) -> None:
    results = tmp_path / "results.json"
    if content is not None:
        results.write_text(content)

    assert main(["study", "add", str(results), "--baselines", str(tmp_path / "b")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_a_page_of_no_ledger_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "html", "-o", str(tmp_path / "x.html"), "--baselines", str(tmp_path)]) == 2
    assert "no ledger below" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()
