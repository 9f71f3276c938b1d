"""Trees of draft tokens: built from the draft's choices, and verified against the target's.

Node 0 of a request's tree is the last committed token; nodes 1 and up are draft tokens. A tree is walked by
two links a node: ``next_token``, its first child, and ``next_sibling``, the next child of the same parent; -1
ends both. ``retrieve_index`` is a node's row in the flattened batch, ``request * nodes + node``.
"""

from __future__ import annotations

import torch

from sgl_kernel.missing import OperatorNotImplementedError

_FULL_MASK = 0
_DRAFT_ONLY_MASK = 1


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill mask, positions and links of each request's tree of ``draft_token_num`` nodes.

    ``selected_index[i]`` holds, ascending, which of the draft's candidates became nodes 1 and up. Candidate
    ``c`` was proposed from entry ``c // topk`` of ``parent_list[i]``: entry 0 is the root, another one is the
    candidate number of its parent. A node sees itself, its ancestors and the root, and its position is the
    sequence length plus its depth. The links are expected to hold -1 on entry.

    ``tree_mask_mode`` 0 writes masks of ``nodes x (seq_len + nodes)`` (the prefix part is left as it is), 1
    masks of ``nodes x nodes``.
    """
    if tree_mask_mode not in (_FULL_MASK, _DRAFT_ONLY_MASK):
        raise OperatorNotImplementedError(f"build_tree_kernel_efficient_cpu with tree_mask_mode={tree_mask_mode}")
    flat_mask = tree_mask.view(-1)
    offset = 0
    for i, seq_len in enumerate(verified_seq_len.tolist()):
        parents = _node_parents(parent_list[i].tolist(), selected_index[i].tolist(), topk)
        lineages = _lineages(parents, depth)

        prefix = seq_len if tree_mask_mode == _FULL_MASK else 0
        columns = prefix + draft_token_num
        mask = flat_mask[offset : offset + draft_token_num * columns].view(draft_token_num, columns)
        offset += draft_token_num * columns
        mask[:, prefix:] = False
        mask[:, prefix] = True
        for node, lineage in enumerate(lineages):
            mask[node, [prefix + seen for seen in lineage]] = True

        next_token, next_sibling = _links(parents)
        rows = slice(i * draft_token_num, (i + 1) * draft_token_num)
        positions.view(-1)[rows] = torch.tensor([seq_len + len(lineage) for lineage in lineages])
        retrieve_index.view(-1)[rows] = torch.arange(rows.start, rows.stop)
        retrieve_next_token.view(-1)[rows] = torch.tensor(next_token)
        retrieve_next_sibling.view(-1)[rows] = torch.tensor(next_sibling)


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk each tree from its root, always to the child that the target predicts, until there is none.

    Written for each request: ``accept_index`` (the rows of root and accepted nodes, in order), the number
    accepted without the root in ``accept_token_num``, and in ``predicts``, at the row of every node on the way,
    the target's token after it; that of the last one is the bonus token. The spelling of the three
    ``retrive`` names is SGLang's.
    """
    longest = accept_index.shape[1]
    targets = target_predict.reshape(-1).tolist()
    trees = zip(
        candidates.tolist(),
        retrive_index.tolist(),
        retrive_next_token.tolist(),
        retrive_next_sibling.tolist(),
        strict=True,
    )
    for i, (tokens, index, next_token, next_sibling) in enumerate(trees):
        path = [0]
        while len(path) < longest:
            wanted = targets[index[path[-1]]]
            child = next_token[path[-1]]
            while child != -1 and tokens[child] != wanted:
                child = next_sibling[child]
            if child == -1:
                break
            path.append(child)
        rows = [index[node] for node in path]
        accept_index[i, : len(rows)] = torch.tensor(rows, dtype=accept_index.dtype)
        accept_token_num[i] = len(rows) - 1
        predicts[rows] = torch.tensor([targets[row] for row in rows], dtype=predicts.dtype)


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift each request's tokens left by one and put its new token last, or at row ``select_index``."""
    new_tokens = topk_index.reshape(-1)
    for i, (start, length) in enumerate(zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)):
        if length == 0:
            continue
        input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
        last = start + length - 1 if select_index is None else int(select_index[i])
        input_ids[last] = new_tokens[i]


def _node_parents(parent_list: list[int], selected: list[int], topk: int) -> list[int]:
    """The parent node of every node; -1 for the root, and for a node whose parent was not selected."""
    node_of = {candidate: node for node, candidate in reversed(list(enumerate(selected, start=1)))}
    parents = [-1]
    for candidate in selected:
        entry = candidate // topk
        parents.append(0 if entry == 0 else node_of.get(parent_list[entry], -1))
    return parents


def _lineages(parents: list[int], depth: int) -> list[list[int]]:
    """For every node, itself and its ancestors without the root, at most ``depth`` of them."""
    lineages = []
    for start in range(len(parents)):
        lineage: list[int] = []
        node = start
        while node > 0 and len(lineage) < depth:
            lineage.append(node)
            node = parents[node]
        lineages.append(lineage)
    return lineages


def _links(parents: list[int]) -> tuple[list[int], list[int]]:
    next_token = [-1] * len(parents)
    next_sibling = [-1] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        parent = parents[node]
        if parent >= 0:
            next_sibling[node] = next_token[parent]
            next_token[parent] = node
    return next_token, next_sibling
