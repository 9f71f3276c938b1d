"""Whether a running server is what a spec asks for, by the arguments that its ``/server_info`` tells.

What it tells is what SGLang made of the arguments: it renames, corrects and computes some of them. Only a
difference that SGLang itself does not make counts; what can't be decided is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from pytest_specdec.client import ServerInfo
from pytest_specdec.flags import Option, is_secret
from pytest_specdec.spec import ServerSpec

#: Arguments that SGLang changes although they were given, in 0.5.23 (its ``arg_groups``) or in one of the versions
#: before it. Those of them that are compared have a rule of their own in `_RULES`.
_RESOLVED: Final = frozenset(
    """
    allowed_media_domains attention_backend attn_cp_size attn_dp_size boundary_reduction chunked_prefill_size
    cuda_graph_backend_decode cuda_graph_backend_prefill cuda_graph_bs cuda_graph_bs_decode cuda_graph_bs_prefill
    cuda_graph_config cuda_graph_max_bs cuda_graph_max_bs_decode cuda_graph_max_bs_prefill custom_weight_loader
    dcp_comm_backend debug_cuda_graph decode_attention_backend deepep_mode detokenizer_worker_num
    disable_aiter_allreduce_fusion_in_prefill disable_chunked_prefix_cache disable_cuda_graph
    disable_custom_all_reduce disable_hybrid_swa_memory disable_overlap_schedule disable_radix_cache
    disable_shared_experts_fusion disaggregation_bootstrap_port disaggregation_decode_extra_slots
    disaggregation_decode_retraction_backup disaggregation_ib_device disaggregation_mode
    disaggregation_transfer_backend dsv4_attn_backend dtype elastic_ep_initial_size enable_aiter_allreduce_fusion
    enable_attn_tp_input_scattered enable_decoder_swa_bounded_replay enable_deepep_moe
    enable_deterministic_inference enable_dp_attention enable_dp_attention_local_control_broadcast
    enable_dp_lm_head enable_dynamic_batch_tokenizer enable_ep_moe enable_flashinfer_allreduce_fusion enable_flexkv
    enable_fused_qk_norm_rope enable_hierarchical_cache enable_layernorm_sp enable_lmcache enable_lora
    enable_lora_overlap_loading enable_megamoe_for_layernorm_sp enable_mixed_chunk enable_page_major_kv_layout
    enable_prefill_cp enable_prefill_delayer enable_return_hidden_states enable_symm_mem enable_tf32_matmul
    enable_tokenizer_batch_encode enable_torch_compile enable_torch_symm_mem enable_tp_lm_head_all_to_all
    encoder_transfer_backend enforce_disable_flashinfer_allreduce_fusion enforce_shared_experts_fusion
    ep_dispatch_algorithm eplb_algorithm expert_distribution_recorder_buffer_size
    expert_distribution_recorder_mode flashinfer_a2a_dispatch_type flashinfer_allreduce_fusion_backend
    fp4_gemm_runner_backend fp8_gemm_runner_backend grammar_backend grpc_port hicache_io_backend
    hicache_mem_layout hicache_ratio hicache_size hicache_write_policy image_processor_backend is_embedding
    kv_cache_dtype limit_mm_data_per_request linear_attn_backend linear_attn_decode_backend
    linear_attn_prefill_backend linear_attn_verify_backend load_balance_method load_format lora_paths
    lora_strict_loading lora_target_modules mamba_radix_cache_strategy mamba_ssm_dtype max_prefill_tokens
    max_running_requests max_total_tokens mem_fraction_static mm_attention_backend mm_feature_transport
    mm_process_config model_config_parser model_loader_extra_config moe_a2a_backend moe_dense_tp_size moe_dp_size
    moe_runner_backend mooncake_ib_device optimistic_prefill_attempts page_size pre_warm_nccl
    preferred_sampling_params prefill_attention_backend prefill_decode_interval prefill_delayer_max_delay_passes
    prefill_delayer_token_usage_low_watermark prefill_only_disable_kv_cache quantization
    remote_instance_weight_loader_start_seed_via_transfer_engine return_hidden_states_mode revision
    sampling_backend schedule_conservativeness schedule_policy served_model_name skip_server_warmup smg_grpc_mode
    soft_watchdog_timeout speculative_adaptive speculative_attention_mode speculative_draft_attention_backend
    speculative_draft_load_format speculative_draft_model_quantization speculative_draft_model_revision
    speculative_moe_a2a_backend speculative_moe_runner_backend speculative_token_map
    speculative_use_rejection_sampling tokenizer_path tool_call_parser torch_compile_max_bs
    triton_attention_num_kv_splits
    """.split()  # noqa: SIM905  # a hundred lines of one word each would hide the code
)
#: What EAGLE is called after SGLang has looked at the draft model; NEXTN is its older name.
_EAGLES: Final = frozenset({"EAGLE", "NEXTN", "FROZEN_KV_MTP"})
#: Algorithms that keep the number of steps and the width they are given.
_TREES: Final = _EAGLES | {"EAGLE3", "STANDALONE"}
#: Words that leave the choice to SGLang.
_FREE_WORDS: Final = frozenset({"auto", "none", "null"})
#: Where a model is fetched from: what is told then is the place it was put in.
_REMOTE: Final = re.compile(r"^(?:[a-z0-9+]+://|tiny:)")

_Told = Mapping[str, object]
_Rule = Callable[[ServerSpec, str, _Told], bool]


def disagreements(spec: ServerSpec, info: ServerInfo) -> tuple[str, ...]:
    """Return what the server does otherwise than the spec asks, one line a flag; empty when they agree.

    Model path and port are not looked at, see `same_model`. Flags that the spec doesn't give are not compared,
    except that a spec without a speculative algorithm means a server that does not draft.
    """
    if spec.drafting != info.drafting:
        return (_drafting(spec, info),)
    return tuple(line for option in spec.options if (line := _disagreement(spec, option, info.args)))


def same_model(given: str, told: str) -> bool:
    """Whether a path or id and what a server tells may be the same model.

    A model that is fetched by its id may be told as the directory it was put in: ``org/name``,
    ``models--org--name/snapshots/...``, ``org/na___me`` (ModelScope).
    """
    given, told = given.removeprefix("~").rstrip("/"), told.rstrip("/")
    if told == given or _REMOTE.match(given):
        return True
    if told.endswith("/" + given.lstrip("/")):
        return True
    if given.startswith(("/", ".")):
        return False
    # A file within a repository is named behind a colon.
    name = given.partition(":")[0]
    return f"models--{name.replace('/', '--')}" in told or told.endswith("/" + name.replace(".", "___"))


def _drafting(spec: ServerSpec, info: ServerInfo) -> str:
    if info.drafting:
        told = info.args.get("speculative_algorithm", "drafting")
        return f"the spec gives no --speculative-algorithm, and the server runs with {told}"
    given = " ".join(spec.get("--speculative-algorithm") or ())
    return f"--speculative-algorithm is {given} in the spec, and the server does not draft"


def _disagreement(spec: ServerSpec, option: Option, told: _Told) -> str | None:
    name = option.name.replace("-", "_")
    if name in _RESOLVED or is_secret(name):
        return None
    said = told.get(name, told.get(name.removeprefix("no_")))
    given = option.values[0] if len(option.values) == 1 else None
    rule = _RULES.get(name)
    if rule is not None and given is not None and said is not None:
        agrees = rule(spec, given, told)
    else:
        agrees = _agrees(option, said)
    if agrees:
        return None
    shown = " ".join(option.values) or "given"
    return f"{option.flag} is {shown} in the spec, and {_shown(said)} on the server"


def _shown(said: object) -> str:
    if isinstance(said, bool):
        return "on" if said else "off"
    return " ".join(map(str, said)) if isinstance(said, list) else str(said)


def _agrees(option: Option, said: object) -> bool:
    """Whether a plain option has its value; one that can't be compared agrees."""
    if isinstance(said, bool):
        return bool(option.values) or said != option.name.startswith("no-")
    if isinstance(said, list):
        return len(said) != len(option.values) or all(map(_equal, option.values, said))
    return said is None or len(option.values) != 1 or _equal(option.values[0], said)


