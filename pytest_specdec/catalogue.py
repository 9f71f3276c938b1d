"""The catalogue of diagnoses: ``catalogue.toml`` read into rules, and what makes a rule fit."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

#: In the order in which they hold: of a log's events those of the first of these that is there decide.
RANKS: Final = ("cause", "logged", "death", "consequence", "symptom", "hint", "warning")
CATEGORIES: Final = (
    "ok", "degraded", "bad_flag", "spec_flag_conflict", "model_not_found", "tokenizer", "install_broken",
    "port_in_use", "gpu_busy", "oom_weight_load", "oom_kv_pool", "oom_runtime", "cuda_graph_capture",
    "custom_all_reduce", "nccl", "moe_a2a", "unsupported_arch", "draft_load", "draft_mismatch",
    "draft_mismatch_silent", "illegal_memory_access", "runtime_error", "scheduler_died", "watchdog_timeout",
    "health_check", "warmup_failed", "hang", "unknown",
)  # fmt: skip
PHASES: Final = (
    "imports", "arguments", "distributed", "weights", "draft_weights", "kv_cache", "graphs", "http", "serving",
)  # fmt: skip
_PATH: Final = Path(__file__).with_name("catalogue.toml")


class _Groups(dict[str, str]):
    """What a pattern's groups held; a name it did not find stands for itself."""

    def __missing__(self, key: str) -> str:
        return f"({key})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry of the catalogue; the head of ``catalogue.toml`` says what each key means."""

    name: str
    category: str
    on: str
    cause: str
    remedy: str
    rank: str = "cause"
    pattern: re.Pattern[str] | None = None
    frames: re.Pattern[str] | None = None
    log: re.Pattern[str] | None = None
    phases: tuple[str, ...] = ()
    phase: str | None = None
    draft: bool = False
    versions: str | None = None
    provisional: bool = False

    def groups(self, text: str) -> Mapping[str, str] | None:
        """Return what the pattern's named groups found in a text, or None where it does not match."""
        if self.pattern is None:
            return {}
        match = self.pattern.search(text)
        return None if match is None else {name: held for name, held in match.groupdict().items() if held is not None}

    def fits_exception(self, text: str, *, frames: str, phase: str, draft: bool, log: str) -> bool:
        """Tell whether this entry is about an exception of that text, raised there and then."""
        if self.on != "exception" or (self.draft and not draft) or (self.phases and phase not in self.phases):
            return False
        return (
            self.groups(text) is not None
            and (self.frames is None or self.frames.search(frames) is not None)
            and (self.log is None or self.log.search(log) is not None)
        )


def filled(template: str, groups: Mapping[str, str]) -> str:
    """Put what groups held into a sentence of the catalogue."""
    return template.format_map(_Groups(groups))


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Return the entries in their order. Read once, when the first log is diagnosed."""
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415  # not there before 3.11
    else:
        import tomli as tomllib  # noqa: PLC0415  # pytest brings it where the standard library does not
    document = tomllib.loads(_PATH.read_text(encoding="utf-8"))
    return tuple(_rule(entry) for entry in document["diagnosis"])


def _rule(entry: dict[str, Any]) -> Rule:
    keys = {**entry, "phases": tuple(entry.get("phases", ()))}
    for key in ("pattern", "frames", "log"):
        if key in entry:
            keys[key] = re.compile(entry[key])
    return Rule(**keys)


def rule(name: str) -> Rule:
    """Return the first entry of a name; raises KeyError for one that is not there."""
    found = next((entry for entry in rules() if entry.name == name), None)
    if found is None:
        raise KeyError(name)
    return found


@functools.cache
def line_rules() -> tuple[tuple[Rule, re.Pattern[str]], ...]:
    """Return the entries that look at single lines, each with its pattern."""
    return tuple((entry, entry.pattern) for entry in rules() if entry.on == "line" and entry.pattern is not None)
