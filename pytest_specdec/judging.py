"""Judging for a session: which baseline a measurement answers to, its verdict, and what is written afterwards."""

from __future__ import annotations

import dataclasses
import datetime as dt
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pytest_specdec import attach, beside, compare, engine_env, metrics, results, stats, validity, verdict_text
from pytest_specdec.baseline import BY_CATEGORY, Baseline, Identity, Provenance
from pytest_specdec.baseline_store import ANY, BaselineStore, Change, Lookup, updated
from pytest_specdec.beside import Beside
from pytest_specdec.difference import difference
from pytest_specdec.errors import BaselineFileError, SpecdecError
from pytest_specdec.model import Comparison, Finding, LaunchRecord, LaunchRounds, Measurement, RoundsByLaunch, Verdict
from pytest_specdec.plan import Plan, PlannedMeasurement
from pytest_specdec.pool import Legs
from pytest_specdec.results import BenchmarkResult, CategoryResult
from pytest_specdec.serving import Serving
from pytest_specdec.settings import Settings
from pytest_specdec.validity_run import Run
from pytest_specdec.verdicts import Budget

#: On prompts that mean nothing these say nothing about a drafter.
_ACCEPTANCE: Final = frozenset({"accept_length", "accept_length_sglang", "accept_rate"})
_SYNTHETIC: Final = (
    "the prompts are synthetic token ids: acceptance on them says nothing about a drafter, so accept_length is "
    "advisory, and decode_tok_s of a drafting server is no more than a number for this very workload"
)


