"""Our rounds in pytest-benchmark's table, its JSON and its storage: the only module that meets pytest-benchmark.

It stores durations, so a round stands there as the seconds that it took, and rates and acceptance go along. What it
compares are those seconds, without our noise, tolerance and floors: no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_specdec.model import Verdict

if TYPE_CHECKING:
    import pytest

    from pytest_specdec.results import BenchmarkResult

#: The name by which pytest-benchmark registers its session.
_SESSION: Final = "pytest-benchmark"
_RATES: Final = ("decode_tok_s", "system_tok_s", "output_tok_s", "accept_length", "verify_rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What pytest-benchmark's ``Metadata`` asks of its fixture: who was measured."""

    name: str
    fullname: str
    group: str
    param: str
    params: Mapping[str, object]
    extra_info: Mapping[str, object]
    cprofile_stats: None = None
    has_error: bool = False


def add(config: pytest.Config, results: Iterable[BenchmarkResult]) -> None:
    """Give pytest-benchmark an entry for each result: the wall seconds of its measured rounds, launch after launch.

    Nothing happens where pytest-benchmark isn't loaded or another plug-in put it off, in a run with workers, and with
    ``--benchmark-disable`` or ``--benchmark-skip``. An invalid result is left out: nothing may be compared with it.
    """
    session = config.pluginmanager.get_plugin(_SESSION)
    # Before 5.2 a worker does not know that it is one, and each would write the JSON file.
    if session is None or session.disabled or session.skip or hasattr(config, "workerinput"):
        return
    from pytest_benchmark.stats import Metadata  # noqa: PLC0415  # there, and loaded, when its session is

    for result in results:
        if result.verdict is Verdict.INVALID:
            continue
        entry = Metadata(_source(result), iterations=1, options={})
        for launch in result.launches:
            for done in launch.rounds:
                entry.update(done.wall_s)
        session.benchmarks.append(entry)


def _source(result: BenchmarkResult) -> _Source:
    """Name a result: entries are compared by ``fullname``, and those of one ``group`` share a table.

    Seconds tell something only where the work is the same, so a group is the work on a node, and its entries are the
    servers that did it.
    """
    measurement = result.measurement
    server = measurement.spec.name
    work = measurement.key.removeprefix(f"{server}--")
    return _Source(
        name=measurement.key,
        fullname=f"{result.node}/{measurement.key}",
        group=f"{work} on {result.node}",
        param=server,
        params={
            "server": server,
            "workload": measurement.workload.name,
            "concurrency": measurement.concurrency,
            "output_tokens": measurement.output_tokens,
        },
        extra_info={
            "node": result.node,
            "verdict": str(result.verdict),
            "launches": len(result.launches),
            "spec_hash": measurement.spec.content_hash,
            "workload_hash": measurement.workload.content_hash,
            **{name: result.metrics[name].value for name in _RATES if name in result.metrics},
        },
    )
