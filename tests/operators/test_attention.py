"""Attention over the paged cache, against softmax(Q K^T) V written out for one query and head at a time."""

from __future__ import annotations

import math
from typing import TypeAlias

import pytest
import torch
from sgl_kernel import decode_attention_cpu, extend_attention_cpu
from sgl_kernel.attention import causal_mask, split_tree_mask, window_mask

HEADS, KV_HEADS, WIDTH, SLOTS = 4, 2, 8, 40
SCALING = 1 / math.sqrt(WIDTH)

#: Key buffer, value buffer, slot table.
Cache: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture
def numbers() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def normal(numbers: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=numbers)


def by_hand(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, cap: float = 0.0, sink: float | None = None
) -> torch.Tensor:
    """One query and one head: ``q`` ``[width]``, ``keys`` and ``values`` ``[positions, width]``, in float64."""
    scores = [float(q.double() @ key.double()) * SCALING for key in keys]
    if cap:
        scores = [cap * math.tanh(score / cap) for score in scores]
    weights = [math.exp(score) for score in scores]
    total = sum(weights) + (0.0 if sink is None else math.exp(sink))
    return sum(weight / total * value.double() for weight, value in zip(weights, values, strict=True)).float()


def decode(
    q: torch.Tensor,
    cache: Cache,
    rows: list[int],
    lengths: list[int],
    *,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    loc: torch.Tensor | None = None,
    cap: float = 0.0,
    window: int = 0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    k_buffer, v_buffer, table = cache
    out = torch.full_like(q, float("nan"))
    decode_attention_cpu(
        q, k_buffer, v_buffer, 1.0, 1.0, out, k, v, loc, torch.empty(0), table, torch.tensor(rows),
        torch.tensor(lengths), SCALING, cap, False, window, None, sinks,
    )  # fmt: skip
    return out


def extend(
    q: torch.Tensor,
    cache: Cache,
    rows: list[int],
    lengths: list[int],
    extend_lens: list[int],
    *,
    mask: torch.Tensor | None = None,
    causal: bool = True,
    cap: float = 0.0,
    window: int = 0,
) -> torch.Tensor:
    k_buffer, v_buffer, table = cache
    out = torch.full_like(q, float("nan"))
    starts = [sum(extend_lens[:i]) for i in range(len(extend_lens))]
    extend_attention_cpu(
        q, None, None, out, k_buffer, v_buffer, 1.0, 1.0, table, torch.tensor(rows), torch.tensor(lengths),
        torch.tensor(extend_lens), torch.tensor(starts), max(extend_lens), SCALING, cap, False, window, None, None,
        mask, causal,
    )  # fmt: skip
    return out


@pytest.fixture
def cache(numbers: torch.Generator) -> Cache:
    """Two requests in rows 2 and 0 of the table, their slots scattered and interleaved."""
    table = torch.zeros(3, 12, dtype=torch.int32)
    table[2, :6] = torch.tensor([7, 3, 30, 12, 5, 21])
    table[0, :9] = torch.tensor([1, 39, 2, 38, 4, 37, 6, 36, 8])
    return normal(numbers, SLOTS, KV_HEADS, WIDTH), normal(numbers, SLOTS, KV_HEADS, WIDTH), table


@pytest.mark.parametrize("cap", [0.0, 2.0])
def test_a_decoded_token_attends_to_its_whole_sequence(numbers: torch.Generator, cache: Cache, cap: float) -> None:
    k_buffer, v_buffer, table = cache
    q = normal(numbers, 2, HEADS, WIDTH)

    out = decode(q, cache, [2, 0], [5, 9], cap=cap)

    for i, (row, length) in enumerate([(2, 5), (0, 9)]):
        slots = table[row, :length].long()
        for head in range(HEADS):
            kv_head = head // 2  # heads 0, 1 share KV head 0; heads 2, 3 share KV head 1
            expected = by_hand(q[i, head], k_buffer[slots, kv_head], v_buffer[slots, kv_head], cap=cap)
            torch.testing.assert_close(out[i, head], expected)


def test_a_decoded_token_is_stored_before_it_attends(numbers: torch.Generator, cache: Cache) -> None:
    k_buffer, v_buffer, table = cache
    k, v = normal(numbers, 1, KV_HEADS * WIDTH), normal(numbers, 1, KV_HEADS * WIDTH)
    q = normal(numbers, 1, HEADS, WIDTH)
    before = k_buffer.clone()

    out = decode(q, cache, [2], [6], k=k, v=v, loc=torch.tensor([21]))

    assert torch.equal(k_buffer[21].flatten(), k[0])
    assert torch.equal(v_buffer[21].flatten(), v[0])
    untouched = [slot for slot in range(SLOTS) if slot != 21]
    assert torch.equal(k_buffer[untouched], before[untouched])
    slots = table[2, :6].long()
    torch.testing.assert_close(out[0, 0], by_hand(q[0, 0], k_buffer[slots, 0], v_buffer[slots, 0]))


def test_a_window_of_three_shows_a_decoded_token_the_last_three_positions(
    numbers: torch.Generator, cache: Cache
) -> None:
    k_buffer, v_buffer, table = cache
    q = normal(numbers, 1, HEADS, WIDTH)

    out = decode(q, cache, [0], [9], window=3)

    slots = table[0, 6:9].long()
    torch.testing.assert_close(out[0, 3], by_hand(q[0, 3], k_buffer[slots, 1], v_buffer[slots, 1]))


def test_a_sink_takes_its_share_of_the_weight(numbers: torch.Generator, cache: Cache) -> None:
    k_buffer, v_buffer, table = cache
    q = normal(numbers, 1, HEADS, WIDTH)

    out = decode(q, cache, [2], [4], sinks=torch.tensor([0.5, 0.0, -1.0, 2.0]))

    slots = table[2, :4].long()
    torch.testing.assert_close(out[0, 3], by_hand(q[0, 3], k_buffer[slots, 1], v_buffer[slots, 1], sink=2.0))


def test_a_request_has_the_same_result_alone_and_in_a_batch(numbers: torch.Generator, cache: Cache) -> None:
    q = normal(numbers, 2, HEADS, WIDTH)

    together = decode(q, cache, [2, 0], [5, 9])

    assert torch.equal(together[1:], decode(q[1:], cache, [0], [9]))


@pytest.mark.parametrize("cap", [0.0, 2.0])
def test_extended_tokens_attend_causally(numbers: torch.Generator, cache: Cache, cap: float) -> None:
    k_buffer, v_buffer, table = cache
    q = normal(numbers, 2 + 3, HEADS, WIDTH)

    out = extend(q, cache, [2, 0], [6, 9], [2, 3], cap=cap)

    for token, (row, visible) in enumerate([(2, 5), (2, 6), (0, 7), (0, 8), (0, 9)]):
        slots = table[row, :visible].long()
        for head in range(HEADS):
            expected = by_hand(q[token, head], k_buffer[slots, head // 2], v_buffer[slots, head // 2], cap=cap)
            torch.testing.assert_close(out[token, head], expected)


def test_extended_tokens_of_an_encoder_see_everything(numbers: torch.Generator, cache: Cache) -> None:
    k_buffer, v_buffer, table = cache
    q = normal(numbers, 6, HEADS, WIDTH)

    out = extend(q, cache, [2], [6], [6], causal=False)

    slots = table[2, :6].long()
    torch.testing.assert_close(out[0, 0], by_hand(q[0, 0], k_buffer[slots, 0], v_buffer[slots, 0]))


def test_a_window_of_two_shows_an_extended_token_itself_and_the_one_before(
    numbers: torch.Generator, cache: Cache
) -> None:
    k_buffer, v_buffer, table = cache
    q = normal(numbers, 3, HEADS, WIDTH)

    out = extend(q, cache, [0], [9], [3], window=2)

    for token, visible in enumerate([[5, 6], [6, 7], [7, 8]]):
        slots = table[0, visible].long()
        torch.testing.assert_close(out[token, 1], by_hand(q[token, 1], k_buffer[slots, 0], v_buffer[slots, 0]))


@pytest.mark.parametrize("kind", ["whole sequence", "drafted part"])
def test_siblings_of_a_tree_do_not_see_each_other(numbers: torch.Generator, cache: Cache, kind: str) -> None:
    """Three nodes after three positions: a root, and two children of it."""
    k_buffer, v_buffer, table = cache
    q = normal(numbers, 3, HEADS, WIDTH)
    drafted = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    mask = torch.cat([torch.ones(3, 3, dtype=torch.bool), drafted], 1) if kind == "whole sequence" else drafted

    out = extend(q, cache, [2], [6], [3], mask=mask.flatten())

    for token, visible in enumerate([[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 5]]):
        slots = table[2, visible].long()
        torch.testing.assert_close(out[token, 2], by_hand(q[token, 2], k_buffer[slots, 1], v_buffer[slots, 1]))


def test_a_tree_that_is_a_chain_attends_as_without_a_mask(numbers: torch.Generator, cache: Cache) -> None:
    q = normal(numbers, 4, HEADS, WIDTH)
    chain = torch.ones(4, 4, dtype=torch.bool).tril()

    out = extend(q, cache, [0], [9], [4], mask=chain.flatten())

    assert torch.equal(out, extend(q, cache, [0], [9], [4]))


def test_a_causal_mask_ends_at_each_token_itself() -> None:
    assert causal_mask(4, 2).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_a_window_mask_begins_where_the_window_does() -> None:
    assert window_mask(5, 2, 3).int().tolist() == [[0, 1, 1, 1, 1], [0, 0, 1, 1, 1]]
    assert (causal_mask(5, 2) & window_mask(5, 2, 3)).int().tolist() == [[0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]


def test_full_masks_are_split_by_sequence_length() -> None:
    first = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
    second = torch.tensor([[1, 1, 0], [1, 1, 1]], dtype=torch.bool)

    masks = split_tree_mask(torch.cat([first.flatten(), second.flatten()]), [(4, 2), (3, 2)])

    assert [mask.tolist() for mask in masks] == [first.tolist(), second.tolist()]


def test_masks_of_the_drafted_part_get_a_visible_prefix() -> None:
    drafted = torch.tensor([[1, 0], [1, 1], [1, 0], [0, 1]], dtype=torch.bool)

    masks = split_tree_mask(drafted.flatten(), [(4, 2), (3, 2)])

    assert masks[0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert masks[1].int().tolist() == [[1, 1, 0], [1, 0, 1]]


def test_a_tree_mask_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"7 cells fits neither the whole sequences \(8\) nor the drafted parts \(4\)"):
        split_tree_mask(torch.ones(7, dtype=torch.bool), [(4, 2)])


def test_a_quantised_cache_is_not_implemented(cache: Cache) -> None:
    _, _, table = cache
    buffer = torch.zeros(SLOTS, KV_HEADS, WIDTH).to(torch.float8_e4m3fn)

    with pytest.raises(NotImplementedError, match="quantised KV cache"):
        decode(torch.zeros(1, HEADS, WIDTH), (buffer, buffer, table), [2], [5])
