"""A script, not a module: the Python that runs SGLang is given its text with ``-c`` and a request as JSON.

It runs under the launch's own launcher and environment, in a container too, and needs nothing but the standard
library. Three questions:

- ``look``: which SGLang is installed, and what lies at some paths. Imports nothing of SGLang: a tenth of a second.
- ``parse``: SGLang's own argument parser as a table, and what it says to some words. Imports SGLang: ten seconds.
- ``render``: what a model's chat template makes of some conversations. Imports transformers: a few seconds.

The answer is one line of JSON behind ``MARK``; whatever else is printed is SGLang's.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from typing import Any

MARK = "SPECDEC-PROBE "


def main(request: dict[str, object]) -> dict[str, object]:
    """Answer one request."""
    if request["ask"] == "look":
        return look(list(request["paths"]))  # type: ignore[call-overload]
    if request["ask"] == "render":
        return render(request)
    return parse(list(request["words"]))  # type: ignore[call-overload]


def look(paths: list[str]) -> dict[str, object]:
    """Return SGLang's version (None: not installed), a stamp of its parser's files, and the paths' kinds."""
    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        version = None
    return {
        "python": sys.executable,
        "sglang_version": version,
        "stamp": stamp(),
        "paths": {path: kind(path) for path in paths},
    }


def kind(path: str) -> str:
    """Say what is there: ``model``, ``file``, ``no-config`` (a directory without ``config.json``), ``missing``."""
    if os.path.isfile(path):  # noqa: PTH113  # pathlib costs a fifth of this script's time
        return "file"
    if not os.path.isdir(path):  # noqa: PTH112
        return "missing"
    return "model" if os.path.isfile(os.path.join(path, "config.json")) else "no-config"  # noqa: PTH113, PTH118


def stamp() -> str:
    """Digest what tells one installed parser from another: the place, size and time of the files it is made of."""
    found = importlib.util.find_spec("sglang")
    places = list(found.submodule_search_locations or ()) if found is not None else []
    digest = hashlib.sha256(sys.version.encode())
    for place in places:
        files = [os.path.join(place, "srt", "server_args.py")]  # noqa: PTH118
        for folder, _, names in os.walk(os.path.join(place, "srt", "arg_groups")):  # noqa: PTH118
            files += [os.path.join(folder, name) for name in names if name.endswith(".py")]  # noqa: PTH118
        for file in sorted(files):
            with contextlib.suppress(OSError):
                facts = os.stat(file)  # noqa: PTH116
                digest.update(f"{file} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()


class Refused(Exception):  # noqa: N818  # an answer, not a failure
    """The parser refused the words."""


class Parser(argparse.ArgumentParser):
    """SGLang's options, with errors as exceptions."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Raise instead of ending Python."""
        raise Refused(message)


def parse(words: list[str]) -> dict[str, object]:
    """Build the parser as a launch does, and let it read the words."""
    with contextlib.suppress(ImportError):  # versions before 0.5.6 have no plug-ins
        importlib.import_module("sglang.srt.plugins").load_plugins()
    parser = Parser(prog="sglang serve")
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    return {"options": table(parser), "algorithms": algorithms(), "error": error_of(parser, words)}


def error_of(parser: Parser, words: list[str]) -> str | None:
    """Return what the parser has against the words, None when it takes them."""
    try:
        if "--config" in words:
            merger = importlib.import_module("sglang.srt.utils.server_args_config_parser").ConfigArgumentMerger
            words = merger(parser).merge_config_with_args(words)
        parser.parse_args(words)
    except Refused as refused:
        return str(refused)
    except SystemExit:
        return "it printed its help and ended"
    except Exception as error:  # noqa: BLE001  # types and actions are SGLang's own code, and may raise anything
        return f"{type(error).__name__}: {error}"
    return None


#: Actions that a table can stand for. Others run code of SGLang's.
_PLAIN = ("_StoreAction", "_StoreTrueAction", "_StoreFalseAction", "BooleanOptionalAction")


def table(parser: argparse.ArgumentParser) -> list[dict[str, object]]:
    """Return the options as JSON can hold them; ``type`` is empty where only SGLang can read a value."""
    rows: list[dict[str, object]] = []
    for action in parser._actions:  # noqa: SLF001  # argparse has no public list
        if not action.option_strings or action.dest in ("help", "version"):
            continue
        reader = action.type or str
        plain = type(action).__name__ in _PLAIN and reader in (str, int, float)
        choices = None if action.choices is None else list(action.choices)
        if isinstance(action.choices, (set, frozenset)):
            choices = sorted(action.choices, key=str)  # the same in every process
        rows.append(
            {
                "flags": list(action.option_strings),
                "nargs": action.nargs,
                "type": getattr(reader, "__name__", "") if plain else "",
                "choices": choices if choices is None or plain else [str(choice) for choice in choices],
            }
        )
    return rows


def algorithms() -> list[str] | None:
    """Return the names of drafting algorithms, plug-ins' own included; None for a version that has no list."""
    try:
        known = importlib.import_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm
        names = {member.name for member in known} - {"NONE"}
    except Exception:  # noqa: BLE001  # versions differ, and an answer without this is still worth having
        return None
    with contextlib.suppress(Exception):
        registry = importlib.import_module("sglang.srt.speculative.spec_registry")
        names |= set(registry._REGISTRY)  # noqa: SLF001  # there is no public list
    return sorted(names | {"NEXTN"})  # an alias in every version


def render(request: dict[str, object]) -> dict[str, object]:
    """Render ``conversations`` with the tokenizer of ``model`` as one begins an answer to them.

    A beginning-of-text token that the tokenizer adds by itself is left out of the text, where it would be there
    twice. ``error`` says why there is no rendering, or that the text is not read back as the same tokens.
    """
    auto = importlib.import_module("transformers").AutoTokenizer
    try:
        tokenizer = auto.from_pretrained(
            request["model"], revision=request["revision"], trust_remote_code=bool(request["trust_remote_code"])
        )
    except Exception as error:  # noqa: BLE001  # tokenizers are other people's code, and may raise anything
        return {"error": f"its tokenizer can't be loaded: {type(error).__name__}: {error}"}
    if not getattr(tokenizer, "chat_template", None):
        return {"error": "its tokenizer has no chat template"}
    try:
        rendered = [as_text(tokenizer, messages) for messages in list(request["conversations"])]  # type: ignore[call-overload]
    except Exception as error:  # noqa: BLE001  # so are templates
        return {"error": f"its chat template can't be rendered: {type(error).__name__}: {error}"}
    if None in rendered:
        return {"error": "its tokenizer adds other special tokens to a text than its chat template has"}
    return {"error": None, "rendered": rendered}


def as_text(tokenizer: Any, messages: list[dict[str, str]]) -> str | None:  # noqa: ANN401  # transformers' class
    """Return the text that a server reads as the tokens of the rendered conversation; None when there is none."""
    whole: str = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    wanted = list(tokenizer(whole, add_special_tokens=False)["input_ids"])
    begin = getattr(tokenizer, "bos_token", None) or ""
    shorter = whole.removeprefix(begin)
    return next((text for text in (whole, shorter) if list(tokenizer(text)["input_ids"]) == wanted), None)


if __name__ == "__main__":
    answer = main(json.loads(sys.argv[1]))
    sys.stdout.write("\n" + MARK + json.dumps(answer, default=str) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads of what SGLang imported must not keep this alive
