"""Chat templates, conversations and token ids, with a real tokenizer and on the real engine."""

from __future__ import annotations

import os
from typing import Any

import pytest

from pytest_specdec import engine_env, synthetic_workload
from pytest_specdec.chat_template import chat_template
from pytest_specdec.hosts import LocalHost
from pytest_specdec.model import ChatTemplate, Prompt, Workload
from pytest_specdec.spec import ServerSpec
from tests.perf.cpu_specs import BASE

#: The tiny models have a tokenizer of 512 ids.
IDS = synthetic_workload(48, prompts=2, end_id=500)
TALK = Prompt(id="talk", category="talk", text="Where is the harbour?", turns=("And the lighthouse?", "How far is it?"))


def test_the_template_of_a_tiny_model_is_cut_with_its_own_tokenizer(engine_python: str) -> None:
    host = LocalHost()
    paths = engine_env.tiny_model_paths(
        host, engine_python, ["tiny:target"], cache_dir=engine_env.cache_root(os.environ)
    )
    spec = ServerSpec.tiny("t").with_paths(paths)

    found = chat_template(host, spec, python=engine_python, env={**host.environ(), "HF_HUB_OFFLINE": "1"})

    assert found == ChatTemplate(before="", after_user="\n", after_answer="\n")


@pytest.mark.specdec(workload=IDS, output_tokens=16, rounds=1, warmup=0, waive=["degenerate-output"])
@pytest.mark.parametrize("sglang_server", [BASE], indirect=True)
def test_token_ids_are_sent_as_they_are(specdec_benchmark: Any) -> None:
    result = specdec_benchmark(check=False)

    assert [violation.rule for violation in result.comparison.violations] == []
    (requests,) = [done.requests for done in result.launches[0].rounds]
    assert [(sample.prompt_tokens, sample.completion_tokens) for sample in requests] == [(48, 16)] * 2
    assert any("synthetic" in note for note in result.comparison.notes)


@pytest.mark.specdec(
    workload=Workload(name="talk", prompts=(TALK,), content_hash="0" * 64),
    output_tokens=16,
    rounds=1,
    warmup=0,
    chat_template=True,
    waive=["degenerate-output"],
)
@pytest.mark.parametrize("sglang_server", [BASE], indirect=True)
def test_a_further_turn_finds_the_turns_before_it_in_the_cache(specdec_benchmark: Any) -> None:
    result = specdec_benchmark(check=False)

    assert [violation.rule for violation in result.comparison.violations] == []
    ((first, second, third),) = [done.requests for done in result.launches[0].rounds]
    assert [first.turn, second.turn, third.turn] == [1, 2, 3]
    assert first.cached_tokens <= 2
    for before, after in ((first, second), (second, third)):
        assert after.prompt_tokens > before.prompt_tokens
        # The text of an answer may be read back as other tokens than it was written in; its prompt is not.
        assert before.prompt_tokens - 2 <= after.cached_tokens <= before.prompt_tokens + 16
