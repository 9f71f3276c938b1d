"""What the package answers for operators it lacks, and the plug-in beside it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import sgl_kernel
import specdec_cpu_engine as plugin
import torch


def test_every_operator_is_reached_both_ways() -> None:
    for name, operator in sgl_kernel.OPERATORS.items():
        assert getattr(sgl_kernel, name) is operator
        assert getattr(torch.ops.sgl_kernel, name) is operator


def test_a_missing_operator_is_named_when_it_is_called() -> None:
    from sgl_kernel import moe_align_block_size  # noqa: PLC0415  # an import alone does no harm

    with pytest.raises(NotImplementedError, match=r"^sgl_kernel\.moe_align_block_size is not implemented by the CPU"):
        moe_align_block_size(1, 2)


def test_a_missing_torch_operator_is_named() -> None:
    with pytest.raises(NotImplementedError, match=r"^torch\.ops\.sgl_kernel\.fused_experts_cpu is not implemented"):
        torch.ops.sgl_kernel.fused_experts_cpu(1)


def test_sglang_finds_no_amx_operators() -> None:
    assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")


def test_a_missing_submodule_is_an_import_error() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"sgl_kernel\.flash_attn"):
        import sgl_kernel.flash_attn  # noqa: F401, PLC0415  # the import is what is tested


@pytest.mark.parametrize(("value", "slowdown_ms"), [("", 0.0), (" ", 0.0), ("0", 0.0), ("15", 15.0), ("2.5", 2.5)])
def test_the_slowdown_is_read_in_milliseconds(value: str, slowdown_ms: float) -> None:
    assert plugin.slowdown_from(value) == slowdown_ms


@pytest.mark.parametrize("value", ["15ms", "-1", "nan", "inf"])
def test_a_slowdown_that_is_no_number_of_milliseconds_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=f"SPECDEC_CPU_SLOWDOWN_MS='{value}' is not a number of milliseconds"):
        plugin.slowdown_from(value)


def test_a_slowed_call_sleeps_first_and_passes_everything_on() -> None:
    events: list[object] = []
    hook = plugin.slowed_down_by(15.0, sleep=lambda seconds: events.append(("slept", seconds)))

    result = hook(lambda *args, **kwargs: events.append((args, kwargs)) or "result", 1, key=2)

    assert result == "result"
    assert events == [("slept", 0.015), ((1,), {"key": 2})]


def test_the_amx_backend_is_kept_on_a_cpu() -> None:
    view = SimpleNamespace(device="cpu", attention_backend="intel_amx")

    assert plugin.keep_intel_amx_backend(lambda _: {"attention_backend": "torch_native"}, view) == {}


@pytest.mark.parametrize(("device", "backend"), [("cpu", "torch_native"), ("xpu", "intel_xpu"), ("cuda", "intel_amx")])
def test_every_other_choice_is_left_to_sglang(device: str, backend: str) -> None:
    view = SimpleNamespace(device=device, attention_backend=backend)

    assert plugin.keep_intel_amx_backend(lambda _: {"attention_backend": "triton"}, view) == {
        "attention_backend": "triton"
    }
