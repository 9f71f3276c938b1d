"""What NGRAM drafting asks of ``sgl_kernel.speculative``."""

from __future__ import annotations

import torch


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Read positions and links of each request's tree off its mask of ``nodes x nodes`` cells.

    ``tree_mask[i, a, b]`` is true where node ``b`` is ``a`` or an ancestor of it; ancestors come before. The
    parent is the nearest ancestor. The last four tensors of size ``requests * nodes`` are written in place; -1
    stands for no child, no further sibling, and for every root.
    """
    nodes = draft_token_num
    numbers = torch.arange(nodes)
    ancestors = tree_mask.view(batch_size, nodes, nodes).to(torch.bool).tril(-1)
    depths = ancestors.sum(-1)
    parents = torch.where(ancestors, numbers, -1).amax(-1)

    # later[c, p]: c is a child of p, or for siblings, c is a later child of p's parent; the first such c is wanted.
    children = parents.unsqueeze(2) == numbers
    siblings = (parents.unsqueeze(2) == parents.unsqueeze(1)) & (parents.unsqueeze(1) >= 0)
    siblings &= numbers.unsqueeze(1) > numbers

    _write(positions, depths + verified_seq_len.view(batch_size, 1))
    _write(retrieve_index, torch.arange(batch_size * nodes))
    _write(retrieve_next_token, _first_row(children))
    _write(retrieve_next_sibling, _first_row(siblings))


def _first_row(cells: torch.Tensor) -> torch.Tensor:
    """For every column of each ``[requests, rows, columns]`` matrix, its first true row, or -1."""
    return torch.where(cells.any(1), cells.to(torch.uint8).argmax(1), -1)


def _write(out: torch.Tensor, values: torch.Tensor) -> None:
    out.copy_(values.reshape(out.shape))
