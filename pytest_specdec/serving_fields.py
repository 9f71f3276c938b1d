"""A measured round under the names that SGLang's ``bench_serving --output-file`` gives its figures.

For scripts that read those. The figures are ours, by the formulas of :mod:`pytest_specdec.metrics`. What bench_serving
takes from the gaps between chunks (``*_itl_ms``, ``max_output_tokens_per_s``) or from text that it tokenises again
(``*_retokenized``) is left out: with several tokens a chunk those are wrong.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final

from pytest_specdec import metrics, stats
from pytest_specdec.model import Measurement, Round

#: What bench_serving calls our latencies.
_LATENCIES: Final = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2e_latency"}
_PERCENTILES: Final = (90, 95, 99)


def serving_fields(measurement: Measurement, done: Round) -> dict[str, Any]:
    """Return a round as one line of bench_serving's; times in ms, ``duration`` in s, throughputs per second.

    ``request_rate`` is None in a closed loop, where bench_serving writes Infinity. ``concurrency`` is the mean number
    of requests in flight. None where no request gave a value.
    """
    answered = [sample for sample in done.requests if sample.error is None]
    read = sum(sample.prompt_tokens for sample in answered)
    written = sum(sample.completion_tokens for sample in answered)
    latencies = metrics.latencies(answered)
    return {
        "tag": measurement.key,
        "backend": "sglang",
        "dataset_name": measurement.workload.name,
        "request_rate": measurement.request_rate,
        "max_concurrency": measurement.concurrency,
        "duration": done.wall_s,
        "completed": len(answered),
        "total_input_tokens": read,
        "total_output_tokens": written,
        "request_throughput": len(answered) / done.wall_s,
        "input_throughput": read / done.wall_s,
        "output_throughput": written / done.wall_s,
        "total_throughput": (read + written) / done.wall_s,
        **{
            f"{statistic}_{name}_ms": value
            for ours, name in _LATENCIES.items()
            for statistic, value in _statistics(latencies[ours]).items()
        },
        "concurrency": sum(latencies["e2e"]) / 1000 / done.wall_s,
        "accept_length": metrics.round_metrics(done, measurement.concurrency).get("accept_length"),
    }


def _statistics(values: Sequence[float]) -> dict[str, float | None]:
    percentiles = {f"p{p}": stats.quantile(values, p / 100) if values else None for p in _PERCENTILES}
    if not values:
        return {"mean": None, "median": None, "std": None, **percentiles}
    return {
        "mean": statistics.fmean(values),
        "median": stats.median(values),
        "std": statistics.pstdev(values),
        **percentiles,
    }
