"""A server that is already running (``--specdec-url``): whether it is the one a spec describes, and its record."""

from __future__ import annotations

from typing import Final

from pytest_specdec.agreement import disagreements, same_model
from pytest_specdec.client import ServerClient, ServerInfo
from pytest_specdec.errors import DisagreementError, LaunchError, ServerRequestError
from pytest_specdec.model import LaunchRecord
from pytest_specdec.served import ServedThere
from pytest_specdec.settings import Settings
from pytest_specdec.spec import ServerSpec

#: The node of a server that nobody has named one for.
UNKNOWN_NODE: Final = "unknown"
_GENERATION_TIMEOUT_S: Final = 120.0


def attach(settings: Settings, spec: ServerSpec, *, started_unix_s: float) -> ServedThere:
    """Take the running server for a launch of this spec.

    Raises :class:`DisagreementError` when ``/server_info`` tells another model or other arguments than the spec names,
    :class:`LaunchError` when nothing answers or no token is generated.
    """
    assert settings.url is not None
    client = ServerClient(settings.url, api_key=spec.first("--api-key"))
    info = asked(client, spec)
    try:
        client.generate_once("Hello", max_new_tokens=2, timeout_s=_GENERATION_TIMEOUT_S)
    except ServerRequestError as error:
        raise LaunchError(f"{spec.name}: the server at {settings.url} can't generate: {error}") from None
    record = LaunchRecord(
        index=0,
        spec_name=spec.name,
        spec_hash=spec.content_hash,
        command=spec.masked_command,
        host=settings.url,
        node=settings.node or UNKNOWN_NODE,
        started_unix_s=started_unix_s,
        ready_s=None,
        log_path=None,
        sglang_version=info.version,
        drafting=info.drafting,
        server_args=info.args,
        facts=info.facts,
        attached_to=settings.url,
        cache_flushed=settings.url_flush,
    )
    return ServedThere(record, client, info)


def asked(client: ServerClient, spec: ServerSpec) -> ServerInfo:
    """Ask the server who it is; raises as :func:`attach` does."""
    try:
        info = client.server_info()
    except ServerRequestError as error:
        raise LaunchError(
            f"{spec.name}: no SGLang server answers at {client.base_url} (--specdec-url): {error}"
        ) from None
    differ = list(disagreements(spec, info))
    if not _is_model(spec.model, info.model_path):
        differ.insert(0, f"--model-path {spec.model} in the spec, {info.model_path} at the server")
    if differ:
        raise DisagreementError(f"{spec.name} is not what runs at {client.base_url}: " + "; ".join(differ))
    return info


def _is_model(ours: str, told: str | None) -> bool:
    """Whether it may be the model; a tiny one is made wherever it is needed, and known by its last word."""
    if told is None:
        return True
    scheme, sign, name = ours.partition(":")
    return told.rstrip("/").endswith(f"/{name}") if sign and scheme == "tiny" else same_model(ours, told)


def notes(record: LaunchRecord) -> list[str]:
    """Return what a reader of a result has to know of a server that was not started by the session."""
    if record.attached_to is None:
        return []
    at = f"measured at {record.attached_to}, a server that was already running"
    found = [f"{at}: its GPUs, driver, clocks, environment variables and log can't be known over HTTP"]
    if record.node == UNKNOWN_NODE:
        found.append("its node is not known: name it with --specdec-node=NAME to compare with that node's baselines")
    if not record.cache_flushed:
        found.append(
            "its prefix cache was not flushed, so ttft_ms and e2e_ms are those of cached prompts "
            "(--specdec-url-flush flushes it before each round)"
        )
    return found
