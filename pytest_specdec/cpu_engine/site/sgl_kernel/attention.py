"""Attention over the paged KV cache: one query token a request (decode), or several (extend and verify).

Shapes, with ``heads`` a multiple of ``kv_heads`` (grouped-query attention) and one row of the cache a token:
``q`` and ``out`` are ``[tokens, heads, width]``, ``k_buffer`` and ``v_buffer`` ``[slots, kv_heads, width]``.
``req_to_token[req_pool_indices[i], p]`` is the slot of position ``p`` of request ``i``.

Requests are computed one by one: a request's result does not depend on what else is in the batch.
"""

# ruff: noqa: PLR0917  # SGLang calls these operators by position
from __future__ import annotations

import torch


def decode_attention_cpu(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    out: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    loc: torch.Tensor,
    logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    scaling: float,
    logit_cap: float,
    cross: bool,
    window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    """Store ``k`` and ``v`` at ``loc``, then let each request's one query see its first ``seq_len`` positions.

    ``window`` above 0 keeps the last ``window`` of them. ``logits`` is scratch space, unused here.
    """
    del logits
    _refuse_unsupported(k_buffer, k_scale, v_scale, cross=cross, encoder_lens=encoder_lens)
    if k is not None and v is not None:
        k_buffer[loc] = k.reshape(-1, *k_buffer.shape[1:])
        v_buffer[loc] = v.reshape(-1, *v_buffer.shape[1:])
    for i, (row, seq_len) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        first = max(0, seq_len - window) if window > 0 else 0
        slots = req_to_token[row, first:seq_len]
        out[i : i + 1] = attend(
            q[i : i + 1], k_buffer[slots], v_buffer[slots], None, scaling=scaling, cap=logit_cap, sinks=sinks
        )


def extend_attention_cpu(
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    out: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    start_locs: torch.Tensor,
    max_len: int,
    scaling: float,
    logit_cap: float,
    cross: bool,
    window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
    tree_mask: torch.Tensor | None,
    causal: bool,
) -> None:
    """Let the last ``extend_len`` positions of each request attend; their K and V are in the cache already.

    Request ``i``'s queries are rows ``start_locs[i]`` and following of ``q``. ``tree_mask`` is flat, request
    after request, row by row: ``extend_len x seq_len`` cells, or ``extend_len x extend_len`` where the prefix is
    visible to every query. Without it the mask is causal, or absent when ``causal`` is false.

    Raises:
        ValueError: the tree mask has neither number of cells.
    """
    del k, v, max_len
    _refuse_unsupported(k_buffer, k_scale, v_scale, cross=cross, encoder_lens=encoder_lens)
    lengths = list(zip(seq_lens.tolist(), extend_lens.tolist(), strict=True))
    masks = None if tree_mask is None else split_tree_mask(tree_mask, lengths)
    rows = req_pool_indices.tolist()
    for i, (start, (seq_len, extend_len)) in enumerate(zip(start_locs.tolist(), lengths, strict=True)):
        if extend_len == 0:
            continue
        slots = req_to_token[rows[i], :seq_len]
        visible = masks[i] if masks is not None else causal_mask(seq_len, extend_len) if causal else None
        if window > 0:
            near = window_mask(seq_len, extend_len, window)
            visible = near if visible is None else visible & near
        out[start : start + extend_len] = attend(
            q[start : start + extend_len],
            k_buffer[slots],
            v_buffer[slots],
            visible,
            scaling=scaling,
            cap=logit_cap,
            sinks=sinks,
        )


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor | None,
    *,
    scaling: float,
    cap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax attention of one request: ``q`` ``[n, heads, width]`` over ``k``, ``v`` ``[m, kv_heads, width]``.

    ``visible`` is ``[n, m]``, true where query and key meet; None: everywhere. A ``cap`` above 0 bounds the
    scores smoothly (``cap * tanh(score / cap)``); ``sinks`` holds one more score a head that takes part in the
    softmax's sum and has no value.
    """
    n, heads, width = q.shape
    m, kv_heads, _ = k.shape
    grouped = q.transpose(0, 1).reshape(kv_heads, heads // kv_heads * n, width)
    scores = (grouped @ k.permute(1, 2, 0)).mul_(scaling).view(heads, n, m)
    if cap > 0:
        scores = cap * torch.tanh(scores / cap)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        sink = sinks.to(scores.dtype).view(heads, 1, 1).expand(heads, n, 1)
        weights = torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :m]
    result = weights.view(kv_heads, heads // kv_heads * n, m) @ v.transpose(0, 1)
    return result.view(heads, n, v.shape[-1]).transpose(0, 1)


def causal_mask(seq_len: int, extend_len: int) -> torch.Tensor:
    """``[extend_len, seq_len]``: each of the last positions sees itself and everything before it."""
    return torch.ones(extend_len, seq_len, dtype=torch.bool).tril_(seq_len - extend_len)


def window_mask(seq_len: int, extend_len: int, window: int) -> torch.Tensor:
    """``[extend_len, seq_len]``: each of the last positions sees the ``window`` positions that end at itself."""
    return torch.ones(extend_len, seq_len, dtype=torch.bool).triu_(seq_len - extend_len - window + 1)


def split_tree_mask(tree_mask: torch.Tensor, lengths: list[tuple[int, int]]) -> list[torch.Tensor]:
    """One ``[extend_len, seq_len]`` mask a request, from SGLang's flat tree mask.

    ``lengths`` holds ``(seq_len, extend_len)`` of each request.
    """
    full_cells = [seq_len * extend_len for seq_len, extend_len in lengths]
    draft_cells = [extend_len * extend_len for _, extend_len in lengths]
    flat = tree_mask.view(-1).to(torch.bool)
    if flat.numel() == sum(full_cells):
        parts = flat.split(full_cells)
        return [part.view(extend_len, seq_len) for part, (seq_len, extend_len) in zip(parts, lengths, strict=True)]
    if flat.numel() != sum(draft_cells):
        raise ValueError(
            f"a tree mask of {flat.numel()} cells fits neither the whole sequences ({sum(full_cells)}) "
            f"nor the drafted parts ({sum(draft_cells)}) of (seq_len, extend_len) {lengths}"
        )
    masks = []
    for part, (seq_len, extend_len) in zip(flat.split(draft_cells), lengths, strict=True):
        mask = torch.ones(extend_len, seq_len, dtype=torch.bool)
        mask[:, seq_len - extend_len :] = part.view(extend_len, extend_len)
        masks.append(mask)
    return masks


def _refuse_unsupported(
    k_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    *,
    cross: bool,
    encoder_lens: torch.Tensor | None,
) -> None:
    if cross or encoder_lens is not None:
        raise NotImplementedError("attention of the CPU engine: cross-attention to an encoder is not implemented")
    if k_buffer.element_size() < 2 or k_scale != 1.0 or v_scale != 1.0:
        raise NotImplementedError(
            f"attention of the CPU engine: a scaled or quantised KV cache ({k_buffer.dtype}, k_scale={k_scale}, "
            f"v_scale={v_scale}) is not implemented"
        )
