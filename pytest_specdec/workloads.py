"""Workloads: fixed sets of prompts by name or from a user's file, with a hash of their content."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pytest_specdec import long_context, synthetic, workload_formats
from pytest_specdec.errors import WorkloadError
from pytest_specdec.model import Prompt, Workload

_SETS: Final = Path(__file__).parent / "workload_sets"
_NAME: Final = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
_LONG_CONTEXT: Final = re.compile(r"long-context(?:-([1-9]\d{0,2})k)?")
_SYNTHETIC: Final = re.compile(r"synthetic-([1-9]\d{0,5})")
_DEFAULT_LONG_CONTEXT_K: Final = 4
MIXED: Final = "mixed"
#: How many prompts of each set are in ``mixed``: 80 in all, half of them what most servers see most.
MIXED_SHARES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "chat": 20,
        "code": 20,
        "mathematics": 8,
        "summarising": 8,
        "extraction": 8,
        "translation": 6,
        "repetition": 6,
        "long-context": 4,
    }
)


def built_in() -> tuple[str, ...]:
    """The names that need no file, in order; of the sets whose size is part of the name, the pattern."""
    files = {path.stem for path in _SETS.glob("*.jsonl")}
    return tuple(sorted({*files, "long-context", "long-context-<N>k", MIXED, "synthetic-<tokens>"}))


def load_workload(name_or_path: str, *, first: int | None = None) -> Workload:
    """Load a built-in set by name, or a user's file by a path that ends in ``.jsonl`` or ``.json``.

    A file's format is told by its keys, see :mod:`pytest_specdec.workload_formats`; the workload is named after the
    file. ``first`` takes only so many prompts from the beginning, and adds the number to the name (``mine-80``).

    Raises:
        WorkloadError: the name is unknown, or a line can't be read; with file, line number and key.
    """
    if first is not None and first < 1:
        raise WorkloadError(f"{name_or_path}: first: expected a whole number of at least 1, got {first!r}")
    if name_or_path.endswith(workload_formats.ENDINGS):
        path = Path(name_or_path)
        _check_name(path)
        name, prompts = path.stem, workload_formats.read_prompts(path, first=first)
    else:
        name, prompts = _by_name(name_or_path)
    if first is not None:
        name, prompts = f"{name}-{first}", prompts[:first]
    return _workload(name, prompts)


def synthetic_workload(
    prompt_tokens: int,
    *,
    prompts: int = 16,
    seed: int = 0,
    first_id: int = synthetic.FIRST_ID,
    end_id: int = synthetic.END_ID,
) -> Workload:
    """Return a workload of token ids that mean nothing, ``prompt_tokens`` a prompt; see ``synthetic-<tokens>``.

    Ids are at least ``first_id`` and less than ``end_id``, which must not be above the size of the model's vocabulary.

    Raises:
        WorkloadError: a number can't be meant.
    """
    made = synthetic.prompts(prompt_tokens, count=prompts, seed=seed, first_id=first_id, end_id=end_id)
    return _workload(f"synthetic-{prompt_tokens}", made)


def content_hash(prompts: Iterable[Prompt]) -> str:
    """Return 64 hex digits over ids, categories, texts, further turns and token ids, in order."""
    content: list[list[object]] = []
    for prompt in prompts:
        row: list[object] = [prompt.id, prompt.category, prompt.text]
        if prompt.turns or prompt.input_ids is not None:
            row.append(list(prompt.turns))
        if prompt.input_ids is not None:
            row.append(list(prompt.input_ids))
        content.append(row)
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()


def _workload(name: str, prompts: tuple[Prompt, ...]) -> Workload:
    return Workload(name=name, prompts=prompts, content_hash=content_hash(prompts))


def _by_name(name: str) -> tuple[str, tuple[Prompt, ...]]:
    """Return a built-in set: the name it is known by, and its prompts."""
    if name == MIXED:
        return name, _mixed()
    if long := _LONG_CONTEXT.fullmatch(name):
        thousands = int(long[1] or _DEFAULT_LONG_CONTEXT_K)
        return f"long-context-{thousands}k", long_context.prompts(1000 * thousands)
    if ids := _SYNTHETIC.fullmatch(name):
        return name, synthetic_workload(int(ids[1])).prompts
    path = _SETS / f"{name}.jsonl"
    if name not in built_in() or not path.exists():
        near = difflib.get_close_matches(name, built_in(), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise WorkloadError(
            f"there is no workload {name!r}.{hint} Built in are {', '.join(built_in())}; "
            "a path that ends in .jsonl or .json is read as a file"
        )
    return name, workload_formats.read_prompts(path)


def _mixed() -> tuple[Prompt, ...]:
    """Take the first prompts of each set, in the order of the shares, with the set for their category."""
    return tuple(
        dataclasses.replace(prompt, id=f"{name}.{prompt.id}", category=name)
        for name, share in MIXED_SHARES.items()
        for prompt in _by_name(name)[1][:share]
    )


def _check_name(path: Path) -> None:
    if not _NAME.fullmatch(path.stem):
        raise WorkloadError(
            f"{path}: a workload is named after its file, and baseline files after the workload: use lower-case "
            "letters and digits joined by single '.', '_' or '-'"
        )
