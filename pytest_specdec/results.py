"""What was measured and judged, as a test gets it and as the results JSON holds it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pytest_specdec import blame, jsonfile, metrics, stats
from pytest_specdec.beside import Beside, Speedup
from pytest_specdec.errors import InfrastructureError, MeasurementError
from pytest_specdec.model import (
    Comparison,
    Finding,
    LaunchRecord,
    LaunchRounds,
    Measurement,
    MetricVerdict,
    RequestSample,
    Round,
    RoundsByLaunch,
    Verdict,
)
from pytest_specdec.paired import PairedRatio
from pytest_specdec.serving_fields import serving_fields

RESULTS_SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSummary:
    """One metric over all rounds and launches.

    ``value`` is the estimate that is judged: the geometric mean over launches of each launch's geometric mean.
    ``low`` and ``high`` are the lowest and highest round; ``spread`` is (high - low) / median.
    """

    name: str
    unit: str
    launches: RoundsByLaunch
    value: float
    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """The range of the rounds as a fraction of their median."""
        return (self.high - self.low) / self.median if self.median else 0.0


def summarise(name: str, launches: RoundsByLaunch) -> MetricSummary:
    """Condense the rounds of one metric; raises :class:`MeasurementError` when there are none."""
    rounds = [value for launch in launches for value in launch]
    if not rounds:
        raise MeasurementError(f"{name}: no round gave a value")
    return MetricSummary(
        name=name,
        unit=metrics.METRICS[name].unit,
        launches=launches,
        value=stats.mean_of_launches([launch for launch in launches if launch]),
        median=stats.median(rounds),
        low=min(rounds),
        high=max(rounds),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryResult:
    """What one class of task in a workload came to; ``requests`` is their number in all rounds.

    Metrics are those of single streams: ``decode_tok_s``, ``accept_length`` and ``verify_rate``.
    """

    category: str
    requests: int
    metrics: Mapping[str, MetricSummary]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkResult:
    """The stored result of one measurement: every metric, every round, and the verdict.

    ``by_category`` has an entry for each class of task in the workload, for its own acceptance and speed.
    ``validity`` is what each validity rule says of it. ``beside`` is what it came to beside its control, None without
    one.
    """

    measurement: Measurement
    node: str
    launches: tuple[LaunchRounds, ...]
    metrics: Mapping[str, MetricSummary]
    accept_histogram: tuple[int, ...] | None
    comparison: Comparison
    by_category: Mapping[str, CategoryResult] = field(default_factory=dict)
    validity: tuple[Finding, ...] = ()
    beside: Beside | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict on the whole measurement."""
        return self.comparison.verdict

    def __getitem__(self, metric: str) -> MetricSummary:
        """Return the summary of a metric by name; raises :class:`MeasurementError` naming those there are."""
        try:
            return self.metrics[metric]
        except KeyError:
            known = ", ".join(sorted(self.metrics)) or "none"
            raise MeasurementError(f"{self.measurement.key}: no {metric!r} was measured; there are: {known}") from None

    @property
    def speedup(self) -> Speedup:
        """How many times as fast as its control, with the interval: ``low``, ``high``.

        Raises :class:`MeasurementError` for a test without ``control=``.
        """
        found = None if self.beside is None else self.beside.speedup
        if found is None:
            why = (
                "it was measured without a control; name one: specdec(control=SPEC)"
                if self.beside is None
                else (f"{self.beside.speed} was not measured on both sides")
            )
            raise MeasurementError(f"{self.measurement.key}: there is no speed-up: {why}")
        return found

    @property
    def decode_tok_s(self) -> MetricSummary:
        """Decode throughput per stream, tok/s."""
        return self["decode_tok_s"]

    @property
    def accept_length(self) -> MetricSummary:
        """Tokens committed per verify step; absent on a server that does not draft."""
        return self["accept_length"]

    @property
    def verify_rate(self) -> MetricSummary:
        """Verify steps per second; absent on a server that does not draft."""
        return self["verify_rate"]

    @property
    def ttft_ms(self) -> MetricSummary:
        """Time to first token, ms."""
        return self["ttft_ms"]

    @property
    def tpot_ms(self) -> MetricSummary:
        """Time per output token after the first chunk, ms."""
        return self["tpot_ms"]

    @property
    def e2e_ms(self) -> MetricSummary:
        """End-to-end latency of a request, ms."""
        return self["e2e_ms"]

    def output_ids(self) -> dict[str, tuple[int, ...]]:
        """Output token ids by prompt, of the first measured round; of a further turn by ``<prompt> turn <n>``."""
        first = self.launches[0].rounds[0]
        return {_answer_name(sample): sample.output_ids for sample in first.requests}


