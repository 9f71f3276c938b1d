"""From what a test says (marker, parameters, fixtures) to what it asks for, free of pytest objects."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pytest_specdec import expected, validity
from pytest_specdec import settings as s
from pytest_specdec.errors import UserInputError
from pytest_specdec.model import GOODPUT_LIMITS, GoodputLimits, Measurement, Sampling, Workload
from pytest_specdec.plan import PlannedTest
from pytest_specdec.spec import ServerSpec
from pytest_specdec.workload_formats import ENDINGS
from pytest_specdec.workloads import load_workload

#: What the marker takes; some are read from parameters of the same name as well.
MARKER_FIELDS: Final = (
    "workload",
    "concurrency",
    "output_tokens",
    "request_rate",
    "sampling",
    "chat_template",
    "rounds",
    "warmup",
    "waive",
    "goodput",
    "control",
    "sweep",
)
_PARAMETERS: Final = ("workload", "concurrency", "output_tokens", "request_rate", "control")

_EXAMPLE: Final = (
    '@pytest.mark.specdec(workload="chat")\n@pytest.mark.parametrize("sglang_server", [SPEC], indirect=True)'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What one test says. ``markers`` are the keyword arguments of its specdec markers, closest first.

    ``dead_end`` are the arguments of its dead_end marker.
    """

    nodeid: str
    path: Path
    markers: tuple[Mapping[str, Any], ...]
    params: Mapping[str, Any]
    fixtures: frozenset[str]
    dead_end: tuple[Sequence[Any], Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A test that this run does not take, and why."""

    reason: str


def resolve(declaration: Declaration, settings: s.Settings) -> PlannedTest | Skip | None:
    """Turn a declaration into a planned test, or say why it is skipped; None for a test that needs no server.

    Raises :class:`UserInputError` naming the test, the marker field or parameter, and what would do.
    """
    said = _Said(declaration)
    dead_end = expected.from_marker(declaration.nodeid, *declaration.dead_end) if declaration.dead_end else None
    spec = declaration.params.get("sglang_server")
    if spec is None:
        if dead_end is not None or declaration.fixtures & {"sglang_server", "specdec_benchmark"}:
            raise UserInputError(f"{declaration.nodeid}: no server spec; parametrize the fixture with one:\n{_EXAMPLE}")
        if "gpu_host" in declaration.fixtures and settings.gpu_hosts is None:
            return Skip(reason=_needs_gpu_host(settings))
        return None
    if not isinstance(spec, ServerSpec):
        raise UserInputError(
            f"{declaration.nodeid}: sglang_server takes a ServerSpec, got {type(spec).__name__} {spec!r}"
            + ("" if "sglang_server" in declaration.params else "; is indirect=True missing?")
        )
    control = said.control(spec)
    measurement_fields = said.measurement_fields(settings) if "specdec_benchmark" in declaration.fixtures else None
    if dead_end is not None and dead_end.slower_than is not None and measurement_fields is None:
        raise UserInputError(
            f"{declaration.nodeid}: dead_end(slower_than=...) needs a measurement: name specdec_benchmark in the "
            "test's signature, and the workload in the specdec marker"
        )
    rounds, warmup = said.whole("rounds", 1, settings.rounds), said.whole("warmup", 0, settings.warmup)
    waived = said.waived()
    if "gpu_host" in declaration.fixtures and settings.gpu_hosts is None:
        return Skip(reason=_needs_gpu_host(settings))
    placed = _place(spec, settings)
    if isinstance(placed, Skip):
        return placed
    if dead_end is not None and placed is not spec:
        return Skip(reason=f"{placed.name} is no dead end, only what it stands for; {_NEEDS_GPU_HOST}")
    beside = None if control is None or measurement_fields is None else _place_control(control, placed, settings)
    if isinstance(beside, Skip):
        return beside
    measurement = None if measurement_fields is None else Measurement(spec=placed, **measurement_fields)
    return PlannedTest(
        nodeid=declaration.nodeid,
        spec=placed,
        measurement=measurement,
        rounds=rounds,
        warmup=warmup,
        waived=waived,
        control=beside,
        sweep=declaration.nodeid.partition("[")[0] if said.flag("sweep") else None,
        dead_end=dead_end,
    )


def _place_control(control: ServerSpec, treatment: ServerSpec, settings: s.Settings) -> ServerSpec | Skip:
    if settings.url is not None:
        return Skip(reason="control= launches two servers in turn, and --specdec-url is one that runs")
    placed = _place(control, settings)
    if isinstance(placed, ServerSpec) and placed.content_hash == treatment.content_hash:
        return Skip(reason=f"{placed.name} and {treatment.name} are one server: there is nothing to compare")
    return placed


_NEEDS_GPU_HOST: Final = "needs a GPU host: give --gpu-host for this machine, or --gpu-host=[user@]host for another one"


def keys(declaration: Declaration, settings: s.Settings) -> frozenset[str]:
    """Return the baseline keys that a test looks at, in whatever form its spec is measured; raises as `resolve`."""
    spec = declaration.params.get("sglang_server")
    if not isinstance(spec, ServerSpec) or "specdec_benchmark" not in declaration.fixtures:
        return frozenset()
    said = _Said(declaration)
    fields = said.measurement_fields(settings)
    control = said.control(spec)
    forms = (spec, spec.standin(), control, None if control is None else control.standin())
    return frozenset(Measurement(spec=form, **fields).key for form in forms if form is not None)


def _needs_gpu_host(settings: s.Settings) -> str:
    beside = "" if settings.url is None else ": of a server at --specdec-url no more is known than its HTTP side"
    return _NEEDS_GPU_HOST + beside


def _place(spec: ServerSpec, settings: s.Settings) -> ServerSpec | Skip:
    """Choose the form of the spec that the run's device can serve."""
    if settings.url is not None:
        # What runs there has chosen already: the server is asked when the first test wants it.
        return spec.standin() or spec if settings.device == "cpu" else spec
    if settings.device == "cuda":
        if spec.runs_on_cpu:
            return Skip(reason=f"{spec.name} is made for the CPU engine: give --specdec-device=cpu")
        if settings.gpu_hosts is None:
            return Skip(reason=_NEEDS_GPU_HOST)
        return spec
    if spec.runs_on_cpu:
        return spec
    standin = spec.standin()
    if standin is not None:
        return standin
    if settings.gpu_hosts is None:
        return Skip(reason=_NEEDS_GPU_HOST)
    return Skip(reason=f"{spec.name} needs CUDA and names no cpu_standin=, and --specdec-device is cpu")


class _Said:
    """The fields of a declaration, each with where it was said."""

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self._fields: dict[str, tuple[Any, str]] = {}
        for marker in reversed(declaration.markers):
            for name, value in marker.items():
                if name not in MARKER_FIELDS:
                    raise UserInputError(self._unknown(name))
                self._fields[name] = (value, f"marker specdec({name}=...)")
        for name in _PARAMETERS:
            if name in declaration.params:
                self._fields[name] = (declaration.params[name], f"parameter {name!r}")

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, MARKER_FIELDS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        fields = ", ".join(MARKER_FIELDS)
        return f"{self._declaration.nodeid}: the specdec marker has no field {name!r}: {hint}it takes {fields}"

    def measurement_fields(self, settings: s.Settings) -> dict[str, Any]:
        """The fields of the measurement, apart from its spec."""
        workload, request_rate = self._workload(), self._request_rate()
        # An open loop without a cap has one that is never reached.
        concurrency = 1 if request_rate is None else len(workload.prompts)
        return {
            "workload": workload,
            "chat_template": self._chat_template(workload, settings),
            "concurrency": self.whole("concurrency", 1, concurrency),
            "request_rate": request_rate,
            "output_tokens": self.whole("output_tokens", 2, 512),
            "sampling": self._sampling(),
            "goodput": self._goodput(),
        }

    def whole(self, name: str, least: int, default: int) -> int:
        """A whole number of at least ``least``."""
        if name not in self._fields:
            return default
        value, where = self._fields[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._refuse(where, f"a whole number of at least {least}", value)
        return value

    def control(self, spec: ServerSpec) -> ServerSpec | None:
        """The spec that this one is measured beside."""
        value, where = self._fields.get("control", (None, ""))
        if value is None:
            return None
        if not isinstance(value, ServerSpec):
            raise self._refuse(where, "a ServerSpec (None: no control)", value)
        if value.content_hash == spec.content_hash:
            raise self._refuse(where, f"another spec than {spec.name} itself, which it is measured beside", value)
        return value

    def flag(self, name: str) -> bool:
        """True or False, False when it isn't said."""
        value, where = self._fields.get(name, (False, ""))
        if not isinstance(value, bool):
            raise self._refuse(where, "True or False", value)
        return value

    def _chat_template(self, workload: Workload, settings: s.Settings) -> bool:
        """Whether the prompts are put into the model's chat template. The setting is for what can be put into one."""
        if "chat_template" in self._fields:
            value, where = self._fields["chat_template"]
            if not isinstance(value, bool):
                raise self._refuse(where, "True or False", value)
        else:
            value, where = settings.chat_template and not workload.synthetic, settings.where.get("chat_template", "")
        if value and workload.synthetic:
            raise self._refuse(where, f"False for workload {workload.name!r}, which has token ids for text", value)
        if value and settings.url is not None:
            raise self._refuse(
                where,
                "False with --specdec-url: a template is rendered by the Python that runs SGLang, which can't be "
                "reached over HTTP",
                value,
            )
        return bool(value)

    def waived(self) -> frozenset[str]:
        """The names of the validity rules that the test waives."""
        if "waive" not in self._fields:
            return frozenset()
        value, where = self._fields["waive"]
        names = [value] if isinstance(value, str) else list(value)
        for name in names:
            if name not in validity.RULES:
                raise self._refuse(where, "names of validity rules (" + ", ".join(validity.RULES) + ")", name)
        return frozenset(names)

    def _request_rate(self) -> float | None:
        value, where = self._fields.get("request_rate", (None, ""))
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise self._refuse(where, "requests per second, a number above 0 (None: a closed loop)", value)
        return float(value)

    def _workload(self) -> Workload:
        if "workload" not in self._fields:
            raise UserInputError(
                f"{self._declaration.nodeid}: no workload is declared; say which prompts are sent: "
                '@pytest.mark.specdec(workload="chat")'
            )
        value, where = self._fields["workload"]
        if isinstance(value, Workload):
            return value
        if not isinstance(value, (str, Path)):
            raise self._refuse(where, "the name of a workload or the path of a .jsonl or .json file", value)
        name = str(value)
        if name.endswith(ENDINGS):
            name = str(self._declaration.path.parent / name)
        try:
            return _load_workload_once(name)
        except UserInputError as error:
            raise UserInputError(f"{self._declaration.nodeid}: {where}: {error}") from None

    def _sampling(self) -> Sampling:
        if "sampling" not in self._fields:
            return Sampling()
        value, where = self._fields["sampling"]
        if isinstance(value, Sampling):
            return value
        known = {field.name for field in dataclasses.fields(Sampling)}
        if not isinstance(value, Mapping) or not set(value) <= known:
            raise self._refuse(where, "Sampling(...) or a dict of " + ", ".join(sorted(known)), value)
        return Sampling(**value)

    def _goodput(self) -> GoodputLimits | None:
        if "goodput" not in self._fields:
            return None
        value, where = self._fields["goodput"]
        wanted = 'limits in milliseconds, for example {"ttft_ms": 500, "tpot_ms": 25} (of ' + ", ".join(GOODPUT_LIMITS)
        limits = value.identity() if isinstance(value, GoodputLimits) else value
        if not isinstance(limits, Mapping) or not limits or not set(limits) <= set(GOODPUT_LIMITS):
            raise self._refuse(where, f"{wanted})", value)
        if any(isinstance(ms, bool) or not isinstance(ms, (int, float)) or not ms > 0 for ms in limits.values()):
            raise self._refuse(where, f"{wanted}), each above 0", value)
        return GoodputLimits(**{name: float(ms) for name, ms in limits.items()})

    def _refuse(self, where: str, wanted: str, given: object) -> UserInputError:
        return UserInputError(f"{self._declaration.nodeid}: {where}: expected {wanted}, got {given!r}")


_load_workload_once: Callable[[str], Workload] = lru_cache(maxsize=64)(load_workload)
