"""When the requests of an open loop are due."""

from __future__ import annotations

import random
from typing import Final

#: Arrivals are the same in every round and on every machine: what differs between two runs is the server.
_SEED: Final = 20261129


def arrival_times(count: int, request_rate: float) -> tuple[float, ...]:
    """When each of ``count`` requests is due, in seconds since the round began: Poisson, the same on every call.

    The first is due at once; the gaps are exponential with a mean of 1 / ``request_rate`` (requests/s).
    """
    gaps = random.Random(_SEED)
    times, at = [], 0.0
    for _ in range(count):
        times.append(at)
        at += gaps.expovariate(request_rate)
    return tuple(times)
