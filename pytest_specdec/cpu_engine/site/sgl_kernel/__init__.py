"""The ``sgl_kernel`` operators that SGLang's CPU path calls, in plain torch.

SGLang reaches an operator in two ways, by ``from sgl_kernel import name`` and as ``torch.ops.sgl_kernel.name``;
both are served from the table below. What is missing differs between the two, because SGLang asks differently:

- an import of an unknown name succeeds, and the *call* raises NotImplementedError naming the operator
  (SGLang imports many operators that it then never calls);
- ``torch.ops.sgl_kernel.unknown`` raises on access, with an error that is an AttributeError too: SGLang
  decides by ``hasattr(torch.ops.sgl_kernel, "convert_weight_packed")`` whether AMX kernels exist. Answering
  no keeps one code path on every x86-64 CPU, those with AMX included.
"""

from __future__ import annotations

from types import MappingProxyType

import torch

from sgl_kernel.attention import decode_attention_cpu, extend_attention_cpu
from sgl_kernel.kv_cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)
from sgl_kernel.missing import MissingOperator, OperatorNotImplementedError
from sgl_kernel.tree import (
    build_tree_kernel_efficient_cpu,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)

__version__ = "0.0.0+specdec.cpu"

OPERATORS = MappingProxyType(
    {
        operator.__name__: operator
        for operator in (
            assign_draft_cache_locs_contiguous_cpu,
            assign_extend_cache_locs_cpu,
            assign_req_to_token_pool_cpu,
            build_draft_decode_metadata_cpu,
            build_tree_kernel_efficient_cpu,
            copy_all_layer_kv_cache_cpu,
            decode_attention_cpu,
            extend_attention_cpu,
            fill_accept_out_cache_loc_cpu,
            fill_bonus_tokens_cpu,
            rotate_input_ids_cpu,
            verify_tree_greedy_cpu,
        )
    }
)


class _Namespace:
    """What ``torch.ops.sgl_kernel`` is while this package is imported: the operators, as plain functions."""

    def __init__(self) -> None:
        vars(self).update(OPERATORS)

    def __getattr__(self, name: str) -> object:
        raise OperatorNotImplementedError(f"torch.ops.sgl_kernel.{name}")


torch.ops.sgl_kernel = _Namespace()


def __getattr__(name: str) -> MissingOperator:
    if name.startswith("__"):  # what Python itself looks up, such as __path__
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return MissingOperator(f"{__name__}.{name}")
