"""Requests and rounds made by hand, with the figures a test is about and plain ones for the rest."""

from __future__ import annotations

from typing import Any

from pytest_specdec.model import LaunchRecord, Measurement, Prompt, RequestSample, Round, Workload
from pytest_specdec.spec import ServerSpec


def sample(prompt_id: str = "p1", **known: Any) -> RequestSample:
    """One request that went well: 40 tokens, all different, one of them in the first chunk."""
    plain: dict[str, Any] = {
        "category": "c",
        "sent_s": 0.0,
        "first_token_s": 1.0,
        "last_token_s": 2.0,
        "done_s": 2.0,
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "completion_tokens": 40,
        "first_chunk_tokens": 1,
        "chunks": 14,
        "verify_steps": 13,
        "accept_histogram": (0, 0, 13),
        "finish_reason": "length",
        "server_e2e_s": 2.0,
        "output_ids": tuple(range(40)),
    }
    return RequestSample(prompt_id=prompt_id, **{**plain, **known})


def one_round(*requests: RequestSample, index: int = 0, wall_s: float = 2.0, **known: Any) -> Round:
    return Round(index=index, warmup=False, started_unix_s=1_800_000_000.0, wall_s=wall_s, requests=requests, **known)


def measurement(
    *texts: str, concurrency: int = 1, output_tokens: int = 40, spec: ServerSpec | None = None
) -> Measurement:
    """A measurement whose prompts are these texts, with the ids p1, p2, ..."""
    prompts = tuple(Prompt(id=f"p{i}", category="c", text=text) for i, text in enumerate(texts, start=1))
    return Measurement(
        spec=spec or ServerSpec("a", "/models/a"),
        workload=Workload(name="w", prompts=prompts, content_hash="0" * 64),
        concurrency=concurrency,
        output_tokens=output_tokens,
    )


def launch_record(**known: Any) -> LaunchRecord:
    """A launch that went well, of a drafting server."""
    plain: dict[str, Any] = {
        "index": 0,
        "spec_name": "a",
        "spec_hash": "0" * 12,
        "command": "python -m sglang.launch_server --model-path /models/a",
        "host": "localhost",
        "node": "cpu-test",
        "started_unix_s": 1_800_000_000.0,
        "ready_s": 20.0,
        "log_path": "a.log",
        "sglang_version": "0.5.23",
        "drafting": True,
        "server_args": {},
        "facts": {},
    }
    return LaunchRecord(**{**plain, **known})
