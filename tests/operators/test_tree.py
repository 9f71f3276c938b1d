"""Trees of draft tokens: building, walking, and reading one off its mask."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import pytest
import torch
from sgl_kernel import build_tree_kernel_efficient_cpu, rotate_input_ids_cpu, verify_tree_greedy_cpu
from sgl_kernel.speculative import reconstruct_indices_from_tree_mask

FULL, DRAFT_ONLY, BIT_PACKED = 0, 1, 2

Rows: TypeAlias = list[list[int]]  # one a request

# Top-k 2, two steps. Step 1 proposes candidates 0, 1; step 2 goes on from both, with 2, 3 after the first and
# 4, 5 after the second. Chosen: 0, 1, 3, 4, as nodes 1 to 4:
#     root 0 ── node 1 ── node 3
#            └─ node 2 ── node 4
TREE_PARENTS = [-1, 0, 1]
TREE_CHOSEN = [0, 1, 3, 4]
TREE_NEXT = [1, 3, 4, -1, -1]
TREE_SIBLING = [-1, 2, -1, -1, -1]
TREE_MASK = [
    [1, 0, 0, 0, 0],
    [1, 1, 0, 0, 0],
    [1, 0, 1, 0, 0],
    [1, 1, 0, 1, 0],
    [1, 0, 1, 0, 1],
]
# Top-k 1, three steps: candidates 0, 1, 2, each from the one before.
CHAIN_PARENTS = [-1, 0, 1]
CHAIN_CHOSEN = [0, 1, 2]
CHAIN_NEXT = [1, 2, 3, -1]
NO_SIBLING = [-1, -1, -1, -1]


class Built(NamedTuple):
    mask: torch.Tensor
    positions: list[int]
    index: list[list[int]]
    next_token: list[list[int]]
    next_sibling: list[list[int]]


def build(parents: Rows, chosen: Rows, seq_lens: list[int], *, topk: int, depth: int, mode: int) -> Built:
    requests, nodes = len(seq_lens), len(chosen[0]) + 1
    cells = sum(nodes * ((length if mode == FULL else 0) + nodes) for length in seq_lens)
    mask = torch.ones(cells, dtype=torch.bool)
    positions = torch.empty(requests * nodes, dtype=torch.int64)
    links = torch.full((3, requests, nodes), -1)
    build_tree_kernel_efficient_cpu(
        torch.tensor(parents), torch.tensor(chosen), torch.tensor(seq_lens), mask, positions, *links, topk, depth,
        nodes, mode,
    )  # fmt: skip
    return Built(mask, positions.tolist(), *(link.tolist() for link in links))


def test_a_chain_is_linked_node_after_node() -> None:
    built = build([CHAIN_PARENTS], [CHAIN_CHOSEN], [7], topk=1, depth=3, mode=DRAFT_ONLY)

    assert built.positions == [7, 8, 9, 10]
    assert built.index == [[0, 1, 2, 3]]
    assert built.next_token == [CHAIN_NEXT]
    assert built.next_sibling == [NO_SIBLING]
    assert built.mask.view(4, 4).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_a_tree_is_linked_by_first_child_and_next_sibling() -> None:
    built = build([TREE_PARENTS], [TREE_CHOSEN], [7], topk=2, depth=2, mode=DRAFT_ONLY)

    assert built.positions == [7, 8, 8, 9, 9]
    assert built.next_token == [TREE_NEXT]
    assert built.next_sibling == [TREE_SIBLING]
    assert built.mask.view(5, 5).int().tolist() == TREE_MASK


def test_three_children_are_siblings_in_order() -> None:
    built = build([[-1]], [[0, 1, 2]], [3], topk=3, depth=1, mode=DRAFT_ONLY)

    assert built.next_token == [[1, -1, -1, -1]]
    assert built.next_sibling == [[-1, 2, 3, -1]]
    assert built.positions == [3, 4, 4, 4]


def test_one_step_needs_no_parents() -> None:
    built = build([[]], [[0, 1]], [3], topk=2, depth=1, mode=DRAFT_ONLY)

    assert built.next_token == [[1, -1, -1]]
    assert built.next_sibling == [[-1, 2, -1]]


def test_full_masks_hold_the_prefix_of_each_request() -> None:
    built = build([TREE_PARENTS] * 2, [TREE_CHOSEN] * 2, [2, 3], topk=2, depth=2, mode=FULL)

    first, second = built.mask.split([5 * 7, 5 * 8])
    assert first.view(5, 7).int().tolist() == [[1, 1, *row] for row in TREE_MASK]
    assert second.view(5, 8).int().tolist() == [[1, 1, 1, *row] for row in TREE_MASK]
    assert built.positions == [2, 3, 3, 4, 4, 3, 4, 4, 5, 5]
    assert built.index == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_masks_of_the_drafted_part_follow_each_other() -> None:
    built = build([TREE_PARENTS] * 2, [TREE_CHOSEN, [0, 1, 2, 5]], [2, 3], topk=2, depth=2, mode=DRAFT_ONLY)

    first, second = built.mask.view(2, 5, 5).int().tolist()
    assert first == TREE_MASK
    assert second == TREE_MASK  # other candidates, the same shape: one child of each


def test_bit_packed_masks_are_not_implemented() -> None:
    with pytest.raises(NotImplementedError, match="build_tree_kernel_efficient_cpu with tree_mask_mode=2"):
        build([TREE_PARENTS], [TREE_CHOSEN], [7], topk=2, depth=2, mode=BIT_PACKED)


class Verified(NamedTuple):
    predicts: list[int]
    accepted_rows: list[list[int]]
    accepted_drafts: list[int]


def verify(tokens: Rows, next_token: Rows, next_sibling: Rows, target: Rows, *, longest: int) -> Verified:
    requests, nodes = len(tokens), len(tokens[0])
    predicts = torch.zeros(requests * nodes, dtype=torch.int32)
    accept_index = torch.full((requests, longest), -1, dtype=torch.int32)
    accept_token_num = torch.empty(requests, dtype=torch.int32)
    verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accept_token_num,
        candidates=torch.tensor(tokens),
        retrive_index=torch.arange(requests * nodes).view(requests, nodes),
        retrive_next_token=torch.tensor(next_token),
        retrive_next_sibling=torch.tensor(next_sibling),
        target_predict=torch.tensor(target),
    )
    return Verified(predicts.tolist(), accept_index.tolist(), accept_token_num.tolist())


def test_a_chain_that_is_all_right_is_accepted_with_a_bonus_token() -> None:
    result = verify([[50, 51, 52, 53]], [CHAIN_NEXT], [NO_SIBLING], [[51, 52, 53, 54]], longest=4)

    assert result == Verified([51, 52, 53, 54], [[0, 1, 2, 3]], [3])


def test_a_chain_whose_first_token_is_wrong_yields_the_targets_token() -> None:
    result = verify([[50, 51, 52, 53]], [CHAIN_NEXT], [NO_SIBLING], [[60, 52, 53, 54]], longest=4)

    assert result == Verified([60, 0, 0, 0], [[0, -1, -1, -1]], [0])


def test_a_chain_is_accepted_up_to_its_first_wrong_token() -> None:
    result = verify([[50, 51, 52, 53]], [CHAIN_NEXT], [NO_SIBLING], [[51, 60, 53, 54]], longest=4)

    assert result == Verified([51, 60, 0, 0], [[0, 1, -1, -1]], [1])


def test_the_second_branch_of_a_tree_is_taken_where_the_target_goes() -> None:
    tokens = [50, 51, 52, 53, 54]
    target = [52, 90, 54, 91, 55]  # after the root 52 (node 2), after it 54 (node 4), then the bonus token 55

    result = verify([tokens], [TREE_NEXT], [TREE_SIBLING], [target], longest=3)

    assert result == Verified([52, 0, 54, 0, 55], [[0, 2, 4]], [2])


def test_a_right_token_on_the_branch_not_taken_is_not_accepted() -> None:
    target = [52, 53, 53, 91, 92]  # 53 is node 3, a child of node 1

    result = verify([[50, 51, 52, 53, 54]], [TREE_NEXT], [TREE_SIBLING], [target], longest=3)

    assert result == Verified([52, 0, 53, 0, 0], [[0, 2, -1]], [1])


def test_the_walk_ends_at_the_longest_accepted_path() -> None:
    result = verify([[50, 51, 52, 53]], [CHAIN_NEXT], [NO_SIBLING], [[51, 52, 53, 54]], longest=3)

    assert result == Verified([51, 52, 53, 0], [[0, 1, 2]], [2])


def test_requests_are_verified_on_their_own_rows() -> None:
    result = verify(
        [[50, 51, 52, 53], [60, 61, 62, 63]],
        [CHAIN_NEXT] * 2,
        [NO_SIBLING] * 2,
        [[90, 0, 0, 0], [61, 62, 91, 0]],
        longest=4,
    )

    assert result == Verified([90, 0, 0, 0, 61, 62, 91, 0], [[0, -1, -1, -1], [4, 5, 6, -1]], [0, 2])


def test_a_tree_is_read_off_its_mask() -> None:
    """The tree above, and a chain of three whose last two nodes are children of the root."""
    ragged = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 0, 1]]
    positions = torch.empty(10, dtype=torch.int64)
    links = torch.empty((3, 2, 5), dtype=torch.int64)

    reconstruct_indices_from_tree_mask(
        torch.tensor([TREE_MASK, ragged], dtype=torch.bool).flatten(), torch.tensor([7, 20]), positions, *links, 2, 5
    )

    index, next_token, next_sibling = (link.tolist() for link in links)
    assert positions.tolist() == [7, 8, 8, 9, 9, 20, 21, 22, 21, 21]
    assert index == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert next_token == [TREE_NEXT, [1, 2, -1, -1, -1]]
    assert next_sibling == [TREE_SIBLING, [-1, 3, -1, 4, -1]]


def test_building_a_tree_and_reading_it_off_its_mask_agree() -> None:
    built = build([TREE_PARENTS], [TREE_CHOSEN], [7], topk=2, depth=2, mode=DRAFT_ONLY)
    positions = torch.empty(5, dtype=torch.int64)
    links = torch.empty((3, 1, 5), dtype=torch.int64)

    reconstruct_indices_from_tree_mask(built.mask, torch.tensor([7]), positions, *links, 1, 5)

    assert Built(built.mask, positions.tolist(), *(link.tolist() for link in links)) == built


def test_tokens_are_rotated_within_each_request() -> None:
    ids = torch.tensor([1, 2, 3, 4, 5])

    rotate_input_ids_cpu(ids, torch.tensor([0, 3]), torch.tensor([3, 2]), torch.tensor([[90], [91]]))

    assert ids.tolist() == [2, 3, 90, 5, 91]


def test_the_new_token_goes_where_the_selection_says() -> None:
    ids = torch.tensor([1, 2, 3, 4, 5])

    rotate_input_ids_cpu(ids, torch.tensor([0, 3]), torch.tensor([3, 2]), torch.tensor([90, 91]), torch.tensor([1, 4]))

    assert ids.tolist() == [2, 90, 3, 5, 91]
