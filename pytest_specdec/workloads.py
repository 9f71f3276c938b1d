"""Workloads: fixed sets of prompts, built in or from a user's file, with a hash of their content."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pytest_specdec.errors import WorkloadError
from pytest_specdec.model import Prompt, Workload

_SETS: Final = Path(__file__).parent / "workload_sets"
_NAME: Final = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
_KEYS: Final = frozenset({"id", "category", "text", "prompt"})


def built_in() -> tuple[str, ...]:
    """The names of the sets that come with the package."""
    return tuple(sorted(path.stem for path in _SETS.glob("*.jsonl")))


def load_workload(name_or_path: str) -> Workload:
    """Load a built-in set by name, or a user's file by a path that ends in ``.jsonl``.

    A file holds one JSON object a line: ``text`` (or ``prompt``), and optionally ``id`` and ``category``. The
    workload is named after the file.

    Raises:
        WorkloadError: the name is unknown, or a line can't be read; with file, line number and key.
    """
    if name_or_path.endswith(".jsonl"):
        return _read(Path(name_or_path))
    if name_or_path not in built_in():
        near = difflib.get_close_matches(name_or_path, built_in(), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise WorkloadError(
            f"there is no workload {name_or_path!r}.{hint} Built in are {', '.join(built_in())}; "
            "a path that ends in .jsonl is read as a file"
        )
    return _read(_SETS / f"{name_or_path}.jsonl")


def content_hash(prompts: Iterable[Prompt]) -> str:
    """Return 64 hex digits over ids, categories and texts, in order."""
    content = [[prompt.id, prompt.category, prompt.text] for prompt in prompts]
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()


def _read(path: Path) -> Workload:
    if not _NAME.fullmatch(path.stem):
        raise WorkloadError(
            f"{path}: a workload is named after its file, and baseline files after the workload: use lower-case "
            "letters and digits joined by single '.', '_' or '-'"
        )
    try:
        # Not splitlines(): a line separator (U+2028) may stand unescaped within a JSON string.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: can't be read as a workload: {error}") from None
    prompts = [_prompt(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not prompts:
        raise WorkloadError(f'{path}: no prompts; write one JSON object a line, such as {{"text": "..."}}')
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise WorkloadError(f"{path}: two prompts have the id {prompt.id!r}")
        seen.add(prompt.id)
    return Workload(name=path.stem, prompts=tuple(prompts), content_hash=content_hash(prompts))


def _prompt(path: Path, number: int, line: str) -> Prompt:
    where = f"{path}:{number}"
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise WorkloadError(f"{where}: not a JSON object: {error}") from None
    if not isinstance(row, dict):
        raise WorkloadError(f"{where}: expected a JSON object, got {type(row).__name__}")
    unknown = sorted(set(row) - _KEYS)
    if unknown:
        raise WorkloadError(f"{where}: unknown key {unknown[0]!r}; a prompt has text (or prompt), id, category")
    if "text" in row and "prompt" in row:
        raise WorkloadError(f"{where}: text and prompt are two words for the same; keep one of them")
    key = "prompt" if "prompt" in row else "text"
    text = row.get(key)
    if not isinstance(text, str) or not text:
        raise WorkloadError(f"{where}: {key}: expected a string that is not empty, got {text!r}")
    prompt_id, category = row.get("id", f"p{number}"), row.get("category", path.stem)
    for name, value in (("id", prompt_id), ("category", category)):
        # '#' marks the copies of a prompt that a round sends more than once.
        if not isinstance(value, str) or not value or "#" in value:
            raise WorkloadError(f"{where}: {name}: expected a string that is not empty, without '#', got {value!r}")
    for name, value in ((key, text), ("id", prompt_id), ("category", category)):
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise WorkloadError(f"{where}: {name}: holds half a surrogate pair, which no encoding can send")
    return Prompt(id=prompt_id, category=category, text=text)
