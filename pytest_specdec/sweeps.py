"""Sweeps: server specs over the values of one flag or the product of several, for ``pytest.mark.parametrize``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pytest_specdec.drafting import SHAPE, drafting_problems, drafts_a_tree
from pytest_specdec.errors import SpecError
from pytest_specdec.flags import canonical
from pytest_specdec.spec import ServerSpec

#: One value of a swept flag. True is the bare flag, False or None leaves it out.
Value = str | int | float | bool | None

_STEPS, _TOPK, _TOKENS = SHAPE
#: What stands in names for flags whose own names are long.
_SHORT: Final = {canonical(_STEPS): "steps", canonical(_TOPK): "topk", canonical(_TOKENS): "draft-tokens"}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def sweep(
    control: ServerSpec,
    over: str | Mapping[str, Sequence[Value]],
    values: Sequence[Value] | None = None,
    *,
    name: str | None = None,
) -> list[ServerSpec]:
    """Return the specs of a sweep, for ``parametrize("sglang_server", [...], indirect=True)``.

    ``sweep(CONTROL, "--cuda-graph-max-bs", [512, 256])`` sweeps one flag, ``sweep(CONTROL, {"--a": [1, 2], "--b":
    [3, 4]})`` the product of several, the last one fastest. A name without dashes is an environment variable.

    A point is called ``<control>_<flag>-<value>[_<flag>-<value>...]`` (``name`` in the control's place), except the
    one that has just the control's content: that is the control itself, so that it is launched once and has one
    baseline. What SGLang makes of drafting flags is known: with ``--speculative-eagle-topk 1`` the draft tokens are
    steps + 1, so they are filled in, and points of a product that differ in them alone are one.

    Args:
        control: the spec that every point is a variant of.
        over: the flag, or flags (and variables) with their values.
        values: the values of the one flag. True is the bare flag; False and None leave a flag out.
        name: what the names of points begin with, instead of the control's name.

    Raises:
        SpecError: there is nothing to sweep, a point contradicts itself, or two points would have one name.

    """
    axes = _axes(over, values)
    points: dict[str, ServerSpec] = {}
    content: dict[str, str] = {}
    for combination in itertools.product(*axes.values()):
        point = _point(control, dict(zip(axes, combination, strict=True)), axes, name or control.name)
        if point.content_hash in content:
            continue
        if point.name in points:
            raise SpecError(
                f"two points of the sweep of {control.name} are called {point.name}: their values differ in what a "
                "name can't hold; sweep them apart, with a name= of their own"
            )
        points[point.name] = point
        content[point.content_hash] = point.name
    return list(points.values())


def _axes(over: str | Mapping[str, Sequence[Value]], values: Sequence[Value] | None) -> dict[str, Sequence[Value]]:
    if isinstance(over, str):
        if values is None:
            raise SpecError(f"sweep of {over}: no values; write sweep(control, {over!r}, [1, 2, 4])")
        axes: dict[str, Sequence[Value]] = {over: values}
    elif values is not None:
        raise SpecError("sweep: values belong to one flag; with several, give {flag: values, ...} alone")
    else:
        axes = dict(over)
    if not axes:
        raise SpecError("sweep: no flag to sweep; write sweep(control, '--cuda-graph-max-bs', [512, 256])")
    given: Mapping[str, object] = axes
    for flag, swept in given.items():
        if isinstance(swept, str) or not isinstance(swept, Sequence) or not swept:
            raise SpecError(f"sweep of {flag}: expected a list of values, got {swept!r}")
        if not flag.startswith("--") and not _VARIABLE.fullmatch(flag):
            raise SpecError(f"sweep of {flag!r}: a flag begins with two dashes, and a variable is a name")
    return axes


def _point(
    control: ServerSpec, chosen: Mapping[str, Value], axes: Mapping[str, Sequence[Value]], base: str
) -> ServerSpec:
    chosen = _with_draft_tokens(control, chosen, axes)
    name = "_".join([base, *(f"{_short(flag)}-{_slug(value)}" for flag, value in chosen.items())])
    flags = {flag: value for flag, value in chosen.items() if flag.startswith("--")}
    variables = {flag: value for flag, value in chosen.items() if flag not in flags}
    absent = [flag for flag, value in flags.items() if _leaves_out(value)]
    point = control.but(
        name,
        [word for flag, value in flags.items() if flag not in absent for word in _words(flag, value)],
        drop=[flag for flag in absent if control.has(flag)],
        env={
            key: None if _leaves_out(value) else str(value)
            for key, value in variables.items()
            if not _leaves_out(value) or key in control.env
        },
    )
    if _sweeps_drafting(axes):
        problems = [*drafting_problems(point, None), *_too_many_tokens(point)]
        if problems:
            raise SpecError(f"sweep of {control.name}: {name} can't be served: " + "; ".join(problems))
    return control if point.content_hash == control.content_hash else point


def _sweeps_drafting(axes: Iterable[str]) -> bool:
    return any(canonical(flag) in _SHORT for flag in axes)


def _with_draft_tokens(
    control: ServerSpec, chosen: Mapping[str, Value], axes: Mapping[str, Sequence[Value]]
) -> dict[str, Value]:
    """Give a chain (top-k 1) its steps + 1 draft tokens; refuse others that were asked for."""
    given = dict(chosen)
    if not _sweeps_drafting(axes) or not drafts_a_tree(control) or control.has("--speculative-adaptive"):
        return given
    spelled = {canonical(flag): flag for flag in given}

    def value_of(flag: str) -> str | None:
        own = spelled.get(canonical(flag))
        return control.first(flag) if own is None else str(given[own])

    steps, topk = value_of(_STEPS), value_of(_TOPK)
    if topk != "1" or steps is None or not steps.isdecimal():
        return given
    tokens, own = int(steps) + 1, spelled.get(canonical(_TOKENS))
    if own is not None and str(given[own]) != str(tokens) and canonical(_TOPK) not in spelled:
        raise SpecError(
            f"sweep of {control.name}: with {_TOPK} 1, SGLang makes {_TOKENS} one more than {_STEPS}, so {steps} steps "
            f"have {tokens} draft tokens and never {given[own]}; sweep {_STEPS}, or {_TOPK} too"
        )
    given[own or _TOKENS] = tokens
    return given


def _too_many_tokens(point: ServerSpec) -> list[str]:
    """Say when a tree has no room for its draft tokens: top-k in the first step, top-k times top-k in each other.

    SGLang picks the best draft tokens - 1 of them, and fails in the first step when there are fewer.
    """
    numbers = [point.first(flag) or "" for flag in SHAPE]
    if not drafts_a_tree(point) or not all(number.isdecimal() for number in numbers):
        return []
    steps, topk, tokens = map(int, numbers)
    most = 1 + topk + (steps - 1) * topk**2
    if tokens <= most:
        return []
    return [f"{steps} steps with {_TOPK} {topk} draft at most {most} tokens, the verified one included, not {tokens}"]


def _leaves_out(value: Value) -> bool:
    return value is None or value is False


def _words(flag: str, value: Value) -> list[str]:
    # Tied with "=", so that no value is taken for a flag.
    return [flag] if value is True else [f"{flag}={value}"]


def _short(flag: str) -> str:
    own = canonical(flag)
    return _SHORT.get(own) or _slug(flag.lstrip("-").replace("_", "-"))


def _slug(value: Value) -> str:
    """Return a value as names have it: lower case, single dashes."""
    words = {True: "on", False: "off", None: "off"}
    text = words[value] if value is None or isinstance(value, bool) else str(value).lower()
    text = re.sub(r"^-(?=[\d.])", "minus-", text)
    text = re.sub(r"[^a-z0-9.]+", "-", text)
    return re.sub(r"[.-]{2,}", "-", text).strip(".-") or "none"
