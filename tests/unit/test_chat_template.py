"""The chat template of a spec's model: asked of the Python that runs SGLang, or a reason why not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec import flag_probe
from pytest_specdec.chat_template import chat_template
from pytest_specdec.errors import HostError
from pytest_specdec.hosts import Completed
from pytest_specdec.model import ChatTemplate
from pytest_specdec.spec import ServerSpec
from tests.fakes.host import FakeHost, told

SITE = Path(__file__).parents[1] / "fakes" / "site"
SPEC = ServerSpec("s", "/models/m", args="--trust-remote-code --revision v2")


def asked(host: FakeHost) -> dict[str, Any]:
    request: dict[str, Any] = json.loads(host.commands[-1][-1])
    return request


def answering(answer: dict[str, Any]) -> FakeHost:
    host = FakeHost()
    host.answers["/py"] = told(f"warning\n{flag_probe.MARK}{json.dumps(answer)}\n")
    return host


def with_fake_transformers(argv: Sequence[str], *, before: str = "") -> Completed:
    """Run the real script with a transformers of ours."""
    code = f"import sys; sys.path.insert(0, {str(SITE)!r})\n{before}\n"
    done = subprocess.run(
        [sys.executable, "-c", code + argv[-2].replace("from __future__ import annotations", ""), argv[-1]],
        capture_output=True,
        text=True,
        check=False,
    )
    return Completed(returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)


def test_the_pieces_are_what_the_tokenizer_renders_without_a_second_beginning() -> None:
    host = FakeHost()
    host.answers["/py"] = with_fake_transformers

    found = chat_template(host, SPEC, python="/py", env={})

    assert found == ChatTemplate(before="<user>", after_user="</user><assistant>", after_answer="</assistant><user>"), (
        "the tokenizer adds ^ by itself"
    )


def test_the_model_is_asked_for_as_the_spec_names_it() -> None:
    host = answering({"error": "x"})
    with pytest.raises(HostError):
        chat_template(host, SPEC, python="/py", env={})

    assert {key: asked(host)[key] for key in ("ask", "model", "revision", "trust_remote_code")} == {
        "ask": "render",
        "model": "/models/m",
        "revision": "v2",
        "trust_remote_code": True,
    }

    with pytest.raises(HostError):
        chat_template(host, SPEC.but("t", "--tokenizer-path /models/tok"), python="/py", env={})
    assert asked(host)["model"] == "/models/tok"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("AutoTokenizer.chat_template = None", "/models/m: its tokenizer has no chat template"),
        (
            "AutoTokenizer.apply_chat_template = lambda *_, **__: 1 / 0",
            "/models/m: its chat template can't be rendered: ZeroDivisionError: division by zero",
        ),
        (
            "AutoTokenizer.from_pretrained = lambda *_, **__: 1 / 0",
            "/models/m: its tokenizer can't be loaded: ZeroDivisionError: division by zero",
        ),
        (
            "AutoTokenizer.__call__ = lambda _, text, **more: {'input_ids': text if more else text + '!'}",
            "/models/m: its tokenizer adds other special tokens to a text than its chat template has",
        ),
        (
            "AutoTokenizer.apply_chat_template = lambda *_, **__: '^the same'",
            "/models/m: its chat template does not leave what a user says as it is",
        ),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_with_the_reason(spoil: str, said: str) -> None:
    host = FakeHost()
    host.answers["/py"] = lambda argv: with_fake_transformers(
        argv, before=f"from transformers import AutoTokenizer\n{spoil}"
    )

    with pytest.raises(HostError) as raised:
        chat_template(host, SPEC, python="/py", env={})

    assert str(raised.value) == (
        f"s: chat_template=True, and the model's chat template can't be used: {said}; "
        "say chat_template=False to send the prompts as they are"
    )


def test_a_python_that_fails_is_told_with_what_it_said() -> None:
    host = FakeHost()
    host.answers["/py"] = told(stderr="ModuleNotFoundError: No module named 'transformers'", returncode=1)

    with pytest.raises(HostError, match="ended with exit code 1 and said: ModuleNotFoundError: No module named"):
        chat_template(host, SPEC, python="/py", env={})


def test_a_template_of_sglangs_own_is_refused_before_anything_is_asked() -> None:
    host = FakeHost()

    with pytest.raises(HostError, match="--chat-template chatml is SGLang's own to render"):
        chat_template(host, SPEC.but("t", "--chat-template chatml"), python="/py", env={})

    assert host.commands == []
