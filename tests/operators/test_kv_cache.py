"""The slot table of the requests, and moving rows of the KV cache."""

from __future__ import annotations

import pytest
import torch
from sgl_kernel import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.fixture
def table() -> torch.Tensor:
    """Three rows of ten positions; the slot at row r, position p is 10 r + p."""
    return torch.arange(30, dtype=torch.int32).view(3, 10)


def test_new_slots_are_written_to_their_rows() -> None:
    table = torch.zeros(3, 6, dtype=torch.int32)

    assign_req_to_token_pool_cpu(ints(2, 0), table, ints(1, 0), ints(3, 3), ints(11, 12, 13, 14, 15), 6)

    assert table.tolist() == [[13, 14, 15, 0, 0, 0], [0] * 6, [0, 11, 12, 0, 0, 0]]


def test_slots_of_an_extension_are_read_request_after_request(table: torch.Tensor) -> None:
    out = torch.empty(5, dtype=torch.int64)

    assign_extend_cache_locs_cpu(ints(1, 0), table, ints(2, 7), ints(4, 10), out, 10)

    assert out.tolist() == [12, 13, 7, 8, 9]


def test_the_draft_writes_behind_each_sequence(table: torch.Tensor) -> None:
    out = torch.empty(2 * 2 * 3, dtype=torch.int64)

    assign_draft_cache_locs_contiguous_cpu(ints(2, 0), table, ints(1, 4), out, 10, 2, 3)

    assert out.tolist() == [21, 22, 23, 24, 25, 26, 4, 5, 6, 7, 8, 9]


def test_every_branch_of_the_draft_has_a_row_of_prefix_and_own_slots(table: torch.Tensor) -> None:
    rows = build_draft_decode_metadata_cpu(table, ints(2, 0), ints(2, 4), 2, 3, 10)

    assert rows.dtype == torch.int32
    assert rows.tolist() == [
        [20, 21, 22, 23, 24, 0, 0],
        [20, 21, 25, 26, 27, 0, 0],
        [0, 1, 2, 3, 4, 5, 6],
        [0, 1, 2, 3, 7, 8, 9],
    ]


def test_the_bonus_token_is_the_last_accepted_one() -> None:
    bonus = torch.zeros(3, dtype=torch.int32)
    tokens = ints(5, 6, 7, 8, 15, 16, 17, 18, 25, 26, 27, 28).to(torch.int32)

    fill_bonus_tokens_cpu(tokens, ints(1, 4, 2).to(torch.int32), bonus, 4)

    assert bonus.tolist() == [5, 18, 26]


def test_slots_of_accepted_tokens_are_packed() -> None:
    out = torch.zeros(6, dtype=torch.int64)
    accepted = torch.tensor([[0, 2, -1], [3, 4, 5]], dtype=torch.int32)

    fill_accept_out_cache_loc_cpu(accepted, ints(100, 101, 102, 103, 104, 105), out)

    assert out.tolist() == [100, 102, 103, 104, 105, 0]


def test_rows_are_copied_in_every_buffer_by_its_own_row_size() -> None:
    """A float32 buffer with rows of 24 bytes and an int16 buffer with rows of 4."""
    keys = torch.arange(30, dtype=torch.float32).view(5, 2, 3)
    values = torch.arange(10, dtype=torch.int16).view(5, 2)
    addresses = torch.tensor([keys.data_ptr(), values.data_ptr()], dtype=torch.uint64)

    copy_all_layer_kv_cache_cpu(addresses, ints(24, 4), ints(1), ints(3))

    assert keys[:, 0, 0].tolist() == [0, 18, 12, 18, 24]
    assert keys[1].tolist() == [[18, 19, 20], [21, 22, 23]]
    assert values.tolist() == [[0, 1], [6, 7], [4, 5], [6, 7], [8, 9]]


def test_a_row_that_is_source_and_target_is_read_before_it_is_written() -> None:
    rows = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    address = torch.tensor([rows.data_ptr()], dtype=torch.uint64)

    copy_all_layer_kv_cache_cpu(address, ints(4), ints(1, 2), ints(2, 3))

    assert rows.flatten().tolist() == [0, 2, 3, 3]


def test_copying_nothing_reads_no_memory() -> None:
    copy_all_layer_kv_cache_cpu(torch.tensor([0], dtype=torch.uint64), ints(4), ints(), ints())