def _answer_name(sample: RequestSample) -> str:
    return sample.prompt_id if sample.turn == 1 else f"{sample.prompt_id} turn {sample.turn}"


_OF_A_STREAM: Final = ("decode_tok_s", "accept_length", "verify_rate")


def by_category(launches: Sequence[LaunchRounds], measurement: Measurement) -> dict[str, CategoryResult]:
    """Return what each class of task came to, in the order of the prompts.

    A round's value is that of the category's requests alone: median decode speed, pooled acceptance. How many other
    streams ran beside them is the measurement's concurrency, whatever their category.
    """
    names = dict.fromkeys(s.category for launch in launches for done in launch.rounds for s in done.requests)
    return {name: _category(name, launches, measurement) for name in names}


def _category(name: str, launches: Sequence[LaunchRounds], measurement: Measurement) -> CategoryResult:
    parts = [
        dataclasses.replace(
            launch,
            rounds=tuple(
                dataclasses.replace(done, requests=tuple(s for s in done.requests if s.category == name))
                for done in launch.rounds
            ),
        )
        for launch in launches
    ]
    values = rounds_by_launch(parts, measurement)
    return CategoryResult(
        category=name,
        requests=sum(len(done.requests) for launch in parts for done in launch.rounds),
        metrics={metric: summarise(metric, values[metric]) for metric in _OF_A_STREAM if any(values.get(metric, ()))},
    )


def rounds_by_launch(launches: Sequence[LaunchRounds], measurement: Measurement) -> dict[str, RoundsByLaunch]:
    """Every metric's values, a tuple a launch; a metric that a round lacks has no value for that round.

    A metric of a whole launch has one value there.
    """
    table: list[list[Mapping[str, float]]] = []
    for launch in launches:
        per_round = [round_metrics(done, measurement, launch.launch) for done in launch.rounds]
        table.append([*per_round, metrics.launch_metrics(launch.rounds)])
    names = {name for rows in table for values in rows for name in values}
    return {name: tuple(tuple(v[name] for v in rows if name in v) for rows in table) for name in sorted(names)}


def round_metrics(done: Round, measurement: Measurement, launch: LaunchRecord) -> dict[str, float]:
    """Return every metric of one round, with what its server and its measurement add."""
    return metrics.round_metrics(
        done,
        measurement.concurrency,
        num_draft_tokens=metrics.draft_tokens(launch),
        limits=measurement.goodput,
    )


def to_json(result: BenchmarkResult) -> dict[str, Any]:
    """Return the result's object in ``results.json``: every round of it, whose requests are in ``rounds.jsonl``."""
    comparison = result.comparison
    return {
        "key": result.measurement.key,
        "server": result.measurement.spec.name,
        "spec_hash": result.measurement.spec.content_hash,
        "command": result.measurement.spec.masked_command,
        "workload": result.measurement.workload.name,
        "workload_hash": result.measurement.workload.content_hash,
        "concurrency": result.measurement.concurrency,
        "request_rate": result.measurement.request_rate,
        "output_tokens": result.measurement.output_tokens,
        "sampling": result.measurement.sampling.identity(),
        "chat_template": result.measurement.chat_template,
        "node": result.node,
        "verdict": str(comparison.verdict),
        "violations": [dataclasses.asdict(violation) for violation in comparison.violations],
        "baseline": comparison.baseline_path,
        "environment_changes": [dataclasses.asdict(change) for change in comparison.environment_changes],
        "notes": list(comparison.notes),
        "accept_histogram": None if result.accept_histogram is None else list(result.accept_histogram),
        "acceptance_by_position": None
        if result.accept_histogram is None
        else list(metrics.acceptance_by_position(result.accept_histogram)),
        "goodput_limits": None if result.measurement.goodput is None else result.measurement.goodput.identity(),
        "validity": [dataclasses.asdict(finding) for finding in result.validity],
        "metrics": {name: _metric_json(summary) for name, summary in sorted(result.metrics.items())},
        "categories": [_category_json(category) for category in result.by_category.values()],
        "judged": [_verdict_json(judged) for judged in comparison.metrics],
        "split": None
        if comparison.split is None
        else {"accept_length": comparison.split[0], "verify_rate": comparison.split[1]},
        "cause": comparison.cause,
        "explanation": blame.lines(comparison),
        "speedup": None if result.beside is None else _speedup_json(result.beside),
        "ratios": None
        if result.beside is None
        else {name: _ratio_json(ratio) for name, ratio in result.beside.ratios.items()},
        "difference": None if result.beside is None else dataclasses.asdict(result.beside.difference),
        "category_changes": [dataclasses.asdict(change) for change in comparison.categories],
        "launches": [launch_json(launch.launch) for launch in result.launches],
        "rounds": [
            round_json(done, result.measurement, launch.launch, leave_out=("requests", "log"))
            for launch in result.launches
            for done in launch.rounds
        ],
    }