def _equal(given: str, said: object) -> bool:
    if isinstance(said, (int, float)):
        try:
            return abs(float(given) - said) <= 1e-9 * abs(said)
        except ValueError:
            return True
    return given.lower() in _FREE_WORDS or given == said


def _same_algorithm(_spec: ServerSpec, given: str, told: _Told) -> bool:
    said = str(told["speculative_algorithm"]).upper()
    return given.upper() == said or {given.upper(), said} <= _EAGLES


def _same_draft(_spec: ServerSpec, given: str, told: _Told) -> bool:
    return same_model(given, str(told["speculative_draft_model_path"]))


def _same_dp(spec: ServerSpec, given: str, told: _Told) -> bool:
    # With --enable-dp-attention, 0.5.23 moves the number to attn_dp_size, as --dwdp-size does with its own.
    return spec.has("--dwdp-size") or any(
        _equal(given, told[key]) for key in ("dp_size", "attn_dp_size") if key in told
    )


def _same_pp(spec: ServerSpec, given: str, told: _Told) -> bool:
    return spec.has("--dllm-algorithm") or _equal(given, told["pp_size"])


def _same_ep(_spec: ServerSpec, given: str, told: _Told) -> bool:
    # Some all-to-all backends make it the tensor-parallel size, whatever was asked for.
    return _equal(given, told["ep_size"]) or told["ep_size"] in (told.get("tp_size"), told.get("dwdp_size"))


def _same_device(_spec: ServerSpec, given: str, told: _Told) -> bool:
    return given.partition(":")[0] == told["device"]


def _same_shape(name: str) -> _Rule:
    """A number of the draft's tree; algorithms without one, and adaptive drafting, choose it themselves."""

    def same(spec: ServerSpec, given: str, told: _Told) -> bool:
        free = str(told.get("speculative_algorithm")).upper() not in _TREES or spec.has("--speculative-adaptive")
        return free or _equal(given, told[name])

    return same


def _same_draft_tokens(spec: ServerSpec, given: str, told: _Told) -> bool:
    steps = told.get("speculative_num_steps")
    # With top-k 1 a chain is verified whole.
    is_chain = (
        told.get("speculative_eagle_topk") == 1
        and isinstance(steps, int)
        and told["speculative_num_draft_tokens"] == steps + 1
    )
    return is_chain or _same_shape("speculative_num_draft_tokens")(spec, given, told)


_RULES: Final[Mapping[str, _Rule]] = {
    "speculative_algorithm": _same_algorithm,
    "speculative_draft_model_path": _same_draft,
    "speculative_num_steps": _same_shape("speculative_num_steps"),
    "speculative_eagle_topk": _same_shape("speculative_eagle_topk"),
    "speculative_num_draft_tokens": _same_draft_tokens,
    "dp_size": _same_dp,
    "pp_size": _same_pp,
    "ep_size": _same_ep,
    "device": _same_device,
}
