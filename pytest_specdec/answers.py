"""What is asked of ``/generate``, and what an answer to it says: JSON on both sides of a measured request."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Final

from pytest_specdec.http_stream import SHOWN_OF_AN_ANSWER, Answer
from pytest_specdec.model import Prompt, RequestSample, Sampling

#: As in a chunk's count, this can only be the server's own key.
_OUTPUT_IDS: Final = b'"output_ids":['
#: Where the histogram of right drafts is, by SGLang version: 0.5.12 and later, then 0.5.9.
_HISTOGRAMS: Final = ("spec_correct_drafts_histogram", "spec_accept_histogram", "accept_histogram")


def request_body(text: str | Sequence[int], *, output_tokens: int, sampling: Sampling) -> bytes:
    """Return the JSON body of one measured request, a text or token ids: exactly ``output_tokens``, streamed."""
    params: dict[str, Any] = {
        "max_new_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
    }
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    asked = {"text": text} if isinstance(text, str) else {"input_ids": list(text)}
    return json.dumps({**asked, "sampling_params": params, "stream": True}).encode()


def answer_text(answer: Answer) -> str:
    """The text of a whole answer; raises ValueError when it has none."""
    events = [json.loads(event) for event in answer.payloads]
    if not events or not all(isinstance(event, dict) and isinstance(event.get("text"), str) for event in events):
        raise ValueError("the answer has no text")
    return "".join(event["text"] for event in events)


def sample_of(
    prompt: Prompt, answer: Answer, *, began: float, turn: int = 1, due: float | None = None
) -> RequestSample:
    """Make a sample of an answer. One without a token has its end for the times of its tokens.

    ``began`` and ``due`` are the clock's times at which the round began and the request should have been sent.
    """
    arrivals = tuple((at - began, tokens) for at, tokens in answer.arrivals)
    first, last = (arrivals[0], arrivals[-1]) if arrivals else ((answer.done - began, 0),) * 2
    seen = RequestSample(
        prompt_id=prompt.id,
        category=prompt.category,
        sent_s=answer.sent - began,
        first_token_s=first[0],
        last_token_s=last[0],
        done_s=answer.done - began,
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=last[1],
        first_chunk_tokens=first[1],
        chunks=len(arrivals),
        verify_steps=None,
        accept_histogram=None,
        finish_reason=None,
        server_e2e_s=None,
        output_ids=(),
        error=answer.error,
        arrivals=arrivals,
        turn=turn,
        scheduled_s=None if due is None else due - began,
    )
    return seen if answer.error is not None else _with_server_facts(seen, answer.payloads)


def _with_server_facts(sample: RequestSample, events: Sequence[bytes]) -> RequestSample:
    """Fill in what the events say; an answer without tokens, aborted or with an error in it is an error."""
    event = events[-1] if events else b""
    shown = event[:SHOWN_OF_AN_ANSWER].decode(errors="replace")
    try:
        final = json.loads(event) if event else {}
    except ValueError as error:
        return dataclasses.replace(sample, error=f"the last event is no JSON ({error}): {shown}")
    if not isinstance(final, dict) or not isinstance(final.get("meta_info"), dict) or not sample.arrivals:
        if isinstance(final, dict) and "error" in final:
            said = json.dumps(final["error"], ensure_ascii=False)[:SHOWN_OF_AN_ANSWER]
            return dataclasses.replace(sample, error=f"the server says {said}")
        return dataclasses.replace(sample, error=f"an answer without tokens: {shown or 'nothing'}")
    meta = final["meta_info"]
    reason = meta.get("finish_reason")
    if isinstance(reason, dict) and reason.get("type") == "abort":
        return dataclasses.replace(sample, error=f"the server aborted it: {reason.get('message') or 'no reason given'}")
    histogram = next((meta[name] for name in _HISTOGRAMS if meta.get(name) is not None), None)
    try:
        return dataclasses.replace(
            sample,
            prompt_tokens=int(meta.get("prompt_tokens") or 0),
            cached_tokens=int(meta.get("cached_tokens") or 0),
            verify_steps=None if meta.get("spec_verify_ct") is None else int(meta["spec_verify_ct"]),
            accept_histogram=None if histogram is None else tuple(int(count) for count in histogram),
            finish_reason=reason.get("type") if isinstance(reason, dict) else reason,
            server_e2e_s=_figure(meta, "e2e_latency"),
            server_ttft_s=_figure(meta, "first_token_latency"),
            server_queue_s=_figure(meta, "queue_time"),
            server_decode_tok_s=_figure(meta, "decode_throughput"),
            output_ids=tuple(_output_ids(events[:-1]) + (final.get("output_ids") or [])),
        )
    except (AttributeError, TypeError, ValueError) as error:
        return dataclasses.replace(sample, error=f"meta_info can't be read: {error}")


def _figure(meta: dict[str, Any], name: str) -> float | None:
    """A time or rate of the server's; None where it does not tell it."""
    return None if meta.get(name) is None else float(meta[name])


def _output_ids(events: Sequence[bytes]) -> list[int]:
    """The token ids of all events, which each hold what is new: cut out, since parsing each costs ten times that."""
    found = (event.rpartition(_OUTPUT_IDS)[2].partition(b"]")[0] for event in events if _OUTPUT_IDS in event)
    ids: list[int] = json.loads(b"[" + b",".join(ids for ids in found if ids) + b"]")
    return ids
