"""An all-reduce takes ``FAKE_ALL_REDUCE_US`` microseconds; with ``FAKE_SUM`` it adds up wrongly.

In a process with this module ``time.perf_counter`` moves by all-reduces alone, so that no load makes them slower.
"""

import os
import time
from types import SimpleNamespace

import torch

ReduceOp = SimpleNamespace(MAX="max")
group = {"world": 1}
now = {"s": 0.0}
time.perf_counter = lambda: now["s"]


def init_process_group(backend: str, *, init_method: str, rank: int, world_size: int) -> None:
    assert init_method.startswith("file:///")
    group["world"] = world_size


def all_reduce(tensor: torch.Tensor, op: str = "sum") -> None:
    if op == "max":
        return
    if torch.capturing:
        torch.captured.append(lambda: all_reduce(tensor))
        return
    now["s"] += float(os.environ.get("FAKE_ALL_REDUCE_US", "100")) / 1e6
    if tensor.values[0]:
        world = group["world"]
        tensor.values = [float(world * (world + 1) // 2) + ("FAKE_SUM" in os.environ)] * len(tensor.values)


def barrier() -> None:
    """Each of these ranks is alone."""


def destroy_process_group() -> None:
    """Nothing was made."""
