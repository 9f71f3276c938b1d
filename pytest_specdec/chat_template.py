"""The chat template of a spec's model, as the Python that runs SGLang renders it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pytest_specdec import conversation
from pytest_specdec.errors import HostError, WorkloadError
from pytest_specdec.hosts import Host
from pytest_specdec.model import ChatTemplate
from pytest_specdec.preflight import ask_engine
from pytest_specdec.spec import ServerSpec

#: The import of transformers takes seconds; on a cold disk or in a fresh container, minutes.
_TIMEOUT_S: Final = 300.0


def chat_template(host: Host, spec: ServerSpec, *, python: str | None, env: Mapping[str, str]) -> ChatTemplate:
    """Return the template of the model (or of ``--tokenizer-path``) in pieces; see :func:`conversation.cut`.

    Args:
        host: where the spec runs.
        spec: whose model is asked, ``tiny:`` names already replaced by paths.
        python: the Python that runs SGLang; None where the launcher brings one.
        env: the launch's whole environment.

    Raises:
        HostError: it can't be rendered there, or not be cut; the message names the spec, and says what would do.

    """
    given = spec.get("--chat-template")
    if given is not None:
        raise _refusal(spec, f"--chat-template {' '.join(given)} is SGLang's own to render, for its chat route only")
    request = {
        "ask": "render",
        "model": (spec.get("--tokenizer-path") or (spec.model,))[0],
        "revision": spec.first("--revision"),
        "trust_remote_code": spec.has("--trust-remote-code"),
        "conversations": conversation.trial_conversations(),
    }
    answer = ask_engine(host, spec, python=python, env=env, request=request, timeout_s=_TIMEOUT_S)
    if isinstance(answer, str):
        raise _refusal(spec, answer)
    if answer["error"] is not None:
        raise _refusal(spec, f"{request['model']}: {answer['error']}")
    try:
        return conversation.cut(answer["rendered"])
    except WorkloadError as error:
        raise _refusal(spec, f"{request['model']}: {error}") from None


def _refusal(spec: ServerSpec, why: str) -> HostError:
    return HostError(
        f"{spec.name}: chat_template=True, and the model's chat template can't be used: {why}; "
        "say chat_template=False to send the prompts as they are"
    )
