"""A plug-in of SGLang that makes the engine slower and changes nothing else: it sleeps before each step."""

from __future__ import annotations

import time
from typing import Any

STEP_S = 0.03


def slow_down() -> None:
    """Register the hook; SGLang calls this in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415  # runs in SGLang only

    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.run_batch", _late, HookType.AROUND)


def _late(original: Any, *args: Any, **kwargs: Any) -> Any:
    time.sleep(STEP_S)
    return original(*args, **kwargs)