def round_json(
    done: Round, measurement: Measurement, launch: LaunchRecord, *, leave_out: Sequence[str] = ()
) -> dict[str, Any]:
    """Return one round as a JSON object, without those fields of :class:`Round` that are left out."""
    return {
        "launch": launch.index,
        "metrics": round_metrics(done, measurement, launch),
        "accept_histogram": metrics.accept_histogram((done,)),
        "round": {name: value for name, value in dataclasses.asdict(done).items() if name not in leave_out},
    }


def _speedup_json(beside: Beside) -> dict[str, Any] | None:
    found = beside.speedup
    if found is None:
        return None
    bounds = {"low": found.low, "high": found.high} if found.conclusive else {"low": None, "high": None}
    return {**dataclasses.asdict(found), **bounds, "control": beside.control, "control_moved": beside.moved}


def _ratio_json(ratio: PairedRatio) -> dict[str, Any]:
    return dataclasses.asdict(ratio)


def _metric_json(summary: MetricSummary) -> dict[str, Any]:
    return {
        "unit": summary.unit,
        "formula": metrics.METRICS[summary.name].formula,
        "per": metrics.METRICS[summary.name].per,
        "direction": metrics.METRICS[summary.name].direction,
        "value": summary.value,
        "median": summary.median,
        "low": summary.low,
        "high": summary.high,
        "spread": summary.spread,
        "rounds_by_launch": [list(launch) for launch in summary.launches],
    }


def _category_json(category: CategoryResult) -> dict[str, Any]:
    return {
        "category": category.category,
        "requests": category.requests,
        "metrics": {name: _metric_json(summary) for name, summary in category.metrics.items()},
    }


def _verdict_json(judged: MetricVerdict) -> dict[str, Any]:
    row = dataclasses.asdict(judged)
    row["verdict"] = None if judged.verdict is None else str(judged.verdict)
    return row


def launch_json(launch: LaunchRecord) -> dict[str, Any]:
    """Return one launch as a JSON object."""
    row = dataclasses.asdict(launch)
    row["server_args"] = dict(launch.server_args)
    row["facts"] = dict(launch.facts)
    row["phase_s"] = dict(launch.phase_s)
    return row


@contextlib.contextmanager
def kept_in(root: Path) -> Iterator[None]:
    """Let the system's refusal to write below a report directory be told as what it is, with what would do."""
    try:
        yield
    except OSError as error:
        raise InfrastructureError(
            f"{error.filename or root}: what was measured can't be written: {error.strerror or error}. "
            f"Free space below {root}, or name another place with --specdec-report=DIR"
        ) from None


def _append(path: Path, row: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, sort_keys=True) + "\n")


class Recorder:
    """Writes results below one directory, as early as they are known.

    ``rounds.jsonl`` grows by a line as each round ends, before anything is judged: a crash after round 3 of 5 keeps
    three. So does ``serving.jsonl``, for measured rounds: the fields of SGLang's ``bench_serving``. ``results.json``
    is rewritten after each judged measurement.
    """

    def __init__(self, root: Path, *, worker: str = "") -> None:
        self.root = root
        suffix = f"-{worker}" if worker else ""
        self.rounds_path = root / f"rounds{suffix}.jsonl"
        self.serving_path = root / f"serving{suffix}.jsonl"
        self.results_path = root / f"results{suffix}.json"
        self._started = False

    @property
    def log_dir(self) -> Path:
        """Where server logs are kept."""
        return self.root / "logs"

    def round_done(self, measurement: Measurement, launch: LaunchRecord, done: Round) -> None:
        """Append one finished round, warm-up ones too; raises :class:`InfrastructureError` where that can't be."""
        row = {"key": measurement.key, "node": launch.node, **round_json(done, measurement, launch)}
        with kept_in(self.root):
            if not self._started:
                self._make_root()
                self.rounds_path.unlink(missing_ok=True)
                self.serving_path.unlink(missing_ok=True)
                self._started = True
            _append(self.rounds_path, row)
            if not done.warmup:
                _append(self.serving_path, serving_fields(measurement, done))

    def _make_root(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        ignored = self.root / ".gitignore"
        if not ignored.exists():
            ignored.write_text("# Made by pytest-specdec\n*\n", encoding="utf-8")

    def write(self, document: Mapping[str, Any]) -> Path:
        """Rewrite ``results.json`` whole; returns its path. Raises as :meth:`round_done` does."""
        with kept_in(self.root):
            self._make_root()
            jsonfile.write(self.results_path, {"schema_version": RESULTS_SCHEMA_VERSION, **document}, digits=15)
        return self.results_path
