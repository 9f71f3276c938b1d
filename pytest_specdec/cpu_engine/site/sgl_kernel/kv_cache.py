"""Where tokens live in the KV cache: the slot table of the requests, and moving rows between slots.

``req_to_token`` is ``[rows, positions]`` and holds slot numbers; request ``i`` of a batch owns row
``req_pool_indices[i]``. Outputs named ``mutable`` in SGLang are written in place.
"""

from __future__ import annotations

import ctypes

import torch


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write the slots ``out_cache_loc``, packed request after request, to positions start to end of each row."""
    del pool_len
    taken = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start].to(req_to_token.dtype)
        taken += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Read the slots at positions start to end of each row, packed request after request."""
    del pool_len
    filled = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[filled : filled + end - start] = req_to_token[row, start:end]
        filled += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the ``topk * num_steps`` slots that follow each request's ``seq_len`` positions."""
    assign_extend_cache_locs_cpu(
        req_pool_indices, req_to_token, seq_lens, seq_lens + topk * num_steps, out_cache_loc, pool_len
    )


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """A slot table with one row for each branch of each request: ``[requests * topk, seq_len + num_steps]``.

    A row holds the request's prefix, then the slots of its branch: branch ``j``'s step ``s`` was stored at
    position ``seq_len + j * num_steps + s`` of the request's own row. Rows are as wide as the longest needs;
    the rest is 0, the slot SGLang keeps for padding.
    """
    del pool_len
    lengths = seq_lens.tolist()
    table = req_to_token.new_zeros(len(lengths) * topk, max(lengths, default=0) + num_steps)
    for i, (row, seq_len) in enumerate(zip(req_pool_indices.tolist(), lengths, strict=True)):
        branches = table[i * topk : (i + 1) * topk]
        branches[:, :seq_len] = req_to_token[row, :seq_len]
        drafted = req_to_token[row, seq_len : seq_len + topk * num_steps]
        branches[:, seq_len : seq_len + num_steps] = drafted.view(topk, num_steps)
    return table


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus_tokens: torch.Tensor,
    accept_stride: int,
) -> None:
    """The last accepted token of each request; its tokens start at ``accept_stride`` times its index."""
    first = torch.arange(accept_lens.numel()) * accept_stride
    bonus_tokens.copy_(accept_tokens.view(-1)[first + accept_lens - 1])


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor,
    out_cache_loc: torch.Tensor,
    accept_out_cache_loc: torch.Tensor,
) -> None:
    """The slots of the accepted tokens, packed to the front; an index of -1 means none."""
    flat = accept_index.reshape(-1)
    accepted = flat[flat >= 0].to(torch.int64)
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted]


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor,
    strides: torch.Tensor,
    tgt_loc: torch.Tensor,
    src_loc: torch.Tensor,
) -> None:
    """Copy rows ``src_loc`` onto rows ``tgt_loc`` in every buffer, as if all were read before any is written.

    A buffer is given by its address and its row size in bytes, and its rows are contiguous.
    """
    if tgt_loc.numel() == 0:
        return
    rows = int(torch.maximum(tgt_loc.max(), src_loc.max())) + 1
    for address, row_bytes in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (rows * row_bytes)).from_address(address)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(rows, row_bytes)
        buffer[tgt_loc] = buffer[src_loc]


def _spans(
    req_pool_indices: torch.Tensor, start_offset: torch.Tensor, end_offset: torch.Tensor
) -> list[tuple[int, int, int]]:
    return list(zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True))
