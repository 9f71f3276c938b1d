"""The ``all_reduce`` fixture's callable: times all-reduces on the session's host and judges them by their baseline."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_specdec import comm_baseline, comm_bench, fingerprint
from pytest_specdec.baseline_store import ANY, BaselineStore
from pytest_specdec.comm_baseline import CommBaseline
from pytest_specdec.comm_bench import AllReduce, Backend, Timed
from pytest_specdec.communication import Ceiling, Traffic, ceiling
from pytest_specdec.decide import Decision
from pytest_specdec.environment import environment_changes
from pytest_specdec.model import EnvironmentChange, RoundsByLaunch, Verdict
from pytest_specdec.noise import log_mean
from pytest_specdec.report import number, percent, share
from pytest_specdec.serving import Serving
from pytest_specdec.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceResult:
    """All-reduces that were timed, and judged. ``launches``: microseconds a call, by start of the ranks.

    ``verdict`` is None where nothing was judged: there is no baseline, or it is advisory and looks worse.
    ``baseline_us`` is the mean of the baseline, ``path`` its file (where there is none: where it would lie).
    """

    wanted: AllReduce
    node: str
    launches: RoundsByLaunch
    facts: Mapping[str, object]
    gated: bool
    verdict: Verdict | None
    reason: str
    baseline_us: float | None
    path: Path
    environment_changes: tuple[EnvironmentChange, ...] = ()
    verify_rate: float | None = None

    @property
    def all_reduce_us(self) -> float:
        """Microseconds a call: the geometric mean over starts of each start's geometric mean."""
        return math.exp(log_mean(self.launches))

    @property
    def ceiling(self) -> Ceiling:
        """What communication alone allows."""
        return ceiling(self.wanted.traffic.calls, self.all_reduce_us)

    def lines(self) -> list[str]:
        """Say what was timed, what follows from it, and how it stands to its baseline."""
        bound = self.ceiling
        change = "" if self.baseline_us is None else f" ({percent(self.all_reduce_us / self.baseline_us - 1)})"
        said = (
            f"{self.wanted.key}: {number(self.all_reduce_us)} us a call{change}, {number(bound.communication_ms)} ms "
            f"a step: at most {number(bound.verify_rate)} steps/s"
        )
        if self.verify_rate is not None:
            said += f"; {share(bound.share(self.verify_rate))} of a step at {number(self.verify_rate)} steps/s"
        judged = f"  {'' if self.gated else 'advisory, '}{self.verdict or 'not judged'}: {self.reason}"
        return [said, judged, *(f"  environment {line}" for line in self.environment_changes)]


