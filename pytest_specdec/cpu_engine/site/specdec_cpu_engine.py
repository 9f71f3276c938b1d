"""The SGLang plug-in of the CPU engine, loaded by SGLang itself in each of its processes.

It keeps the attention backend ``intel_amx``, the one that supports drafting on a CPU; stock SGLang replaces it
by ``torch_native`` on a CPU without AMX. The operators behind that backend are those of ``sgl_kernel`` beside
this file.

``SPECDEC_CPU_SLOWDOWN_MS`` makes every forward step of the target model that many milliseconds longer: a real
slow-down of the engine, which moves the verify rate and leaves the accept length alone.
"""

# ruff: noqa: ANN401  # a hook passes on whatever SGLang passes
from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

SLOWDOWN_VARIABLE = "SPECDEC_CPU_SLOWDOWN_MS"


def register() -> None:
    """Register the hooks; SGLang applies them afterwards."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415  # ready when SGLang calls

    HookRegistry.register(
        "sglang.srt.arg_groups.overrides._attention_backend_platform_fallbacks",
        keep_intel_amx_backend,
        HookType.AROUND,
    )
    HookRegistry.register("sglang.srt.entrypoints.engine._set_envs_and_config", fork_children, HookType.AFTER)
    slowdown_ms = slowdown_from(os.environ.get(SLOWDOWN_VARIABLE, ""))
    if slowdown_ms > 0:
        HookRegistry.register(
            # Called once a step for prefill, decode and verify; draft models run elsewhere.
            "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation",
            slowed_down_by(slowdown_ms),
            HookType.AROUND,
        )


def keep_intel_amx_backend(original: Callable[[Any], dict[str, Any]], view: Any) -> dict[str, Any]:
    """Decide on the attention backend as SGLang does, except that ``intel_amx`` stands on every CPU."""
    if view.device == "cpu" and view.attention_backend == "intel_amx":
        return {}
    return original(view)


def fork_children(_result: None, *_args: Any, **_kwargs: Any) -> None:
    """Fork scheduler and detokenizer instead of spawning them.

    The launcher has imported all they need by then, and holds no GPU; a spawned child would take ten more
    seconds to import it again.
    """
    multiprocessing.set_start_method("fork", force=True)


def slowdown_from(value: str) -> float:
    """The slow-down in milliseconds that the variable's value asks for; empty means none.

    Raises:
        ValueError: not a number, or below 0.
    """
    if not value.strip():
        return 0.0
    try:
        slowdown_ms = float(value)
    except ValueError:
        slowdown_ms = math.nan
    if not (math.isfinite(slowdown_ms) and slowdown_ms >= 0):
        raise ValueError(
            f"{SLOWDOWN_VARIABLE}={value!r} is not a number of milliseconds, 0 or more, such as {SLOWDOWN_VARIABLE}=15"
        )
    return slowdown_ms


def slowed_down_by(slowdown_ms: float, *, sleep: Callable[[float], None] = time.sleep) -> Callable[..., Any]:
    """A hook that sleeps before the call it goes around."""

    def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        sleep(slowdown_ms / 1000)
        return original(*args, **kwargs)

    return hook
