"""Workloads in a whole session: by category, in a chat template, and of token ids that mean nothing."""

from __future__ import annotations

import json

from tests.plugin.conftest import Suite

TEST = """
@pytest.mark.specdec(workload={workload!r}, output_tokens=31, chat_template={templated})
@pytest.mark.parametrize("sglang_server", [B], indirect=True)
def test_b(specdec_benchmark):
    result = specdec_benchmark()
    print("CATEGORIES", *result.by_category)
"""


def test_a_conversation_in_a_chat_template_is_recorded_under_a_name_of_its_own(suite: Suite) -> None:
    talk = {"id": "talk", "category": "talk", "turns": ["One?", "Two?"]}
    rows = [talk, {"text": "Other?", "category": "single"}]
    (suite.root / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    suite.write(TEST.format(workload="mine.jsonl", templated=True))

    recorded = suite.run("--update-baselines", "--specdec-launches=1", "-s")

    assert recorded.ret == 0, recorded.stdout.str()
    recorded.stdout.fnmatch_lines(["*CATEGORIES talk single*", "b *mine c1 o31 templated*", "* talk *", "* single *"])
    stored = json.loads(suite.baseline("b--mine--c1--o31--templated").read_text())
    assert stored["identity"]["chat_template"] is True
    assert len(stored["environment"]["chat_template_hash"]) == 12
    (measured,) = suite.results["measurements"]
    assert [(entry["category"], entry["requests"]) for entry in measured["categories"]] == [("talk", 4), ("single", 2)]
    assert suite.run().ret == 0


def test_on_synthetic_prompts_acceptance_is_shown_and_does_not_gate(suite: Suite) -> None:
    suite.write(TEST.format(workload="synthetic-16", templated=False))

    recorded = suite.run("--update-baselines", "--specdec-launches=1")

    assert recorded.ret == 0, recorded.stdout.str()
    recorded.stdout.fnmatch_lines(["*the prompts are synthetic token ids: acceptance on them says nothing*"])
    stored = json.loads(suite.baseline("b--synthetic-16--c1--o31").read_text())
    assert stored["metrics"]["accept_length"]["gate"] is False
    # A loss of a third of the acceptance is no regression here.
    worse = "B = B.but('b', env={'FAKE_ACCEPT': '2'})\n"
    suite.write(worse + TEST.format(workload="synthetic-16", templated=False))
    assert suite.run().ret == 0
    (measured,) = suite.results["measurements"]
    assert measured["metrics"]["accept_length"]["value"] == 2.0


def test_a_model_without_a_usable_template_is_told(suite: Suite) -> None:
    suite.write(
        "B = B.but('b', '--chat-template chatml')\n" + TEST.format(workload="smoke", templated=True),
    )

    failed = suite.run("--specdec-device=cpu")

    assert failed.ret == 12
    failed.stdout.fnmatch_lines(["*b: chat_template=True, and the model's chat template can't be used: *chatml*"])