#: Steps that a clock seen in rounds is rounded to: it wanders by less without a reason.
_CLOCK_STEP_MHZ: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one measurement would write, when its tests pass."""

    key: str
    files: Mapping[Path, Baseline]
    changes: tuple[Change, ...]


class Judging:
    """Judges measurements against the committed baselines, and updates these when asked."""

    def __init__(self, settings: Settings, serving: Serving, *, command: str) -> None:
        self._settings = settings
        self._serving = serving
        self._command = command
        self._updates: dict[str, Update] = {}
        self._plan = Plan(specs=())
        self._calls: dict[str, int] = {}
        self._called_before: dict[str, int] = {}

    @cached_property
    def store(self) -> BaselineStore:
        """The baselines as seen from this node."""
        # Named by the user, it is not asked of a host: collecting must not choose one of a pool.
        return BaselineStore(self._settings.baselines_dir, self._settings.node or self._serving.node.slug)

    def launches_for(self, measurement: Measurement) -> int:
        """How many launches a measurement is spread over, in the plan."""
        return self._settings.launches_for(recording=self._records(measurement))

    def most_launches_for(self, measurement: Measurement) -> int:
        """How many launches a close answer may take; no more than planned where nothing could be close."""
        most = self._settings.most_launches(recording=self._records(measurement))
        if self._settings.device == "cuda" and self._settings.node is None:
            return most  # what there is to be judged by is not known before the host is asked
        try:
            found = [entry.metric for entry in self.store.lookup(measurement.key).metrics.values()]
        except BaselineFileError:
            found = []
        judged = any(metric.floor is not None or (metric.gate and metric.launches) for metric in found)
        return most if judged else self.launches_for(measurement)

    def judge_for(self, plan: Plan) -> None:
        """Take note of all that the session will judge: its gated metrics share one budget of false alarms."""
        self._plan = plan

    @cached_property
    def _gated_metrics(self) -> int:
        """How many gated metrics of the whole session have samples to be judged by."""
        return sum(map(self._gates_of, self._plan.measurements))

    def _gates_of(self, measurement: Measurement) -> int:
        try:
            lookup = self.store.lookup(measurement.key)
        except BaselineFileError:
            return 0  # its own test tells
        gated = compare.gated_metrics(
            lookup, _identity(measurement), self.store.node, drafting=True, never_gated=_never_gated(measurement)
        )
        return sum(bool(found.metric.launches) for name, found in lookup.metrics.items() if name in gated)

    def _budget(self, measurement: Measurement) -> Budget:
        recording = self._records(measurement)
        # Fixed when it is first asked for: its answer must not depend on what is called later.
        called = self._called_before.setdefault(measurement.key, sum(self._calls.values()))
        return Budget(
            metrics=self._gated_metrics,
            called=called,
            first_look=self._settings.launches_for(recording=recording),
            max_launches=self._settings.most_launches(recording=recording),
        )

    def wants_more(self, planned: PlannedMeasurement, launches: Sequence[LaunchRounds]) -> bool:
        """Whether the answer is too close to call, and another launch may be spent on it."""
        if not planned.judged:
            return False
        recording = self._records(planned.measurement)
        if len(launches) >= self._settings.most_launches(recording=recording):
            return False
        try:
            result = self.judge(planned.measurement, launches, waived=planned.waived, recorded=False)
        except SpecdecError:
            return False  # the test that asks for this measurement tells why
        return result.comparison.more > 0

    def _records(self, measurement: Measurement) -> bool:
        if self._settings.update != "new":
            return self._settings.update == "all"
        # On a GPU node its name is asked of the driver; collecting alone must not do that, so it plans for the most.
        if self._settings.device == "cuda" and self._settings.node is None:
            return True
        return not _of_node(self.store.lookup(measurement.key))

    def judge_beside(
        self,
        measurement: Measurement,
        launches: Sequence[LaunchRounds],
        control: Measurement,
        legs: Legs,
        *,
        waived: frozenset[str],
    ) -> tuple[BenchmarkResult, BenchmarkResult]:
        """Judge one measurement beside its control; returns its result and the control's own.

        ``launches`` are all of the measurement's, ``legs`` those of its block.
        """
        result = self.judge(measurement, launches, waived=waived)
        own = self.judge(control, legs.control, waived=waived, recorded=False)
        found = self.store.lookup(control.key).metrics
        compared = Beside(
            control=control.spec.name,
            speed=metrics.speed_of(measurement),
            ratios=beside.ratios(
                results.rounds_by_launch(legs.control, control),
                results.rounds_by_launch(legs.treatment, measurement),
                {name: one.metric for name, one in found.items()},
            ),
            difference=difference(
                control.spec,
                measurement.spec,
                control_environment=_environment(legs.control),
                treatment_environment=_environment(legs.treatment),
            ),
            moved=beside.control_moved(own.comparison),
        )
        comparison = beside.judged(result.comparison, own.comparison, compared)
        if comparison.verdict in (Verdict.INVALID, Verdict.INCONCLUSIVE):
            self._updates.pop(measurement.key, None)
        return dataclasses.replace(result, comparison=comparison, beside=compared), own

    def judge(
        self,
        measurement: Measurement,
        launches: Sequence[LaunchRounds],
        *,
        waived: frozenset[str],
        recorded: bool = True,
    ) -> BenchmarkResult:
        """Judge one measurement; with an update asked for, a good one passes and is kept for writing.

        With ``recorded`` False nothing of it is written: launches of a block, and looks before the last.
        """
        values = results.rounds_by_launch(launches, measurement)
        lookup = self.store.lookup(measurement.key)
        found = self._findings(measurement, launches, lookup, waived)
        notes = [note for launch in launches for note in attach.notes(launch.launch)] + validity.notes(found)
        notes += [_adoption(one.launch) for one in launches if one.launch.adopted]
        if measurement.workload.synthetic:
            notes.append(_SYNTHETIC)
        identity = _identity(measurement)
        environment = _environment(launches)
        categories = results.by_category(launches, measurement)
        comparison = compare.judge(
            values,
            lookup,
            violations=validity.violations(found),
            identity=identity,
            environment=environment,
            node=self._serving.node.slug,
            drafting=launches[-1].launch.drafting,
            budget=self._budget(measurement),
            categories=_category_values(categories),
            never_gated=_never_gated(measurement),
            notes=notes,
        )
        self._calls[measurement.key] = compare.calls(comparison)
        simulated = any(finding.rule == "simulated-acceptance" and finding.status == "broken" for finding in found)
        if self._settings.update is not None and recorded:
            comparison = self._considered(
                measurement, values, lookup, comparison, identity, environment, categories, simulated=simulated
            )
        return BenchmarkResult(
            measurement=measurement,
            node=self._serving.node.slug,
            launches=tuple(launches),
            metrics={name: results.summarise(name, rows) for name, rows in values.items() if any(rows)},
            by_category=categories,
            accept_histogram=metrics.accept_histogram(tuple(done for launch in launches for done in launch.rounds)),
            comparison=comparison,
            validity=found,
        )

    def _findings(
        self,
        measurement: Measurement,
        launches: Sequence[LaunchRounds],
        lookup: Lookup,
        waived: frozenset[str],
    ) -> tuple[Finding, ...]:
        """Return what each rule says of the measurement."""
        distinct = lookup.metrics.get("distinct_share")
        runs = [
            Run.of(
                measurement,
                launch,
                on_cuda=self._settings.device == "cuda",
                distinct_before=None if distinct is None else distinct.metric.mean,
            )
            for launch in launches
        ]
        return validity.findings(runs, waived=waived)

    def _considered(
        self,
        measurement: Measurement,
        values: Mapping[str, RoundsByLaunch],
        lookup: Lookup,
        comparison: Comparison,
        identity: Identity,
        environment: Mapping[str, object],
        categories: Mapping[str, CategoryResult],
        *,
        simulated: bool,
    ) -> Comparison:
        """Decide what an update makes of a judged measurement."""
        # What an earlier launch or a more lenient test would have written is not what this one writes.
        self._updates.pop(measurement.key, None)
        # Another identity is what re-recording is for; every other violation is of the run itself.
        if any(violation.rule != "identity" for violation in comparison.violations):
            return comparison
        if any(compare.breaks_floor(row) for row in comparison.metrics):
            return comparison
        if simulated:
            return _noted(comparison, "not recorded: simulated acceptance never becomes a baseline")
        if comparison.verdict is Verdict.INCONCLUSIVE:
            return _noted(
                comparison,
                "not recorded: an inconclusive run becomes no baseline; measure on more launches "
                "(--specdec-launches=N), or delete the old file first",
            )
        if self._settings.update == "new" and _of_node(lookup):
            return comparison
        provenance = Provenance(
            source="program",
            recorded_at=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
            git_commit=self._serving.git_commit,
            command=self._command,
        )
        files, changes = updated(
            lookup,
            values,
            identity=identity,
            environment=environment,
            provenance=provenance,
            node=self._serving.node.slug,
            categories=_category_launches(categories),
            never_gated=_never_gated(measurement),
        )
        loosened = [change for change in changes if change.loosened]
        if loosened and not self._settings.allow_loosening:
            refused = "; ".join(change.line() for change in loosened)
            return _noted(
                comparison,
                f"not recorded, it would loosen a limit: {refused}; give --specdec-allow-loosening to write it",
            )
        self._updates[measurement.key] = Update(key=measurement.key, files=files, changes=changes)
        changed = [f"its identity changed: {violation.reason}" for violation in comparison.violations]
        recorded = dataclasses.replace(
            comparison, verdict=Verdict.PASS, violations=(), notes=(*comparison.notes, *changed)
        )
        return _noted(recorded, f"recorded for {', '.join(str(path) for path in files)}")

    def updates(self) -> tuple[Update, ...]:
        """Return what this process would write, sorted by measurement."""
        return tuple(self._updates[key] for key in sorted(self._updates))

    def failure_text(self, result: BenchmarkResult, *, nodeid: str) -> str:
        """Return what a failed test shows."""
        key = result.measurement.key
        return verdict_text.failure_text(
            result.comparison,
            key=key,
            wanted_path=str(self.store.lookup(key).path),
            nearest_nodes=self.store.nearest_nodes(key),
            record_command=self._record_command(nodeid),
        )

    def _record_command(self, nodeid: str) -> str:
        words = ["pytest", "--update-baselines=new"]
        if self._settings.device == "cpu":
            words.append("--specdec-device=cpu")
        words += [f"--gpu-host={host}" if host else "--gpu-host" for host in self._settings.gpu_hosts or ()]
        if self._settings.node is not None:
            words.append(f"--specdec-node={self._settings.node}")
        return shlex.join([*words, nodeid])


def _of_node(lookup: Lookup) -> bool:
    """Whether there is a baseline of this very node: what holds on every node is no reason not to record one."""
    return any(path.parent.name != ANY for path in lookup.files)


def _adoption(launch: LaunchRecord) -> str:
    began = dt.datetime.fromtimestamp(launch.started_unix_s).astimezone().isoformat(sep=" ", timespec="seconds")
    return f"{launch.spec_name}: measured on a server that an earlier run launched at {began} and kept"


def _noted(comparison: Comparison, note: str) -> Comparison:
    return dataclasses.replace(comparison, notes=(*comparison.notes, note))


def _never_gated(measurement: Measurement) -> frozenset[str]:
    return _ACCEPTANCE if measurement.workload.synthetic else frozenset()


def _identity(measurement: Measurement) -> Identity:
    spec = measurement.spec
    # A tiny model is a file made by a script: its content key is its revision.
    return Identity(
        model=spec.model,
        model_revision=engine_env.tiny_models_key() if spec.model in spec.tiny_models else spec.first("--revision"),
        draft=spec.draft_model,
        draft_revision=spec.first("--speculative-draft-model-revision"),
        workload_hash=measurement.workload.content_hash,
        sampling=measurement.sampling.identity(),
        output_tokens=measurement.output_tokens,
        concurrency=measurement.concurrency,
        request_rate=measurement.request_rate,
        chat_template=measurement.chat_template,
        goodput=None if measurement.goodput is None else measurement.goodput.identity(),
    )


def _category_values(categories: Mapping[str, CategoryResult]) -> dict[str, dict[str, float]]:
    return {
        name: {metric: summary.value for metric, summary in category.metrics.items()}
        for name, category in categories.items()
    }


def _category_launches(categories: Mapping[str, CategoryResult]) -> dict[str, dict[str, tuple[float, ...]]]:
    """Return what a baseline keeps of each class of task: a value a launch. One class alone is the whole."""
    if len(categories) < 2:
        return {}
    return {
        name: {
            metric: tuple(stats.geometric_mean(launch) for launch in category.metrics[metric].launches if launch)
            for metric in BY_CATEGORY
            if metric in category.metrics
        }
        for name, category in categories.items()
    }


def _clocks(launches: Sequence[LaunchRounds]) -> dict[str, object]:
    """Return what the GPUs did while measured: the slowest's clock, and whether the power limit held any down."""
    spans = [done.gpu for launch in launches for done in launch.rounds if done.gpu is not None]
    seen = [gpu for span in spans for gpu in span.gpus if not span.own_uuids or gpu.uuid in span.own_uuids]
    clocks = [gpu.sm_mhz for gpu in seen if gpu.sm_mhz is not None]
    if not clocks:
        return {}
    return {
        "gpu_measured_sm_mhz": _CLOCK_STEP_MHZ * round(min(clocks) / _CLOCK_STEP_MHZ),
        "gpu_power_capped": any(gpu.power_capped_share > 0.5 for gpu in seen),
    }


def _environment(launches: Sequence[LaunchRounds]) -> dict[str, Any]:
    """Return the environment of the last launch, flat: facts, and effective arguments as ``args.<name>``."""
    launch, template = launches[-1].launch, launches[-1].template
    return {
        **({} if template is None else {"chat_template_hash": template.short_hash}),
        **_clocks(launches),
        "sglang_version": launch.sglang_version,
        "spec_hash": launch.spec_hash,
        "command": launch.command,
        **{key: value for key, value in launch.facts.items() if value is not None},
        # Of several hundred arguments most are off or empty; what is not there reads as that.
        **{
            f"args.{key}": value
            for key, value in launch.server_args.items()
            if not key.startswith("_") and value not in (False, "", [], "null")
        },
    }