class AllReduceBenchmark:
    """What the ``all_reduce`` fixture gives.

    ``free`` ends the session's server, which would share the link; ``skip`` skips the test with a reason; ``fail``
    fails it with a message and a status; ``note`` takes what the report is told.
    """

    def __init__(
        self,
        serving: Serving,
        settings: Settings,
        *,
        command: str,
        free: Callable[[], None],
        skip: Callable[[str], Any],
        fail: Callable[[str, str], Any],
        note: Callable[[tuple[str, object]], None],
    ) -> None:
        self._serving = serving
        self._settings = settings
        self._command = command
        self._free = free
        self._skip = skip
        self._fail = fail
        self._note = note

    def __call__(
        self,
        traffic: Traffic,
        *,
        world_size: int,
        backend: Backend | None = None,
        algorithm: str | None = None,
        graph: bool = True,
        rounds: int = 10,
        warmup: int = 3,
        timeout_s: float = 120.0,
        verify_rate: float | None = None,
        check: bool = True,
    ) -> AllReduceResult:
        """Time the all-reduces of a step, and fail the test when they are slower than their baseline allows.

        Args:
            traffic: calls and bytes of a step, see ``step_traffic``.
            world_size: how many ranks, one a GPU.
            backend: ``nccl`` or ``gloo``; None: nccl on a GPU host, gloo elsewhere. What this run can't time is
                skipped.
            algorithm: ``NCCL_ALGO``, such as ``Tree``.
            graph: all calls of a step as one CUDA graph, as SGLang runs it.
            rounds: steps that are timed in one start of the ranks.
            warmup: steps before them.
            timeout_s: for one start of the ranks.
            verify_rate: steps/s of a server, to tell the share of its step.
            check: fail on a bad verdict.

        """
        __tracebackhide__ = True
        on_gpus = self._settings.device == "cuda"
        wanted = AllReduce(
            backend=backend or ("nccl" if on_gpus else "gloo"),
            world_size=world_size,
            traffic=traffic,
            algorithm=algorithm,
            graph=graph,
        )
        reason = self._out_of_reach(wanted)
        if reason is not None:
            self._skip(reason)
        self._free()
        result = self._measured(wanted, rounds=rounds, warmup=warmup, timeout_s=timeout_s, verify_rate=verify_rate)
        for line in result.lines():
            self._serving.say(line)
        self._note(("specdec_measurement", wanted.key))
        self._note(("specdec_verdict", str(result.verdict or "not-judged")))
        self._note(("specdec_all_reduce_us", result.all_reduce_us))
        self._note(("specdec_highest_verify_rate", result.ceiling.verify_rate))
        if check and self._fails(result):
            self._fail("\n".join(result.lines()), str(result.verdict))
        return result

    def _out_of_reach(self, wanted: AllReduce) -> str | None:
        """Why this run can't time it; None when it can."""
        if self._settings.url is not None:
            return "all-reduces are timed on a host; of a server at --specdec-url no more is known than its HTTP side"
        if wanted.backend == "nccl" and self._settings.device != "cuda":
            return "times NCCL, which needs GPUs: give --gpu-host for this machine, or --gpu-host=[user@]host"
        if wanted.backend == "gloo" and self._settings.device == "cuda":
            return "gloo stands in for NCCL where there are no GPUs; this run has some"
        there = self._serving.node.facts.get("gpu_count") if wanted.backend == "nccl" else None
        if isinstance(there, int) and there < wanted.world_size:
            return f"needs {wanted.world_size} GPUs, one a rank; {self._serving.host.name} has {there}"
        return None

    def _measured(
        self, wanted: AllReduce, *, rounds: int, warmup: int, timeout_s: float, verify_rate: float | None
    ) -> AllReduceResult:
        identity = _identity(wanted)
        with self._serving.held(wanted.key) as host:
            node = self._serving.node.slug
            paths = [
                comm_baseline.path_of(folder.parent, folder.name, wanted.key)
                for folder in BaselineStore(self._settings.baselines_dir, node).directories()
                if folder.name != ANY
            ]
            path = next((path for path in paths if path.exists()), None)
            recorded = None if path is None else comm_baseline.read(path, identity)
            update = self._settings.update
            records = update == "all" or (update == "new" and path is None)
            python = self._serving.engine_python().path
            starts: list[Timed] = []
            decision: Decision | None = None
            least = self._settings.launches_for(recording=records)
            most = least if recorded is None else self._settings.most_launches(recording=records)
            while len(starts) < most:
                starts.append(
                    comm_bench.measure(host, python, wanted, rounds=rounds, warmup=warmup, timeout_s=timeout_s)
                )
                if recorded is not None and len(starts) >= least:
                    decision = comm_baseline.judge(recorded, [one.rounds_us for one in starts], most=most)
                    if decision.verdict is not None:
                        break
            variables = {**host.environ(), **({} if wanted.algorithm is None else {"NCCL_ALGO": wanted.algorithm})}
        facts = {
            **{key: value for key, value in self._serving.node.facts.items() if value is not None},
            **fingerprint.environment_variables(variables),
            **starts[-1].facts,
        }
        launches = tuple(one.rounds_us for one in starts)
        verdict, reason = _verdict(decision, gated=self._gated(recorded, node), path=paths[0])
        if records:
            verdict, reason = self._record(paths[0], wanted, launches, facts, recorded, node, verdict, reason)
        return AllReduceResult(
            wanted=wanted,
            node=node,
            launches=launches,
            facts=facts,
            gated=self._gated(recorded, node),
            verdict=verdict,
            reason=reason,
            baseline_us=None if recorded is None else recorded.mean_us,
            path=path or paths[0],
            environment_changes=() if recorded is None else environment_changes([recorded.environment], facts),
            verify_rate=verify_rate,
        )

    @staticmethod
    def _gated(recorded: CommBaseline | None, node: str) -> bool:
        # A time on a shared CPU says little, as with the other metrics.
        return not node.startswith("cpu-") if recorded is None else recorded.gate

    def _record(
        self,
        path: Path,
        wanted: AllReduce,
        launches: RoundsByLaunch,
        facts: Mapping[str, object],
        old: CommBaseline | None,
        node: str,
        verdict: Verdict | None,
        reason: str,
    ) -> tuple[Verdict | None, str]:
        """Write the baseline, and a copy into the report; limits that a person set are kept."""
        new = CommBaseline(
            identity=_identity(wanted),
            environment=facts,
            recorded_at=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
            git_commit=self._serving.git_commit,
            command=self._command,
            gate=self._gated(old, node),
            tolerance=comm_baseline.TOLERANCE if old is None else old.tolerance,
            launches=launches,
            ceiling_us=None if old is None else old.ceiling_us,
        )
        if old is not None and old.ceiling_us is not None and new.mean_us > old.ceiling_us:
            return verdict, f"not recorded: {reason}"
        looser = old is not None and old.gate and new.mean_us > old.mean_us * (1 + old.tolerance)
        if looser and not self._settings.allow_loosening:
            return verdict, f"not recorded, it would loosen a limit: {reason}; --specdec-allow-loosening writes it"
        comm_baseline.write(path, new)
        handed_over = self._settings.report_dir / "baselines" / path.relative_to(self._settings.baselines_dir)
        comm_baseline.write(handed_over, new)
        return Verdict.PASS, f"recorded in {path}"

    def _fails(self, result: AllReduceResult) -> bool:
        if result.verdict is Verdict.REGRESSION:
            return True
        if not result.gated:
            return False
        # One that was never recorded fails nothing: it is beside the gate of a server, and must not close that.
        return result.verdict is Verdict.INCONCLUSIVE and self._settings.inconclusive != "warn"


def _identity(wanted: AllReduce) -> dict[str, str | int | bool | None]:
    return {
        "backend": wanted.backend,
        "algorithm": wanted.algorithm,
        "world_size": wanted.world_size,
        "calls": wanted.traffic.calls,
        "message_bytes": wanted.traffic.message_bytes,
        "dtype": "bfloat16",
        "graph": wanted.graph and wanted.backend == "nccl",
        "method_version": comm_baseline.METHOD_VERSION,
    }


def _verdict(decision: Decision | None, *, gated: bool, path: Path) -> tuple[Verdict | None, str]:
    """Return the verdict: an advisory figure is a regression only where it breaks a ceiling that a person set."""
    if decision is None:
        return None, f"no baseline; --update-baselines=new writes {path}"
    broken = decision.floor is not None and decision.floor.broken
    if gated or broken or decision.verdict is not Verdict.REGRESSION:
        return decision.verdict, decision.reason
    return None, decision.reason
